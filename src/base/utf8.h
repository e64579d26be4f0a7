/** @file utf8.h  Whether bytes are UTF-8. */
#ifndef WH_BASE_UTF8_H
#define WH_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/shared.h"

/** Whether text is well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
WH_SHARED bool wh_utf8_valid(const char *text, size_t size);

/** Whether text is UTF-8 and can be printed wherever it ends up: none of the control characters of ASCII and Latin-1. */
bool wh_utf8_printable(const char *text, size_t size);

#endif
