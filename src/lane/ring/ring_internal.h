/**
 * @file ring_internal.h  What the two files of the lane `ring` share: the memory that two processes
 * map, with one ring per pair of workers.
 *
 * 1. The source creates the memory, a sealed memfd, and sends it to a socket of the receiver in the
 *    abstract namespace. So a killed process leaves no file behind, /dev/shm cannot be too small,
 *    and neither side can shrink the memory while the other uses it. The two may run as different
 *    users and in different pid and mount namespaces, but must share the network namespace.
 * 2. Names in the abstract namespace are public, and anybody may bind a free one. So each end
 *    proves that it is the one that the group talks to: the source sends the pass along with the
 *    memory, and the receiver writes the answer into the memory before the source writes any byte
 *    of a chunk there. Pass and answer are random and travel only in the request.
 * 3. What the other process writes into the memory is hostile: each word is read once, by an atomic
 *    load, and then checked. Bytes of chunks are copied without looking at them.
 */
#ifndef WH_LANE_RING_INTERNAL_H
#define WH_LANE_RING_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "lane/lane_common.h"

/** Changes if the messages or the layout of the memory change. */
#define WH_RING_MAGIC "WHRING04"

/**
 * A ring of 1 MiB stays in the caches of two processors, so that the receiver's copy does not read
 * main memory. Half of it is slower, more is not faster.
 */
enum {
    WH_RING_MAGIC_BYTES = 8,
    WH_RING_SECRET_BYTES = 16,
    WH_RING_WORKERS_MAX = 8,
    WH_RING_SLOT_BYTES = 128 << 10,
    WH_RING_SLOTS = 8, /**< Per ring; a power of two, so that frame numbers may wrap. */
    WH_RING_BYTES = WH_RING_SLOT_BYTES * WH_RING_SLOTS,
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a lock would not be shared");

/** The kind of a frame, whose bytes are in the slot with the same number. */
typedef enum wh_ring_kind {
    WH_RING_MORE = 1,        /**< A full slot; the chunk continues in the next frame. */
    WH_RING_LAST = 2,        /**< The rest of the chunk, which may be empty. */
    WH_RING_LAST_DIGEST = 3, /**< The same, with the digest of the chunk. */
    WH_RING_END = 4,         /**< The round has no more chunks. */
} wh_ring_kind;

/** A frame in shared memory. */
typedef struct wh_ring_frame {
    _Atomic uint64_t what; /**< kind << 32 | length. */
    _Atomic uint64_t chunk;
    _Atomic uint64_t digest[2];
} wh_ring_frame;

/** One ring. What the source writes and what the receiver writes are in different cache lines. */
typedef struct wh_ring {
    alignas(64) _Atomic uint32_t head; /**< Frames that the source has written. */
    _Atomic uint32_t pull_waits;       /**< The receiver sleeps until head changes. */
    alignas(64) _Atomic uint32_t tail; /**< Frames that the receiver has read. */
    _Atomic uint32_t push_waits;       /**< The source sleeps until tail changes. */
    alignas(64) wh_ring_frame frames[WH_RING_SLOTS];
} wh_ring;

/** The beginning of the shared memory. The slots start on the next page. */
typedef struct wh_ring_shared {
    _Atomic uint32_t answered; /**< The receiver has written its answer. */
    /** Unused: the answer wakes all sleepers, since there may be several. */
    _Atomic uint32_t admit_waits;
    _Atomic uint32_t push_closed;
    _Atomic uint32_t pull_closed;
    _Atomic uint64_t answer[2];
    wh_ring rings[];
} wh_ring_shared;

/** Either end. */
typedef struct wh_ring_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool pushes;            /**< The source's end. */
    wh_ring_shared *shared; /**< NULL until the source has handed it over. */
    /** Source: the descriptor that is handed over; -1: none. */
    int memory;
    uint32_t frames[WH_RING_WORKERS_MAX]; /**< How many each worker has written or read. */
    uint8_t pass[WH_RING_SECRET_BYTES];
    uint8_t answer[WH_RING_SECRET_BYTES];

    /* Receiver: workers enter one after another, and the first waits for the memory. */
    pthread_mutex_t lock;
    int socket;           /**< Where the memory arrives; -1 afterwards. */
    wherry_error failure; /**< Of the worker that waited, for the others; status WHERRY_OK: none. */
} wh_ring_end;

static inline wh_ring_end *wh_ring_end_of(wh_lane_end *end) {
    return (wh_ring_end *)(void *)end;
}

uint8_t *wh_ring_slot(const wh_ring_end *end, uint32_t worker, uint32_t frame);

/** RECEIVER, a worker. Waits for the memory, and writes the answer into it. */
wherry_status wh_ring_enter(wh_ring_end *end, wherry_error *error);

/** SOURCE, a worker. Waits for the receiver's answer, and checks it. */
wherry_status wh_ring_admit(wh_ring_end *end, wherry_error *error);

/** Wakes everybody who sleeps on a word, whether it has changed or not. */
void wh_ring_wake(_Atomic uint32_t *word);

/**
 * Waits until a word that the other side writes differs from `seen`.
 * @param waits   tells the other side that somebody sleeps.
 * @param yields  the other side's worker is on the same processor.
 * @return WHERRY_OK; WHERRY_CANCELLED; WHERRY_TIMED_OUT; WHERRY_PEER_LOST if the other side has
 * closed its end.
 */
wherry_status wh_ring_wait(const wh_ring_end *end, _Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t seen,
                           bool yields, uint32_t *value_p, wherry_error *error);

/** One worker's share of a round, as the operations of the lane. */
wherry_status wh_ring_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_ring_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
