/**
 * @file group.h  A group: a set of ranks that send small tagged messages to each other, with
 * deadlines. Each kind of group implements one table of operations.
 *
 * Invariants:
 * 1. A message arrives whole or not at all.
 * 2. Messages with one tag between two ranks keep their order.
 * 3. Each conversation has its own random tag, which both sides know. So a late message of one
 *    conversation is never taken for a message of another.
 * 4. Every wait ends at its deadline, when the rank that it waits for is lost (WH_GROUP_DEATH), or
 *    when this process leaves the group.
 */
#ifndef WH_GROUP_GROUP_H
#define WH_GROUP_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <wherry/base.h>
#include <wherry/group.h>

#include "base/clock.h"
#include "base/stop.h"
#include "group/socket.h"

typedef struct wh_group wh_group;

/** Maximum size of a message in bytes. */
#define WH_MESSAGE_MAX (UINT64_C(1) << 28)

/**
 * A bit that is set in the tags of conversations. A message with such a tag is dropped if no inbox
 * is open for the tag (group/mailbox.h). A message with another tag goes to the service of the tag,
 * or waits in the mailbox.
 */
#define WH_TAG_CONVERSATION (UINT64_C(1) << 63)

/** Returns a random tag for a conversation; 0 if the system has no random numbers. */
uint64_t wh_random_tag(void);

typedef enum wh_message_kind {
    WH_MESSAGE_BYTES,   /**< A message that a rank sent. */
    WH_MESSAGE_CHANNEL, /**< A rank has opened a channel to this one with wh_group_connect. */
    /** A rank was lost or restarted. The bytes are the reason; none if out of memory. */
    WH_MESSAGE_LOST,
    WH_MESSAGE_NOTE, /**< This process posted the message with wh_inbox_post. */
} wh_message_kind;

typedef struct wh_message {
    wh_message_kind kind;
    int32_t rank;         /**< The sender; for LOST, the lost rank. */
    uint64_t incarnation; /**< The incarnation of `rank`. */
    uint64_t tag;
    void *bytes; /**< wh_message_clear frees it. */
    size_t size;
    /** For CHANNEL, a non-blocking socket. wh_message_clear closes it unless there is none. */
    wh_socket channel;
} wh_message;

/** Frees the bytes of a message and closes its channel. */
void wh_message_clear(wh_message *message);

/** Capabilities of a kind of group. The conformance suite tests each declared capability. */
enum {
    WH_GROUP_BACKGROUND = 1, /**< Messages arrive even if no thread is inside a call. */
    WH_GROUP_DEATH = 2,      /**< If a rank dies, every wait for it ends. */
    WH_GROUP_REJOIN = 4,     /**< A lost rank may come back as a new incarnation. */
    /**
     * Several threads may move bytes through the group at the same time, also threads of the
     * library. Without this capability, only a thread of the program that is inside a library call
     * may do so, and only one at a time.
     */
    WH_GROUP_CONCURRENT = 8,
};

typedef struct wh_mailbox wh_mailbox;

/**
 * The operations of a kind of group. Each backend has one such table. A program that has a group of
 * its own supplies a wherry_group_ops instead; the backend `callback` calls that.
 */
typedef struct wh_group_backend {
    const char *name;
    uint32_t capabilities; /**< WH_GROUP_* */

    /**
     * Sends a message. The caller may free the bytes when the call returns. Blocks until the
     * message is on its way, not until it is received. Must not hold a lock while it checks `stop`,
     * because the check may call a function of the program, which may take a long time.
     * @param stop  may be NULL.
     * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_PEER_LOST; WHERRY_CLOSED; WHERRY_NO_MEMORY;
     * WHERRY_CANCELLED soon after a stop request.
     */
    wherry_status (*send)(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                          wh_deadline deadline, const wh_stop *stop, wherry_error *error);

    /**
     * Reads from the peers into the mailbox. Returns when a message has arrived, at the deadline,
     * or earlier. A thread that waits for a message calls `pump` in a loop. Only one thread at a
     * time may call it, and that thread must not hold a lock that a service takes. NULL: the group
     * reads in a thread of its own. A group with WH_GROUP_BACKGROUND may have `pump` too, because a
     * thread that reads its own message does not have to be woken.
     * @return WHERRY_OK, also at the deadline; WHERRY_CLOSED; the error of a failed read.
     */
    wherry_status (*pump)(wh_group *group, wh_deadline deadline, wherry_error *error);

    /**
     * Ends the current `pump` of another thread, or the next one. Does not allocate memory. NULL:
     * `pump` is called with deadlines of a few milliseconds.
     */
    void (*nudge)(wh_group *group);

    /**
     * Makes sure that the death of a rank will be detected, for example by opening a connection.
     * Never blocks. NULL: nothing has to be done, or deaths are not detected.
     */
    void (*watch)(wh_group *group, int32_t rank);

    /**
     * Opens a channel: a separate stream of bytes to a rank. The rank gets a CHANNEL message in its
     * inbox for the tag. Blocks until the other side has accepted the channel. The other side
     * writes first. NULL: this kind of group has no channels.
     * @param stop  may be NULL.
     * @return as send; WHERRY_ABORTED if the other side has no inbox for the tag, because it has
     * ended the conversation; WHERRY_REFUSED if the other side refuses this process.
     */
    wherry_status (*connect)(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                             wh_socket *channel_p, wherry_error *error);

    /**
     * Returns the pid of a rank in this process's pid namespace, as reported by the kernel; 0 if it
     * is not known. Never blocks. NULL: it is never known.
     */
    int32_t (*process)(wh_group *group, int32_t rank);

    /**
     * Waits until every rank has called this with the same number or a higher one. Only one thread
     * per process at a time. NULL: the caller sends messages to all ranks instead.
     * @return as wherry_group_barrier.
     */
    wherry_status (*barrier)(wh_group *group, uint64_t number, wh_deadline deadline, wherry_error *error);

    /**
     * Writes the meeting point where other processes can join, as the beginning of an address.
     * Never blocks. NULL: there is no meeting point.
     * @return WHERRY_OK, WHERRY_UNSUPPORTED or WHERRY_LIMIT.
     */
    wherry_status (*meeting)(wh_group *group, char *text, size_t size, wherry_error *error);

    /** As wherry_group_token, wherry_group_reload and wherry_group_describe. NULL: unsupported. */
    wherry_status (*token)(const wh_group *group, char text[WHERRY_GROUP_TOKEN_MAX], wherry_error *error);
    wherry_status (*reload)(wh_group *group, wherry_error *error);
    wherry_status (*describe)(wh_group *group, int32_t rank, wherry_group_link *link_p, wherry_error *error);

    /**
     * The following operations move blocks without copies, as in wherry/group_ops.h. A group has
     * all of them or none; only put_runs is optional. `channel` is a number from 0 to
     * WHERRY_GROUP_CHANNEL_MAX that both sides have agreed on. It is unrelated to `connect`. Only
     * finish waits for the other side, at most timeout_ms. An operation has ended when finish has
     * returned a status other than WHERRY_TIMED_OUT, or when abandon has returned true. The group
     * then no longer accesses its memory.
     * @return put, get, finish: WHERRY_OK, WHERRY_PEER_LOST, WHERRY_CLOSED, or an error of the
     * group.
     */
    uint32_t part_bytes; /**< See wherry/group_ops.h; 0: blocks are not split into parts. */
    wherry_status (*put)(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);
    /**
     * Like `put`, for a block that consists of several runs. NULL: the caller packs the runs and
     * uses `put`.
     */
    wherry_status (*put_runs)(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error);
    wherry_status (*get)(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);
    wherry_status (*finish)(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms, wherry_error *error);
    /**
     * Gives up an operation. @return false if the group may still access the operation's memory,
     * which must then never be freed.
     */
    bool (*abandon)(wh_group *group, void *operation);

    /**
     * Checks that the calling thread may use the group. Every public function that needs the group
     * calls this first, and fails with the status that it returns. Never blocks. NULL: any thread
     * may use the group.
     */
    wherry_status (*permit)(wh_group *group, wherry_error *error);

    /**
     * Leaves the group, tells the peers if possible, and frees the group. Called once, when no
     * other thread uses the group.
     */
    void (*destroy)(wh_group *group);
} wh_group_backend;

/** The struct of each kind of group begins with this. */
struct wh_group {
    const wh_group_backend *ops;
    int32_t rank;
    int32_t size;
    wh_mailbox *mailbox; /**< Each kind of group creates and destroys it. */
    /** Bytes may leave this host only if they are encrypted. Never changes. */
    bool encrypts_all;
};

/** Checks a rank. @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the group has no such rank. */
wherry_status wh_group_check_rank(const wh_group *group, int32_t rank, wherry_error *error);

/** Checks several ranks, of which no two may be the same. @return as wh_group_check_rank. */
wherry_status wh_group_check_ranks(const wh_group *group, const int32_t *ranks, size_t count, wherry_error *error);

/**
 * These functions check their arguments and then call the operation. They return
 * WHERRY_INVALID_ARGUMENT for a rank outside the group, and for a message that is too long or has
 * bytes at NULL. wh_group_receive also accepts WHERRY_ANY_RANK.
 */
wherry_status wh_group_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                            wh_deadline deadline, wherry_error *error);
wherry_status wh_group_send_until(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *error);
wherry_status wh_group_receive(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, wh_message *message_p,
                               wherry_error *error);

/**
 * These functions call the operations. wh_group_connect returns WHERRY_UNSUPPORTED if the group has
 * no `connect`.
 */
void wh_group_watch(wh_group *group, int32_t rank);
wherry_status wh_group_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                               wh_socket *channel_p, wherry_error *error);
int32_t wh_group_process(wh_group *group, int32_t rank);

/**
 * True if everything that is sent to a rank is known to stay on this host. False if the group
 * cannot describe its connections.
 */
bool wh_group_is_local(wh_group *group, int32_t rank);

/** Calls the operation `meeting`. Returns WHERRY_UNSUPPORTED if the group does not have it. */
wherry_status wh_group_meeting(wh_group *group, char *text, size_t size, wherry_error *error);

/**
 * Checks whether blocks can move between this rank and `rank`. @return WHERRY_OK;
 * WHERRY_UNSUPPORTED with the reason: this kind of group cannot move blocks, or `rank` is this rank
 * itself; WHERRY_INVALID_ARGUMENT if the group has no such rank.
 */
wherry_status wh_group_check_blocks(const wh_group *group, int32_t rank, wherry_error *error);

/** Calls the operation `permit`. Returns WHERRY_OK if the group does not have it. */
wherry_status wh_group_permit(wh_group *group, wherry_error *error);

static inline bool wh_group_can(const wh_group *group, uint32_t capability) {
    return (group->ops->capabilities & capability) == capability;
}

/** Leaves and frees a group. `group` may be NULL. */
void wh_group_destroy(wh_group *group);

#endif
