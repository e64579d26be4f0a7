/**
 * @file group.h  A group: who the ranks are, and small tagged messages between them, each with a deadline.
 *
 * One table of operations a kind of group. A message is handed over whole or not at all; messages with one tag between two ranks keep their order.
 * A tag is a number that both sides agreed on (a nonce, the number of a transfer), so that what is left of one conversation can never be taken for
 * a part of the next.
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

/** In wh_group_receive: from whichever rank. */
#define WH_ANY_RANK (-1)

/** A message is no longer than this. */
#define WH_MESSAGE_MAX (UINT64_C(1) << 28)

/**
 * Tags with this bit belong to conversations: a message with one is dropped where no inbox is open for it (group/mailbox.h), so that what is left of
 * a conversation that is over goes nowhere. Messages with other tags are kept until somebody asks for them.
 */
#define WH_TAG_CONVERSATION (UINT64_C(1) << 63)

/** A tag of a conversation that nobody can guess. @return 0 where there are no random numbers. */
uint64_t wh_random_tag(void);

typedef enum wh_message_kind {
    WH_MESSAGE_BYTES,   /**< What a rank sent. */
    WH_MESSAGE_CHANNEL, /**< A rank has opened a channel to this one: wh_group_connect. */
    WH_MESSAGE_LOST,    /**< A rank was lost, or has started anew; the bytes are the reason, a text. */
    WH_MESSAGE_NOTE,    /**< What this process posted itself: wh_inbox_post. */
} wh_message_kind;

/** A message that was received. */
typedef struct wh_message {
    wh_message_kind kind;
    int32_t rank;         /**< Who sent it. */
    uint64_t incarnation; /**< As which incarnation. */
    uint64_t tag;
    void *bytes; /**< Released by wh_message_clear. */
    size_t size;
    int channel; /**< CHANNEL: a socket that never blocks; closed by wh_message_clear unless it is set to -1. */
} wh_message;

/** Releases what belongs to a message. */
void wh_message_clear(wh_message *message);

/** What a kind of group can do. The conformance suite asserts each that is declared. */
enum {
    WH_GROUP_BACKGROUND = 1, /**< Messages arrive while nobody is inside a call. */
    WH_GROUP_DEATH = 2,      /**< A rank's death ends whoever waits on it. */
    WH_GROUP_REJOIN = 4,     /**< A rank may come back as another incarnation; otherwise one that is lost stays so. */
    WH_GROUP_CONCURRENT =
        8, /**< Several threads may call at once; otherwise only the one that is inside a call of the library. */
};

typedef struct wh_mailbox wh_mailbox;

typedef struct wh_group_ops {
    const char *name;
    uint32_t capabilities; /**< WH_GROUP_* */

    /**
     * Sends a message. The bytes are the caller's again when it returns. Blocks until the message is on its way, not until it is received.
     * Errors: WHERRY_TIMED_OUT, WHERRY_PEER_LOST, WHERRY_CLOSED, WHERRY_NO_MEMORY; and WHERRY_CANCELLED soon after the stop, which may be NULL, was
     * requested. No lock is held while the stop is looked at: its question may take long.
     */
    wherry_status (*send)(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                          wh_deadline deadline, const wh_stop *stop, wherry_error *error);

    /**
     * Reads from the peers into the mailbox until something has come, at most until the deadline. Called by whoever waits for a message, one thread
     * at a time, who must hold no lock that a service takes. NULL: the group reads by itself alone. A group with WH_GROUP_BACKGROUND may have it
     * all the same, since whoever reads what it waits for need not be woken. Errors: WHERRY_CLOSED, and what the group's own reading fails with; a
     * deadline that comes is a success.
     */
    wherry_status (*pump)(wh_group *group, wh_deadline deadline, wherry_error *error);

    /** Ends a `pump` that another thread is inside of, or the next one. Needs no memory. NULL: a pump lasts a few milliseconds at most. */
    void (*nudge)(wh_group *group);

    /**
     * Sees to it that the death of a rank will be noticed, where that takes something, such as a connection. Never blocks. NULL: nothing is needed, or
     * deaths are not noticed.
     */
    void (*watch)(wh_group *group, int32_t rank);

    /**
     * Opens a channel: a stream of bytes of its own to a rank, which finds it in its inbox for the tag. NULL: this kind of group has none. Blocks until
     * the other side has accepted it. Whoever was connected to writes first. Errors: as send; WHERRY_ABORTED where the other side has no inbox for the tag:
     * its part of the conversation is over; WHERRY_REFUSED where it turns this process away; and WHERRY_CANCELLED soon after the stop, which may be NULL, was
     * requested.
     */
    wherry_status (*connect)(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                             int *channel_p, wherry_error *error);

    /** The process of a rank, as this process sees it, where the kernel vouches for it; 0 where it does not. NULL: never. Never blocks. */
    int32_t (*process)(wh_group *group, int32_t rank);

    /** Writes where others can join, as the beginning of an address. NULL: there is no such place. Never blocks. Errors: WHERRY_UNSUPPORTED, WHERRY_LIMIT. */
    wherry_status (*meeting)(wh_group *group, char *text, size_t size, wherry_error *error);

    /**
     * Blocks that move without copies, as wherry/group_ops.h has them; all four or none. NULL: this kind of group has none. `channel` is a number that
     * both sides agreed on, 0 to WHERRY_GROUP_CHANNEL_MAX, and none of those that `connect` opens. None of them waits for the other side but finish, for
     * timeout_ms at most. An operation is gone when finish has answered anything but WHERRY_TIMED_OUT, or abandon has returned true: its memory is not touched
     * any more. Errors of put, get and finish: WHERRY_PEER_LOST, WHERRY_CLOSED, and what the group's own moving fails with.
     */
    uint32_t part_bytes; /**< See wherry/group_ops.h; 0: there are no parts. */
    wherry_status (*put)(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);
    wherry_status (*put_runs)(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error); /**< NULL: it takes one run. */
    wherry_status (*get)(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);
    wherry_status (*finish)(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms, wherry_error *error);
    bool (*abandon)(wh_group *group,
                    void *operation); /**< @return false: the memory may still be written to, and must stay for ever. */

    /**
     * Whether the calling thread may use the group: asked first by each call of the program that would. NULL: any thread may. Never blocks. Errors: what the
     * call then answers.
     */
    wherry_status (*permit)(wh_group *group, wherry_error *error);

    /** Leaves the group: whoever waits is sent away, peers notice. Called once, when no thread is inside another call. */
    void (*destroy)(wh_group *group);
} wh_group_ops;

/** What every kind of group begins with. */
struct wh_group {
    const wh_group_ops *ops;
    int32_t rank;
    int32_t size;
    wh_mailbox *mailbox; /**< Where messages lie until they are taken; the kind of group makes and destroys it. */
};

/** WHERRY_OK where the group has such a rank; else WHERRY_INVALID_ARGUMENT. */
wherry_status wh_group_check_rank(const wh_group *group, int32_t rank, wherry_error *error);

/** The operations, with their arguments checked: a rank outside the group or a message that is too long is WHERRY_INVALID_ARGUMENT. */
wherry_status wh_group_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                            wh_deadline deadline, wherry_error *error);
wherry_status wh_group_send_until(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *error);
wherry_status wh_group_receive(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                               wherry_error *error);

/** As the operations. Without `connect` it is WHERRY_UNSUPPORTED. */
void wh_group_watch(wh_group *group, int32_t rank);
wherry_status wh_group_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                               int *channel_p, wherry_error *error);
int32_t wh_group_process(wh_group *group, int32_t rank);

/** As the operation; without it, WHERRY_UNSUPPORTED. */
wherry_status wh_group_meeting(wh_group *group, char *text, size_t size, wherry_error *error);

/**
 * WHERRY_OK where blocks can be moved between this rank and another one; else WHERRY_UNSUPPORTED with the reason: this kind of group has none, or it is the own
 * rank.
 */
wherry_status wh_group_check_blocks(const wh_group *group, int32_t rank, wherry_error *error);

/** As the operation; without it, WHERRY_OK. */
wherry_status wh_group_permit(wh_group *group, wherry_error *error);

/** Whether a group has a capability. */
static inline bool wh_group_can(const wh_group *group, uint32_t capability) {
    return (group->ops->capabilities & capability) == capability;
}

/** group may be NULL. */
void wh_group_destroy(wh_group *group);

#endif
