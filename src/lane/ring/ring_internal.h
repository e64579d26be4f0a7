/**
 * @file ring_internal.h  The ring lane's own: the memory that two processes share, a ring in it for each pair of workers, and how the ends meet.
 *
 * The source makes the memory, a sealed memfd, and hands it to a socket of the receiver's in the abstract namespace. So there is no file that a
 * killed process could leave behind, no /dev/shm that could be too small, and nobody can cut the memory off under the other's feet. Source and
 * receiver may run as different users and in different pid and mount namespaces; the network namespace must be the same.
 *
 * Names in the abstract namespace are no secret, and anybody may bind one that has become free. So each end proves to the other that it is the one
 * that the group speaks with: the source shows the pass when it hands the memory over, and the receiver writes the answer into the memory before
 * the source writes a byte of a chunk there. Pass and answer are random, and travel in the request alone.
 *
 * What the other process writes into the shared memory is hostile: each word is read once, by an atomic load, and then checked. Bytes of chunks are
 * copied without looking at them.
 */
#ifndef WH_LANE_RING_INTERNAL_H
#define WH_LANE_RING_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/process.h"
#include "lane/lane_common.h"

/** Changes with everything below that both sides must agree on: the messages and the layout of the memory. */
#define WH_RING_MAGIC "WHRING04"

enum {
    WH_RING_MAGIC_BYTES = 8,
    WH_RING_SECRET_BYTES = 16,
    WH_RING_WORKERS_MAX = 8,
};

/**
 * A ring of 1 MiB stays in the caches of two processors, so that the receiver's copy does not read main memory: half as much is slower, more is no
 * faster.
 */
enum {
    WH_RING_SLOT_BYTES = 128 << 10,
    WH_RING_SLOTS = 8, /**< A ring; a power of two, so that numbers of frames may wrap. */
    WH_RING_BYTES = WH_RING_SLOT_BYTES * WH_RING_SLOTS,
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a lock would not be shared");

/** What a frame is. Its bytes lie in the slot with its number. */
typedef enum wh_ring_kind {
    WH_RING_MORE = 1,     /**< Fills its slot; the chunk goes on in the next frame. */
    WH_RING_LAST = 2,     /**< The rest of the chunk, perhaps none. */
    WH_RING_LAST_SUM = 3, /**< The same, with the digest of the chunk. */
    WH_RING_END = 4,      /**< No chunks follow in this round. */
} wh_ring_kind;

/** A frame in shared memory. */
typedef struct wh_ring_frame {
    _Atomic uint64_t what; /**< kind << 32 | length. */
    _Atomic uint64_t chunk;
    _Atomic uint64_t digest[2];
} wh_ring_frame;

/** One ring: what the source writes and what the receiver writes lie in cache lines of their own. */
typedef struct wh_ring {
    alignas(64) _Atomic uint32_t head; /**< Frames that the source has written. */
    _Atomic uint32_t pull_waits;       /**< The receiver sleeps until head changes. */
    alignas(64) _Atomic uint32_t tail; /**< Frames that the receiver has read. */
    _Atomic uint32_t push_waits;       /**< The source sleeps until tail changes. */
    alignas(64) wh_ring_frame frames[WH_RING_SLOTS];
} wh_ring;

/** What the shared memory begins with; the slots follow on the next page. */
typedef struct wh_ring_shared {
    _Atomic uint32_t answered; /**< The receiver has written its answer. */
    _Atomic uint32_t
        admit_waits; /**< Nobody looks: several may sleep, so whoever answers wakes them all in any case. */
    _Atomic uint32_t push_closed;
    _Atomic uint32_t pull_closed;
    _Atomic uint64_t answer[2];
    wh_ring rings[];
} wh_ring_shared;

/** Either end. */
typedef struct wh_ring_end {
    wh_lane_end base;
    const wh_lane_site *site;
    bool pushes;                          /**< The source's end. */
    wh_ring_shared *shared;               /**< NULL: the source has not handed it over yet. */
    int memory;                           /**< Of the source: what is handed over; -1: there is none. */
    uint32_t frames[WH_RING_WORKERS_MAX]; /**< How many each worker has written or read. */
    uint8_t pass[WH_RING_SECRET_BYTES];
    uint8_t answer[WH_RING_SECRET_BYTES];

    /* Of the receiver: workers enter one after the other, and the first waits for the memory. */
    pthread_mutex_t lock;
    int socket;           /**< Where the memory arrives; -1 once it has. */
    wherry_error failure; /**< Of the one who waited, for the others; status WHERRY_OK: none. */
} wh_ring_end;

static inline wh_ring_end *wh_ring_end_of(wh_lane_end *end) {
    return (wh_ring_end *)(void *)end;
}

/* ring_memory.c: the memory, and waiting in it. */

/** Makes an end with neither memory nor socket. @return NULL where there is no memory. */
wh_ring_end *wh_ring_end_create(const wh_lane_site *site, uint32_t workers, bool pushes);

/** Makes shared memory for a source's end and maps it. */
wherry_status wh_ring_memory_create(wh_ring_end *end, wherry_error *error);

/** Maps memory that somebody else has made, after checking that it can neither shrink nor is of another size. The descriptor stays the caller's. */
wherry_status wh_ring_memory_open(wh_ring_end *end, int fd, wherry_error *error);

void wh_ring_memory_close(wh_ring_end *end);

uint8_t *wh_ring_slot(const wh_ring_end *end, uint32_t worker, uint32_t frame);

/**
 * Waits until a word that the other side writes is no longer `seen`.
 * @param waits  says to the other side that somebody sleeps.
 * @return WHERRY_OK; WHERRY_CANCELLED; WHERRY_TIMED_OUT; WHERRY_PEER_LOST where the other side has closed its end.
 */
wherry_status wh_ring_wait(const wh_ring_end *end, _Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t seen,
                           uint32_t *value_p, wherry_error *error);

/** Changes a word that the other side waits for, and wakes it. */
void wh_ring_post(_Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t value);

/** Wakes whoever waits for a word, whatever it says. */
void wh_ring_wake(_Atomic uint32_t *word);

/* ring_meet.c: how the ends meet. */

wherry_status wh_ring_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error);
wherry_status wh_ring_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                            bool *assist_p, wh_lane_end **end_p, wherry_error *error);
wherry_status wh_ring_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                             wh_lane_end **end_p, wherry_error *error);

/** RECEIVER, a worker. Waits until the memory is there, and writes the answer into it. */
wherry_status wh_ring_enter(wh_ring_end *end, wherry_error *error);

/** SOURCE, a worker. Waits until the receiver has written its answer, and checks it. */
wherry_status wh_ring_admit(wh_ring_end *end, wherry_error *error);

/* ring.c: the bytes. */

wherry_status wh_ring_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_ring_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

#endif
