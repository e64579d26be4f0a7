/*
 * Sends blocks. Also has the functions that puts and gets share. mpi_context.h has the invariants.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mpi_context.h"

/* ---- copies ---- */

/**
 * Allocates a copy, on huge pages if possible. An MPI that reads the memory of the sender is faster
 * with huge pages.
 */
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

/** Keeps a copy for a later piece, or frees it. The caller holds the lock. */
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
        /* A failed send also ends here. The receiver notices that its block does not arrive. */
        if (MPI_Test(&copy->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            *at = copy->next;
            keep_copy(mpi, copy);
        } else {
            at = &copy->next;
        }
    }
}

/** True if one more piece may be in flight on the channel. The caller holds the lock. */
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
 * Gets an empty copy for a piece. The caller holds the lock. @return NULL if enough pieces are in
 * flight (*full_p is true), or if out of memory.
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

/** Finds the oldest unfinished put of the channel. The caller holds the lock. */
static wh_mpi_operation *oldest_of(const wh_mpi *mpi, const wh_mpi_operation *put) {
    wh_mpi_operation *one = mpi->puts;
    while (one && (one->rank != put->rank || one->channel != put->channel)) {
        one = one->next;
    }
    return one;
}

/** Removes a put from the list. The caller holds the lock. */
static void unlink_put(wh_mpi *mpi, const wh_mpi_operation *put) {
    wh_mpi_operation **at = &mpi->puts;
    while (*at && *at != put) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = put->next;
    }
}

/** Starts to send a copy. The caller holds the lock. @return MPI's error code. */
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

/** Copies the next bytes of a put, which the caller has marked as busy. */
static void copy_runs(wh_mpi_operation *put, uint8_t *to, size_t size) {
    wherry_group_copy_runs(to, put->runs, put->skip, size);
    for (put->skip += size; put->skip && put->skip >= put->runs->iov_len; put->runs++) {
        put->skip -= put->runs->iov_len;
    }
}

/**
 * Sends the next piece of a put, which is marked as busy. @return WHERRY_TIMED_OUT if enough pieces
 * are in flight.
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
    put->busy = false; /* From here on, another thread may free the put. */
    pthread_mutex_unlock(&mpi->lock);
    if (code != MPI_SUCCESS) {
        return wh_mpi_fail_code(error, code, rank, "MPI_Isend");
    }
    return copy   ? WHERRY_OK
           : full ? WHERRY_TIMED_OUT
                  : wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "out of memory for a block");
}

/**
 * Chooses the put of the channel whose piece this thread must send next, and marks this put as
 * busy.
 * @return NULL if another thread is copying that piece, or if the put is finished (*through_p is
 * true).
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

/**
 * Finishes a put. Sends the pieces of older puts of the channel first, because the order of puts
 * must not change.
 */
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

/** Starts a put. @param runs  NULL if there is only one run, `whole`. */
static wherry_status begin_put(wh_mpi *mpi, int32_t rank, uint32_t channel, struct iovec whole,
                               const struct iovec *runs, void **operation_p, wherry_error *error) {
    wherry_status status = wh_mpi_permit(mpi, error);
    wh_mpi_operation *put = status == WHERRY_OK ? calloc(1, sizeof(*put)) : NULL;
    if (!put) {
        return status == WHERRY_OK ? wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "out of memory for a block") : status;
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

/**
 * Ends an unfinished put. MPI uses only copies of its pieces, which stay allocated until they are
 * sent.
 */
static void give_up_put(wh_mpi *mpi, wh_mpi_operation *put) {
    pthread_mutex_lock(&mpi->lock);
    /*
     * While the put is busy, another thread, which finishes a later put of the channel, copies a
     * piece of it.
     */
    while (put->busy) {
        pthread_mutex_unlock(&mpi->lock);
        sched_yield();
        pthread_mutex_lock(&mpi->lock);
    }
    unlink_put(mpi, put);
    pthread_mutex_unlock(&mpi->lock);
    free(put);
}

/** Gives up an operation. @return the same as wh_mpi_give_up_get; true for a put. */
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
        /*
         * The operation still exists: it has not ended, or it is a get that MPI cannot cancel. In
         * the second case, wh_mpi_abandon reports that MPI may still write to the memory.
         */
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
