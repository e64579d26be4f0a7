/**
 * @file mpi_context.h  Declarations for all files of libwherry-mpi, which implements the table of
 * wherry/group_ops.h with a communicator.
 *
 * Invariants:
 * 1. All messages have the same tag. Each block has the tag of its channel. MPI keeps the order per
 *    rank and tag.
 * 2. Everything is sent from copies, because not every MPI can cancel a send. After a put was
 *    abandoned, MPI must not access the memory of the tensor. A block is sent in pieces, a few of
 *    them at a time.
 * 3. Blocks are received in place, because MPI can usually cancel a receive. If a receive cannot be
 *    cancelled, its memory is never freed, and the group is closed.
 * 4. No call of MPI waits while `lock` is held. The requests of a get are tested and cancelled
 *    without `lock`, because only one thread at a time uses them.
 * 5. A communicator is freed only after each rank has sent its last message. Otherwise MPI could
 *    reuse the number of the communicator, and the next communicator could receive a message that
 *    is still in flight.
 */
#ifndef WH_MPI_CONTEXT_H
#define WH_MPI_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/group_ops.h>
#include <wherry/mpi.h>

/**
 * Size of each piece of a block in bytes, except for the last piece. It is the same on all ranks.
 */
#define WH_MPI_PIECE ((size_t)8 << 20)

/**
 * Size of the parts of packed blocks in bytes. Larger parts do not stay in the caches of the
 * receiver. With smaller parts, the ranks wait for each other more often.
 */
#define WH_MPI_PART ((size_t)1 << 20)

enum {
    WH_MPI_VERSION = 1,
    WH_MPI_TAG_MESSAGE = 0, /**< The tag of messages. The tag of a channel is its number + 1. */
    /** Maximum number of pieces in flight per channel, see WH_MPI_WINDOWS. */
    WH_MPI_WINDOW = 4,
    /**
     * If all channels together have this many full windows in flight, each channel may have only
     * one piece in flight.
     */
    WH_MPI_WINDOWS = 4,
    WH_MPI_SPARE = 4, /**< Number of copies that are kept for later pieces. */
};

/** A message that is being sent. */
typedef struct wh_mpi_outgoing {
    struct wh_mpi_outgoing *next;
    MPI_Request request;
    int32_t rank;
    bool awaited; /**< A thread waits for this message and will free it. */
    bool gone;    /**< The message is no longer in the list. */
    size_t size;
    uint8_t bytes[];
} wh_mpi_outgoing;

/** A message that is being received, or a piece that will be dropped. */
typedef struct wh_mpi_incoming {
    struct wh_mpi_incoming *next;
    MPI_Request request;
    int32_t rank;
    bool unwanted;
    bool whole;
    size_t size;
    uint8_t bytes[];
} wh_mpi_incoming;

/** A copy of a piece, from which the piece is sent. */
typedef struct wh_mpi_copy {
    struct wh_mpi_copy *next;
    MPI_Request request;
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< WH_MPI_PIECE bytes. */
} wh_mpi_copy;

/**
 * A channel whose gets were abandoned. Pieces that arrive on it are dropped until the channel is
 * used again.
 */
typedef struct wh_mpi_drain {
    struct wh_mpi_drain *next;
    int32_t rank;
    uint32_t channel;
} wh_mpi_drain;

/** An operation on a block: a put or a get. */
typedef struct wh_mpi_operation {
    struct wh_mpi_operation *next; /**< The next entry in `puts` or `stuck`. */
    bool is_put;
    bool busy; /**< Put: a thread is copying a piece of this put. */
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< Get: the destination. */
    size_t size;
    struct iovec whole;       /**< Put of one run: the run. */
    const struct iovec *runs; /**< Put: the run that contains the next byte to copy. */
    size_t skip;              /**< Put: number of bytes of that run that were already copied. */
    size_t done;              /**< Number of bytes that were copied (put) or received (get). */
    _Atomic uint64_t moved;   /**< Time when `done` last changed, or when the operation began. */
    bool failed;              /**< Get: it was given up, but MPI may still write to its memory. */
    size_t pieces;            /**< Get: number of pieces. */
    /** Get: one request per piece; MPI_REQUEST_NULL if the request has ended. */
    MPI_Request requests[];
} wh_mpi_operation;

/** Lets a thread end the wait of another thread early. */
typedef struct wh_mpi_alarm {
    pthread_mutex_t lock;
    pthread_cond_t ringing;
    atomic_bool rings; /**< True until a waiting thread has noticed the alarm. */
} wh_mpi_alarm;

void wh_mpi_alarm_init(wh_mpi_alarm *alarm);

void wh_mpi_alarm_destroy(wh_mpi_alarm *alarm);

typedef struct wh_mpi {
    struct wh_mpi *next; /**< The next entry in the list `unsettled` of mpi_group.c. */
    MPI_Comm communicator;
    int rank;
    int size;
    int level; /**< The thread level of MPI: MPI_THREAD_*. */

    pthread_mutex_t lock;      /**< Guards the members from `outgoing` to `missing`. */
    wh_mpi_outgoing *outgoing; /**< Messages being sent, the oldest first. */
    size_t *waiting;           /**< Per rank: number of bytes in `outgoing`. */
    wh_mpi_copy *copies;       /**< Copies in flight, including those of abandoned puts. */
    wh_mpi_copy *spare;
    size_t spare_count;
    wh_mpi_drain *drains;
    wh_mpi_operation *puts;  /**< Unfinished puts, the oldest first. */
    wh_mpi_operation *stuck; /**< Gets whose memory MPI may still write to. */
    char broken[384];        /**< Why the group is closed; "" if it is not closed. */

    wh_mpi_incoming *incoming; /**< Messages being received, the oldest first. */
    size_t incoming_count;
    bool *left;  /**< Per rank: true if it has sent its last message. */
    int missing; /**< Number of other ranks that have not sent their last message. */
    bool said_last;

    wh_mpi_alarm alarm; /**< The alarm for threads that wait for messages. */
    /**
     * Number of active operations on blocks. While there are any, a thread that waits for messages
     * sleeps longer.
     */
    atomic_int under_way;
    /** Time of the last message that was sent or received, or of the last wake. */
    _Atomic uint64_t active_at;
} wh_mpi;

/**
 * Creates the table and its context. This is wherry_group_from_mpi without the final
 * wherry_group_from_ops. All ranks of the communicator must call it.
 * @param context_p  owned by the caller. Destroy it with ops_p->destroy.
 */
wherry_status wh_mpi_open(MPI_Comm communicator, const wherry_mpi_options *options, wherry_group_ops *ops_p,
                          wh_mpi **context_p, wherry_error *error);

/**
 * Fills an error record. @param rank  the rank that the error is about; -1 if there is none.
 * @return status.
 */
wherry_status wh_mpi_fail(wherry_error *error, wherry_status status, int32_t rank, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** Fills an error record from an error code of MPI. */
wherry_status wh_mpi_fail_code(wherry_error *error, int code, int32_t rank, const char *function);

/** Returns the time of a monotonic clock in nanoseconds. */
uint64_t wh_mpi_now(void);

/**
 * Records that a message was sent or received, or that a thread was woken. The next message will
 * probably follow soon.
 */
void wh_mpi_note_activity(wh_mpi *mpi);

/** A wait with a time limit. It polls at first. Then it sleeps, each time longer than before. */
typedef struct wh_mpi_wait {
    wh_mpi_alarm *alarm;
    uint64_t begin; /**< Time when polling began, in nanoseconds. */
    uint64_t end;
    uint64_t quick; /**< How long to poll, in nanoseconds. Each poll yields the processor. */
    bool modest;    /**< Stop polling early if other threads need the processor. */
    unsigned sleep_us;
    unsigned sleep_max_us;
} wh_mpi_wait;

/** Begins a wait. @param alarm  NULL if only the timeout can end the wait. */
void wh_mpi_wait_begin(wh_mpi_wait *wait, wh_mpi_alarm *alarm, uint32_t timeout_ms, unsigned quick_us,
                       unsigned sleep_max_us);

/**
 * Waits until it is time to check again. @return false if the time limit is reached, or the alarm
 * has rung.
 */
bool wh_mpi_wait_on(wh_mpi_wait *wait);

/* The functions of the table: wherry/group_ops.h. */

wherry_status wh_mpi_permit(void *context, wherry_error *error);
void wh_mpi_wake(void *context);
wherry_status wh_mpi_send(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                          wherry_error *error);
wherry_status wh_mpi_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                             wherry_error *error);
wherry_status wh_mpi_put(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error);
wherry_status wh_mpi_put_runs(void *context, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error);
wherry_status wh_mpi_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error);
wherry_status wh_mpi_finish(void *context, void *operation, uint32_t timeout_ms, wherry_error *error);
bool wh_mpi_abandon(void *context, void *operation);

/**
 * How long `finish` polls after the last piece, and the maximum length of a sleep after that, in
 * microseconds. Some MPIs move only a part of a piece each time they are polled, so sleeping in
 * between would halve the rate. If a piece takes longer than WH_MPI_QUICK_US, the network is so
 * slow that sleeping does not matter.
 */
enum { WH_MPI_QUICK_US = 20000, WH_MPI_SLEEP_US = 100 };

/** Returns the size of the next piece, if `left` bytes are left. */
static inline size_t wh_mpi_next_piece(size_t left) {
    return left < WH_MPI_PIECE ? left : WH_MPI_PIECE;
}

/** Implements wh_mpi_finish for a get. */
wherry_status wh_mpi_finish_get(wh_mpi_operation *get, wh_mpi_wait *wait, wherry_error *error);

/**
 * Cancels a get.
 * @return false if MPI may still write to the memory of the get. In that case the get and its
 * requests stay allocated.
 */
bool wh_mpi_give_up_get(wh_mpi *mpi, wh_mpi_operation *get);

/**
 * Stops dropping pieces that arrive on a channel, because the channel is used again. The caller
 * holds the lock.
 */
void wh_mpi_end_drain(wh_mpi *mpi, int32_t rank, uint32_t channel);

/** Releases the copies whose send has ended. The caller holds the lock. */
void wh_mpi_reap_copies(wh_mpi *mpi);

/** Sends the last message of this rank to all others. */
void wh_mpi_say_last(wh_mpi *mpi);

/**
 * Drops everything that has arrived for a group that was left. @return true if nothing is in flight
 * and nothing can arrive any more.
 */
bool wh_mpi_settle(wh_mpi *mpi);

/**
 * These functions free the memory of messages and blocks. MPI must not use this memory any more.
 */
void wh_mpi_free_messages(wh_mpi *mpi);
void wh_mpi_free_blocks(wh_mpi *mpi);

#endif
