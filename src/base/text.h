/** @file text.h  A growing text, for paths and messages. */
#ifndef WH_BASE_TEXT_H
#define WH_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include <wherry/base.h>

#include "base/shared.h"

/** Starts as {0}. After a failed allocation it stays failed, and appending does nothing. */
typedef struct wh_string {
    char *bytes; /**< Zero-terminated once anything was appended. */
    size_t size;
    size_t capacity;
    bool failed;
} wh_string;

WH_SHARED void wh_string_append(wh_string *string, const char *bytes, size_t size);

WH_SHARED void wh_string_format(wh_string *string, const char *format, ...) WHERRY_PRINTF(2, 3);

/** The text, which the caller releases by wh_free, or NULL where memory failed; the string is empty again. */
WH_SHARED char *wh_string_take(wh_string *string);

#endif
