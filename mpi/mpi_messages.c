/*
 * Sends and receives messages. Messages are sent from copies. The messages of a rank are delivered
 * in the order in which it sent them. The last message of a rank is empty.
 */
#include <stdlib.h>
#include <string.h>

#include "mpi_context.h"

enum {
    OUTGOING_BYTES = 8 << 20, /**< Maximum number of bytes in flight per rank. */
    /** Maximum number of messages that are being received at the same time. */
    INCOMING_MAX = 64,
};

/**
 * MPI makes progress only while it is called. Messages up to EAGER_BYTES are sent without the
 * receiver's help. For a longer message, the sender waits up to LINGER_MS milliseconds, so that the
 * message does not stay half sent while this rank computes.
 */
enum { EAGER_BYTES = 4096, LINGER_MS = 20 };

/**
 * QUICK_US: how long a wait polls after the last message, unless other threads need the processor.
 * One sleep would take a tenth of the time of a small transfer. SLEEP_US: maximum length of a sleep
 * after that. SLEEP_BUSY_US: the same while blocks move, which need the processor. All in
 * microseconds.
 */
enum { QUICK_US = 2000, SLEEP_US = 200, SLEEP_BUSY_US = 1000 };

/**
 * Begins to wait for messages. If a message was sent or received just before, the wait polls first.
 */
static void begin_wait(wh_mpi *mpi, wh_mpi_wait *wait, wh_mpi_alarm *alarm, uint32_t timeout_ms) {
    wh_mpi_wait_begin(wait, alarm, timeout_ms, QUICK_US, SLEEP_US);
    wait->begin = atomic_load_explicit(&mpi->active_at, memory_order_relaxed);
    wait->modest = true;
}

/* ---- incoming messages: the lock is held ---- */

/** Starts to receive a message that a probe has found. @return MPI's error code. */
static int accept_message(wh_mpi *mpi, MPI_Message *found, const MPI_Status *status, bool unwanted) {
    int size = 0;
    MPI_Get_count(status, MPI_BYTE, &size);
    if (size == 0 && status->MPI_TAG == WH_MPI_TAG_MESSAGE) {
        mpi->missing -= !mpi->left[status->MPI_SOURCE];
        mpi->left[status->MPI_SOURCE] = true;
        return MPI_Mrecv(NULL, 0, MPI_BYTE, found, MPI_STATUS_IGNORE);
    }
    wh_mpi_incoming *one = malloc(sizeof(*one) + (size_t)size);
    if (!one) {
        return MPI_ERR_NO_MEM; /* The message is lost, so the group cannot be used any more. */
    }
    *one = (wh_mpi_incoming){.rank = status->MPI_SOURCE, .unwanted = unwanted, .size = (size_t)size};
    int code = MPI_Imrecv(one->bytes, size, MPI_BYTE, found, &one->request);
    if (code != MPI_SUCCESS) {
        free(one);
        return code;
    }
    wh_mpi_incoming **at = &mpi->incoming;
    while (*at) {
        at = &(*at)->next;
    }
    *at = one;
    mpi->incoming_count++;
    return MPI_SUCCESS;
}

/**
 * Starts to receive the messages with this tag that have arrived. Stops when INCOMING_MAX messages
 * are being received. @return MPI's error code.
 */
static int look(wh_mpi *mpi, int source, int tag, bool unwanted) {
    int code = MPI_SUCCESS;
    int found = 1;
    while (code == MPI_SUCCESS && found && mpi->incoming_count < INCOMING_MAX) {
        MPI_Message message;
        MPI_Status status;
        code = MPI_Improbe(source, tag, mpi->communicator, &found, &message, &status);
        if (code == MPI_SUCCESS && found) {
            code = accept_message(mpi, &message, &status, unwanted);
        }
    }
    return code;
}

/** Starts to receive everything that has arrived: messages, and pieces that will be dropped. */
static int look_for_all(wh_mpi *mpi) {
    int code = look(mpi, MPI_ANY_SOURCE, WH_MPI_TAG_MESSAGE, false);
    for (const wh_mpi_drain *one = mpi->drains; one && code == MPI_SUCCESS; one = one->next) {
        code = look(mpi, one->rank, (int)one->channel + 1, true);
    }
    return code;
}

static bool is_first_of_its_rank(const wh_mpi *mpi, const wh_mpi_incoming *one) {
    const wh_mpi_incoming *first = mpi->incoming;
    while (first->rank != one->rank || first->unwanted != one->unwanted) {
        first = first->next;
    }
    return first == one;
}

/**
 * Takes the complete messages out of the list, in their order.
 * @param rank_p  the sender of the message whose receive failed.
 * @return MPI's error code.
 */
static int take_whole(wh_mpi *mpi, wh_mpi_incoming **whole_p, int32_t *rank_p) {
    for (wh_mpi_incoming **at = &mpi->incoming; *at;) {
        wh_mpi_incoming *one = *at;
        int done = one->whole;
        int code = done ? MPI_SUCCESS : MPI_Test(&one->request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            *rank_p = one->rank;
            return code;
        }
        one->whole = done;
        if (!done || !is_first_of_its_rank(mpi, one)) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = NULL;
        *whole_p = one;
        whole_p = &one->next;
        mpi->incoming_count--;
    }
    return MPI_SUCCESS;
}

/* ---- sending ---- */

/** Frees the messages whose send has ended. The caller holds the lock. */
static void reap_outgoing(wh_mpi *mpi) {
    for (wh_mpi_outgoing **at = &mpi->outgoing; *at;) {
        wh_mpi_outgoing *one = *at;
        int done = 0;
        if (MPI_Test(&one->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) {
            *at = one->next;
            mpi->waiting[one->rank] -= one->size;
            one->gone = true;
            if (!one->awaited) {
                free(one);
            }
        } else {
            at = &one->next;
        }
    }
}

/** Starts to send a message. The caller holds the lock. @return MPI's error code. */
static int begin(wh_mpi *mpi, wh_mpi_outgoing *one) {
    int code = MPI_Isend(one->bytes, (int)one->size, MPI_BYTE, one->rank, WH_MPI_TAG_MESSAGE, mpi->communicator,
                         &one->request);
    if (code == MPI_SUCCESS) {
        wh_mpi_outgoing **at = &mpi->outgoing;
        while (*at) {
            at = &(*at)->next;
        }
        *at = one;
        mpi->waiting[one->rank] += one->size;
    }
    return code;
}

/**
 * Waits until a message is sent, but at most LINGER_MS. Receives messages meanwhile, because the
 * peer may be waiting in the same way.
 */
static void linger(wh_mpi *mpi, wh_mpi_outgoing *one) {
    wh_mpi_wait wait;
    bool gone = false;
    begin_wait(mpi, &wait, NULL, LINGER_MS);
    do {
        pthread_mutex_lock(&mpi->lock);
        reap_outgoing(mpi);
        gone = one->gone || look_for_all(mpi) != MPI_SUCCESS;
        pthread_mutex_unlock(&mpi->lock);
    } while (!gone && wh_mpi_wait_on(&wait));
    pthread_mutex_lock(&mpi->lock);
    one->awaited = false;
    if (one->gone) {
        free(one);
    }
    pthread_mutex_unlock(&mpi->lock);
}

wherry_status wh_mpi_send(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                          wherry_error *error) {
    wh_mpi *mpi = context;
    wherry_status status = wh_mpi_permit(mpi, error);
    wh_mpi_outgoing *one = status == WHERRY_OK ? malloc(sizeof(*one) + size) : NULL;
    if (!one) {
        return status == WHERRY_OK ? wh_mpi_fail(error, WHERRY_NO_MEMORY, rank, "out of memory for a message") : status;
    }
    bool awaited = size > EAGER_BYTES;
    *one = (wh_mpi_outgoing){.rank = rank, .size = size, .awaited = awaited};
    memcpy(one->bytes, bytes, size);
    wh_mpi_wait wait;
    wh_mpi_note_activity(mpi);
    begin_wait(mpi, &wait, NULL, timeout_ms);
    for (bool room = false; !room;) {
        pthread_mutex_lock(&mpi->lock);
        reap_outgoing(mpi);
        room = mpi->waiting[rank] == 0 || mpi->waiting[rank] + size <= OUTGOING_BYTES;
        int code = room ? begin(mpi, one) : MPI_SUCCESS;
        pthread_mutex_unlock(&mpi->lock);
        if (code != MPI_SUCCESS) {
            free(one);
            return wh_mpi_fail_code(error, code, rank, "MPI_Isend");
        }
        if (!room && !wh_mpi_wait_on(&wait)) {
            free(one);
            return WHERRY_TIMED_OUT;
        }
    }
    if (awaited) {
        linger(mpi, one);
    }
    return WHERRY_OK;
}

/* ---- receiving ---- */

/** Makes progress without waiting. @return MPI's error code. */
static int progress(wh_mpi *mpi, wh_mpi_incoming **whole_p, int32_t *rank_p) {
    pthread_mutex_lock(&mpi->lock);
    reap_outgoing(mpi);
    wh_mpi_reap_copies(mpi);
    int code = look_for_all(mpi);
    if (code == MPI_SUCCESS) {
        code = take_whole(mpi, whole_p, rank_p);
    }
    pthread_mutex_unlock(&mpi->lock);
    return code;
}

/**
 * Delivers complete messages, drops unwanted pieces, and frees both. @return true if it delivered a
 * message.
 */
static bool hand_over(wh_mpi_incoming *whole, wherry_group_deliver_fn deliver, void *sink) {
    bool any = false;
    while (whole) {
        wh_mpi_incoming *next = whole->next;
        if (!whole->unwanted) {
            deliver(sink, whole->rank, whole->bytes, whole->size);
            any = true;
        }
        free(whole);
        whole = next;
    }
    return any;
}

wherry_status wh_mpi_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                             wherry_error *error) {
    wh_mpi *mpi = context;
    wherry_status status = wh_mpi_permit(mpi, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_mpi_wait wait;
    bool busy = atomic_load(&mpi->under_way) > 0;
    begin_wait(mpi, &wait, &mpi->alarm, timeout_ms);
    if (busy) {
        wait.sleep_us = SLEEP_US;
        wait.sleep_max_us = SLEEP_BUSY_US;
    }
    bool any = false;
    do {
        int32_t rank = -1;
        wh_mpi_incoming *whole = NULL;
        int code = progress(mpi, &whole, &rank);
        any = hand_over(whole, deliver, sink);
        if (any) {
            wh_mpi_note_activity(mpi);
        }
        if (code != MPI_SUCCESS) {
            return wh_mpi_fail_code(error, code, rank, "receiving messages with MPI");
        }
        if (atomic_load(&mpi->under_way) > 0) {
            wait.quick = 0; /* Blocks may have begun to move during the wait. */
        }
    } while (!any && wh_mpi_wait_on(&wait));
    return WHERRY_OK;
}

/* ---- the end ---- */

void wh_mpi_say_last(wh_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    for (int rank = 0; rank < mpi->size; rank++) {
        wh_mpi_outgoing *one = rank != mpi->rank ? calloc(1, sizeof(*one)) : NULL;
        if (one) {
            one->rank = rank;
            if (begin(mpi, one) != MPI_SUCCESS) {
                free(one);
            }
        }
    }
    pthread_mutex_unlock(&mpi->lock);
}

bool wh_mpi_settle(wh_mpi *mpi) {
    int32_t rank = -1;
    wh_mpi_incoming *whole = NULL;
    pthread_mutex_lock(&mpi->lock);
    reap_outgoing(mpi);
    wh_mpi_reap_copies(mpi);
    /*
     * Read `missing` before looking for messages. Nothing follows the last message of a rank, so
     * one more look finds everything that is left.
     */
    bool all = mpi->missing == 0;
    bool well = look(mpi, MPI_ANY_SOURCE, MPI_ANY_TAG, true) == MPI_SUCCESS;
    well = well && take_whole(mpi, &whole, &rank) == MPI_SUCCESS;
    all = all && well && !mpi->outgoing && !mpi->copies && !mpi->incoming;
    pthread_mutex_unlock(&mpi->lock);
    while (whole) {
        wh_mpi_incoming *next = whole->next;
        free(whole);
        whole = next;
    }
    return all;
}

void wh_mpi_free_messages(wh_mpi *mpi) {
    while (mpi->outgoing) {
        wh_mpi_outgoing *one = mpi->outgoing;
        mpi->outgoing = one->next;
        free(one);
    }
    while (mpi->incoming) {
        wh_mpi_incoming *one = mpi->incoming;
        mpi->incoming = one->next;
        free(one);
    }
}
