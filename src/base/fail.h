/** @file fail.h  Filling the caller's error record where a fault is found. */
#ifndef WH_BASE_FAIL_H
#define WH_BASE_FAIL_H

#include <wherry/base.h>

#include "base/shared.h"

/**
 * Writes status and message into error (which may be NULL), and no rank, path, offset or errno.
 * @return status, so that a caller can `return wh_fail(...)`.
 */
WH_SHARED wherry_status wh_fail(wherry_error *error, wherry_status status, const char *format, ...) WHERRY_PRINTF(3, 4);

/** The same, with the byte offset in the input where the fault is. */
WH_SHARED wherry_status wh_fail_at(wherry_error *error, wherry_status status, uint64_t offset, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** The same, with errno, whose text is appended to the message. */
WH_SHARED wherry_status wh_fail_errno(wherry_error *error, wherry_status status, int errnum, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** WHERRY_NO_MEMORY, with what the memory was for. */
WH_SHARED wherry_status wh_fail_memory(wherry_error *error, const char *purpose);

/** Adds the rank that it is about to a record that wh_fail has filled; NULL for error is allowed. @return its status. */
wherry_status wh_fail_about(wherry_error *error, int32_t rank, wherry_status status);

/** Adds a path to a record that wh_fail has filled; one that is too long keeps its beginning and its end. */
WH_SHARED void wh_fail_path(wherry_error *error, const char *path);

#endif
