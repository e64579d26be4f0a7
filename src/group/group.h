/**
 * @file group.h  A group: who the ranks are, and small tagged messages between them, each with a deadline.
 *
 * One table of operations a kind of group. A message is handed over whole or not at all; messages with one tag between two ranks keep their order.
 * A tag is a number that both sides agreed on (a nonce, the number of a transfer), so that what is left of one conversation can never be taken for
 * a part of the next.
 */
#ifndef WH_GROUP_GROUP_H
#define WH_GROUP_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>

#include "base/clock.h"

typedef struct wh_group wh_group;

/** In wh_group_receive: from whichever rank. */
#define WH_ANY_RANK (-1)

/** A message is no longer than this. */
#define WH_MESSAGE_MAX (UINT64_C(1) << 30)

/** A message that was received. */
typedef struct wh_message {
    int32_t rank;         /**< Who sent it. */
    uint64_t incarnation; /**< As which incarnation. */
    uint64_t tag;
    void *bytes; /**< Released by wh_message_clear. */
    size_t size;
} wh_message;

/** Releases the bytes of a message. */
void wh_message_clear(wh_message *message);

/** What a kind of group can do. The conformance suite asserts each that is declared. */
enum {
    WH_GROUP_BACKGROUND = 1, /**< Messages arrive while nobody is inside a call. */
    WH_GROUP_DEATH = 2,      /**< A rank's death ends whoever waits on it. */
    WH_GROUP_REJOIN = 4,     /**< A rank may come back as another incarnation. */
    WH_GROUP_CONCURRENT = 8, /**< Several threads may call at once. */
};

typedef struct wh_group_ops {
    const char *name;
    uint32_t capabilities; /**< WH_GROUP_* */

    /**
     * Sends a message. The bytes are the caller's again when it returns. Blocks until the message is on its way, not until it is received.
     * Errors: WHERRY_TIMED_OUT, WHERRY_PEER_LOST, WHERRY_CLOSED, WHERRY_NO_MEMORY.
     */
    wherry_status (*send)(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                          wh_deadline deadline, wherry_error *error);

    /** Receives a message: as wh_mailbox_take. */
    wherry_status (*receive)(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                             wherry_error *error);

    /** Drops messages with a tag that nobody will ask for any more. Never fails. */
    void (*discard)(wh_group *group, uint64_t tag);

    /** Leaves the group: whoever waits is sent away, peers notice. Called once, when no thread is inside another call. */
    void (*destroy)(wh_group *group);
} wh_group_ops;

/** What every kind of group begins with. */
struct wh_group {
    const wh_group_ops *ops;
    int32_t rank;
    int32_t size;
};

/** The operations, with their arguments checked: a rank outside the group or a message that is too long is WHERRY_INVALID_ARGUMENT. */
wherry_status wh_group_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                            wh_deadline deadline, wherry_error *error);
wherry_status wh_group_receive(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                               wherry_error *error);
void wh_group_discard(wh_group *group, uint64_t tag);

/** group may be NULL. */
void wh_group_destroy(wh_group *group);

#endif
