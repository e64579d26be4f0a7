/** @file json_out.h  Writing JSON: objects and arrays begin and end, and commas, lines and escapes take care of themselves. */
#ifndef WH_CLI_JSON_OUT_H
#define WH_CLI_JSON_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { WH_JSON_DEPTH_MAX = 16 };

/** Starts as {.out = ...}. The key of a member is NULL within an array and at the top. */
typedef struct wh_json {
    FILE *out;
    int depth;
    bool filled[WH_JSON_DEPTH_MAX]; /**< Something stands already at that depth. */
} wh_json;

void wh_json_open(wh_json *json, const char *key, char bracket);
void wh_json_close(wh_json *json, char bracket);
void wh_json_text(wh_json *json, const char *key, const char *text);
void wh_json_number(wh_json *json, const char *key, int64_t number);
void wh_json_count(wh_json *json, const char *key, uint64_t number);
/** A number with a fraction; null where it is not finite. */
void wh_json_real(wh_json *json, const char *key, double number);
void wh_json_flag(wh_json *json, const char *key, bool flag);
void wh_json_null(wh_json *json, const char *key);

#endif
