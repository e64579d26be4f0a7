/**
 * @file wherry/group.h  A group: the ranks of a job, how they find each other, and small messages
 * between them.
 *
 * A program joins once, gives the group to a transport, and leaves when it ends. If a rank dies, a
 * new process may join in its place. That process is another incarnation of the rank, and the
 * others continue with it. docs/groups.md explains how ranks find each other. wherry/group_ops.h
 * lets a program bring its own group.
 *
 * Any thread may call, several at once, unless a function says otherwise. Every wait ends at its
 * timeout, and as soon as the rank it waits for is known to be lost. All since 0.1.
 */
#ifndef WHERRY_GROUP_H
#define WHERRY_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A process's membership in a group. Opaque. */
typedef struct wherry_group wherry_group;

/** In wherry_group_receive: from any rank. */
#define WHERRY_ANY_RANK (-1)

/** The largest message of wherry_group_send: 16 MiB. Send anything larger as a state. */
#define WHERRY_GROUP_MESSAGE_MAX 16777216

/** The size of the buffer that wherry_group_meeting fills. */
#define WHERRY_GROUP_MEETING_MAX 512

/** Flags of wherry_group_options. */
enum {
    WHERRY_JOIN_CLIENT = 1, /**< Only connects to the meeting points. Never listens there. */
    WHERRY_JOIN_FLAGS = 1,  /**< All flags. */
};

/** How to join. Fill it with wherry_group_options_init, then change what you need. */
typedef struct wherry_group_options {
    uint32_t struct_size; /**< sizeof(wherry_group_options). */
    /** How long to wait for the other ranks. Default 300,000: five minutes, as in torch. */
    uint32_t timeout_ms;

    /**
     * A secret shared by all ranks; borrowed during the call. Default NULL: the content of
     * WHERRY_SECRET, else of the file WHERRY_SECRET_FILE, else none.
     */
    const void *secret;
    size_t secret_size; /**< Bytes of secret: 1 to 4096. Default 0. */

    /**
     * 1: without a secret, any other host may connect; a warning says so. Default 0: without a
     * secret the group stays on this host.
     */
    uint32_t allow_insecure;
    /** An idle connection sends a sign of life this often. Default 1000. */
    uint32_t heartbeat_ms;
    /** A connection silent for this long is lost. Above heartbeat_ms. Default 5000. */
    uint32_t dead_after_ms;
    uint32_t flags; /**< WHERRY_JOIN_*. Default 0. */

    /**
     * Return when this many ranks, including this one, have joined. 1: wait for nobody. The others
     * may join later; a call that needs one of them then waits for it. A rank that another rank has
     * met counts, even if it has died since. Default 0: all.
     */
    uint32_t wait_for;
    uint32_t reserved;             /**< 0. */
    wherry_interrupt_fn interrupt; /**< Polled while the call waits; true ends it. Default NULL. */
    void *interrupt_context;       /**< Passed to interrupt. */
} wherry_group_options;

/** Fills the defaults. */
WHERRY_API void wherry_group_options_init(wherry_group_options *options);

/**
 * Joins a group as a new incarnation of this process's rank. Blocks until all ranks, or as many as
 * wait_for says, have joined, at most timeout_ms.
 *
 * If a meeting point on this host is free, this process listens there when the call returns, unless
 * WHERRY_JOIN_CLIENT is set.
 *
 * @param address  where the ranks meet; docs/groups.md has the details: "env://"
 * rank and size from torchrun, Slurm or Open MPI "tcp://HOST:PORT[,...]?rank=R&size=N"  at one of
 * these addresses "tcp://HOST:0?rank=R&size=N"           here, at a free port: see
 * wherry_group_meeting "unix:///PATH?rank=R&size=N"           on one host
 * @param options  borrowed during the call. NULL for the defaults.
 * @param group_p  the caller's: wherry_group_leave.
 * @return WHERRY_OK; otherwise:
 *   - WHERRY_INVALID_ARGUMENT: a bad address or option, or other hosts could connect without a
 *     secret.
 *   - WHERRY_NO_MEMORY; WHERRY_SYSTEM: no socket or thread, or the secret's file cannot be read.
 *   - WHERRY_TIMED_OUT: the message names the missing ranks and the last state of the meeting
 *     point. Start those ranks and join again.
 *   - WHERRY_BAD_SECRET, WHERRY_BAD_VERSION, WHERRY_MISMATCH (another job or size) or
 *     WHERRY_REFUSED (the other side noticed first): the last answer of a process at the meeting
 *     point.
 *   - WHERRY_CANCELLED: `interrupt` returned true.
 *   - WHERRY_CLOSED: a newer incarnation of this rank has joined.
 */
WHERRY_API wherry_status wherry_group_join(const char *address, const wherry_group_options *options,
                                           wherry_group **group_p, wherry_error *error);

/**
 * Leaves a group. Sends queued messages first, for at most a second. Ranks that wait for this one
 * learn that it is gone.
 * @param group  destroyed; may be NULL. No thread may be inside another call on it, and its
 * transports must have been destroyed.
 */
WHERRY_API void wherry_group_leave(wherry_group *group);

/**
 * Tells where others can join the group: its first meeting point, "tcp://HOST:PORT" or
 * "unix:///PATH". Append "?rank=R&size=N", and the job's id if there is one, to make an address.
 * Never blocks.
 * @param text  receives the text and a final zero. HOST is the one in this process's address. If
 * that had port 0, PORT is the port that was chosen; this process listens there until it leaves.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_UNSUPPORTED for a group without a meeting
 * point: one made from a table of functions (wherry/group_ops.h), or one with a single rank.
 */
WHERRY_API wherry_status wherry_group_meeting(const wherry_group *group, char text[WHERRY_GROUP_MEETING_MAX],
                                              wherry_error *error);

/** The rank of this process: 0 to size - 1. Never blocks. */
WHERRY_API int32_t wherry_group_rank(const wherry_group *group);

/** The number of ranks in the group, alive or not. Never blocks. */
WHERRY_API int32_t wherry_group_size(const wherry_group *group);

/**
 * True if a rank is alive, as far as is known. A rank that has just died counts as alive until its
 * death is noticed. Without an open connection that happens at the next attempt to reach it. Never
 * blocks.
 * @return false also for a rank that was never heard of, or is outside the group.
 */
WHERRY_API bool wherry_group_alive(const wherry_group *group, int32_t rank);

/**
 * Sends a small message of the program's own to a rank. It never mixes with the library's messages.
 * Messages with the same tag from one rank to another arrive once and in order.
 *
 * Blocks until the message is on its way. Success does not mean that it has arrived.
 *
 * @param rank        the receiver; may be this rank.
 * @param tag         any number; the receiver asks for it.
 * @param bytes       borrowed during the call; may be NULL if size is 0.
 * @param size        at most WHERRY_GROUP_MESSAGE_MAX. Messages that nobody takes stay in the
 *                    receiver's memory.
 * @param timeout_ms  for the whole call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_TIMED_OUT; WHERRY_PEER_LOST
 * with the rank: wait until it has joined again, or continue without it; WHERRY_CLOSED if a newer
 * incarnation of this rank has joined: leave. A group from wherry/group_ops.h may return more.
 */
WHERRY_API wherry_status wherry_group_send(wherry_group *group, int32_t rank, uint32_t tag, const void *bytes,
                                           size_t size, uint32_t timeout_ms, wherry_error *error);

/**
 * Takes the oldest message with a tag. Blocks until there is one, at most timeout_ms.
 * @param rank        the sender. WHERRY_ANY_RANK: any sender; then no loss of a rank is an error.
 * @param timeout_ms  0: only messages that have already arrived.
 * @param bytes_p     the message; release with wherry_free. May be NULL if the message is empty.
 * @param size_p      its bytes.
 * @param rank_p      the sender; may be NULL.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_TIMED_OUT; WHERRY_PEER_LOST with the rank, if
 * it died or was restarted during the wait (its earlier messages can still be taken until its next
 * incarnation joins); WHERRY_CLOSED if a newer incarnation of this rank has joined, or a group from
 * wherry/group_ops.h cannot be read any more: leave.
 */
WHERRY_API wherry_status wherry_group_receive(wherry_group *group, int32_t rank, uint32_t tag, uint32_t timeout_ms,
                                              void **bytes_p, size_t *size_p, int32_t *rank_p, wherry_error *error);

/**
 * Waits until every rank has called this with the same number or a higher one. One thread per
 * process at a time.
 *
 * Use rising numbers, such as the step. Then the call can be repeated with the same number after a
 * failure, and a restarted rank takes part from its current number on. Even if the call fails, all
 * reachable ranks know that this one has arrived.
 *
 * @param number      of the barrier.
 * @param timeout_ms  for the whole call.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if another thread is in a barrier; WHERRY_TIMED_OUT
 * with the lowest rank that has not arrived; WHERRY_PEER_LOST with a rank that was lost: call again
 * when it is back; WHERRY_NO_MEMORY; WHERRY_CLOSED.
 */
WHERRY_API wherry_status wherry_group_barrier(wherry_group *group, uint64_t number, uint32_t timeout_ms,
                                              wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
