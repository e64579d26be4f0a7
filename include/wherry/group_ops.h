/**
 * @file wherry/group_ops.h  Makes a group from a program's own way to send bytes between its
 * ranks, such as MPI, a torch store or a message queue.
 *
 * Anything that delivers blocks of bytes from rank to rank, complete and in order, can carry all of
 * Wherry's traffic. The program fills a table of functions. The library splits its messages into
 * blocks, joins them again, and distinguishes the incarnations of a rank. docs/groups.md has an
 * example.
 *
 * The library starts a thread that receives messages only if WHERRY_GROUP_OPS_BACKGROUND is set.
 * Without that flag, a rank receives messages only while a thread of the program is inside a call
 * of the library that sends a message or waits for one. At other times, the rank reads nothing, and
 * other ranks wait for it. Available since version 0.1.
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

/** Flags of a table: what its functions can do. */
enum {
    /**
     * With this flag, several threads may be inside send, put, get, finish and abandon at the same
     * time, and one more inside receive. Some of these may be threads of the library. Without this
     * flag, calls to the table's functions never overlap, except for permit and wake. The library
     * then makes them only in threads of the program that are inside a library function. So the
     * bytes of the group move only during such functions.
     */
    WHERRY_GROUP_OPS_CONCURRENT = 1,
    /**
     * The table notices the death of a rank: receive soon returns WHERRY_PEER_LOST. Without this
     * flag, a call that waits for a dead rank waits until its timeout, unless a send to that rank
     * fails.
     */
    WHERRY_GROUP_OPS_DEATH = 2,
    /**
     * All ranks exist from the start, and a rank that has left or was lost never comes back, as in
     * MPI. Sending a checkpoint to such a rank fails at once instead of waiting for its return.
     */
    WHERRY_GROUP_OPS_FIXED = 4,
    /**
     * The library starts a thread that calls receive continuously, so that messages arrive even
     * while the program is not inside a call of the library. Requires WHERRY_GROUP_OPS_CONCURRENT.
     */
    WHERRY_GROUP_OPS_BACKGROUND = 8,
    /** All flags. */
    WHERRY_GROUP_OPS_FLAGS = 15
};

/** The highest channel number. wherry_group_ops.put explains channels. */
#define WHERRY_GROUP_CHANNEL_MAX 16383

/**
 * Gives the library a block that has arrived from a rank. The library copies the bytes. Only
 * `receive` may call this, while it runs.
 */
typedef void (*wherry_group_deliver_fn)(void *sink, int32_t rank, const void *bytes, size_t size);

/**
 * The table of functions. Initialize it with wherry_group_ops_init, then set at least rank, size,
 * send and receive. A program that was built with an older header has a shorter table. Members that
 * it lacks count as 0.
 *
 * WHERRY_GROUP_OPS_CONCURRENT determines which threads call the functions, and how many at the same
 * time. The functions must not call the library, except for wherry_group_copy_runs. Their `error`
 * is never NULL. If a function fails without filling it, the library fills it.
 */
typedef struct wherry_group_ops {
    uint32_t struct_size; /**< sizeof(wherry_group_ops). */
    uint32_t flags;       /**< WHERRY_GROUP_OPS_*. Default 0. */
    /** A name for the log; at most 31 bytes of it are copied. Default "callback". */
    const char *name;
    int32_t rank; /**< The rank of this process: 0 to size - 1. */
    /** The number of ranks, at least 1. The default 0 must be changed. */
    int32_t size;
    /**
     * The maximum size of a block that is passed to send: 1 KiB to 1 GiB. Default 1 MiB. Every rank
     * accepts blocks of any size, so this may differ between ranks.
     */
    uint64_t max_block;

    /**
     * Sends a block to another rank. Blocks from one rank to another must arrive exactly once,
     * complete, unchanged and in order.
     * @param bytes       borrowed during the call.
     * @param timeout_ms  0 or a few milliseconds. After a timeout the library calls receive before
     * it calls send again, so that two ranks that send to each other do not block each other
     * forever.
     * @return
     *   - WHERRY_OK: the block is sent or queued.
     *   - WHERRY_TIMED_OUT: no part of the block was sent or will be sent.
     *   - WHERRY_PEER_LOST: the rank is lost. The library fails the calls that wait for it.
     *   - Any other status: the message that the block belongs to fails with this status.
     */
    wherry_status (*send)(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                          wherry_error *error);

    /**
     * Waits for blocks from any rank, and calls deliver once per block, in the order of arrival.
     * Returns as soon as at least one block has arrived. Only one thread at a time is inside this
     * function.
     * @param timeout_ms  0 or a few milliseconds. The function must wait this long for a block
     *                    instead of returning at once, because the library calls it in a loop.
     * @param deliver     takes one block: see wherry_group_deliver_fn.
     * @param sink        passed to deliver.
     * @return
     *   - WHERRY_OK or WHERRY_TIMED_OUT: success. Both are also allowed if no block has arrived.
     *   - WHERRY_PEER_LOST: the rank in error->rank is lost. Return this once per lost rank, after
     *     delivering everything that it had sent.
     *   - Any other status: the group can no longer receive. From then on every call on it fails
     *     with WHERRY_CLOSED.
     */
    wherry_status (*receive)(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                             wherry_error *error);

    /**
     * Called after the program has left the group. The library does not use the table afterwards.
     * Default NULL: nothing is called.
     */
    void (*destroy)(void *context);

    /*
     * Blocks without copies: the bytes go straight from the memory of one tensor to the memory of
     * another. Set all four of the following functions, or none (the default). The `blocks` lane
     * uses them for the bytes of checkpoints. Without them, the library moves these bytes over send
     * and receive, with copies.
     *
     * A put and a get belong together by their order: the n-th put from rank A to rank B on a
     * channel belongs to B's n-th get from A on that channel. Both sides know the size in advance,
     * so only the bytes themselves have to travel. Several operations may be active at the same
     * time, also on the same channel. They must make progress without further calls, or at least
     * while `finish` runs. Each transfer has its own channel, so the blocks of a failed transfer
     * never reach the next transfer.
     *
     * The rules of WHERRY_GROUP_OPS_CONCURRENT for send apply to these functions too. Any thread
     * may finish or abandon an operation that another thread has started.
     */

    /**
     * Starts to send a block to another rank, never to this rank itself. Does not wait for the end
     * of the operation.
     * @param channel      0 to WHERRY_GROUP_CHANNEL_MAX.
     * @param bytes        the block. It does not change before the operation has ended.
     * @param size         1 to 2^31 - 1.
     * @param operation_p  receives a handle for the operation, which is passed to finish and
     * abandon. The handle may be NULL.
     * @return
     *   - WHERRY_OK: the operation has started.
     *   - WHERRY_PEER_LOST: the rank is lost. The library fails the calls that wait for it.
     *   - Any other status: the transfer fails with this status.
     * On failure no operation has started.
     */
    wherry_status (*put)(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);

    /**
     * Starts to receive a block of exactly `size` bytes from a rank. Parameters and results are the
     * same as for put, except for:
     * @param bytes  receives the block. Nobody else reads or writes this memory before the
     *               operation has ended.
     */
    wherry_status (*get)(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);

    /**
     * Waits for the end of an operation. The order in which operations are finished may differ from
     * the order in which they were started.
     * @param timeout_ms  0 or a few milliseconds: the library calls again.
     * @return
     *   - WHERRY_OK: the operation has ended. After a put, its bytes may change, although the other
     *     rank may not have received them yet.
     *   - WHERRY_TIMED_OUT: the operation is still active.
     *   - Any other status: the operation has failed and ended. WHERRY_PEER_LOST if the rank is
     *     lost; WHERRY_MALFORMED if the block for a get had another size.
     */
    wherry_status (*finish)(void *context, void *operation, uint32_t timeout_ms, wherry_error *error);

    /**
     * Abandons an operation that finish has not reported as ended. The operation counts as ended
     * when this function returns. Other operations on the same channel may then fail or never end,
     * on both sides, so the library abandons them too. The function must return soon, even if the
     * other rank does not respond.
     * @return true if nothing accesses the operation's memory any more; always true for a put.
     * false for a get that cannot be stopped: its memory may still be written. In that case:
     *   - The library never frees that memory and never releases the storages that it belongs to.
     *     The error of the receive says so. If the memory was wrapped without a release function,
     *     its owner must keep it.
     *   - From then on the other functions of the table must return WHERRY_CLOSED. The only
     *     exception is finish for a get that cannot be stopped, which returns WHERRY_TIMED_OUT
     *     until that get is abandoned.
     */
    bool (*abandon)(void *context, void *operation);

    /**
     * Tells whether the calling thread may use the table. Every call on the group or on its
     * transports calls this function before it uses the table. If the function returns an error,
     * the call fails before it has changed anything, and other threads can still use the group.
     * wherry_group_leave cannot fail: after an error, it logs the error, does not tell the other
     * ranks, and still calls destroy. Default NULL: any thread may use the table.
     * @return WHERRY_OK, or the status that the call returns.
     */
    wherry_status (*permit)(void *context, wherry_error *error);

    /**
     * Makes a `receive` that is waiting return early. If none is waiting, the next one returns
     * early. The library calls this if another thread has work for the thread inside `receive`. Any
     * thread may call it at any time, also without WHERRY_GROUP_OPS_CONCURRENT, and also the thread
     * inside `receive`, from `deliver`. Must not block. Default NULL: the end of each transfer is
     * then noticed a few milliseconds later.
     */
    void (*wake)(void *context);

    /**
     * Small tensors are packed into blocks of a few MiB. If both ranks set this value, such a block
     * is moved in parts, and each part is a separate operation. One part can then be packed while
     * another moves and a third is unpacked, and the parts stay in the CPU caches. The part size is
     * the smaller of the two ranks' values, rounded down to a multiple of 64 KiB. Set it if an
     * operation of this table has little overhead. In bytes, 64 KiB to 8 MiB. Default 0: blocks are
     * not split.
     */
    uint64_t part_bytes;

    /**
     * Like put, for a block whose bytes are in several runs. It is for a table that copies the
     * bytes anyway, so that the library need not pack them first. The other rank receives the block
     * with an ordinary get. Default NULL: the library packs the runs and calls put.
     * @param runs   the runs, none of them empty. The runs and the array do not change before the
     * operation has ended.
     * @param count  the number of runs, at least 1.
     */
    wherry_status (*put_runs)(void *context, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error);
} wherry_group_ops;

/** Fills in the defaults. */
WHERRY_API void wherry_group_ops_init(wherry_group_ops *ops);

/**
 * Copies runs of bytes into one contiguous block, for a table whose put_runs copies the bytes. If
 * possible, the copy bypasses the caches of this processor, because another processor will read it.
 * Does not block. Any thread may call this.
 * @param to    at least `size` bytes that no run overlaps.
 * @param runs  the runs, with at least skip + size bytes in total.
 * @param skip  number of bytes to skip at the start of the first run; less than its length.
 * @param size  number of bytes to copy.
 */
WHERRY_API void wherry_group_copy_runs(void *to, const struct iovec *runs, size_t skip, size_t size);

/**
 * Makes a group from a table, as a new incarnation of this rank. The number of the incarnation is
 * the current time of this machine. It is higher than the numbers of the rank's earlier processes,
 * if the clocks of their machines agree. The call announces the incarnation to every rank that can
 * take a block at once. The other ranks learn of it from the first message of this rank. The call
 * does not wait for other ranks: it blocks no longer than `send` does with a timeout of 0. Any
 * thread may call this.
 * @param ops      copied.
 * @param context  passed to the functions. On success it must stay valid until wherry_group_leave
 *                 has called destroy. Before that, wherry_group_leave tells the other ranks, for at
 *                 most a tenth of a second.
 * @param group_p  owned by the caller. Leave it with wherry_group_leave.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the table is incomplete or wrong; WHERRY_NO_MEMORY;
 * WHERRY_SYSTEM if the thread for WHERRY_GROUP_OPS_BACKGROUND cannot be started; the error that
 * `permit` returned. On failure destroy is not called.
 *
 * In addition to its own statuses, wherry_group_send on this group may return any status that
 * `send` returned. Every call on the group may return a status that `permit` returned.
 */
WHERRY_API wherry_status wherry_group_from_ops(const wherry_group_ops *ops, void *context, wherry_group **group_p,
                                               wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
