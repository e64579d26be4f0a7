/* Blocks: mpi_context.h says how they move. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mpi_context.h"

/** How long a piece that has begun to come is waited for when its block is abandoned. Where one does not come, the others are not waited for. */
enum { ABANDON_MS = 2000 };

/**
 * For how long after the last piece whoever finishes a block only yields, and how long it then sleeps at most, in microseconds. Some MPIs move a part of a piece
 * each time they are asked: who sleeps in between has half of the rate. Where pieces take longer than this, the network is slower than any sleep.
 */
enum { QUICK_US = 20000, SLEEP_US = 100 };

/** Channels that are still drained. Old ones have nothing to come. */
enum { DRAINS_MAX = 32 };

static size_t smaller(size_t one, size_t other) {
    return one < other ? one : other;
}

/* ---- copies ---- */

/** Memory for a piece, on huge pages where there are some: a rank that reads it by itself is quicker then. */
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
        /* One that failed is gone too; that its block did not arrive, the receiver knows. */
        if (MPI_Test(&copy->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            *at = copy->next;
            keep_copy(mpi, copy);
        } else {
            at = &copy->next;
        }
    }
}

/** Whether another piece may be under way for a channel. The lock is held. */
static bool has_room(const wh_mpi *mpi, const wh_mpi_operation *put) {
    size_t own = 0;
    size_t all = 0;
    for (const wh_mpi_copy *copy = mpi->copies; copy; copy = copy->next) {
        own += copy->rank == put->rank && copy->channel == put->channel;
        all++;
    }
    return own < (all < WH_MPI_WINDOW * WH_MPI_WINDOWS ? WH_MPI_WINDOW : 1);
}

/** A copy to fill, where there is room for another. The lock is held. @return NULL where not; *full_p says whether that is for lack of room. */
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

/** The oldest put of a channel that is not through. The lock is held. */
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

/** Gives the bytes to MPI. The lock is held. @return MPI's code. */
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

/** Copies the next bytes of a put, which is busy. */
static void copy_runs(wh_mpi_operation *put, uint8_t *to, size_t size) {
    wherry_group_copy_runs(to, put->runs, put->skip, size);
    for (put->skip += size; put->skip && put->skip >= put->runs->iov_len; put->runs++) {
        put->skip -= put->runs->iov_len;
    }
}

/** Sends the next piece of a put, which is busy until then, where there is room. @return WHERRY_TIMED_OUT where there is none. */
static wherry_status send_piece(wh_mpi *mpi, wh_mpi_operation *put, wherry_error *error) {
    bool full = false;
    int32_t rank = put->rank;
    int code = MPI_SUCCESS;
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_copy *copy = take_copy(mpi, put, &full);
    if (copy) {
        size_t size = smaller(put->size - put->done, WH_MPI_PIECE);
        pthread_mutex_unlock(&mpi->lock);
        copy_runs(put, copy->bytes, size);
        pthread_mutex_lock(&mpi->lock);
        code = send_copy(mpi, copy, put, size);
    }
    put->busy = false; /* from now on another thread may end it */
    pthread_mutex_unlock(&mpi->lock);
    if (code != MPI_SUCCESS) {
        return wh_mpi_fail_code(error, code, rank, "MPI_Isend");
    }
    return copy   ? WHERRY_OK
           : full ? WHERRY_TIMED_OUT
                  : wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "no memory for a block");
}

/** What is to be sent first of a put's channel: this thread sends a piece of it. @return NULL: another thread is at it, or the put is through. */
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

/** Pieces go out in the order of the puts, whichever of them is asked for. */
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

/** @param runs  NULL: it has one. */
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

/* ---- getting ---- */

/** The channel is in use again. The lock is held. */
static void end_drain(wh_mpi *mpi, int32_t rank, uint32_t channel) {
    wh_mpi_drain **at = &mpi->drains;
    while (*at && ((*at)->rank != rank || (*at)->channel != channel)) {
        at = &(*at)->next;
    }
    if (*at) {
        wh_mpi_drain *found = *at;
        *at = found->next;
        free(found);
    }
}

/** What still comes on a channel is thrown away from now on. Without memory for it, it stays with the rank that sent it. */
static void begin_drain(wh_mpi *mpi, int32_t rank, uint32_t channel) {
    wh_mpi_drain *drain = malloc(sizeof(*drain));
    pthread_mutex_lock(&mpi->lock);
    end_drain(mpi, rank, channel);
    if (drain) {
        *drain = (wh_mpi_drain){mpi->drains, rank, channel};
        mpi->drains = drain;
    }
    size_t count = 0;
    for (wh_mpi_drain **at = &mpi->drains; *at; count++) {
        if (count >= DRAINS_MAX) {
            wh_mpi_drain *old = *at;
            *at = old->next;
            free(old);
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&mpi->lock);
}

static size_t piece_size(const wh_mpi_operation *get, size_t piece) {
    return smaller(get->size - piece * WH_MPI_PIECE, WH_MPI_PIECE);
}

/** Takes a get's receives back; waits so long for those that have begun to come. @return false where one does not end. */
static bool cancel_get(wh_mpi_operation *get, uint32_t patience_ms) {
    wh_mpi_wait wait;
    bool all = true;
    for (size_t i = get->pieces; i-- > 0;) {
        if (get->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&get->requests[i]);
        }
    }
    wh_mpi_wait_begin(&wait, NULL, patience_ms, QUICK_US, SLEEP_US);
    do {
        all = true;
        for (size_t i = 0; i < get->pieces; i++) {
            int done = 1;
            /* One that failed is gone too. */
            if (get->requests[i] != MPI_REQUEST_NULL &&
                MPI_Test(&get->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
                done = 1;
                get->requests[i] = MPI_REQUEST_NULL;
            }
            all = all && done;
        }
    } while (!all && wh_mpi_wait_on(&wait));
    return all;
}

/** The group ends with a rank from which something may still come; the lock is held. */
static void note_broken(wh_mpi *mpi, const wh_mpi_operation *get) {
    if (mpi->broken[0]) {
        return;
    }
    mpi->broken_by = get->rank;
    snprintf(mpi->broken, sizeof(mpi->broken),
             "rank %d has stopped in the middle of a block, which MPI cannot take back: it may still write to the "
             "tensors that were received into, at first %zu bytes at %p; memory of your own there must stay until MPI "
             "ends; leave the group and make another",
             (int)get->rank, get->size, (void *)get->bytes);
}

/**
 * Ends a get whose bytes will not come, or not all of them.
 * @return whether it is gone. Else MPI may still write to its memory, and knows its requests: it stays.
 */
static bool give_up_get(wh_mpi *mpi, wh_mpi_operation *get) {
    begin_drain(mpi, get->rank, get->channel);
    pthread_mutex_lock(&mpi->lock);
    bool is_hopeless = mpi->broken[0] && mpi->broken_by == get->rank;
    pthread_mutex_unlock(&mpi->lock);
    if (cancel_get(get, is_hopeless ? 0 : ABANDON_MS)) {
        free(get);
        return true;
    }
    get->failed = true;
    pthread_mutex_lock(&mpi->lock);
    note_broken(mpi, get);
    pthread_mutex_unlock(&mpi->lock);
    return false;
}

wherry_status wh_mpi_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error) {
    wh_mpi *mpi = context;
    size_t pieces = (size + WH_MPI_PIECE - 1) / WH_MPI_PIECE;
    wherry_status status = wh_mpi_permit(mpi, error);
    wh_mpi_operation *get = status == WHERRY_OK ? calloc(1, sizeof(*get) + pieces * sizeof(*get->requests)) : NULL;
    if (!get) {
        return status == WHERRY_OK ? wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "no memory for a block") : status;
    }
    *get = (wh_mpi_operation){.rank = rank, .channel = channel, .bytes = bytes, .size = size};
    int code = MPI_SUCCESS;
    atomic_store(&get->moved, wh_mpi_now());
    pthread_mutex_lock(&mpi->lock);
    end_drain(mpi, rank, channel);
    for (; get->pieces < pieces && code == MPI_SUCCESS; get->pieces++) {
        get->requests[get->pieces] = MPI_REQUEST_NULL;
        code = MPI_Irecv(get->bytes + get->pieces * WH_MPI_PIECE, (int)piece_size(get, get->pieces), MPI_BYTE, rank,
                         (int)channel + 1, mpi->communicator, &get->requests[get->pieces]);
    }
    pthread_mutex_unlock(&mpi->lock);
    if (code != MPI_SUCCESS && give_up_get(mpi, get)) {
        return wh_mpi_fail_code(error, code, rank, "MPI_Irecv");
    }
    atomic_fetch_add(&mpi->under_way, 1);
    *operation_p = get;
    return WHERRY_OK;
}

static wherry_status finish_get(wh_mpi_operation *get, wh_mpi_wait *wait, wherry_error *error) {
    if (get->failed) {
        return WHERRY_TIMED_OUT; /* until it is abandoned: the group is closed */
    }
    for (size_t piece = get->done / WH_MPI_PIECE; piece < get->pieces;) {
        MPI_Status came;
        int done = 0;
        int count = 0;
        int code = MPI_Test(&get->requests[piece], &done, &came);
        if (code != MPI_SUCCESS) {
            return wh_mpi_fail_code(error, code, get->rank, "receiving a block by MPI");
        }
        if (!done) {
            wait->begin = atomic_load(&get->moved);
            if (!wh_mpi_wait_on(wait)) {
                return WHERRY_TIMED_OUT;
            }
            continue;
        }
        MPI_Get_count(&came, MPI_BYTE, &count);
        if ((size_t)count != piece_size(get, piece)) {
            return wh_mpi_fail(error, WHERRY_MALFORMED, get->rank,
                               "rank %d sent %d bytes of a block where %zu were to come", (int)get->rank, count,
                               piece_size(get, piece));
        }
        get->done += (size_t)count;
        atomic_store(&get->moved, wh_mpi_now());
        piece++;
    }
    return WHERRY_OK;
}

/* ---- both ---- */

/** Ends a put that is not through: it was given to MPI only as copies, which stay until they are. */
static void give_up_put(wh_mpi *mpi, wh_mpi_operation *put) {
    pthread_mutex_lock(&mpi->lock);
    while (put->busy) { /* a thread that finishes a later put of the channel copies a piece of it */
        pthread_mutex_unlock(&mpi->lock);
        sched_yield();
        pthread_mutex_lock(&mpi->lock);
    }
    unlink_put(mpi, put);
    pthread_mutex_unlock(&mpi->lock);
    free(put);
}

bool wh_mpi_abandon(void *context, void *operation) {
    wh_mpi *mpi = context;
    wh_mpi_operation *one = operation;
    atomic_fetch_sub(&mpi->under_way, 1);
    if (!one->is_put) {
        return give_up_get(mpi, one);
    }
    give_up_put(mpi, one);
    return true;
}

wherry_status wh_mpi_finish(void *context, void *operation, uint32_t timeout_ms, wherry_error *error) {
    wh_mpi *mpi = context;
    wh_mpi_operation *one = operation;
    wh_mpi_wait wait;
    wh_mpi_wait_begin(&wait, NULL, timeout_ms, QUICK_US, SLEEP_US);
    wherry_status status = one->is_put ? finish_put(mpi, one, &wait, error) : finish_get(one, &wait, error);
    if (status == WHERRY_OK) {
        atomic_fetch_sub(&mpi->under_way, 1);
        free(one);
    } else if (status != WHERRY_TIMED_OUT && !wh_mpi_abandon(mpi, one)) {
        atomic_fetch_add(&mpi->under_way, 1);
        return WHERRY_TIMED_OUT; /* it is not gone: whoever abandons it has to hear that */
    }
    return status;
}

void wh_mpi_free_blocks(wh_mpi *mpi) {
    free_copies(mpi->spare);
    free_copies(mpi->copies);
    while (mpi->drains) {
        end_drain(mpi, mpi->drains->rank, mpi->drains->channel);
    }
}
