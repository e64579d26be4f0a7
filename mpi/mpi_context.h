/**
 * @file mpi_context.h  What the files of libwherry-mpi share: the table of wherry/group_ops.h over a communicator.
 *
 * Messages have a tag of their own and are sent from copies. A block goes in pieces, by the tag of its channel. Its pieces are sent
 * from copies too, of which a few are under way: what MPI has begun to send cannot be taken back in every MPI, and a put that is
 * abandoned must leave the tensor's memory alone. They are received in place, since a receive can be cancelled.
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

/** Pieces of a block have this many bytes, but for the last. Both sides cut alike. */
#define WH_MPI_PIECE ((size_t)8 << 20)

/**
 * Parts of blocks that are packed: with larger ones the receiver's leave its caches, and with smaller ones the ranks wait for each other more often. The source's copies
 * go past its caches: where two processors share none, writing what the other has just read takes longer than memory does.
 */
#define WH_MPI_PART ((size_t)1 << 20)

enum {
    WH_MPI_VERSION = 1,
    WH_MPI_TAG_MESSAGE = 0, /**< Of messages; that of a channel is its number and one. */
    WH_MPI_WINDOW = 4,      /**< Copies of pieces that are under way for one channel, */
    WH_MPI_WINDOWS = 4,     /**< while no more than so many windows are in use altogether; then one. */
    WH_MPI_SPARE = 4,       /**< Copies that are kept for the next transfer. */
};

/** A message to another rank that is under way. */
typedef struct wh_mpi_outgoing {
    struct wh_mpi_outgoing *next;
    MPI_Request request;
    int32_t rank;
    bool awaited; /**< A thread looks at it, and frees it; */
    bool gone;    /**< it is no more in the list. */
    size_t size;
    uint8_t bytes[];
} wh_mpi_outgoing;

/** A message that is coming in; or a piece that nobody wants any more. */
typedef struct wh_mpi_incoming {
    struct wh_mpi_incoming *next;
    MPI_Request request;
    int32_t rank;
    bool unwanted;
    bool whole;
    size_t size;
    uint8_t bytes[];
} wh_mpi_incoming;

/** Memory for a piece that is sent. */
typedef struct wh_mpi_copy {
    struct wh_mpi_copy *next;
    MPI_Request request;
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< WH_MPI_PIECE of them. */
} wh_mpi_copy;

/** A channel from which gets were abandoned: what comes there is thrown away, until it is used anew. */
typedef struct wh_mpi_drain {
    struct wh_mpi_drain *next;
    int32_t rank;
    uint32_t channel;
} wh_mpi_drain;

/** A block. */
typedef struct wh_mpi_operation {
    struct wh_mpi_operation
        *next; /**< A put: the next that was begun, whatever its channel. A get that is stuck: another. */
    bool is_put;
    bool busy; /**< A put: a thread copies a piece of it. */
    int32_t rank;
    uint32_t channel;
    uint8_t *bytes; /**< A get: where they go. */
    size_t size;
    struct iovec whole;       /**< A put: its only run, where it has one; */
    const struct iovec *runs; /**< the run that its next bytes are in, */
    size_t skip;              /**< and how many before them. */
    size_t done;              /**< Bytes that are through: copied, or received. */
    _Atomic uint64_t moved;   /**< When the last of them were, or it was begun. */
    bool failed;              /**< A get: it has ended, and MPI may still write to its memory. */
    size_t pieces;            /**< A get: how many, */
    MPI_Request requests[];   /**< and their receives; MPI_REQUEST_NULL: through. */
} wh_mpi_operation;

/** Ends a wait before its time. */
typedef struct wh_mpi_alarm {
    pthread_mutex_t lock;
    pthread_cond_t ringing;
    atomic_bool rings; /**< Until somebody who waits has heard it. */
} wh_mpi_alarm;

void wh_mpi_alarm_init(wh_mpi_alarm *alarm);

void wh_mpi_alarm_destroy(wh_mpi_alarm *alarm);

typedef struct wh_mpi {
    struct wh_mpi *next; /**< Of those that were left and are not settled: mpi_group.c. */
    MPI_Comm communicator;
    int rank;
    int size;
    int level; /**< Of threads: MPI_THREAD_*. */

    pthread_mutex_t lock;      /**< Over what follows. MPI is called under it, but never waits there. */
    wh_mpi_outgoing *outgoing; /**< The oldest first. */
    size_t *waiting;           /**< Bytes in `outgoing`, a rank. */
    wh_mpi_copy *copies;       /**< Under way; of whichever puts, also of abandoned ones. */
    wh_mpi_copy *spare;
    size_t spare_count;
    wh_mpi_drain *drains;
    wh_mpi_operation *puts;  /**< Not through, the oldest first. */
    wh_mpi_operation *stuck; /**< Gets that have ended, and whose memory MPI may still write to. */
    char broken[384];        /**< Why nothing can be done any more; "": it can. */

    wh_mpi_incoming *incoming; /**< The oldest first. */
    size_t incoming_count;
    bool *left;  /**< A rank: nothing comes from it any more. */
    int missing; /**< How many others have not said so. */
    bool said_last;

    wh_mpi_alarm alarm;      /**< For whoever waits for messages. */
    atomic_int under_way;    /**< Blocks: while there are some, whoever waits for messages sleeps longer. */
    _Atomic uint64_t lively; /**< When the last message came or went, or the alarm rang. */
} wh_mpi;

/**
 * Makes the table and its context, without a group: wherry_group_from_mpi is this and wherry_group_from_ops. Collective.
 * @param ops_p      receives the table.
 * @param context_p  its context: ends by ops_p->destroy.
 */
wherry_status wh_mpi_open(MPI_Comm communicator, const wherry_mpi_options *options, wherry_group_ops *ops_p,
                          wh_mpi **context_p, wherry_error *error);

/** Fills an error. @param rank  that it is about; -1: none. @return the status. */
wherry_status wh_mpi_fail(wherry_error *error, wherry_status status, int32_t rank, const char *format, ...)
    WHERRY_PRINTF(4, 5);

/** Makes an error of what a function of MPI returned. */
wherry_status wh_mpi_fail_code(wherry_error *error, int code, int32_t rank, const char *function);

/** Nanoseconds of a clock that only goes forward. */
uint64_t wh_mpi_now(void);

/** A message has come or gone, or somebody is woken: the next is not far. */
void wh_mpi_note_lively(wh_mpi *mpi);

/** A wait with an end. Starts with wh_mpi_wait_begin; wh_mpi_wait_on sleeps a little, longer each time. */
typedef struct wh_mpi_wait {
    wh_mpi_alarm *alarm;
    uint64_t begin; /**< Of being quick, in nanoseconds. */
    uint64_t end;
    uint64_t quick; /**< For so long it only yields the processor, */
    bool modest;    /**< and no longer than nobody else wants it. */
    unsigned sleep_us;
    unsigned sleep_max_us;
} wh_mpi_wait;

/** @param alarm  NULL: only time ends it. */
void wh_mpi_wait_begin(wh_mpi_wait *wait, wh_mpi_alarm *alarm, uint32_t timeout_ms, unsigned quick_us,
                       unsigned sleep_max_us);

/** @return false where the time is over, or the alarm has rung. */
bool wh_mpi_wait_on(wh_mpi_wait *wait);

/** The table: wherry/group_ops.h. */
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
 * For how long after the last piece whoever finishes a block only yields, and how long it then sleeps at most, in microseconds. Some MPIs move a part of a piece
 * each time they are asked: who sleeps in between has half of the rate. Where pieces take longer than this, the network is slower than any sleep.
 */
enum { WH_MPI_QUICK_US = 20000, WH_MPI_SLEEP_US = 100 };

/** Of so many bytes that are not through, those of the next piece. */
static inline size_t wh_mpi_next_piece(size_t left) {
    return left < WH_MPI_PIECE ? left : WH_MPI_PIECE;
}

/** A part of finish, for a get. */
wherry_status wh_mpi_finish_get(wh_mpi_operation *get, wh_mpi_wait *wait, wherry_error *error);

/**
 * Ends a get whose bytes will not come, or not all of them.
 * @return whether it is gone. Else MPI may still write to its memory, and knows its requests: it stays.
 */
bool wh_mpi_give_up_get(wh_mpi *mpi, wh_mpi_operation *get);

/** A channel from which gets were abandoned is in use again. The lock is held. */
void wh_mpi_end_drain(wh_mpi *mpi, int32_t rank, uint32_t channel);

/** Looks after what is under way: releases what has arrived, and throws away what nobody wants. The lock is held. */
void wh_mpi_reap_copies(wh_mpi *mpi);

/** Tells all ranks that nothing comes from this one any more. */
void wh_mpi_say_last(wh_mpi *mpi);

/** Takes and throws away what has come to a group that was left. @return whether nothing is under way any more, and nothing can come. */
bool wh_mpi_settle(wh_mpi *mpi);

/** Releases memory that MPI does not know any more: all of it, where nothing is under way or MPI has ended. */
void wh_mpi_free_messages(wh_mpi *mpi);
void wh_mpi_free_blocks(wh_mpi *mpi);

#endif
