/**
 * @file group.h  A group: who the ranks are, and small tagged messages between them, each with a
 * deadline. Each kind of group fills one table of operations.
 *
 * Invariants:
 * 1. A message arrives whole or not at all.
 * 2. Messages with one tag between two ranks keep their order.
 * 3. A conversation has a tag that nobody can guess, agreed on by both sides. So a message that is
 *    left over from one conversation is never taken for a part of another.
 * 4. Every wait ends at its deadline, at the loss of the rank that it waits for (WH_GROUP_DEATH),
 *    or when this process leaves the group.
 */
#ifndef WH_GROUP_GROUP_H
#define WH_GROUP_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <wherry/base.h>

#include "base/clock.h"
#include "base/stop.h"

typedef struct wh_group wh_group;

/** In wh_group_receive: from any rank. */
#define WH_ANY_RANK (-1)

/** The longest message, in bytes. */
#define WH_MESSAGE_MAX (UINT64_C(1) << 28)

/**
 * Set in the tags of conversations. A message with such a tag is dropped if no inbox is open for it
 * (group/mailbox.h). Messages with other tags are kept until somebody receives them.
 */
#define WH_TAG_CONVERSATION (UINT64_C(1) << 63)

/** @return a random tag of a conversation; 0 if there are no random numbers. */
uint64_t wh_random_tag(void);

typedef enum wh_message_kind {
    WH_MESSAGE_BYTES,   /**< What a rank sent. */
    WH_MESSAGE_CHANNEL, /**< A rank has opened a channel to this one: wh_group_connect. */
    WH_MESSAGE_LOST,    /**< A rank was lost or restarted. The bytes are the reason, a text. */
    WH_MESSAGE_NOTE,    /**< Posted by this process: wh_inbox_post. */
} wh_message_kind;

typedef struct wh_message {
    wh_message_kind kind;
    int32_t rank;         /**< The sender, */
    uint64_t incarnation; /**< and its incarnation. */
    uint64_t tag;
    void *bytes; /**< Released by wh_message_clear. */
    size_t size;
    /** CHANNEL: a non-blocking socket. wh_message_clear closes it unless it is -1. */
    int channel;
} wh_message;

/** Frees what belongs to a message. */
void wh_message_clear(wh_message *message);

/** What a kind of group can do. The conformance suite checks each one that is declared. */
enum {
    WH_GROUP_BACKGROUND = 1, /**< Messages arrive also while no thread is inside a call. */
    WH_GROUP_DEATH = 2,      /**< A rank's death ends every wait for it. */
    WH_GROUP_REJOIN = 4,     /**< A lost rank may come back as a new incarnation. */
    /** Several threads may call at once; otherwise only the one inside a call of the library. */
    WH_GROUP_CONCURRENT = 8,
};

typedef struct wh_mailbox wh_mailbox;

typedef struct wh_group_ops {
    const char *name;
    uint32_t capabilities; /**< WH_GROUP_* */

    /**
     * Sends a message. The bytes are the caller's again when it returns. Blocks until the message
     * is on its way, not until it is received. Holds no lock while it checks `stop`, whose question
     * may take long.
     * @param stop  may be NULL.
     * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_PEER_LOST; WHERRY_CLOSED; WHERRY_NO_MEMORY;
     * WHERRY_CANCELLED soon after the stop was requested.
     */
    wherry_status (*send)(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                          wh_deadline deadline, const wh_stop *stop, wherry_error *error);

    /**
     * Reads from the peers into the mailbox until something has come, at most until the deadline.
     * Called by a thread that waits for a message, one at a time, which must hold no lock that a
     * service takes. NULL: the group reads by itself. A group with WH_GROUP_BACKGROUND may have it
     * too: a waiter that reads its own message need not be woken.
     * @return WHERRY_OK, also at the deadline; WHERRY_CLOSED, or an error of the group's reading.
     */
    wherry_status (*pump)(wh_group *group, wh_deadline deadline, wherry_error *error);

    /**
     * Ends the current `pump` of another thread, or the next one. Needs no memory. NULL: pump gets
     * deadlines of a few milliseconds.
     */
    void (*nudge)(wh_group *group);

    /**
     * Makes sure that the death of a rank will be noticed, if that needs something, such as a
     * connection. Never blocks. NULL: it needs nothing, or deaths are not noticed.
     */
    void (*watch)(wh_group *group, int32_t rank);

    /**
     * Opens a channel: a separate stream of bytes to a rank, which finds it in its inbox for the
     * tag. NULL: this kind of group has none. Blocks until the other side has accepted it. The side
     * that was connected to writes first.
     * @param stop  may be NULL.
     * @return as send; WHERRY_ABORTED if the other side has no inbox for the tag: its part of the
     * conversation is over; WHERRY_REFUSED if it turns this process away.
     */
    wherry_status (*connect)(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                             int *channel_p, wherry_error *error);

    /**
     * The pid of a rank, as seen from this process and attested by the kernel; 0 if it is not
     * known. NULL: it is never known. Never blocks.
     */
    int32_t (*process)(wh_group *group, int32_t rank);

    /**
     * Writes where others can join, as the beginning of an address. NULL: there is no such place.
     * Never blocks. @return WHERRY_OK, WHERRY_UNSUPPORTED or WHERRY_LIMIT.
     */
    wherry_status (*meeting)(wh_group *group, char *text, size_t size, wherry_error *error);

    /**
     * Blocks that move without copies, as in wherry/group_ops.h; all of them or none. `channel` is
     * a number that both sides agreed on, 0 to WHERRY_GROUP_CHANNEL_MAX; it has nothing to do with
     * `connect`. Only finish waits for the other side, at most timeout_ms. An operation is over,
     * and its memory is not touched any more, when finish has returned anything but
     * WHERRY_TIMED_OUT, or abandon has returned true.
     * @return put, get, finish: WHERRY_OK, WHERRY_PEER_LOST, WHERRY_CLOSED, or the group's own
     * error.
     */
    uint32_t part_bytes; /**< See wherry/group_ops.h; 0: there are no parts. */
    wherry_status (*put)(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);
    wherry_status (*put_runs)(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              /** NULL: it takes one run. */
                              void **operation_p, wherry_error *error);
    wherry_status (*get)(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);
    wherry_status (*finish)(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms, wherry_error *error);
    /** @return false: the memory may still be written to, and must never be freed. */
    bool (*abandon)(wh_group *group, void *operation);

    /**
     * Checks that the calling thread may use the group. Every public call that needs the group asks
     * this first, and fails with the status that it returns. NULL: any thread may. Never blocks.
     */
    wherry_status (*permit)(wh_group *group, wherry_error *error);

    /** Leaves the group, which its peers notice. Called once, when no thread is in another call. */
    void (*destroy)(wh_group *group);
} wh_group_ops;

/** The struct of each kind of group begins with this. */
struct wh_group {
    const wh_group_ops *ops;
    int32_t rank;
    int32_t size;
    wh_mailbox *mailbox; /**< Created and destroyed by the kind of group. */
};

/** @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the group has no such rank. */
wherry_status wh_group_check_rank(const wh_group *group, int32_t rank, wherry_error *error);

/**
 * The operations, with their arguments checked: WHERRY_INVALID_ARGUMENT for a rank outside the
 * group or a message that is too long.
 */
wherry_status wh_group_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                            wh_deadline deadline, wherry_error *error);
wherry_status wh_group_send_until(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *error);
wherry_status wh_group_receive(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                               wherry_error *error);

/** As the operations. WHERRY_UNSUPPORTED if the group has no `connect`. */
void wh_group_watch(wh_group *group, int32_t rank);
wherry_status wh_group_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                               int *channel_p, wherry_error *error);
int32_t wh_group_process(wh_group *group, int32_t rank);

/** As the operation; WHERRY_UNSUPPORTED if the group has none. */
wherry_status wh_group_meeting(wh_group *group, char *text, size_t size, wherry_error *error);

/**
 * @return WHERRY_OK if blocks can move between this rank and another one; otherwise
 * WHERRY_UNSUPPORTED with the reason: this kind of group moves none, or it is the own rank.
 */
wherry_status wh_group_check_blocks(const wh_group *group, int32_t rank, wherry_error *error);

/** As the operation; WHERRY_OK if the group has none. */
wherry_status wh_group_permit(wh_group *group, wherry_error *error);

static inline bool wh_group_can(const wh_group *group, uint32_t capability) {
    return (group->ops->capabilities & capability) == capability;
}

/** group may be NULL. */
void wh_group_destroy(wh_group *group);

#endif
