/* Blocks that are sent, and what puts and gets have in common. mpi_context.h has the invariants. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mpi_context.h"

/* ---- copies ---- */

/** On huge pages if possible: an MPI that reads the sender's memory is faster then. */
static wh_mpi_copy *new_copy(void) {
    wh_mpi_copy *copy = calloc(1, sizeof(*copy));
    void *bytes = copy ? aligned_alloc((size_t)2 << 20, WH_MPI_PIECE) : NULL;
    if (!bytes) {
        free(copy);
        return NULL;
    }
    madvise(bytes, WH_MPI_PIECE, MADV_HUGEPAGE);
    copy->bytes = bytes;
    return copy;
}

static void free_copies(wh_mpi_copy *copy) {
    while (copy) {
        wh_mpi_copy *next = copy->next;
        free(copy->bytes);
        free(copy);
        copy = next;
    }
}

/** The lock is held. */
static void keep_copy(wh_mpi *mpi, wh_mpi_copy *copy) {
    copy->next = NULL;
    if (mpi->spare_count < WH_MPI_SPARE) {
        copy->next = mpi->spare;
        mpi->spare = copy;
        mpi->spare_count++;
    } else {
        free_copies(copy);
    }
}

void wh_mpi_reap_copies(wh_mpi *mpi) {
    for (wh_mpi_copy **at = &mpi->copies; *at;) {
        wh_mpi_copy *copy = *at;
        int done = 0;
        /* Also if it failed: the receiver notices that its block does not arrive. */
        if (MPI_Test(&copy->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            *at = copy->next;
            keep_copy(mpi, copy);
        } else {
            at = &copy->next;
        }
    }
}

/** @return true if another piece of the channel may be in flight. The lock is held. */
static bool has_room(const wh_mpi *mpi, const wh_mpi_operation *put) {
    size_t own = 0;
    size_t all = 0;
    for (const wh_mpi_copy *copy = mpi->copies; copy; copy = copy->next) {
        own += copy->rank == put->rank && copy->channel == put->channel;
        all++;
    }
    return own < (all < WH_MPI_WINDOW * WH_MPI_WINDOWS ? WH_MPI_WINDOW : 1);
}

/**
 * @return a copy to fill; NULL if enough are in flight (*full_p), or there is no memory. The lock
 * is held.
 */
static wh_mpi_copy *take_copy(wh_mpi *mpi, const wh_mpi_operation *put, bool *full_p) {
    wh_mpi_reap_copies(mpi);
    *full_p = !has_room(mpi, put);
    if (*full_p) {
        return NULL;
    }
    wh_mpi_copy *copy = mpi->spare;
    if (copy) {
        mpi->spare = copy->next;
        mpi->spare_count--;
    } else {
        copy = new_copy();
    }
    return copy;
}

/* ---- putting ---- */

/** @return the oldest unfinished put of the channel. The lock is held. */
static wh_mpi_operation *oldest_of(const wh_mpi *mpi, const wh_mpi_operation *put) {
    wh_mpi_operation *one = mpi->puts;
    while (one && (one->rank != put->rank || one->channel != put->channel)) {
        one = one->next;
    }
    return one;
}

/** The lock is held. */
static void unlink_put(wh_mpi *mpi, const wh_mpi_operation *put) {
    wh_mpi_operation **at = &mpi->puts;
    while (*at && *at != put) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = put->next;
    }
}

/** The lock is held. @return MPI's error code. */
static int send_copy(wh_mpi *mpi, wh_mpi_copy *copy, wh_mpi_operation *put, size_t size) {
    copy->rank = put->rank;
    copy->channel = put->channel;
    int code = MPI_Isend(copy->bytes, (int)size, MPI_BYTE, put->rank, (int)put->channel + 1, mpi->communicator,
                         &copy->request);
    if (code != MPI_SUCCESS) {
        keep_copy(mpi, copy);
        return code;
    }
    copy->next = mpi->copies;
    mpi->copies = copy;
    put->done += size;
    atomic_store(&put->moved, wh_mpi_now());
    if (put->done == put->size) {
        unlink_put(mpi, put);
    }
    return code;
}

/** Copies the next bytes of a put that is marked as busy. */
static void copy_runs(wh_mpi_operation *put, uint8_t *to, size_t size) {
    wherry_group_copy_runs(to, put->runs, put->skip, size);
    for (put->skip += size; put->skip && put->skip >= put->runs->iov_len; put->runs++) {
        put->skip -= put->runs->iov_len;
    }
}

/**
 * Sends the next piece of a put that is marked as busy. @return WHERRY_TIMED_OUT if enough are in
 * flight.
 */
static wherry_status send_piece(wh_mpi *mpi, wh_mpi_operation *put, wherry_error *error) {
    bool full = false;
    int32_t rank = put->rank;
    int code = MPI_SUCCESS;
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_copy *copy = take_copy(mpi, put, &full);
    if (copy) {
        size_t size = wh_mpi_next_piece(put->size - put->done);
        pthread_mutex_unlock(&mpi->lock);
        copy_runs(put, copy->bytes, size);
        pthread_mutex_lock(&mpi->lock);
        code = send_copy(mpi, copy, put, size);
    }
    put->busy = false; /* from here on, another thread may free it */
    pthread_mutex_unlock(&mpi->lock);
    if (code != MPI_SUCCESS) {
        return wh_mpi_fail_code(error, code, rank, "MPI_Isend");
    }
    return copy   ? WHERRY_OK
           : full ? WHERRY_TIMED_OUT
                  : wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "no memory for a block");
}

/**
 * Chooses the put of the channel whose piece this thread has to send next, and marks it as busy.
 * @return NULL if another thread is sending, or if the put is finished (*through_p).
 */
static wh_mpi_operation *begin_copying(wh_mpi *mpi, const wh_mpi_operation *put, bool *through_p) {
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_operation *first = NULL;
    *through_p = put->done == put->size;
    if (!*through_p) {
        first = oldest_of(mpi, put);
        first = first->busy ? NULL : first;
    }
    if (first) {
        first->busy = true;
    }
    pthread_mutex_unlock(&mpi->lock);
    return first;
}

/** Sends pieces of older puts of the channel first: their order must not change. */
static wherry_status finish_put(wh_mpi *mpi, wh_mpi_operation *put, wh_mpi_wait *wait, wherry_error *error) {
    for (;;) {
        wherry_status status = WHERRY_TIMED_OUT;
        bool through = false;
        wh_mpi_operation *first = begin_copying(mpi, put, &through);
        if (through) {
            return WHERRY_OK;
        }
        if (first) {
            status = send_piece(mpi, first, error);
        }
        if (status != WHERRY_OK && status != WHERRY_TIMED_OUT) {
            return status;
        }
        wait->begin = atomic_load(&put->moved);
        if (status == WHERRY_TIMED_OUT && !wh_mpi_wait_on(wait)) {
            return WHERRY_TIMED_OUT;
        }
    }
}

/** @param runs  NULL: there is one run, `whole`. */
static wherry_status begin_put(wh_mpi *mpi, int32_t rank, uint32_t channel, struct iovec whole,
                               const struct iovec *runs, void **operation_p, wherry_error *error) {
    wherry_status status = wh_mpi_permit(mpi, error);
    wh_mpi_operation *put = status == WHERRY_OK ? calloc(1, sizeof(*put)) : NULL;
    if (!put) {
        return status == WHERRY_OK ? wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "no memory for a block") : status;
    }
    *put = (wh_mpi_operation){.is_put = true, .rank = rank, .channel = channel, .whole = whole, .size = whole.iov_len};
    put->runs = runs ? runs : &put->whole;
    atomic_store(&put->moved, wh_mpi_now());
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_operation **at = &mpi->puts;
    while (*at) {
        at = &(*at)->next;
    }
    *at = put;
    pthread_mutex_unlock(&mpi->lock);
    atomic_fetch_add(&mpi->under_way, 1);
    *operation_p = put;
    return WHERRY_OK;
}

wherry_status wh_mpi_put(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                         void **operation_p, wherry_error *error) {
    return begin_put(context, rank, channel, (struct iovec){(void *)bytes, size}, NULL, operation_p, error);
}

wherry_status wh_mpi_put_runs(void *context, int32_t rank, uint32_t channel, const struct iovec *runs, size_t count,
                              void **operation_p, wherry_error *error) {
    struct iovec whole = {NULL, 0};
    for (size_t i = 0; i < count; i++) {
        whole.iov_len += runs[i].iov_len;
    }
    return begin_put(context, rank, channel, whole, runs, operation_p, error);
}

/* ---- both ---- */

/** Ends an unfinished put. MPI has only copies of it, which stay until they are sent. */
static void give_up_put(wh_mpi *mpi, wh_mpi_operation *put) {
    pthread_mutex_lock(&mpi->lock);
    while (put->busy) { /* a thread that finishes a later put of the channel is copying a piece */
        pthread_mutex_unlock(&mpi->lock);
        sched_yield();
        pthread_mutex_lock(&mpi->lock);
    }
    unlink_put(mpi, put);
    pthread_mutex_unlock(&mpi->lock);
    free(put);
}

/** @return as wh_mpi_give_up_get. */
static bool give_up(wh_mpi *mpi, wh_mpi_operation *one) {
    if (!one->is_put) {
        return wh_mpi_give_up_get(mpi, one);
    }
    give_up_put(mpi, one);
    return true;
}

bool wh_mpi_abandon(void *context, void *operation) {
    wh_mpi *mpi = context;
    atomic_fetch_sub(&mpi->under_way, 1);
    return give_up(mpi, operation);
}

wherry_status wh_mpi_finish(void *context, void *operation, uint32_t timeout_ms, wherry_error *error) {
    wh_mpi *mpi = context;
    wh_mpi_operation *one = operation;
    wh_mpi_wait wait;
    wh_mpi_wait_begin(&wait, NULL, timeout_ms, WH_MPI_QUICK_US, WH_MPI_SLEEP_US);
    wherry_status status = one->is_put ? finish_put(mpi, one, &wait, error) : wh_mpi_finish_get(one, &wait, error);
    if (status == WHERRY_OK) {
        free(one);
    } else if (status == WHERRY_TIMED_OUT || !give_up(mpi, one)) {
        /* The operation still exists: abandon reports that MPI may use its memory. */
        return WHERRY_TIMED_OUT;
    }
    atomic_fetch_sub(&mpi->under_way, 1);
    return status;
}

void wh_mpi_free_blocks(wh_mpi *mpi) {
    free_copies(mpi->spare);
    free_copies(mpi->copies);
    while (mpi->drains) {
        wh_mpi_end_drain(mpi, mpi->drains->rank, mpi->drains->channel);
    }
}
