/**
 * @file mpi_context.h  What the files of libwherry-mpi share: the table of wherry/group_ops.h over
 * a communicator.
 *
 * Invariants:
 * 1. Messages have one tag, blocks the tag of their channel. MPI keeps the order per rank and tag.
 * 2. Everything is sent from copies: not every MPI can cancel a send, and a put that is abandoned
 *    must leave the tensor's memory alone at once. A block is sent in pieces, a few of them at a
 *    time.
 * 3. Blocks are received in place, because a receive can be cancelled. If one cannot be cancelled,
 *    its memory is never freed, and the group is closed.
 * 4. MPI is called under `lock`, and never waits there.
 * 5. A communicator is freed only when each rank has sent its last message: MPI may give its
 *    number, and with it a message that is still in flight, to the next one.
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

/** Length of the pieces of a block, except for the last one. The same on all ranks. */
#define WH_MPI_PIECE ((size_t)8 << 20)

/**
 * Length of the parts of packed blocks. Larger ones leave the receiver's caches; with smaller ones
 * the ranks wait for each other more often.
 */
#define WH_MPI_PART ((size_t)1 << 20)

enum {
    WH_MPI_VERSION = 1,
    WH_MPI_TAG_MESSAGE = 0, /**< Of messages. The tag of a channel is its number + 1. */
    WH_MPI_WINDOW = 4,      /**< Pieces in flight per channel, */
    /** as long as all channels together have no more than this many windows; then one. */
    WH_MPI_WINDOWS = 4,
    WH_MPI_SPARE = 4, /**< Copies that are kept for later pieces. */
};

/** A message that is being sent. */
typedef struct wh_mpi_outgoing {
    struct wh_mpi_outgoing *next;
    MPI_Request request;
    int32_t rank;
    bool awaited; /**< A thread waits for it, and frees it. */
    bool gone;    /**< It is not in the list any more. */
    size_t size;
    uint8_t bytes[];
} wh_mpi_outgoing;

/** A message that is being received, or a piece that nobody wants any more. */
typedef struct wh_mpi_incoming {
    struct wh_mpi_incoming *next;
    MPI_Request request;
    int32_t rank;
    bool unwanted;
    bool whole;
    size_t size;
    uint8_t bytes[];
} wh_mpi_incoming;

/** A copy of a piece, to be sent. */
typedef struct wh_mpi_copy {
    struct wh_mpi_copy *next;
    MPI_Request request;
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< WH_MPI_PIECE of them. */
} wh_mpi_copy;

/** A channel whose gets were abandoned: what arrives there is dropped until it is used again. */
typedef struct wh_mpi_drain {
    struct wh_mpi_drain *next;
    int32_t rank;
    uint32_t channel;
} wh_mpi_drain;

/** A block: a put or a get. */
typedef struct wh_mpi_operation {
    struct wh_mpi_operation *next; /**< In `puts` or `stuck`. */
    bool is_put;
    bool busy; /**< A put: a thread is copying a piece of it. */
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< A get: the destination. */
    size_t size;
    struct iovec whole;       /**< A put of one run: that run. */
    const struct iovec *runs; /**< A put: the run with its next byte, */
    size_t skip;              /**< and the bytes of that run before it. */
    size_t done;              /**< Bytes that were copied, or received. */
    _Atomic uint64_t moved;   /**< When the last of them were, or when it began. */
    bool failed;              /**< A get: it was given up, and MPI may still write to its memory. */
    size_t pieces;            /**< A get: their number, */
    MPI_Request requests[];   /**< and their requests; MPI_REQUEST_NULL: received. */
} wh_mpi_operation;

/** Ends a wait early. */
typedef struct wh_mpi_alarm {
    pthread_mutex_t lock;
    pthread_cond_t ringing;
    atomic_bool rings; /**< Until a waiter has noticed it. */
} wh_mpi_alarm;

void wh_mpi_alarm_init(wh_mpi_alarm *alarm);

void wh_mpi_alarm_destroy(wh_mpi_alarm *alarm);

typedef struct wh_mpi {
    struct wh_mpi *next; /**< In the list `unsettled` of mpi_group.c. */
    MPI_Comm communicator;
    int rank;
    int size;
    int level; /**< MPI_THREAD_*. */

    pthread_mutex_t lock;      /**< Guards what follows. */
    wh_mpi_outgoing *outgoing; /**< The oldest first. */
    size_t *waiting;           /**< Bytes in `outgoing`, per rank. */
    wh_mpi_copy *copies;       /**< In flight, also those of abandoned puts. */
    wh_mpi_copy *spare;
    size_t spare_count;
    wh_mpi_drain *drains;
    wh_mpi_operation *puts;  /**< Unfinished ones, the oldest first. */
    wh_mpi_operation *stuck; /**< Gets whose memory MPI may still write to. */
    char broken[384];        /**< Why the group is closed; "": it is not. */

    wh_mpi_incoming *incoming; /**< The oldest first. */
    size_t incoming_count;
    bool *left;  /**< Per rank: it has sent its last message. */
    int missing; /**< Other ranks that have not. */
    bool said_last;

    wh_mpi_alarm alarm; /**< For threads that wait for messages. */
    /** Blocks. While there are some, waiting for messages sleeps longer. */
    atomic_int under_way;
    _Atomic uint64_t lively; /**< When the last message came or went, or somebody was woken. */
} wh_mpi;

/**
 * Makes the table and its context: wherry_group_from_mpi without wherry_group_from_ops. Collective.
 * @param context_p  the caller's: ops_p->destroy.
 */
wherry_status wh_mpi_open(MPI_Comm communicator, const wherry_mpi_options *options, wherry_group_ops *ops_p,
                          wh_mpi **context_p, wherry_error *error);

/** Fills an error. @param rank  that it is about; -1: none. @return status. */
wherry_status wh_mpi_fail(wherry_error *error, wherry_status status, int32_t rank, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** Makes an error of MPI's error code. */
wherry_status wh_mpi_fail_code(wherry_error *error, int code, int32_t rank, const char *function);

/** Nanoseconds of a monotonic clock. */
uint64_t wh_mpi_now(void);

/** A message has come or gone, or somebody was woken: the next message is probably near. */
void wh_mpi_note_lively(wh_mpi *mpi);

/** A wait with a limit: polls at first, then sleeps, longer each time. */
typedef struct wh_mpi_wait {
    wh_mpi_alarm *alarm;
    uint64_t begin; /**< Of polling, in nanoseconds. */
    uint64_t end;
    uint64_t quick; /**< How long it polls, yielding the processor, */
    bool modest;    /**< and stops if others need the processor. */
    unsigned sleep_us;
    unsigned sleep_max_us;
} wh_mpi_wait;

/** @param alarm  NULL: only the timeout ends it. */
void wh_mpi_wait_begin(wh_mpi_wait *wait, wh_mpi_alarm *alarm, uint32_t timeout_ms, unsigned quick_us,
                       unsigned sleep_max_us);

/** @return false if the time is over, or the alarm has rung. */
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
 * How long finish polls after the last piece, and how long it sleeps at most after that, in
 * microseconds. Some MPIs move a part of a piece each time they are polled: sleeping in between
 * halves the rate. If pieces take longer than this, the network is slower than any sleep.
 */
enum { WH_MPI_QUICK_US = 20000, WH_MPI_SLEEP_US = 100 };

/** @return the length of the next piece of the bytes that are left. */
static inline size_t wh_mpi_next_piece(size_t left) {
    return left < WH_MPI_PIECE ? left : WH_MPI_PIECE;
}

/** wh_mpi_finish, for a get. */
wherry_status wh_mpi_finish_get(wh_mpi_operation *get, wh_mpi_wait *wait, wherry_error *error);

/**
 * Cancels a get.
 * @return false if MPI may still write to its memory. Then it stays allocated, with its requests.
 */
bool wh_mpi_give_up_get(wh_mpi *mpi, wh_mpi_operation *get);

/** Stops dropping what arrives on a channel, which is used again. The lock is held. */
void wh_mpi_end_drain(wh_mpi *mpi, int32_t rank, uint32_t channel);

/** Frees the copies of pieces that were sent. The lock is held. */
void wh_mpi_reap_copies(wh_mpi *mpi);

/** Sends the last message of this rank to all others. */
void wh_mpi_say_last(wh_mpi *mpi);

/**
 * Drops what has arrived for a group that was left. @return true if nothing is in flight or can
 * arrive any more.
 */
bool wh_mpi_settle(wh_mpi *mpi);

/** Free the memory of messages and blocks. MPI uses none of it any more. */
void wh_mpi_free_messages(wh_mpi *mpi);
void wh_mpi_free_blocks(wh_mpi *mpi);

#endif
