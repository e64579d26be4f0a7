/* Receives blocks in place. Cancels a receive that is given up, if MPI can cancel it. */
#include <stdio.h>
#include <stdlib.h>

#include "mpi_context.h"

enum {
    /** How long to wait for a piece that is already arriving when its block is abandoned. */
    ABANDON_MS = 2000,
    /**
     * Maximum number of channels that are drained. If there are more, the channels that were
     * abandoned first are no longer drained, because probably nothing arrives on them any more.
     */
    DRAINS_MAX = 32,
};

void wh_mpi_end_drain(wh_mpi *mpi, int32_t rank, uint32_t channel) {
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

/** Starts to drop pieces that arrive on a channel. If out of memory, the pieces stay in MPI. */
static void begin_drain(wh_mpi *mpi, int32_t rank, uint32_t channel) {
    wh_mpi_drain *drain = malloc(sizeof(*drain));
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_end_drain(mpi, rank, channel);
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
    return wh_mpi_next_piece(get->size - piece * WH_MPI_PIECE);
}

/**
 * Cancels the receives of a get, and waits for pieces that are already arriving. @return false if a
 * receive does not end.
 */
static bool cancel_get(wh_mpi_operation *get, uint32_t patience_ms) {
    wh_mpi_wait wait;
    bool all = true;
    for (size_t i = get->pieces; i-- > 0;) {
        if (get->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&get->requests[i]);
        }
    }
    wh_mpi_wait_begin(&wait, NULL, patience_ms, WH_MPI_QUICK_US, WH_MPI_SLEEP_US);
    do {
        all = true;
        for (size_t i = 0; i < get->pieces; i++) {
            int done = 1;
            /* A receive that failed has ended, too. */
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

/** True if an earlier get from this rank could not be cancelled. The caller holds the lock. */
static bool has_stopped(const wh_mpi *mpi, int32_t rank) {
    const wh_mpi_operation *get = mpi->stuck;
    while (get && get->rank != rank) {
        get = get->next;
    }
    return get;
}

/** Closes the group because a get cannot be cancelled. The caller holds the lock. */
static void note_stuck(wh_mpi *mpi, wh_mpi_operation *get) {
    if (!get->failed) {
        get->next = mpi->stuck;
        mpi->stuck = get;
    }
    get->failed = true;
    if (mpi->broken[0]) {
        return;
    }
    snprintf(
        mpi->broken, sizeof(mpi->broken),
        "rank %d has stopped in the middle of a block, and MPI cannot cancel the receive: MPI may still write to "
        "the target's tensors, for example to %zu bytes at %p; keep that memory allocated and unused until MPI ends, "
        "leave the group, and make a new one from the ranks that can be reached",
        (int)get->rank, get->size, (void *)get->bytes);
}

bool wh_mpi_give_up_get(wh_mpi *mpi, wh_mpi_operation *get) {
    begin_drain(mpi, get->rank, get->channel);
    pthread_mutex_lock(&mpi->lock);
    bool hopeless = has_stopped(mpi, get->rank);
    pthread_mutex_unlock(&mpi->lock);
    if (!cancel_get(get, hopeless ? 0 : ABANDON_MS)) {
        pthread_mutex_lock(&mpi->lock);
        note_stuck(mpi, get);
        pthread_mutex_unlock(&mpi->lock);
        return false;
    }
    if (!get->failed) {
        free(get);
    } /* Otherwise the get is in the list `stuck`. */
    return true;
}

wherry_status wh_mpi_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size, void **operation_p,
                         wherry_error *error) {
    wh_mpi *mpi = context;
    size_t pieces = (size + WH_MPI_PIECE - 1) / WH_MPI_PIECE;
    wherry_status status = wh_mpi_permit(mpi, error);
    wh_mpi_operation *get = status == WHERRY_OK ? calloc(1, sizeof(*get) + pieces * sizeof(*get->requests)) : NULL;
    if (!get) {
        return status == WHERRY_OK ? wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "out of memory for a block") : status;
    }
    *get = (wh_mpi_operation){.rank = rank, .channel = channel, .bytes = bytes, .size = size};
    int code = MPI_SUCCESS;
    atomic_store(&get->moved, wh_mpi_now());
    pthread_mutex_lock(&mpi->lock);
    wh_mpi_end_drain(mpi, rank, channel);
    for (; get->pieces < pieces && code == MPI_SUCCESS; get->pieces++) {
        get->requests[get->pieces] = MPI_REQUEST_NULL;
        code = MPI_Irecv(get->bytes + get->pieces * WH_MPI_PIECE, (int)piece_size(get, get->pieces), MPI_BYTE, rank,
                         (int)channel + 1, mpi->communicator, &get->requests[get->pieces]);
    }
    pthread_mutex_unlock(&mpi->lock);
    if (code != MPI_SUCCESS && wh_mpi_give_up_get(mpi, get)) {
        return wh_mpi_fail_code(error, code, rank, "MPI_Irecv");
    }
    atomic_fetch_add(&mpi->under_way, 1);
    *operation_p = get;
    return WHERRY_OK;
}

wherry_status wh_mpi_finish_get(wh_mpi_operation *get, wh_mpi_wait *wait, wherry_error *error) {
    if (get->failed) { /* The group is closed. The caller must abandon the get. */
        while (wh_mpi_wait_on(wait)) {
        }
        return WHERRY_TIMED_OUT;
    }
    for (size_t piece = get->done / WH_MPI_PIECE; piece < get->pieces;) {
        MPI_Status came;
        int done = 0;
        int count = 0;
        int code = MPI_Test(&get->requests[piece], &done, &came);
        if (code != MPI_SUCCESS) {
            return wh_mpi_fail_code(error, code, get->rank, "receiving a block with MPI");
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
            return wh_mpi_fail(error, WHERRY_MALFORMED, get->rank, "rank %d sent a piece of %d bytes instead of %zu",
                               (int)get->rank, count, piece_size(get, piece));
        }
        get->done += (size_t)count;
        atomic_store(&get->moved, wh_mpi_now());
        piece++;
    }
    return WHERRY_OK;
}
