/**
 * @file json.h  JSON objects, one member at a time; each name and value is parsed by Jansson.
 *
 * A header of 100,000 tensors would become a Jansson tree of a hundred megabytes. Instead, the
 * outer object is walked here, and each member is parsed alone. So memory is bounded by one member,
 * whatever the header claims.
 */
#ifndef WH_FILE_JSON_H
#define WH_FILE_JSON_H

#include <jansson.h>

#include "base/text.h"
#include "file/open.h"

/** A JSON text that is being read. */
typedef struct wh_json {
    const char *path; /**< The file, for errors. */
    uint64_t begin;   /**< Where the text starts in the file, for errors. */
    const char *text;
    size_t size;
    size_t at;
} wh_json;

/** Receives a member's name, a string. The function must read the value, or its members. */
typedef wherry_status (*wh_json_member_fn)(void *context, wh_json *json, const json_t *name, wherry_error *error);

/**
 * Reads an object, member by member.
 * @return WHERRY_OK; WHERRY_MALFORMED if the next value is not an object; what `read` returned.
 */
wherry_status wh_json_members(wh_json *json, wh_json_member_fn read, void *context, wherry_error *error);

/**
 * Reads a value.
 * @param most     WHERRY_LIMIT if the value takes more bytes.
 * @param value_p  release with json_decref.
 */
wherry_status wh_json_value(wh_json *json, size_t most, json_t **value_p, wherry_error *error);

/** Reads the next value if it is null. @return false if it is not. */
bool wh_json_take_null(wh_json *json);

/** WHERRY_MALFORMED if anything but white space is left. */
wherry_status wh_json_end(wh_json *json, wherry_error *error);

/** The current position. */
static inline wh_spot wh_json_spot(const wh_json *json) {
    return wh_spot_byte(json->path, json->begin + json->at);
}

/** Appends UTF-8 as a JSON string. Sets out->failed if out of memory. */
void wh_json_append(wh_string *out, const char *text, size_t size);

#endif
