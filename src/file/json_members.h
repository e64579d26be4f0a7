/**
 * @file json_members.h  JSON objects member by member, each parsed by Jansson.
 *
 * A header of 100,000 tensors is not made into one tree of a hundred megabytes: the object around them is walked here, and every name and every
 * value in it is a text that Jansson parses alone. So memory is that of one member, whatever the header claims.
 */
#ifndef WH_FILE_JSON_MEMBERS_H
#define WH_FILE_JSON_MEMBERS_H

#include <jansson.h>

#include "base/text.h"
#include "file/file_fail.h"

/** A JSON text that is being read. */
typedef struct wh_json {
    const char *path; /**< The file that it is from, and where in it, for errors. */
    uint64_t begin;
    const char *text;
    size_t size;
    size_t at;
} wh_json;

/** Takes a member: its name, a string; its value must be read, or its members. */
typedef wherry_status (*wh_json_member_fn)(void *context, wh_json *json, const json_t *name, wherry_error *error);

/** Reads an object, member by member. @return WHERRY_OK; WHERRY_MALFORMED where the next value is none; what `take` returned. */
wherry_status wh_json_members(wh_json *json, wh_json_member_fn take, void *context, wherry_error *error);

/**
 * Reads a value.
 * @param most     bytes that it may take: WHERRY_LIMIT for more.
 * @param value_p  to json_decref.
 */
wherry_status wh_json_value(wh_json *json, size_t most, json_t **value_p, wherry_error *error);

/** Whether the next value is null, which is then read. */
bool wh_json_take_null(wh_json *json);

/** WHERRY_MALFORMED where anything but white space is left. */
wherry_status wh_json_end(wh_json *json, wherry_error *error);

/** Where it stands. */
static inline wh_spot wh_json_spot(const wh_json *json) {
    return wh_spot_byte(json->path, json->begin + json->at);
}

/** Appends UTF-8 as a JSON string, escaped by Jansson. A failure is noted in out. */
void wh_json_append(wh_string *out, const char *text, size_t size);

#endif
