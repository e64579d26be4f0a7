/**
 * @file wherry/base.h  What every other header builds on: version, statuses, errors, the log, the
 * allocator, cancel.
 *
 * All since 0.1.
 */
#ifndef WHERRY_BASE_H
#define WHERRY_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
/** Marks a function of the public interface. */
#define WHERRY_API __attribute__((visibility("default")))
/**
 * Marks a printf-like function: `text` is the number of its format argument, `first` of the first
 * value.
 */
#define WHERRY_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define WHERRY_API
#define WHERRY_PRINTF(text, first)
#endif

/** @name Version */
/** @{ */

#define WHERRY_VERSION_MAJOR 0        /**< A change breaks the interface. */
#define WHERRY_VERSION_MINOR 1        /**< Additions to the interface; before 1.0 also changes. */
#define WHERRY_VERSION_PATCH 0        /**< An increase fixes faults. */
#define WHERRY_VERSION_STRING "0.1.0" /**< The version of these headers. */

/** The version of the loaded library, "MAJOR.MINOR.PATCH"; valid forever. Any thread. */
WHERRY_API const char *wherry_version(void);

/** @} */
/**
 * @name Statuses
 *
 * Every function that can fail returns a wherry_status: WHERRY_OK (0) or a negative value from the
 * list below. The values are pinned and never reused. They are grouped by what the caller can do
 * next, so a program does not need to know each value. docs/errors.md explains each one.
 */
/** @{ */

/**
 * X(NAME, VALUE, GROUP, TEXT): the list that makes the enum, the strings and Python's exceptions.
 */
#define WHERRY_STATUS_LIST(X)                                                                                          \
    X(OK, 0, NONE, "ok")                                                                                               \
    X(INVALID_ARGUMENT, -100, ARGUMENT, "invalid argument")                                                            \
    X(UNSUPPORTED, -101, ARGUMENT, "not supported by this build or on this machine")                                   \
    X(NOT_FOUND, -102, ARGUMENT, "nothing at that path or key")                                                        \
    X(DUPLICATE_KEY, -103, ARGUMENT, "the dict already has that key")                                                  \
    X(BAD_PATH, -104, ARGUMENT, "invalid path syntax")                                                                 \
    X(MISMATCH, -105, ARGUMENT, "source and target differ")                                                            \
    X(NO_MEMORY, -200, RESOURCE, "out of memory")                                                                      \
    X(SYSTEM, -201, RESOURCE, "a system call failed")                                                                  \
    X(TRUNCATED, -300, BYTES, "the bytes end too early")                                                               \
    X(MALFORMED, -301, BYTES, "the bytes do not follow the format")                                                    \
    X(NOT_CANONICAL, -302, BYTES, "the bytes are not in canonical form")                                               \
    X(BAD_VERSION, -303, BYTES, "written by an incompatible version")                                                  \
    X(LIMIT, -304, BYTES, "the bytes claim more than the limits allow")                                                \
    X(OUT_OF_BOUNDS, -305, BYTES, "a range lies outside its container")                                                \
    X(REPEATED_KEY, -306, BYTES, "a dict in the bytes has the same key twice")                                         \
    X(TRAILING_BYTES, -307, BYTES, "there are bytes after the end")                                                    \
    X(CORRUPT, -308, BYTES, "data arrived damaged repeatedly")                                                         \
    X(REFUSED, -400, PEER, "the other side refused")                                                                   \
    X(BAD_SECRET, -401, PEER, "the secrets differ")                                                                    \
    X(PEER_LOST, -402, PEER, "a rank died or cannot be reached")                                                       \
    X(REVOKED, -403, PEER, "the source withdrew its offer: what was received is not valid")                            \
    X(ABORTED, -404, PEER, "the other side gave up")                                                                   \
    X(TIMED_OUT, -500, DEADLINE, "timed out")                                                                          \
    X(CANCELLED, -501, DEADLINE, "cancelled from this process")                                                        \
    X(CLOSED, -600, GROUP, "the group was left, or another process took this rank")                                    \
    X(INTERNAL, -900, BUG, "a bug in Wherry")

/** The status of a call. */
typedef enum wherry_status {
#define WHERRY_X(name, value, group, text) WHERRY_##name = (value),
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_status;

/** What the caller can do about a status. */
typedef enum wherry_status_group {
    WHERRY_GROUP_NONE = 0, /**< WHERRY_OK: nothing to do. */
    /** The call is wrong: correct it and call again. Nothing was changed. */
    WHERRY_GROUP_ARGUMENT = 1,
    WHERRY_GROUP_RESOURCE = 2, /**< This machine lacks something: free it, then call again. */
    WHERRY_GROUP_BYTES = 3,    /**< The input is bad: get it again, or from another source. */
    /** Another rank or the network failed: continue with others, or wait for it. */
    WHERRY_GROUP_PEER = 4,
    /** No answer in time: call again with more time, or ask another rank. */
    WHERRY_GROUP_DEADLINE = 5,
    WHERRY_GROUP_GROUP = 6, /**< The group can no longer be used here: join again. */
    WHERRY_GROUP_BUG = 9,   /**< A bug in Wherry: report it, with the message. */
} wherry_status_group;

/**
 * The name of a status, such as "WHERRY_NO_MEMORY"; "WHERRY_?" if unknown. Valid forever. Any
 * thread.
 */
WHERRY_API const char *wherry_status_name(wherry_status status);

/**
 * What a status means, in a few words without a full stop; never NULL. Valid forever. Any thread.
 */
WHERRY_API const char *wherry_status_text(wherry_status status);

/** The group of a status; WHERRY_GROUP_BUG if the status is unknown. Any thread. */
WHERRY_API wherry_status_group wherry_status_group_of(wherry_status status);

/** @} */
/**
 * @name Errors
 *
 * Functions that can fail take a wherry_error as their last argument. It belongs to the caller, may
 * be NULL, needs no initialization and holds no resources. It is written only if the call fails.
 */
/** @{ */

/** Bytes of wherry_error.path, including the final zero. */
#define WHERRY_ERROR_PATH_MAX 256
/** Bytes of wherry_error.message, including the final zero. */
#define WHERRY_ERROR_MESSAGE_MAX 704

/** The record of one failure. */
typedef struct wherry_error {
    wherry_status status; /**< The value that the call returned. */
    int32_t errnum;       /**< errno of the system call that failed, else 0. */
    int32_t rank;         /**< The rank that the error is about, else -1. */
    uint32_t reason;      /**< For a refused lane a wherry_lane_reason, else 0. */
    uint64_t offset;      /**< Byte offset in the input, else UINT64_MAX. */
    /** Path of the value that the error is about, else "". Long paths: "a…z". */
    char path[WHERRY_ERROR_PATH_MAX];
    /** What happened and what to do, in one sentence. UTF-8. */
    char message[WHERRY_ERROR_MESSAGE_MAX];
} wherry_error;

/** @} */
/**
 * @name Log
 *
 * Lines of level WARN and above go to standard error. The environment variable WHERRY_LOG (off,
 * error, warn, info, debug), read once, changes the level. A program may take the lines itself.
 */
/** @{ */

/** How important a line is. */
typedef enum wherry_log_level {
    WHERRY_LOG_OFF = 0,   /**< As a threshold: log nothing. No line has this level. */
    WHERRY_LOG_ERROR = 1, /**< Something failed. */
    WHERRY_LOG_WARN = 2,  /**< It works, but not as well as it should. */
    WHERRY_LOG_INFO = 3,  /**< What was chosen and done: a few lines per transfer. */
    WHERRY_LOG_DEBUG = 4, /**< Everything of use to a developer of Wherry. */
} wherry_log_level;

/**
 * Receives one line without a newline; valid only during the call. Any thread may log, several at
 * once. The function must not call back into the library.
 */
typedef void (*wherry_log_fn)(void *context, wherry_log_level level, const char *line);

/**
 * Sends the library's log lines to a function, for the whole process. Does not block. Call it
 * before other threads use the library.
 * @param fn       the function. NULL: standard error again.
 * @param context  passed to fn. Must stay valid until another call replaces it and no thread is
 * inside the library.
 */
WHERRY_API void wherry_log_to(wherry_log_fn fn, void *context);

/** Sets the log level; overrides WHERRY_LOG. Any thread, at any time. */
WHERRY_API void wherry_log_set_level(wherry_log_level level);

/** The current log level. Any thread. */
WHERRY_API wherry_log_level wherry_log_get_level(void);

/** @} */
/**
 * @name Allocator
 *
 * All of the library's bookkeeping is allocated through one table of functions. The bytes of
 * tensors are not: the caller wraps that memory (wherry/tensor.h), or a memory space provides it.
 * The default is the C library's allocator. It keeps up to 32 MiB of large blocks for the next
 * call, and cuts values and storages from blocks of 16 KiB.
 */
/** @{ */

/**
 * An allocator. Any thread may call the three functions, several at once. They must not call back
 * into the library. `size` is never 0. Results are aligned like malloc's; NULL means out of memory.
 */
typedef struct wherry_allocator {
    void *(*allocate)(void *context, size_t size); /**< Like malloc. */
    /** Like realloc; memory may be NULL. */
    void *(*reallocate)(void *context, void *memory, size_t size);
    /** Like free; memory is never NULL. */
    void (*release)(void *context, void *memory);
    /** Passed to the three functions. */
    void *context;
} wherry_allocator;

/**
 * Replaces the allocator, for the whole process. Not thread-safe. Call it while the library holds
 * nothing, because memory must be released by the allocator that provided it.
 * @param allocator  copied. NULL: the default again.
 */
WHERRY_API void wherry_allocator_set(const wherry_allocator *allocator);

/**
 * Releases memory that the documentation says to "release with wherry_free". memory may be NULL.
 * Any thread.
 */
WHERRY_API void wherry_free(void *memory);

/** @} */
/**
 * @name Cancel
 *
 * Ends calls from another thread. A cancel is passed to any number of calls in their options. One
 * request ends all of them, and every later call that gets the same cancel.
 */
/** @{ */

/** A handle to cancel calls. Opaque. */
typedef struct wherry_cancel wherry_cancel;

/**
 * Polled by a blocked call, in the thread that called, about every 50 ms, so that a host language
 * can look at its signals. The call cannot honour its timeout while this function runs. The
 * function must not wait for the call that polls it.
 * @return true: end the call with WHERRY_CANCELLED.
 */
typedef bool (*wherry_interrupt_fn)(void *context);

/**
 * Creates a cancel. Does not block. Any thread.
 * @param cancel_p  the caller's: wherry_cancel_destroy, when no call uses it any more.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT.
 */
WHERRY_API wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error);

/**
 * Ends the calls that use it. They tell the other side and soon return WHERRY_CANCELLED. This
 * cannot be undone; a second request does nothing. Does not block. Any thread, but not a signal
 * handler.
 */
WHERRY_API void wherry_cancel_request(wherry_cancel *cancel);

/** True if it was requested. Any thread. */
WHERRY_API bool wherry_cancel_requested(const wherry_cancel *cancel);

/** Destroys a cancel. cancel may be NULL. */
WHERRY_API void wherry_cancel_destroy(wherry_cancel *cancel);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
