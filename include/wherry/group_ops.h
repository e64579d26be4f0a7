/**
 * @file wherry/group_ops.h  A group of one's own: for programs that can send bytes between their
 * ranks already.
 *
 * MPI, a store of torch, a message queue: whatever brings blocks of bytes from rank to rank, whole
 * and in order, can carry everything that Wherry does. The program fills a table of functions; the
 * library cuts its messages to size, puts them together again, and tells the incarnations of a rank
 * apart. docs/groups.md has an example.
 *
 * The library starts no thread for such a group, unless WHERRY_GROUP_OPS_BACKGROUND asks for one:
 * the table's functions are called by whoever is inside a call of the library that waits for a
 * message or sends one. A rank that is in no call reads nothing, and others wait for it. All since
 * 0.1.
 */
#ifndef WHERRY_GROUP_OPS_H
#define WHERRY_GROUP_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <wherry/base.h>
#include <wherry/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a table can do. */
enum {
    /**
     * Several threads may be inside send, put, get, finish and abandon, and one inside receive, at
     * the same time. They may be threads of the library. Without it, calls of the table never
     * overlap, and only threads of the program that are inside a call of the library make them.
     * Then that thread alone moves the bytes that go through the group.
     */
    WHERRY_GROUP_OPS_CONCURRENT = 1,
    /**
     * The table notices the death of a rank: receive soon returns WHERRY_PEER_LOST. Without it, a
     * call that waits for a dead rank waits until its timeout, unless a send to that rank fails.
     */
    WHERRY_GROUP_OPS_DEATH = 2,
    /**
     * All ranks are there from the start, and a rank that has left or was lost never comes back, as
     * in MPI. Sending a checkpoint to it fails at once instead of waiting for its return.
     */
    WHERRY_GROUP_OPS_FIXED = 4,
    /**
     * The library starts a thread that calls receive continuously, so that messages arrive while
     * the program is in no call. Only with WHERRY_GROUP_OPS_CONCURRENT.
     */
    WHERRY_GROUP_OPS_BACKGROUND = 8,
    /** All of them. */
    WHERRY_GROUP_OPS_FLAGS = 15
};

/** Channels of blocks, see wherry_group_ops.put, have numbers from 0 to this. */
#define WHERRY_GROUP_CHANNEL_MAX 16383

/**
 * Takes a block that has come from a rank. The bytes are copied. Only to be called by receive,
 * while it runs.
 */
typedef void (*wherry_group_deliver_fn)(void *sink, int32_t rank, const void *bytes, size_t size);

/**
 * The table. Fill it by wherry_group_ops_init, then set at least rank, size, send and receive. A
 * table of an older version, which ends before some of the members, is as good as one whose last
 * members are 0.
 *
 * WHERRY_GROUP_OPS_CONCURRENT says which threads may call the functions, and how many at once. They
 * must not call the library, but for wherry_group_copy_runs. Their `error` is never NULL; what they
 * do not fill, the library does.
 */
typedef struct wherry_group_ops {
    uint32_t struct_size; /**< sizeof(wherry_group_ops). */
    uint32_t flags;       /**< WHERRY_GROUP_OPS_*. Default 0. */
    const char *name;     /**< For the log; copied, at most 31 bytes of it. Default "callback". */
    int32_t rank;         /**< Of this process: 0 to size - 1. */
    /** How many ranks there are; at least 1. Default 0, which must be changed. */
    int32_t size;
    /**
     * The most bytes per block passed to send: 1 KiB to 1 GiB. Default 1 MiB. All ranks accept
     * blocks of any size, so this may differ between ranks.
     */
    uint64_t max_block;

    /**
     * Sends a block to another rank. Blocks between two ranks arrive once, whole, unchanged and in
     * order.
     * @param bytes       borrowed during the call.
     * @param timeout_ms  0 or a few: the library calls again, and reads in between, so that two
     * ranks that send to each other do not wait on each other for ever.
     * @return WHERRY_OK: the block is on its way, or queued. WHERRY_TIMED_OUT: nothing of it was
     * sent, and nothing will be. WHERRY_PEER_LOST: the rank is lost; whoever waits on it is told.
     * Anything else fails the message that it was a part of, with that status.
     */
    wherry_status (*send)(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                          wherry_error *error);

    /**
     * Waits for blocks from any rank, and hands over what has come: one call of deliver each, in
     * the order of their coming. Returns as soon as there was at least one. Never called twice at
     * once.
     * @param timeout_ms  0 or a few. It is to wait, not to return at once with nothing: the library
     * calls again.
     * @param deliver     see there.
     * @param sink        for deliver.
     * @return WHERRY_OK, also where nothing has come (WHERRY_TIMED_OUT is the same).
     * WHERRY_PEER_LOST with error->rank: that rank is lost, and what it had sent was delivered
     * before; said once. Anything else: the group cannot be read any more, and every call on it
     * fails with WHERRY_CLOSED.
     */
    wherry_status (*receive)(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                             wherry_error *error);

    /** The group was left, and the table will not be called again. May be NULL, the default. */
    void (*destroy)(void *context);

    /*
     * Blocks that move without copies: straight from the memory of one tensor into that of another.
     * All four of the following, or none, the default. The bytes of a checkpoint go by the lane
     * `blocks`, which uses them; without them the library moves blocks over send and receive, with
     * copies.
     *
     * The n-th put of a rank to another on a channel meets that one's n-th get from it there. Both
     * sides know the size before, so that nothing but the bytes has to travel. Several operations
     * may be under way at once, on one channel too; they get on by themselves, or at the latest
     * inside `finish`. A transfer has a channel of its own, so that what is left of one that failed
     * never meets the next. Who calls them is said at WHERRY_GROUP_OPS_CONCURRENT: they are like
     * send, and any thread may finish or abandon what another has begun.
     */

    /**
     * Begins to send a block to another rank, which is never the own one. Does not wait for it.
     * @param channel      0 to WHERRY_GROUP_CHANNEL_MAX.
     * @param bytes        stay as they are until the operation is gone.
     * @param size         from 1 to 2^31 - 1.
     * @param operation_p  receives what finish and abandon know the operation by; it may be NULL.
     * @return WHERRY_OK: it is under way. WHERRY_PEER_LOST: the rank is lost; whoever waits on it
     * is told. Anything else fails the transfer, with that status. Where it failed nothing is under
     * way.
     */
    wherry_status (*put)(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);

    /**
     * Begins to receive a block of exactly `size` bytes, from the rank, into place. All else as
     * put.
     * @param bytes  the operation's until it is gone: nobody else reads or writes there.
     */
    wherry_status (*get)(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);

    /**
     * Waits for an operation. It may be asked in another order than they were begun in.
     * @param timeout_ms  0 or a few: the library calls again.
     * @return WHERRY_OK: done, and the operation is gone. Of a put: its bytes may change; whether
     * they have been received is not said. WHERRY_TIMED_OUT: not yet. Anything else: it failed, and
     * is gone: WHERRY_PEER_LOST where the rank is lost, WHERRY_MALFORMED where the block that came
     * for a get had another size.
     */
    wherry_status (*finish)(void *context, void *operation, uint32_t timeout_ms, wherry_error *error);

    /**
     * Ends an operation that finish has not answered for: it is gone then. What else is under way
     * on that channel may fail or never end, at either side: the library abandons all of it. Must
     * return soon, whatever the other rank does.
     * @return true: its memory is not touched any more; always, for a put. false, for a get: that
     * cannot be promised, since what moves the bytes has begun and cannot be stopped. The library
     * then never frees that memory nor releases the storages that were received into, and says so
     * in the error of the receive; memory that was wrapped without a release function is its
     * owner's to keep. Other calls of the table must answer WHERRY_CLOSED from then on, but finish,
     * of a get that it cannot stop: WHERRY_TIMED_OUT, until it is abandoned.
     */
    bool (*abandon)(void *context, void *operation);

    /**
     * Whether the calling thread may use the table now. Asked first by each call on the group, or
     * on a transport of it, that would: so that a thread which must not, by the rules of what is
     * behind the table, is refused before anything has begun, and the group stays as it is for the
     * others. Asked by wherry_group_leave too, which cannot fail: it says the reason in the log,
     * tells nobody, and calls destroy all the same. May be NULL, the default: any thread may.
     * @return WHERRY_OK; anything else is what the call answers.
     */
    wherry_status (*permit)(void *context, wherry_error *error);

    /**
     * Ends a `receive` that waits, or the next one, before its time: somebody in this process has
     * something for the thread that is inside. Called by any thread, at any time, also without
     * WHERRY_GROUP_OPS_CONCURRENT, and by the one inside `receive` from within `deliver`; never
     * blocks. May be NULL, the default: then that is noticed a few milliseconds later, at the end
     * of each transfer.
     */
    void (*wake)(void *context);

    /**
     * Bytes of a part, 64 KiB to 8 MiB; 0, the default: there are none. Small tensors are packed
     * into blocks, some MiB each. With this, at both ranks, such a block is put and got in parts,
     * each an operation of its own: the smaller of the two, in whole 64 KiB. One is then packed
     * while another moves and a third is unpacked, and all of them stay in the caches. For a table
     * whose operations cost little.
     */
    uint64_t part_bytes;

    /**
     * As put, of a block whose bytes lie in several runs, end to end: for a table that copies them
     * anyway, so that they need not be packed before. The other rank gets it as any other. May be
     * NULL, the default: then blocks are packed for put.
     * @param runs   none is empty; they stay as they are, the array too, until the operation is
     * gone.
     * @param count  of them; at least 1.
     */
    wherry_status (*put_runs)(void *context, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error);
} wherry_group_ops;

/** Fills the defaults. */
WHERRY_API void wherry_group_ops_init(wherry_group_ops *ops);

/**
 * Copies runs of bytes end to end, for a table that sends copies: past the caches of this processor
 * where it can, since another one will read them. Does not block. Any thread.
 * @param to    at least `size` bytes, which no run overlaps.
 * @param runs  have at least skip + size bytes.
 * @param skip  so many bytes of them are passed over; fewer than the first one has.
 */
WHERRY_API void wherry_group_copy_runs(void *to, const struct iovec *runs, size_t skip, size_t size);

/**
 * Makes a group of a table, as a new incarnation of this rank: one number that is higher than those
 * of the rank's former processes by the clock of the machine. The others are told by a block to
 * each that can take one at once; those that come later learn it from the first message. Does not
 * wait for them.
 * @param ops      copied.
 * @param context  passed to the functions; on success it must live until destroy was called, by
 * wherry_group_leave, which first tells the other ranks, for a tenth of a second at most.
 * @param group_p  belongs to the caller: wherry_group_leave.
 * Blocks no longer than `send` does with a timeout of 0. Any thread.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for a table that is not filled; WHERRY_NO_MEMORY;
 * WHERRY_SYSTEM where WHERRY_GROUP_OPS_BACKGROUND has no thread; what `permit` answers. On failure
 * destroy is not called.
 *
 * What wherry_group_send answers beyond its own list is what `send` of the table did; any call,
 * what `permit` did.
 */
WHERRY_API wherry_status wherry_group_from_ops(const wherry_group_ops *ops, void *context, wherry_group **group_p,
                                               wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
