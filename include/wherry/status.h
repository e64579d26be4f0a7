/**
 * @file wherry/status.h  The list of everything that a call can answer.
 *
 * Every function that can fail returns a wherry_status: WHERRY_OK (0) or a negative value from the list below. The
 * values are pinned and never reused. They are grouped by what the caller can do next; wherry_status_group tells the
 * group, so that a program need not know each value. docs/errors.md explains each one.
 */
#ifndef WHERRY_STATUS_H
#define WHERRY_STATUS_H

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
