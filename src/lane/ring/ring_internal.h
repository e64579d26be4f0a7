/**
 * @file ring_internal.h  Declarations for the two files of the ring lane, and the layout of the
 * shared memory. The memory has one ring buffer per pair of workers.
 *
 * 1. The source creates the memory as a sealed memfd. It sends the memfd to a Unix socket of the
 *    receiver, which has a name in the abstract namespace. So a killed process leaves no file
 *    behind, the size of /dev/shm does not matter, and neither side can shrink the memory while the
 *    other uses it. The two processes may run as different users and in different pid and mount
 *    namespaces, but must be in the same network namespace.
 * 2. Names in the abstract namespace are public, and any process may bind a free name. So each side
 *    proves that it is the rank that the group knows. The source sends a pass together with the
 *    memory. The receiver writes an answer into the memory, and the source checks it before it
 *    writes any byte of a chunk. The receiver chooses the pass and the answer at random and sends
 *    them only in the request.
 * 3. The other process may write anything into the memory. So each word is read once, with an
 *    atomic load, and then checked. The bytes of chunks are copied without a check, because any
 *    value is valid.
 */
#ifndef WH_LANE_RING_INTERNAL_H
#define WH_LANE_RING_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "lane/lane_common.h"

/** Change this whenever the messages or the layout of the memory change. */
#define WH_RING_MAGIC "WHRING05"

/**
 * A ring of 512 KiB stays in the caches of two processors, so that the receiver's copy does not
 * read main memory. A larger ring is not faster, and its pages take longer to create and free. With
 * a smaller one, two workers that share a processor would have to switch too often.
 */
enum {
    WH_RING_MAGIC_BYTES = 8,
    WH_RING_SECRET_BYTES = 16,
    WH_RING_WORKERS_MAX = 8,
    WH_RING_SLOT_BYTES = 64 << 10,
    WH_RING_SLOTS = 8, /**< Slots per ring. A power of two, so that frame numbers may wrap. */
    WH_RING_BYTES = WH_RING_SLOT_BYTES * WH_RING_SLOTS,
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "atomics must not use locks");

/** The kind of a frame. The bytes of a frame are in the slot with the same number. */
typedef enum wh_ring_kind {
    WH_RING_MORE = 1,        /**< A full slot; the chunk continues in the next frame. */
    WH_RING_LAST = 2,        /**< The rest of the chunk, which may be empty. */
    WH_RING_LAST_DIGEST = 3, /**< The rest of the chunk, and its digest in the frame. */
    WH_RING_END = 4,         /**< The round has no more chunks. */
} wh_ring_kind;

/** A frame in shared memory. */
typedef struct wh_ring_frame {
    _Atomic uint64_t what; /**< The kind in the upper 32 bits, the length in the lower 32. */
    _Atomic uint64_t chunk;
    _Atomic uint64_t digest[2];
} wh_ring_frame;

/** One ring. The two sides write to different cache lines. */
typedef struct wh_ring {
    alignas(64) _Atomic uint32_t head; /**< Number of frames that the source has written. */
    _Atomic uint32_t pull_waits;       /**< 1 if the receiver sleeps until head changes. */
    alignas(64) _Atomic uint32_t tail; /**< Number of frames that the receiver has read. */
    _Atomic uint32_t push_waits;       /**< 1 if the source sleeps until tail changes. */
    alignas(64) wh_ring_frame frames[WH_RING_SLOTS];
} wh_ring;

/** The beginning of the shared memory. The slots start on the next page. */
typedef struct wh_ring_shared {
    _Atomic uint32_t answered; /**< 1 if the receiver has written its answer. */
    /**
     * Set by wh_ring_wait, but never read: the receiver always wakes all workers of the source
     * after it has written the answer.
     */
    _Atomic uint32_t admit_waits;
    _Atomic uint32_t push_closed;
    _Atomic uint32_t pull_closed;
    _Atomic uint64_t answer[2];
    wh_ring rings[];
} wh_ring_shared;

/** One end of the lane, at the source or at the receiver. */
typedef struct wh_ring_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool pushes;            /**< This is the source's end. */
    wh_ring_shared *shared; /**< NULL at a receiver that does not have the memory yet. */
    /** Source: the memfd that is sent to the receiver; -1: none. */
    int memory;
    uint32_t frames[WH_RING_WORKERS_MAX]; /**< Number of frames each worker has written or read. */
    uint8_t pass[WH_RING_SECRET_BYTES];
    uint8_t answer[WH_RING_SECRET_BYTES];

    /* Receiver: the first worker waits for the memory. The other workers wait for the lock. */
    pthread_mutex_t lock;
    int socket;           /**< The socket that receives the memory; -1 afterwards. */
    wherry_error failure; /**< The error of the first worker; WHERRY_OK if it succeeded. */
} wh_ring_end;

static inline wh_ring_end *wh_ring_end_of(wh_lane_end *end) {
    return (wh_ring_end *)(void *)end;
}

uint8_t *wh_ring_slot(const wh_ring_end *end, uint32_t worker, uint32_t frame);

/**
 * Each worker of a receiver calls this. The first call waits for the memory and writes the answer
 * into it. The other calls wait for the first one.
 */
wherry_status wh_ring_enter(wh_ring_end *end, wherry_error *error);

/** Each worker of a source calls this. Waits for the receiver's answer and checks it. */
wherry_status wh_ring_admit(wh_ring_end *end, wherry_error *error);

/** Wakes all threads that sleep on a word, even if the word has not changed. */
void wh_ring_wake(_Atomic uint32_t *word);

/**
 * Waits until the other side has changed a word from `seen` to another value.
 * @param waits   a flag that tells the other side that this side sleeps.
 * @param yields  true if the other side's worker probably runs on the same processor.
 * @param value_p receives the new value.
 * @return WHERRY_OK; WHERRY_CANCELLED; WHERRY_TIMED_OUT; WHERRY_PEER_LOST if the other side has
 * closed its end.
 */
wherry_status wh_ring_wait(const wh_ring_end *end, _Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t seen,
                           bool yields, uint32_t *value_p, wherry_error *error);

/** These functions implement wh_lane_ops.push and wh_lane_ops.pull. */
wherry_status wh_ring_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_ring_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
