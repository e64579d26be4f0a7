/** @file wherry/base.h  What every other header builds on: version, statuses, errors, the log, the allocator, cancelling calls. */
#ifndef WHERRY_BASE_H
#define WHERRY_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What marks a function as part of the library's interface.
 */

#if defined(__GNUC__)
/** Marks a function of the interface. */
#define WHERRY_API __attribute__((visibility("default")))
/** Marks a function that takes a format like printf's as argument number `text`, and what it is about from `first` on. */
#define WHERRY_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define WHERRY_API
#define WHERRY_PRINTF(text, first)
#endif

/*
 * Which version this is.
 */

#define WHERRY_VERSION_MAJOR 0        /**< Other numbers break the interface. */
#define WHERRY_VERSION_MINOR 1        /**< Higher numbers add to it; before 1.0 they may break it. */
#define WHERRY_VERSION_PATCH 0        /**< Higher numbers repair. */
#define WHERRY_VERSION_STRING "0.1.0" /**< The three, of these headers; wherry_version tells that of the library. */

/**
 * The version of the library that is loaded, "MAJOR.MINOR.PATCH"; compare with WHERRY_VERSION_STRING, the version of the
 * headers.
 * @return a string that lives for ever. Any thread. Since 0.1.
 */
WHERRY_API const char *wherry_version(void);

/*
 * The list of everything that a call can answer.
 *
 * Every function that can fail returns a wherry_status: WHERRY_OK (0) or a negative value from the list below. The
 * values are pinned and never reused. They are grouped by what the caller can do next; wherry_status_group tells the
 * group, so that a program need not know each value. docs/errors.md explains each one.
 */

/**
 * X(NAME, VALUE, GROUP, TEXT): the one list from which the enum, the strings and the bindings' exceptions are made.
 */
#define WHERRY_STATUS_LIST(X)                                                                                          \
    X(OK, 0, NONE, "ok")                                                                                               \
    X(INVALID_ARGUMENT, -100, ARGUMENT, "invalid argument")                                                            \
    X(UNSUPPORTED, -101, ARGUMENT, "not supported by this build or on this machine")                                   \
    X(NOT_FOUND, -102, ARGUMENT, "nothing at that path or key")                                                        \
    X(DUPLICATE_KEY, -103, ARGUMENT, "the dict has that key already")                                                  \
    X(BAD_PATH, -104, ARGUMENT, "the text is not a path")                                                              \
    X(MISMATCH, -105, ARGUMENT, "source and target differ")                                                            \
    X(NO_MEMORY, -200, RESOURCE, "out of memory")                                                                      \
    X(SYSTEM, -201, RESOURCE, "a system call failed")                                                                  \
    X(TRUNCATED, -300, BYTES, "the bytes end too early")                                                               \
    X(MALFORMED, -301, BYTES, "the bytes are not of the form that is specified")                                       \
    X(NOT_CANONICAL, -302, BYTES, "the bytes are not in canonical form")                                               \
    X(BAD_VERSION, -303, BYTES, "written by a version that this one does not read")                                    \
    X(LIMIT, -304, BYTES, "the bytes claim more than the limits allow")                                                \
    X(OUT_OF_BOUNDS, -305, BYTES, "a range lies outside what it is a part of")                                         \
    X(REPEATED_KEY, -306, BYTES, "a dict in the bytes has the same key twice")                                         \
    X(TRAILING_BYTES, -307, BYTES, "there are bytes after the end")                                                    \
    X(CORRUPT, -308, BYTES, "bytes arrived damaged, again and again")                                                  \
    X(REFUSED, -400, PEER, "the other side refused")                                                                   \
    X(BAD_SECRET, -401, PEER, "the secrets differ")                                                                    \
    X(PEER_LOST, -402, PEER, "a rank died, or cannot be reached")                                                      \
    X(REVOKED, -403, PEER, "the source took its offer back: what was received is not valid")                           \
    X(ABORTED, -404, PEER, "the other side gave up, for a reason of its own")                                          \
    X(TIMED_OUT, -500, DEADLINE, "timed out")                                                                          \
    X(CANCELLED, -501, DEADLINE, "cancelled from this process")                                                        \
    X(CLOSED, -600, GROUP, "the group was left, or another incarnation took the place")                                \
    X(INTERNAL, -900, BUG, "a bug in Wherry")

/** The status of a call. Since 0.1. */
typedef enum wherry_status {
#define WHERRY_X(name, value, group, text) WHERRY_##name = (value),
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
} wherry_status;

/** What the caller can do about a status. Since 0.1. */
typedef enum wherry_status_group {
    WHERRY_GROUP_NONE = 0,     /**< WHERRY_OK: nothing to do. */
    WHERRY_GROUP_ARGUMENT = 1, /**< The call is wrong: change it and call again. Nothing was changed. */
    WHERRY_GROUP_RESOURCE = 2, /**< This machine lacks something: free it, then call again. */
    WHERRY_GROUP_BYTES = 3,    /**< Bytes from elsewhere are bad: ask for them anew, or from somebody else. */
    WHERRY_GROUP_PEER = 4, /**< Another rank, or the way to it, is at fault: go on with the others, or wait for it. */
    WHERRY_GROUP_DEADLINE = 5, /**< There was no answer in time: call again with more time, or ask another rank. */
    WHERRY_GROUP_GROUP = 6,    /**< The group is of no more use here: join it again. */
    WHERRY_GROUP_BUG = 9,      /**< Wherry's own fault: report it, with the message. */
} wherry_status_group;

/**
 * The name of a status, such as "WHERRY_NO_MEMORY".
 * @return a string that lives for ever; "WHERRY_?" for a value that is not in the list. Any thread. Since 0.1.
 */
WHERRY_API const char *wherry_status_name(wherry_status status);

/**
 * What a status means, in a few words without a full stop.
 * @return a string that lives for ever, never NULL. Any thread. Since 0.1.
 */
WHERRY_API const char *wherry_status_text(wherry_status status);

/** The group of a status; WHERRY_GROUP_BUG for a value that is not in the list. Any thread. Since 0.1. */
WHERRY_API wherry_status_group wherry_status_group_of(wherry_status status);

/*
 * What went wrong, where, and what to do.
 *
 * Functions that can fail take a wherry_error as their last argument. It belongs to the caller, may be NULL, needs no
 * preparation and holds no resources. It is written where the fault is found, and only when the call fails: after a
 * success its content is what it was before.
 */

/** Bytes of wherry_error.path, its final zero included. */
#define WHERRY_ERROR_PATH_MAX 256
/** Bytes of wherry_error.message, its final zero included. */
#define WHERRY_ERROR_MESSAGE_MAX 704

/** The record of one failure. Since 0.1. */
typedef struct wherry_error {
    wherry_status status;             /**< The same value that the call returned. */
    int32_t errnum;                   /**< errno of the system call that failed, else 0. */
    int32_t rank;                     /**< The rank that it is about, else -1. */
    uint32_t reason;                  /**< Refused lanes: a wherry_lane_reason; else 0. */
    uint64_t offset;                  /**< Byte offset in the input that was read, else UINT64_MAX. */
    char path[WHERRY_ERROR_PATH_MAX]; /**< Path of the value that it is about, else "". Long ones are cut: "a…z". */
    char message[WHERRY_ERROR_MESSAGE_MAX]; /**< One sentence: what happened, and what to do. UTF-8. */
} wherry_error;

/*
 * What the library says while it works.
 *
 * By default lines of level WARN and above go to standard error; the environment variable WHERRY_LOG (off, error, warn,
 * info, debug), read once, changes the level. A program may take the lines itself.
 */

/** How much a line matters. Since 0.1. */
typedef enum wherry_log_level {
    WHERRY_LOG_OFF = 0,   /**< As a threshold: nothing. No line has this level. */
    WHERRY_LOG_ERROR = 1, /**< Something failed. */
    WHERRY_LOG_WARN = 2,  /**< It works, but not as well as it should. */
    WHERRY_LOG_INFO = 3,  /**< What was chosen and what was done, a few lines a transfer. */
    WHERRY_LOG_DEBUG = 4, /**< Everything of use to an author of Wherry. */
} wherry_log_level;

/**
 * Receives one line, without a newline, valid only during the call. Called from whichever thread logs, several at once;
 * it must not call back into the library.
 */
typedef void (*wherry_log_fn)(void *context, wherry_log_level level, const char *line);

/**
 * Sends the library's lines to a function, for the whole process.
 * @param fn       the function, or NULL for standard error again.
 * @param context  passed to fn; must stay valid until another call replaces it and no thread is inside the library.
 * Does not block. Any thread; call it before other threads use the library. Since 0.1.
 */
WHERRY_API void wherry_log_to(wherry_log_fn fn, void *context);

/** Sets the least important level that is still said, over WHERRY_LOG's. Any thread, at any time. Since 0.1. */
WHERRY_API void wherry_log_set_level(wherry_log_level level);

/** The level in force. Any thread. Since 0.1. */
WHERRY_API wherry_log_level wherry_log_get_level(void);

/*
 * Where the library's own memory comes from.
 *
 * All of the library's bookkeeping, whatever its size, is allocated through one table of functions. The bytes of tensors
 * are not: those are memory that the caller wraps (wherry/storage.h) or that a memory space provides. The default is the C
 * library's, which keeps up to 32 MiB of large blocks for the next call instead of giving them back to the system, and
 * out of which values and storages are cut in blocks of 16 KiB.
 */

/**
 * An allocator. All three functions are called from any thread, several at once, and may not call back into the
 * library. `size` is never 0. Results are aligned as malloc's are; NULL means that there is no memory. Since 0.1.
 */
typedef struct wherry_allocator {
    void *(*allocate)(void *context, size_t size);                 /**< As malloc. */
    void *(*reallocate)(void *context, void *memory, size_t size); /**< As realloc; memory may be NULL. */
    void (*release)(void *context, void *memory);                  /**< As free; memory is never NULL. */
    void *context;                                                 /**< Passed to the three. */
} wherry_allocator;

/**
 * Replaces the allocator, for the whole process.
 * @param allocator  copied; NULL for the default again.
 * Call it while the library holds nothing: what one allocator gave cannot be released by another. Not thread-safe.
 * Since 0.1.
 */
WHERRY_API void wherry_allocator_set(const wherry_allocator *allocator);

/**
 * Releases memory that a function of this library handed out with the words "release with wherry_free".
 * @param memory  may be NULL. Any thread. Since 0.1.
 */
WHERRY_API void wherry_free(void *memory);

/*
 * Ending calls from another thread.
 *
 * A cancel is handed to any number of calls in their options; one request ends all of them, and every later call that is given it. All since 0.1.
 */

/** Opaque. */
typedef struct wherry_cancel wherry_cancel;

/**
 * Asked by a call that waits, in the thread that called, every 50 milliseconds or so: for a host language that wants to look at its signals.
 * It may take as long as it likes, but the call does not honour its timeout meanwhile. It must not call what would wait for this very call.
 * @return true: the call shall end, with WHERRY_CANCELLED.
 */
typedef bool (*wherry_interrupt_fn)(void *context);

/**
 * @param cancel_p  belongs to the caller: wherry_cancel_destroy, when no call has it any more.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT. Does not block. Any thread.
 */
WHERRY_API wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error);

/**
 * Ends the calls that have it: they return WHERRY_CANCELLED, soon, after telling the other side. There is no way back; a second request does nothing.
 * Does not block. Any thread; not from a signal handler.
 */
WHERRY_API void wherry_cancel_request(wherry_cancel *cancel);

/** Whether it was requested. Any thread. */
WHERRY_API bool wherry_cancel_requested(const wherry_cancel *cancel);

/** cancel may be NULL. */
WHERRY_API void wherry_cancel_destroy(wherry_cancel *cancel);

#ifdef __cplusplus
}
#endif
#endif
