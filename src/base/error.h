/**
 * @file error.h  Functions that fill the caller's error record. The function that finds a fault
 * calls them.
 */
#ifndef WH_BASE_ERROR_H
#define WH_BASE_ERROR_H

#include <wherry/base.h>

#include "base/shared.h"

/** Evaluates `call` and assigns its result to `status`, unless `status` is already an error. */
#define WH_THEN(status, call) ((void)((status) == WHERRY_OK ? ((status) = (call)) : WHERRY_OK))

/**
 * Writes status and message into error and resets all other members. error may be NULL.
 * @return status, so that a caller can write `return wh_fail(...)`.
 */
WH_SHARED wherry_status wh_fail(wherry_error *error, wherry_status status, const char *format, ...) WHERRY_PRINTF(3, 4);

/** Like wh_fail, and stores the byte offset of the fault in the input. */
WH_SHARED wherry_status wh_fail_at(wherry_error *error, wherry_status status, uint64_t offset, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** Like wh_fail, and stores an errno. Its text is appended to the message. */
WH_SHARED wherry_status wh_fail_errno(wherry_error *error, wherry_status status, int errnum, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/**
 * Fails with WHERRY_NO_MEMORY. @param purpose  what the memory was for: "out of memory for
 * PURPOSE".
 */
WH_SHARED wherry_status wh_fail_memory(wherry_error *error, const char *purpose);

/**
 * Checks the result of an allocation. @return WHERRY_OK; the result of wh_fail_memory if `memory`
 * is NULL.
 */
static inline wherry_status wh_check_memory(const void *memory, wherry_error *error, const char *purpose) {
    return memory ? WHERRY_OK : (wh_fail_memory(error, purpose), WHERRY_NO_MEMORY);
}

/**
 * Adds the rank that the error is about to a record that is already filled. error may be NULL.
 * @return status.
 */
wherry_status wh_fail_rank(wherry_error *error, int32_t rank, wherry_status status);

/**
 * Adds a path to a record that is already filled. A path that is too long is shortened in the
 * middle. error may be NULL.
 */
WH_SHARED void wh_fail_path(wherry_error *error, const char *path);

#if defined(__clang_analyzer__) && !defined(WH_DEFINES_ERRORS)
/*
 * A static analyzer does not see the bodies of these functions. These macros tell the analyzer that
 * each function returns the given status.
 */
#define wh_fail(error, status, ...) (wh_fail(error, status, __VA_ARGS__), (status))
#define wh_fail_at(error, status, ...) (wh_fail_at(error, status, __VA_ARGS__), (status))
#define wh_fail_errno(error, status, ...) (wh_fail_errno(error, status, __VA_ARGS__), (status))
#define wh_fail_memory(error, purpose) (wh_fail_memory(error, purpose), WHERRY_NO_MEMORY)
#endif

/**
 * Evaluates `call`. If its result is not WHERRY_OK, returns that status from the current function.
 */
#define WH_TRY(call)                                                                                                   \
    do {                                                                                                               \
        wherry_status try_status = (call);                                                                             \
        if (try_status != WHERRY_OK) {                                                                                 \
            return try_status;                                                                                         \
        }                                                                                                              \
    } while (0)

/**
 * Checks an allocation. If `good` is NULL or false, fails with WHERRY_NO_MEMORY and returns from
 * the current function. @param purpose  as in wh_fail_memory.
 */
#define WH_TRY_ALLOC(good, error, purpose)                                                                             \
    do {                                                                                                               \
        if (!(good)) {                                                                                                 \
            return wh_fail_memory(error, purpose);                                                                     \
        }                                                                                                              \
    } while (0)

#endif
