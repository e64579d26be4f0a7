/** @file text.h  Growing strings, UTF-8, and doubles as text. */
#ifndef WH_BASE_TEXT_H
#define WH_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "base/shared.h"

/**
 * A growing string. Initialize it with {0}. After a failed allocation, `failed` stays set and
 * appending does nothing.
 */
typedef struct wh_string {
    char *bytes; /**< Zero-terminated after the first append. */
    size_t size;
    size_t capacity;
    bool failed;
} wh_string;

WH_SHARED void wh_string_append(wh_string *string, const char *bytes, size_t size);

WH_SHARED void wh_string_format(wh_string *string, const char *format, ...) WHERRY_PRINTF(2, 3);

/**
 * Makes room for `more` bytes at the end. @return the start of the room; NULL if out of memory. The
 * caller writes the bytes and adds their number to string->size.
 */
char *wh_string_room(wh_string *string, size_t more);

/** Appends a big-endian number of `width` bytes. */
void wh_append_number(wh_string *string, uint64_t number, size_t width);

/** Appends the size as a big-endian number of `width` bytes, then the bytes. */
void wh_append_sized(wh_string *string, const void *bytes, size_t size, size_t width);

/**
 * Takes the text out of the string, which is empty afterwards. @return the text, which the caller
 * frees with wh_free; NULL if an append failed.
 */
WH_SHARED char *wh_string_take(wh_string *string);

/** True if text is well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
WH_SHARED bool wh_utf8_valid(const char *text, size_t size);

/** True if a byte is not the first byte of a UTF-8 character. */
static inline bool wh_utf8_continues(char byte) {
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/**
 * True if text is UTF-8 without control characters: U+0000 to U+001F and U+007F to U+009F. Such
 * text is safe to print on a terminal.
 */
bool wh_utf8_printable(const char *text, size_t size);

/** The largest size up to `most` that does not cut a character of a UTF-8 text. */
size_t wh_utf8_cut(const char *text, size_t size, size_t most);

/** Size of the buffer for wh_double_format in bytes, including the final zero. */
#define WH_DOUBLE_TEXT_MAX 40

/**
 * Formats a finite number with enough digits to read exactly the same number back. The text always
 * has a point or an exponent. Independent of the locale. @return text.
 */
char *wh_double_format(double number, char text[WH_DOUBLE_TEXT_MAX]);

/**
 * Parses a zero-terminated text. The whole text must be one finite decimal number. Independent of
 * the locale. @return false if it is not such a number.
 */
bool wh_double_parse(const char *text, double *number_p);

/** The value of a hexadecimal digit; -1 if c is not such a digit. */
static inline int wh_hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

#endif
