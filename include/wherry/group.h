/**
 * @file wherry/group.h  A group: the ranks of a job, how they find each other, and small messages between them.
 *
 * A program joins once, gives the group to a transport, and leaves when it ends. A rank that died may join again, from a
 * new process: it is then another incarnation of that rank, and the others go on with it. docs/groups.md tells how ranks
 * find each other, and how to bring a group of one's own (wherry/group_ops.h).
 *
 * Any thread may call, several at once, unless a function says otherwise. Every wait ends: at its timeout at the latest,
 * and as soon as the rank that is waited for is known to be lost. All since 0.1.
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

/** A process's membership of a group. Opaque. */
typedef struct wherry_group wherry_group;

/** In wherry_group_receive: from whichever rank. */
#define WHERRY_ANY_RANK (-1)

/** A message of wherry_group_send has no more bytes than this: 16 MiB. Larger things are a state: send them as one. */
#define WHERRY_GROUP_MESSAGE_MAX 16777216

/** Bytes of the text that wherry_group_meeting writes, at most. */
#define WHERRY_GROUP_MEETING_MAX 512

/** Flags of wherry_group_options. */
enum {
    WHERRY_JOIN_GUEST = 1, /**< Only dials the meeting points: never listens there itself, also where nobody does. */
    WHERRY_JOIN_FLAGS = 1, /**< All of them. */
};

/** How to join. Fill it by wherry_group_options_init, then change what you need. */
typedef struct wherry_group_options {
    uint32_t struct_size; /**< sizeof(wherry_group_options). */
    uint32_t timeout_ms;  /**< How long to wait for the other ranks. Default 300000, five minutes: as torch does. */
    const void *secret;   /**< What all ranks know and nobody else does; borrowed during the call. Default NULL: that of
                                 WHERRY_SECRET, else of the file WHERRY_SECRET_FILE, else none. */
    size_t secret_size;   /**< Its bytes: 1 to 4096. Default 0. */
    uint32_t allow_insecure; /**< 1: without a secret, other hosts may connect all the same, whoever they are; a warning
                                 says so. Default 0: without a secret the group stays on this host. */
    uint32_t heartbeat_ms;  /**< A connection that has nothing to say says that it is alive this often. Default 1000. */
    uint32_t dead_after_ms; /**< One that has been silent for so long is lost; over heartbeat_ms. Default 5000. */
    uint32_t flags;         /**< WHERRY_JOIN_*. Default 0. */
    uint32_t wait_for;      /**< How many ranks, this one included, must have come before the call returns: at most all.
                                 1: none of the others. They come later, or never, and whoever waits on one of them waits
                                 for its coming. One that others have met counts, also where it has died since. Default
                                 0: all. */
    uint32_t reserved;      /**< 0. */
    wherry_interrupt_fn interrupt; /**< Asked while the call waits whether it shall end. Default NULL: nobody is. */
    void *interrupt_context;       /**< For interrupt. */
} wherry_group_options;

/** Fills the defaults. */
WHERRY_API void wherry_group_options_init(wherry_group_options *options);

/**
 * Joins a group, as a new incarnation of this process's rank, and waits until all ranks have come, or as many as wait_for says.
 * @param address  where the ranks meet; docs/groups.md has all of it:
 *                   "env://"                                   rank and size from the launcher (torchrun, Slurm, Open MPI)
 *                   "tcp://HOST:PORT[,...]?rank=R&size=N"      at one of these places
 *                   "tcp://HOST:0?rank=R&size=N"               here, at a port of the system's choice: wherry_group_meeting
 *                   "unix:///PATH?rank=R&size=N"               on one host
 * @param options  borrowed during the call; NULL for the defaults.
 * @param group_p  belongs to the caller: wherry_group_leave.
 * Blocks until the ranks are there, at most timeout_ms. A meeting point of this host that was free is this process's when the
 * call returns, unless it came as a guest.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for a bad address or option, and where the group would be open to other hosts
 * without a secret; WHERRY_NO_MEMORY; WHERRY_SYSTEM where a socket or a thread cannot be had, or the secret's file not be
 * read; WHERRY_TIMED_OUT with the ranks that are missing, and how the meeting point was last found: start them, and join
 * again; WHERRY_BAD_SECRET, WHERRY_BAD_VERSION, WHERRY_MISMATCH (another job, or another size) or WHERRY_REFUSED (the other
 * side found it first) as whoever was met answered last; WHERRY_CANCELLED where `interrupt` said so; WHERRY_CLOSED where a
 * newer incarnation of this rank has come meanwhile.
 */
WHERRY_API wherry_status wherry_group_join(const char *address, const wherry_group_options *options,
                                           wherry_group **group_p, wherry_error *error);

/**
 * Leaves a group: what was sent goes out first, for a second at most; whoever waits on this rank is told that it is lost.
 * @param group  destroyed; may be NULL. No thread may be inside another call on it, and nothing that was made of it (a
 *               transport) may be left.
 */
WHERRY_API void wherry_group_leave(wherry_group *group);

/**
 * Tells where others can join the group: its first meeting point, "tcp://HOST:PORT" or "unix:///PATH". To join there they add
 * the rest of an address, "?rank=R&size=N" and the job's id where there is one.
 * @param text  receives it, with a zero byte behind it. HOST is the one of this process's own address; where that had port 0,
 *              PORT is the system's choice, and this process listens there until it leaves.
 * Never blocks.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_UNSUPPORTED for a group that has no meeting point, being made of a table
 * of functions (wherry/group_ops.h) or of one rank alone.
 */
WHERRY_API wherry_status wherry_group_meeting(const wherry_group *group, char text[WHERRY_GROUP_MEETING_MAX],
                                              wherry_error *error);

/** The rank of this process: 0 to size - 1. Never blocks. */
WHERRY_API int32_t wherry_group_rank(const wherry_group *group);

/** How many ranks the group has, whether they are alive or not. Never blocks. */
WHERRY_API int32_t wherry_group_size(const wherry_group *group);

/**
 * Whether a rank is there, as far as is known. One that has just died counts as there until that is noticed; where no
 * connection to it is open, that is when it is next talked to. Never blocks.
 * @return false also for a rank that has never been heard of, and for one outside the group.
 */
WHERRY_API bool wherry_group_alive(const wherry_group *group, int32_t rank);

/**
 * Sends a small message to a rank, for the program's own use: it never meets those of the library. Messages with one tag
 * from one rank to another arrive in order, once.
 * @param rank        to whom; this rank itself is fine.
 * @param tag         which the receiver asks for; any number.
 * @param bytes       the caller's again when the call returns; may be NULL where size is 0.
 * @param size        at most WHERRY_GROUP_MESSAGE_MAX. What nobody has taken stays in the receiver's memory.
 * @param timeout_ms  for the whole call.
 * Blocks until the message is on its way, not until it is received: a success does not tell that it has arrived.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_NO_MEMORY; WHERRY_TIMED_OUT; WHERRY_PEER_LOST with the rank: wait until
 * it has joined again, or go on without it; WHERRY_CLOSED where a newer incarnation has this rank: leave. A group of one's
 * own may answer more: wherry/group_ops.h.
 */
WHERRY_API wherry_status wherry_group_send(wherry_group *group, int32_t rank, uint32_t tag, const void *bytes,
                                           size_t size, uint32_t timeout_ms, wherry_error *error);

/**
 * Takes the oldest message with a tag.
 * @param rank        from whom; WHERRY_ANY_RANK: from anybody, and then nobody's loss is an error.
 * @param timeout_ms  how long to wait for it; 0: only what has come already.
 * @param bytes_p     the message; release with wherry_free. NULL or not where it is empty.
 * @param size_p      its bytes.
 * @param rank_p      who sent it; may be NULL.
 * Blocks until there is one, at most timeout_ms.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; WHERRY_TIMED_OUT; WHERRY_PEER_LOST with the rank, where it died, or started
 * anew during the wait: what it had sent before it was lost can be taken still, until its next incarnation is there;
 * WHERRY_CLOSED where a newer incarnation has this rank, or a group of one's own cannot be read any more: leave.
 */
WHERRY_API wherry_status wherry_group_receive(wherry_group *group, int32_t rank, uint32_t tag, uint32_t timeout_ms,
                                              void **bytes_p, size_t *size_p, int32_t *rank_p, wherry_error *error);

/**
 * Waits until every rank has called this with the same number or a higher one. Use rising numbers, such as the step: then
 * it may be called again after a failure, with the same number, and a rank that has started anew takes part from the number
 * on that it is at.
 * @param number      of the barrier.
 * @param timeout_ms  for the whole call.
 * Blocks as said. One thread of a process at a time.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where another thread is in a barrier; WHERRY_TIMED_OUT with the lowest rank that
 * has not come; WHERRY_PEER_LOST with a rank that was lost: call again when it is back; WHERRY_NO_MEMORY; WHERRY_CLOSED. All
 * ranks that could be reached were told that this one has come, also on failure.
 */
WHERRY_API wherry_status wherry_group_barrier(wherry_group *group, uint64_t number, uint32_t timeout_ms,
                                              wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
