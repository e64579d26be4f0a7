/**
 * @file json.h  Reads JSON objects one member at a time, and writes JSON strings.
 *
 * If Jansson parsed a whole header of 100,000 tensors, the result would take a hundred megabytes.
 * So this code reads the outer objects itself, and Jansson parses each name and each value
 * separately. Only a few names and values exist as Jansson objects at a time.
 */
#ifndef WH_FILE_JSON_H
#define WH_FILE_JSON_H

#include <jansson.h>

#include "base/text.h"
#include "file/open.h"

/** A JSON text that is being read. */
typedef struct wh_json {
    const char *path; /**< The file, for errors. */
    uint64_t begin;   /**< The offset of the text in the file, for errors. */
    const char *text;
    size_t size;
    size_t at;
} wh_json;

/**
 * Callback for one member. `name` is a JSON string, borrowed. The function must read the value from
 * `json`, as a whole or member by member.
 */
typedef wherry_status (*wh_json_member_fn)(void *context, wh_json *json, const json_t *name, wherry_error *error);

/**
 * Reads an object, member by member.
 * @return WHERRY_OK; WHERRY_MALFORMED if the next value is not a valid object; WHERRY_NO_MEMORY;
 * any error that `read` returned.
 */
wherry_status wh_json_members(wh_json *json, wh_json_member_fn read, void *context, wherry_error *error);

/**
 * Reads a value.
 * @param most     the maximum size of the value in bytes. Fails with WHERRY_LIMIT if it is larger.
 * @param value_p  the value, which the caller releases with json_decref.
 */
wherry_status wh_json_value(wh_json *json, size_t most, json_t **value_p, wherry_error *error);

/** Reads the next value if it is null. @return false if it is not. */
bool wh_json_take_null(wh_json *json);

/** Checks that only white space is left. Anything else is WHERRY_MALFORMED. */
wherry_status wh_json_end(wh_json *json, wherry_error *error);

/** Returns the current position, for errors. */
static inline wh_spot wh_json_spot(const wh_json *json) {
    return wh_spot_byte(json->path, json->begin + json->at);
}

/** Appends UTF-8 text as a JSON string. Sets out->failed if out of memory. */
void wh_json_append(wh_string *out, const char *text, size_t size);

#endif
