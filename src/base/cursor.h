/** @file cursor.h  Numbers and bytes out of what a peer sent, never beyond its end; and into what goes to one. Big endian. */
#ifndef WH_BASE_CURSOR_H
#define WH_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/** What is left of some bytes. Once something was not there, `failed` stays set and everything reads as 0. */
typedef struct wh_cursor {
    const uint8_t *at;
    size_t left;
    bool failed;
} wh_cursor;

static inline wh_cursor wh_cursor_over(const void *bytes, size_t size) {
    return (wh_cursor){bytes, size, false};
}

/** The next bytes, borrowed; NULL where there are not so many. */
const uint8_t *wh_cursor_bytes(wh_cursor *cursor, size_t size);

/** Copies the next bytes; where there are not so many, nothing. */
void wh_cursor_copy(wh_cursor *cursor, void *to, size_t size);

/** A number of `width` bytes, at most 8. */
uint64_t wh_cursor_number(wh_cursor *cursor, size_t width);

/** Whether everything was there, and nothing is left. */
static inline bool wh_cursor_ended(const wh_cursor *cursor) {
    return !cursor->failed && cursor->left == 0;
}

/** Appends a number of `width` bytes. */
void wh_append_number(wh_string *string, uint64_t number, size_t width);

/** Appends `width` bytes of length, then the bytes. */
void wh_append_sized(wh_string *string, const void *bytes, size_t size, size_t width);

/** What wh_append_sized wrote, borrowed; NULL where it is not all there. */
const uint8_t *wh_cursor_sized(wh_cursor *cursor, size_t width, size_t *size_p);

#endif
