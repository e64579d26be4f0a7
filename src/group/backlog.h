/**
 * @file backlog.h  Messages for one peer that could not be sent at once. With it, a loop that
 * serves several peers never waits for one of them.
 *
 * 1. Messages are sent in the order in which they were given.
 * 2. The size of the waiting messages is limited, so a peer that takes nothing costs a limited
 *    amount of memory.
 * 3. Over a group without sockets, a long message is sent in parts, and must be sent to its end.
 *    The loop waits only for such a message.
 */
#ifndef WH_GROUP_BACKLOG_H
#define WH_GROUP_BACKLOG_H

#include "base/clock.h"
#include "base/stop.h"
#include "base/text.h"
#include "group/group.h"

/** Set the first six members; the others start as 0. One thread at a time may use it. */
typedef struct wh_backlog {
    wh_group *group;
    int32_t rank;
    uint64_t tag;
    wh_stop stop;                     /**< A stop request ends a wait. */
    wh_deadline deadline;             /**< No wait takes longer than this. */
    int64_t parts_ms;                 /**< How long a message that is sent in parts may take. */
    struct wh_waiting_message *first; /**< Oldest first. */
    struct wh_waiting_message *last;
    size_t count;
    size_t bytes;
} wh_backlog;

/**
 * Sends a message if that is possible without waiting, or keeps it.
 * @param message  encoded; taken over. `failed` is allowed.
 * @return WHERRY_OK, also if it is kept; WHERRY_TIMED_OUT if too many wait; WHERRY_NO_MEMORY; as
 * wh_group_send.
 */
wherry_status wh_backlog_send(wh_backlog *backlog, wh_string *message, wherry_error *error);

/** Sends waiting messages, as far as that is possible without waiting. @return as wh_group_send. */
wherry_status wh_backlog_flush(wh_backlog *backlog, wherry_error *error);

/** Drops all messages. */
void wh_backlog_clear(wh_backlog *backlog);

#endif
