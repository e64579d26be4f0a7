/**
 * @file wherry/base.h  Definitions that all other headers use: version, statuses, errors, the log,
 * the allocator and cancellation.
 *
 * Available since version 0.1.
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
 * Marks a printf-like function. `text` is the position of the format argument, `first` the position
 * of the first value to format.
 */
#define WHERRY_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define WHERRY_API
#define WHERRY_PRINTF(text, first)
#endif

/** @name Version */
/** @{ */

#define WHERRY_VERSION_MAJOR 0 /**< Increases with incompatible changes. */
/** Increases with additions. Before 1.0, it also increases with incompatible changes. */
#define WHERRY_VERSION_MINOR 1
#define WHERRY_VERSION_PATCH 0        /**< Increases with bug fixes. */
#define WHERRY_VERSION_STRING "0.1.0" /**< The version of these headers. */

/**
 * The version of the loaded library as "MAJOR.MINOR.PATCH". The text is valid forever. Any thread
 * may call this.
 */
WHERRY_API const char *wherry_version(void);

/** @} */
/**
 * @name Statuses
 *
 * Every function that can fail returns a wherry_status: WHERRY_OK (0) or a negative value from the
 * list below. The values are pinned and never reused. They are grouped by what the caller can do
 * next, so a program can act on the group alone. docs/errors.md explains each status.
 */
/** @{ */

/**
 * All statuses, as X(NAME, VALUE, GROUP, TEXT). The enum, the strings and Python's exceptions are
 * generated from this list.
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
    X(CORRUPT, -308, BYTES, "the data is damaged")                                                                     \
    X(REFUSED, -400, PEER, "the other side refused")                                                                   \
    X(BAD_SECRET, -401, PEER, "the secrets differ")                                                                    \
    X(PEER_LOST, -402, PEER, "a rank died or cannot be reached")                                                       \
    X(REVOKED, -403, PEER, "the source withdrew its offer; the received data is not valid")                            \
    X(ABORTED, -404, PEER, "the other side gave up")                                                                   \
    X(TIMED_OUT, -500, DEADLINE, "timed out")                                                                          \
    X(CANCELLED, -501, DEADLINE, "cancelled by this process")                                                          \
    X(CLOSED, -600, GROUP, "the group or transport is closed, or another process has taken over this rank")            \
    X(INTERNAL, -900, BUG, "a bug in Wherry")

/** The status of a call. */
typedef enum wherry_status {
#define WHERRY_X(name, value, group, text) WHERRY_##name = (value),
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_status;

/** What the caller can do about a status. */
typedef enum wherry_status_class {
    WHERRY_STATUS_CLASS_NONE = 0, /**< WHERRY_OK: nothing to do. */
    /** The call is wrong: correct it and call again. Nothing was changed. */
    WHERRY_STATUS_CLASS_ARGUMENT = 1,
    /** This machine lacks a resource: free some, then call again. */
    WHERRY_STATUS_CLASS_RESOURCE = 2,
    /** The input is bad: fetch it again, or use another source. */
    WHERRY_STATUS_CLASS_BYTES = 3,
    /**
     * Another rank or the network failed: wait until the rank is back, or continue with other
     * ranks.
     */
    WHERRY_STATUS_CLASS_PEER = 4,
    /** The call timed out or was cancelled: call again with more time, or ask another rank. */
    WHERRY_STATUS_CLASS_DEADLINE = 5,
    WHERRY_STATUS_CLASS_GROUP = 6, /**< The group can no longer be used here: join again. */
    WHERRY_STATUS_CLASS_BUG = 9,   /**< A bug in Wherry: report it, with the message. */
} wherry_status_class;

/**
 * The name of a status, such as "WHERRY_NO_MEMORY"; "WHERRY_?" if the status is unknown. The text
 * is valid forever. Any thread may call this.
 */
WHERRY_API const char *wherry_status_name(wherry_status status);

/**
 * What a status means, in a few words without a full stop; never NULL. The text is valid forever.
 * Any thread may call this.
 */
WHERRY_API const char *wherry_status_text(wherry_status status);

/**
 * The group of a status; WHERRY_STATUS_CLASS_BUG if the status is unknown. Any thread may call
 * this.
 */
WHERRY_API wherry_status_class wherry_status_class_of(wherry_status status);

/** @} */
/**
 * @name Errors
 *
 * Functions that can fail take a wherry_error as their last argument. It belongs to the caller, may
 * be NULL, needs no initialization and holds no resources. It is written only if the call fails.
 */
/** @{ */

/** Size of wherry_error.path in bytes, including the final zero. */
#define WHERRY_ERROR_PATH_MAX 256
/** Size of wherry_error.message in bytes, including the final zero. */
#define WHERRY_ERROR_MESSAGE_MAX 704

/** The record of one failure. */
typedef struct wherry_error {
    wherry_status status; /**< The value that the call returned. */
    int32_t errnum;       /**< errno of the system call that failed; 0 if none did. */
    int32_t rank;         /**< The rank that the error is about; -1 if there is none. */
    /**
     * A wherry_lane_reason, if the error says why a lane was not used. If it is 0, the library
     * derives the reason from the status. At a source with WHERRY_ABORTED: the status with which
     * the receiver gave up, without its minus sign.
     */
    uint32_t reason;
    uint64_t offset; /**< Byte offset in the input; UINT64_MAX if there is none. */
    /**
     * Path of the value that the error is about; "" if there is none. A long path is shortened in
     * the middle: "a…z".
     */
    char path[WHERRY_ERROR_PATH_MAX];
    /** What happened and what to do, in one sentence. UTF-8. */
    char message[WHERRY_ERROR_MESSAGE_MAX];
} wherry_error;

/** @} */
/**
 * @name Log
 *
 * By default, errors and warnings go to standard error. If a call waits for another rank for more
 * than 3 s, a line of level info says so, and again every 30 s. The environment variable WHERRY_LOG
 * (off, error, warn, info, debug) changes the level; it is read once. A program can receive the
 * lines itself: see wherry_log_to.
 */
/** @{ */

/** The importance of a log line. */
typedef enum wherry_log_level {
    /** Only for wherry_log_set_level: log nothing. No line has this level. */
    WHERRY_LOG_OFF = 0,
    WHERRY_LOG_ERROR = 1, /**< Something failed. */
    WHERRY_LOG_WARN = 2,  /**< Something works, but not as well as it should. */
    WHERRY_LOG_INFO = 3,  /**< What the library chose and did: a few lines per transfer. */
    WHERRY_LOG_DEBUG = 4, /**< Details for developers of Wherry. */
} wherry_log_level;

/**
 * Receives one log line without a newline. The line is valid only during the call. Several threads
 * may call the function at the same time. It must not call the library.
 */
typedef void (*wherry_log_fn)(void *context, wherry_log_level level, const char *line);

/**
 * Sends the library's log lines to a function, for the whole process. Does not block. Call it
 * before other threads use the library.
 * @param fn       the function. NULL sends the lines to standard error again.
 * @param context  passed to fn. It must stay valid until another call of wherry_log_to has replaced
 * it and no thread is inside the library.
 */
WHERRY_API void wherry_log_to(wherry_log_fn fn, void *context);

/**
 * Receives the news that a call waits for others. Otherwise like wherry_log_fn.
 * @param who whom the call waits for, such as "rank 1 at 127.0.0.1:29500".
 * @param call  what they must call; "" if they need not call anything, or may call several things.
 */
typedef void (*wherry_wait_fn)(void *context, const char *who, const char *call);

/**
 * Like wherry_log_to, for the lines about waits: sends them to a function instead of the log,
 * whatever the log level.
 */
WHERRY_API void wherry_log_waits_to(wherry_wait_fn fn, void *context);

/** Sets the log level. This overrides WHERRY_LOG. Any thread may call this at any time. */
WHERRY_API void wherry_log_set_level(wherry_log_level level);

/** The current log level. Any thread may call this. */
WHERRY_API wherry_log_level wherry_log_get_level(void);

/** @} */
/**
 * @name Allocator
 *
 * The library allocates its data structures through one table of functions, and also the memory of
 * host storages below 2 MiB that it creates. Larger storages, device memory and buffers that
 * processes share come directly from the system or the device. The default is the C library's
 * allocator with three additions: it caches up to 32 MiB of freed large blocks, it requests huge
 * pages for very large blocks, and it places small values in blocks of 16 KiB.
 */
/** @{ */

/**
 * An allocator. Several threads may call the three functions at the same time. The functions must
 * not call the library. `size` is never 0. Results must be aligned like those of malloc; NULL means
 * out of memory.
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
 * Replaces the allocator for the whole process. Not thread-safe. Call it before the library has
 * allocated anything, or after everything is destroyed: each block must be released by the
 * allocator that provided it.
 * @param allocator  copied. NULL restores the default.
 */
WHERRY_API void wherry_allocator_set(const wherry_allocator *allocator);

/**
 * Frees memory that the documentation tells the caller to free with wherry_free. memory may be
 * NULL. Any thread may call this.
 */
WHERRY_API void wherry_free(void *memory);

/** @} */
/**
 * @name Cancel
 *
 * A cancel lets one thread end the calls of other threads. The same cancel can be in the options of
 * any number of calls. One request ends all of them, and also every later call with the same
 * cancel.
 */
/** @{ */

/** A handle that cancels calls. Opaque. */
typedef struct wherry_cancel wherry_cancel;

/**
 * A blocked call runs this function about every 50 ms, in the thread that made the call, so that a
 * language such as Python can check for signals. While this function runs, the call cannot end,
 * even if its timeout has passed. The function must not wait for the end of the call.
 * @return true to end the call with WHERRY_CANCELLED.
 */
typedef bool (*wherry_interrupt_fn)(void *context);

/**
 * Creates a cancel. Does not block. Any thread may call this.
 * @param cancel_p  owned by the caller. Destroy it with wherry_cancel_destroy when no call uses it
 * any more.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT.
 */
WHERRY_API wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error);

/**
 * Ends the calls that use this cancel. These calls tell the other side and soon return
 * WHERRY_CANCELLED. A request cannot be undone. A second request does nothing. Does not block. Any
 * thread may call this, but not a signal handler.
 */
WHERRY_API void wherry_cancel_request(wherry_cancel *cancel);

/** True if wherry_cancel_request was called for this cancel. Any thread may call this. */
WHERRY_API bool wherry_cancel_requested(const wherry_cancel *cancel);

/** Destroys a cancel. cancel may be NULL. */
WHERRY_API void wherry_cancel_destroy(wherry_cancel *cancel);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
