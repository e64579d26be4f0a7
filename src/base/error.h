/** @file error.h  Filling the caller's error record at the place where a fault is found. */
#ifndef WH_BASE_ERROR_H
#define WH_BASE_ERROR_H

#include <wherry/base.h>

#include "base/shared.h"

/** Runs a call unless an earlier one has failed. */
#define WH_THEN(status, call) ((void)((status) == WHERRY_OK ? ((status) = (call)) : WHERRY_OK))

/**
 * Writes status and message into error and resets rank, path, offset and errno. error may be NULL.
 * @return status, so that a caller can write `return wh_fail(...)`.
 */
WH_SHARED wherry_status wh_fail(wherry_error *error, wherry_status status, const char *format, ...) WHERRY_PRINTF(3, 4);

/** wh_fail with the byte offset of the fault in the input. */
WH_SHARED wherry_status wh_fail_at(wherry_error *error, wherry_status status, uint64_t offset, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** wh_fail with an errno, whose text is appended to the message. */
WH_SHARED wherry_status wh_fail_errno(wherry_error *error, wherry_status status, int errnum, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** WHERRY_NO_MEMORY. @param purpose  what the memory was for. */
WH_SHARED wherry_status wh_fail_memory(wherry_error *error, const char *purpose);

/** @return WHERRY_OK; wh_fail_memory if the allocation of `memory` has failed: it is NULL. */
static inline wherry_status wh_check_memory(const void *memory, wherry_error *error, const char *purpose) {
    return memory ? WHERRY_OK : (wh_fail_memory(error, purpose), WHERRY_NO_MEMORY);
}

/** Adds the rank that the error is about to a filled record. error may be NULL. @return status. */
wherry_status wh_fail_rank(wherry_error *error, int32_t rank, wherry_status status);

/** Adds a path to a filled record. Of a path that is too long, the middle is left out. */
WH_SHARED void wh_fail_path(wherry_error *error, const char *path);

#if defined(__clang_analyzer__) && !defined(WH_DEFINES_ERRORS)
/* Tells the analyzer, which does not see their bodies, that these return the given status. */
#define wh_fail(error, status, ...) (wh_fail(error, status, __VA_ARGS__), (status))
#define wh_fail_at(error, status, ...) (wh_fail_at(error, status, __VA_ARGS__), (status))
#define wh_fail_errno(error, status, ...) (wh_fail_errno(error, status, __VA_ARGS__), (status))
#define wh_fail_memory(error, purpose) (wh_fail_memory(error, purpose), WHERRY_NO_MEMORY)
#endif

/** Returns the status of a call from the calling function, unless it is WHERRY_OK. */
#define WH_TRY(call)                                                                                                   \
    do {                                                                                                               \
        wherry_status try_status = (call);                                                                             \
        if (try_status != WHERRY_OK) {                                                                                 \
            return try_status;                                                                                         \
        }                                                                                                              \
    } while (0)

#endif
