/*
 * Moves bytes through a ring. The source copies a chunk into slots, with one frame per slot, and
 * the receiver copies the bytes out of the slots.
 *
 *     empty -> written: publish (source)      written -> empty: empty_slot (receiver)
 */
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/ring/ring_internal.h"

/*
 * Number of polls before a worker sleeps. They take a few microseconds. More polls are not faster
 * on idle processors. On busy processors, they take time from the other side.
 */
enum { SPINS = 50 };

/*
 * Number of yields before a worker sleeps, if it shares a processor with its peer. Yielding costs
 * less than sleeping, and the other side does not have to wake the worker.
 */
enum { YIELDS = 20 };

/*
 * If there are fewer processors than workers of both sides, pins worker i to the i-th processor.
 * The other side does the same, so the two workers of a pair share a processor and their bytes stay
 * in its caches. Without this, 1 GiB takes a third longer on 2 cores. If the two sides may use
 * different processors, a pair does not share one.
 */
static bool share_processor(uint32_t worker, uint32_t workers) {
    return wh_worker_pin(worker, 2 * workers);
}

/* ---- waiting ---- */

/*
 * Sleeps while the word is equal to `seen`, but at most WH_RING_NAP_MS, because a stop request does
 * not wake the thread.
 */
static void sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t nanoseconds) {
    struct timespec most = {0, (long)wh_min(nanoseconds, WH_RING_NAP_MS * WH_NS_PER_MS)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

void wh_ring_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/*
 * Changes a word that the other side waits for, and wakes it if it sleeps. The accesses to word and
 * flag are sequentially consistent on both sides. So either this side sees that the other side
 * sleeps, or the other side sees the new value. Only the sleeping side clears its flag. If this
 * side cleared the flag, it might do so when the next sleep has just begun.
 */
static void post(_Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t value) {
    atomic_store(word, value);
    if (atomic_load(waits)) {
        wh_ring_wake(word);
    }
}

static void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns WHERRY_OK if the wait may continue. Otherwise returns why it must end. */
static wherry_status check_limits(const wh_lane_site *site, wh_deadline patience, wherry_error *error) {
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    return wh_deadline_passed(patience) ? wh_site_timed_out(site, error) : WHERRY_OK;
}

wherry_status wh_ring_wait(const wh_ring_end *end, _Atomic uint32_t *word, _Atomic uint32_t *waits, uint32_t seen,
                           bool yields, uint32_t *value_p, wherry_error *error) {
    _Atomic uint32_t *closed = end->pushes ? &end->shared->pull_closed : &end->shared->push_closed;
    uint32_t value = atomic_load_explicit(word, memory_order_acquire);
    for (uint32_t i = 0; value == seen && i < (yields ? YIELDS : SPINS); i++) {
        if (yields) {
            sched_yield();
        } else {
            pause_processor();
        }
        value = atomic_load_explicit(word, memory_order_acquire);
    }
    if (value != seen) {
        *value_p = value;
        return WHERRY_OK;
    }
    wh_deadline patience = wh_site_patience(end->site);
    while (value == seen) {
        WH_TRY(check_limits(end->site, patience, error));
        atomic_store(waits, 1);
        /* Read `closed` before `word`, so that frames written before the close are not lost. */
        uint32_t gone = atomic_load(closed);
        value = atomic_load(word);
        if (value == seen && gone) {
            return wh_fail(error, WHERRY_PEER_LOST,
                           "rank %d closed the ring lane before all bytes had moved; see the log of that rank",
                           (int)end->site->peer);
        }
        if (value == seen) {
            uint64_t now = wh_clock_now();
            sleep_on(word, seen, patience.at > now ? patience.at - now : 0);
            value = atomic_load(word);
        }
    }
    atomic_store_explicit(waits, 0, memory_order_relaxed);
    *value_p = value;
    return WHERRY_OK;
}

/* ---- the source ---- */

/* The state of a worker of the source during a round. */
typedef struct pushing {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_feed *feed;
    uint32_t worker;
    uint32_t head;         /* number of frames written */
    uint32_t tail;         /* number of frames that the receiver has read, as last seen */
    bool shares;           /* True if the worker was pinned by share_processor. */
    wh_segments segments;  /* the runs of the chunk */
    wh_digester *digester; /* NULL: no digests */
} pushing;

/* Waits until there is a free slot for the next frame. */
static wherry_status make_room(pushing *pusher, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (wh_stop_requested(pusher->end->site->stop)) {
        return wh_site_cancelled(error);
    }
    if (pusher->head - pusher->tail == WH_RING_SLOTS) {
        status = wh_ring_wait(pusher->end, &pusher->ring->tail, &pusher->ring->push_waits, pusher->tail, pusher->shares,
                              &pusher->tail, error);
    }
    if (status == WHERRY_OK && pusher->head - pusher->tail > WH_RING_SLOTS) {
        status = wh_fail(error, WHERRY_MALFORMED,
                         "rank %d reports an impossible number of read frames: %u, but %u were written",
                         (int)pusher->end->site->peer, (unsigned)pusher->tail, (unsigned)pusher->head);
    }
    return status;
}

static void publish(pushing *pusher, wh_ring_kind kind, size_t length, uint64_t chunk, const wherry_digest *digest) {
    wh_ring_frame *frame = &pusher->ring->frames[pusher->head % WH_RING_SLOTS];
    uint64_t words[2] = {0};
    if (digest) {
        memcpy(words, digest->bytes, sizeof(words));
    }
    atomic_store_explicit(&frame->what, (uint64_t)kind << 32 | length, memory_order_relaxed);
    atomic_store_explicit(&frame->chunk, chunk, memory_order_relaxed);
    atomic_store_explicit(&frame->digest[0], words[0], memory_order_relaxed);
    atomic_store_explicit(&frame->digest[1], words[1], memory_order_relaxed);
    pusher->head++;
    /*
     * If two workers share a processor, each fills or empties the whole ring before the other one
     * runs, because running each of them once costs two context switches.
     */
    if (!pusher->shares || kind == WH_RING_END || pusher->head - pusher->tail == WH_RING_SLOTS) {
        post(&pusher->ring->head, &pusher->ring->pull_waits, pusher->head);
    }
}

static wherry_status push_chunk(pushing *pusher, uint64_t chunk, wherry_error *error) {
    const wh_feed *feed = pusher->feed;
    wherry_status status = feed->gather(feed->context, chunk, &pusher->segments, error);
    if (status == WHERRY_OK && pusher->digester) {
        wh_digester_begin(pusher->digester);
    }
    wh_run_cursor cursor = wh_run_cursor_at(&pusher->segments);
    uint64_t left = pusher->segments.bytes;
    bool last = false;
    while (status == WHERRY_OK && !last) {
        last = left <= WH_RING_SLOT_BYTES;
        size_t length = last ? (size_t)left : WH_RING_SLOT_BYTES;
        if ((status = make_room(pusher, error)) != WHERRY_OK) {
            break;
        }
        wh_run_cursor_pack(&cursor, wh_ring_slot(pusher->end, pusher->worker, pusher->head), length, pusher->digester);
        if (last && pusher->digester) {
            wherry_digest digest = wh_digester_end(pusher->digester);
            publish(pusher, WH_RING_LAST_DIGEST, length, chunk, &digest);
        } else {
            publish(pusher, last ? WH_RING_LAST : WH_RING_MORE, length, chunk, NULL);
        }
        left -= length;
        feed->moved(feed->context, length);
    }
    return status;
}

static wherry_status push_round(pushing *pusher, wherry_error *error) {
    const wh_feed *feed = pusher->feed;
    uint64_t chunk;
    wherry_status status = WHERRY_OK;
    do {
        while (status == WHERRY_OK && feed->next(feed->context, &chunk)) {
            status = push_chunk(pusher, chunk, error);
            wh_feed_done(feed, chunk);
        }
        if (pusher->shares) {
            post(&pusher->ring->head, &pusher->ring->pull_waits, pusher->head);
        }
    } while (status == WHERRY_OK && wh_feed_more(feed));
    if (status == WHERRY_OK && (status = make_room(pusher, error)) == WHERRY_OK) {
        publish(pusher, WH_RING_END, 0, 0, NULL);
    }
    return status;
}

wherry_status wh_ring_push(wh_lane_end *base, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    wh_ring_end *end = wh_ring_end_of(base);
    pushing pusher = {.end = end, .ring = &end->shared->rings[worker], .feed = feed, .worker = worker};
    pusher.shares = share_processor(worker, base->workers);
    pusher.head = end->frames[worker];
    pusher.tail = atomic_load_explicit(&pusher.ring->tail, memory_order_acquire);
    wherry_status status = wh_ring_admit(end, error);
    WH_THEN(status, wh_digester_need(feed->verify, &pusher.digester, error));
    WH_THEN(status, push_round(&pusher, error));
    end->frames[worker] = pusher.head;
    wh_digester_destroy(pusher.digester);
    wh_segments_destroy(&pusher.segments);
    return status;
}

/* ---- the receiver ---- */

/* The state of a worker of the receiver during a round. */
typedef struct pulling {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_sink *sink;
    uint32_t worker;
    uint32_t head;        /* number of frames that the source has written, as last seen */
    uint32_t tail;        /* number of frames read */
    bool shares;          /* True if the worker was pinned by share_processor. */
    bool open;            /* True if a chunk is open and the next frame continues it. */
    uint64_t left;        /* bytes of the open chunk that are still missing */
    wh_run_cursor cursor; /* position in the destinations of the open chunk */
    wh_landing landing;
    wh_digester *digester; /* NULL: no digests */
} pulling;

/* A frame, copied out of the shared memory. */
typedef struct arrival {
    uint32_t kind;
    uint32_t length;
    uint64_t chunk;
    wherry_digest digest;
} arrival;

static wherry_status read_frame(pulling *puller, arrival *frame, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (wh_stop_requested(puller->end->site->stop)) {
        return wh_site_cancelled(error);
    }
    if (puller->head == puller->tail) {
        status = wh_ring_wait(puller->end, &puller->ring->head, &puller->ring->pull_waits, puller->tail, puller->shares,
                              &puller->head, error);
    }
    if (status == WHERRY_OK && puller->head - puller->tail > WH_RING_SLOTS) {
        status = wh_fail(error, WHERRY_MALFORMED,
                         "rank %d reports an impossible number of written frames: %u, but %u were read",
                         (int)puller->end->site->peer, (unsigned)puller->head, (unsigned)puller->tail);
    }
    if (status == WHERRY_OK) {
        wh_ring_frame *shared = &puller->ring->frames[puller->tail % WH_RING_SLOTS];
        uint64_t what = atomic_load_explicit(&shared->what, memory_order_relaxed);
        uint64_t digest[2] = {atomic_load_explicit(&shared->digest[0], memory_order_relaxed),
                              atomic_load_explicit(&shared->digest[1], memory_order_relaxed)};
        frame->kind = (uint32_t)(what >> 32);
        frame->length = (uint32_t)what;
        frame->chunk = atomic_load_explicit(&shared->chunk, memory_order_relaxed);
        memcpy(frame->digest.bytes, digest, sizeof(digest));
    }
    return status;
}

/* Checks that a frame is allowed here: its kind, its length and its chunk. */
static wherry_status check_frame(const pulling *puller, const arrival *frame, wherry_error *error) {
    bool good = false;
    switch (frame->kind) {
    case WH_RING_MORE:
        good = puller->open && frame->length == WH_RING_SLOT_BYTES && frame->length < puller->left;
        break;
    case WH_RING_LAST:
    case WH_RING_LAST_DIGEST:
        good = puller->open && frame->length <= WH_RING_SLOT_BYTES && frame->length == puller->left;
        break;
    case WH_RING_END:
        good = !puller->open && frame->length == 0;
        break;
    }
    if (puller->open && frame->chunk != puller->landing.chunk) {
        good = false;
    }
    if (good) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_MALFORMED,
                   "rank %d sent a malformed ring frame: kind %u, %u bytes of chunk %" PRIu64 ", while %" PRIu64
                   " bytes of chunk %" PRIu64 " are missing",
                   (int)puller->end->site->peer, (unsigned)frame->kind, (unsigned)frame->length, frame->chunk,
                   puller->open ? puller->left : 0, puller->open ? puller->landing.chunk : frame->chunk);
}

static wherry_status open_chunk(pulling *puller, uint64_t chunk, wherry_error *error) {
    wherry_status status = puller->sink->open(puller->sink->context, chunk, &puller->landing, error);
    if (status == WHERRY_OK) {
        puller->landing.chunk = chunk;
        puller->open = true;
        puller->left = puller->landing.segments.bytes;
        puller->cursor = wh_run_cursor_at(&puller->landing.segments);
        if (puller->digester) {
            wh_digester_begin(puller->digester);
        }
    }
    return status;
}

/* Copies the bytes of a slot to their destinations, and frees the slot. */
static void empty_slot(pulling *puller, size_t length) {
    const uint8_t *slot = wh_ring_slot(puller->end, puller->worker, puller->tail);
    wh_run_cursor_unpack(&puller->cursor, slot, length, puller->digester);
    puller->left -= length;
    puller->tail++;
    if (!puller->shares || puller->tail == puller->head) {
        post(&puller->ring->tail, &puller->ring->push_waits, puller->tail);
    }
    puller->sink->moved(puller->sink->context, length);
}

static wherry_status close_chunk(pulling *puller, const arrival *frame, wherry_error *error) {
    puller->open = false;
    return wh_sink_close(puller->sink, &puller->landing, puller->digester,
                         frame->kind == WH_RING_LAST_DIGEST ? &frame->digest : NULL, error);
}

static wherry_status pull_round(pulling *puller, wherry_error *error) {
    for (;;) {
        arrival frame = {0};
        wherry_status status = read_frame(puller, &frame, error);
        if (status == WHERRY_OK && frame.kind != WH_RING_END && !puller->open) {
            status = open_chunk(puller, frame.chunk, error);
        }
        WH_THEN(status, check_frame(puller, &frame, error));
        if (status != WHERRY_OK) {
            return status;
        }
        if (frame.kind == WH_RING_END) {
            post(&puller->ring->tail, &puller->ring->push_waits, ++puller->tail);
            return WHERRY_OK;
        }
        empty_slot(puller, frame.length);
        if (frame.kind != WH_RING_MORE && (status = close_chunk(puller, &frame, error)) != WHERRY_OK) {
            return status;
        }
    }
}

wherry_status wh_ring_pull(wh_lane_end *base, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    wh_ring_end *end = wh_ring_end_of(base);
    WH_TRY(wh_ring_enter(end, error));
    pulling puller = {.end = end, .ring = &end->shared->rings[worker], .sink = sink, .worker = worker};
    puller.shares = share_processor(worker, base->workers);
    puller.head = puller.tail = end->frames[worker];
    wherry_status status = wh_digester_need(sink->verify, &puller.digester, error);
    WH_THEN(status, pull_round(&puller, error));
    end->frames[worker] = puller.tail;
    wh_digester_destroy(puller.digester);
    wh_landing_destroy(&puller.landing);
    return status;
}
