/*
 * Moving bytes through a ring: the source copies a chunk into slots, one frame each, and the
 * receiver copies them out.
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

#define NS_PER_MS UINT64_C(1000000)

/*
 * A few microseconds. Longer is no faster on idle processors, and takes time from the other side on
 * busy ones.
 */
enum { SPINS = 50 };

/*
 * For workers that share a processor: to yield is cheaper than to sleep, and nobody has to be
 * woken.
 */
enum { YIELDS = 20 };

/*
 * If there are fewer processors than workers on both sides, keeps worker i on the i-th one that it
 * may use. The other side does the same, so a pair shares a processor and its bytes stay in the
 * caches. Without this, 1 GiB takes a third longer on 2 cores. Nothing is agreed on: a side that
 * may use other processors only loses the gain.
 * @param before  receives what to restore. @return true if the worker is kept.
 */
static bool share_processor(uint32_t worker, uint32_t workers, cpu_set_t *before) {
    cpu_set_t one;
    int found = -1;
    if (sched_getaffinity(0, sizeof(*before), before) != 0) {
        return false;
    }
    uint32_t count = (uint32_t)CPU_COUNT(before);
    if (count < 2 || count >= 2 * workers) {
        return false;
    }
    for (uint32_t skip = worker % count + 1; skip > 0 && found < CPU_SETSIZE - 1;) {
        skip -= CPU_ISSET(++found, before) != 0;
    }
    CPU_ZERO(&one);
    CPU_SET(found, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0;
}

/* ---- waiting ---- */

/* Sleeps until the word is not `seen`, but only for a short time: a stop does not wake it. */
static void sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t nanoseconds) {
    struct timespec most = {0, (long)wh_min(nanoseconds, WH_RING_NAP_MS * NS_PER_MS)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

void wh_ring_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/*
 * Changes a word that the other side waits for, and wakes it. All four accesses are sequentially
 * consistent: either this side sees that the other one sleeps, or that one sees the new value. Only
 * the sleeper clears its flag; otherwise a flag could be cleared for a sleep that has just begun.
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

/* Why to stop waiting; WHERRY_OK: go on. */
static wherry_status check_limits(const wh_ring_end *end, wh_deadline give_up, wherry_error *error) {
    const wh_lane_site *site = end->site;
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    if (wh_deadline_passed(site->deadline)) {
        return wh_fail(error, WHERRY_TIMED_OUT, "timed out before all bytes had moved");
    }
    if (wh_deadline_passed(give_up)) {
        return wh_fail(error, WHERRY_TIMED_OUT,
                       "timed out: rank %d has not moved a byte through the shared memory for %u ms; it may be stopped "
                       "or overloaded: try again with a higher no-progress limit, or ask another rank",
                       (int)site->peer, (unsigned)site->no_progress_ms);
    }
    return WHERRY_OK;
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
    wh_deadline give_up = wh_deadline_in_ms(end->site->no_progress_ms);
    while (value == seen) {
        wherry_status status = check_limits(end, give_up, error);
        if (status != WHERRY_OK) {
            return status;
        }
        atomic_store(waits, 1);
        /* In this order: what was written before the close still counts. */
        uint32_t gone = atomic_load(closed);
        value = atomic_load(word);
        if (value == seen && gone) {
            return wh_fail(error, WHERRY_PEER_LOST,
                           "rank %d closed its end of the shared memory before all bytes had moved: look at its log",
                           (int)end->site->peer);
        }
        if (value == seen) {
            wh_deadline until = wh_deadline_earlier(give_up, end->site->deadline);
            uint64_t now = wh_clock_now();
            sleep_on(word, seen, until.at > now ? until.at - now : 0);
            value = atomic_load(word);
        }
    }
    atomic_store_explicit(waits, 0, memory_order_relaxed);
    *value_p = value;
    return WHERRY_OK;
}

/* ---- the source ---- */

/* One worker's share of a round. */
typedef struct pushing {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_feed *feed;
    uint32_t worker;
    uint32_t head;         /* frames written */
    uint32_t tail;         /* frames read, as last seen */
    bool shares;           /* a processor, with the worker at the other side */
    wh_segments segments;  /* of the chunk */
    wh_digester *digester; /* NULL: no digests */
} pushing;

/* Waits until there is a slot for the next frame. */
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
        status =
            wh_fail(error, WHERRY_MALFORMED, "rank %d claims to have read %u frames of a ring, but %u were written",
                    (int)pusher->end->site->peer, (unsigned)pusher->tail, (unsigned)pusher->head);
    }
    return status;
}

static void publish(pushing *pusher, wh_ring_kind kind, size_t length, uint64_t chunk, const wh_digest *digest) {
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
    /* Workers that share a processor take turns over the whole ring: a turn costs two switches. */
    if (!pusher->shares || kind == WH_RING_END || pusher->head - pusher->tail == WH_RING_SLOTS) {
        post(&pusher->ring->head, &pusher->ring->pull_waits, pusher->head);
    }
}

static void fill_slot(pushing *pusher, wh_run_cursor *cursor, size_t length) {
    uint8_t *slot = wh_ring_slot(pusher->end, pusher->worker, pusher->head);
    if (!pusher->digester) {
        wh_run_cursor_pack(cursor, slot, length);
        return;
    }
    while (length > 0) { /* run by run: it is still in the cache when it is hashed */
        size_t step = wh_min(wh_run_cursor_left(cursor), length);
        const uint8_t *run = wh_run_cursor_here(cursor);
        wh_copy_into_cache(slot, run, step);
        wh_digester_add(pusher->digester, run, step);
        wh_run_cursor_advance(cursor, step);
        slot += step;
        length -= step;
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
        fill_slot(pusher, &cursor, length);
        if (last && pusher->digester) {
            wh_digest digest = wh_digester_end(pusher->digester);
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
    while (status == WHERRY_OK && feed->next(feed->context, &chunk)) {
        status = push_chunk(pusher, chunk, error);
        wh_feed_done(feed, chunk);
    }
    if (status == WHERRY_OK && (status = make_room(pusher, error)) == WHERRY_OK) {
        publish(pusher, WH_RING_END, 0, 0, NULL);
    }
    return status;
}

wherry_status wh_ring_push(wh_lane_end *base, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    wh_ring_end *end = wh_ring_end_of(base);
    cpu_set_t before;
    pushing pusher = {.end = end, .ring = &end->shared->rings[worker], .feed = feed, .worker = worker};
    pusher.shares = share_processor(worker, base->workers, &before);
    pusher.head = end->frames[worker];
    pusher.tail = atomic_load_explicit(&pusher.ring->tail, memory_order_acquire);
    wherry_status status = wh_ring_admit(end, error);
    if (status == WHERRY_OK && feed->verify && !(pusher.digester = wh_digester_create())) {
        status = wh_fail_memory(error, "the digests of chunks");
    }
    if (status == WHERRY_OK) {
        status = push_round(&pusher, error);
    }
    if (pusher.shares) {
        sched_setaffinity(0, sizeof(before), &before);
    }
    end->frames[worker] = pusher.head;
    wh_digester_destroy(pusher.digester);
    wh_segments_destroy(&pusher.segments);
    return status;
}

/* ---- the receiver ---- */

/* One worker's share of a round. */
typedef struct pulling {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_sink *sink;
    uint32_t worker;
    uint32_t head;        /* frames written, as last seen */
    uint32_t tail;        /* frames read */
    bool shares;          /* a processor, with the worker at the other side */
    bool open;            /* a chunk is open: the next frame continues it */
    uint64_t left;        /* bytes of it that are still missing */
    wh_run_cursor cursor; /* in its landing */
    wh_landing landing;
    wh_digester *digester; /* NULL: no digests */
} pulling;

/* A frame, copied out of the shared memory. */
typedef struct arrival {
    uint32_t kind;
    uint32_t length;
    uint64_t chunk;
    wh_digest digest;
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
        status =
            wh_fail(error, WHERRY_MALFORMED, "rank %d claims to have written %u frames of a ring, but %u were read",
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

/* Checks that a frame may come next. */
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

/* Copies run by run: a run is still in the cache when it is hashed. */
static void copy_and_hash(pulling *puller, const uint8_t *slot, size_t length) {
    while (length > 0) {
        size_t step = wh_min(wh_run_cursor_left(&puller->cursor), length);
        uint8_t *run = wh_run_cursor_here(&puller->cursor);
        if (run) {
            memcpy(run, slot, step);
            wh_digester_add(puller->digester, run, step);
        }
        wh_run_cursor_advance(&puller->cursor, step);
        slot += step;
        length -= step;
    }
}

/* Copies a slot to where it belongs, and frees it. */
static void empty_slot(pulling *puller, size_t length) {
    const uint8_t *slot = wh_ring_slot(puller->end, puller->worker, puller->tail);
    if (puller->digester) {
        copy_and_hash(puller, slot, length);
    } else {
        wh_run_cursor_unpack(&puller->cursor, slot, length);
    }
    puller->left -= length;
    puller->tail++;
    if (!puller->shares || puller->tail == puller->head) {
        post(&puller->ring->tail, &puller->ring->push_waits, puller->tail);
    }
    puller->sink->moved(puller->sink->context, length);
}

static wherry_status close_chunk(pulling *puller, const arrival *frame, wherry_error *error) {
    wh_digest landed = {0};
    if (puller->digester) {
        landed = wh_digester_end(puller->digester);
    }
    puller->open = false;
    return puller->sink->close(puller->sink->context, &puller->landing, puller->digester ? &landed : NULL,
                               frame->kind == WH_RING_LAST_DIGEST ? &frame->digest : NULL, error);
}

static wherry_status pull_round(pulling *puller, wherry_error *error) {
    for (;;) {
        arrival frame = {0};
        wherry_status status = read_frame(puller, &frame, error);
        if (status == WHERRY_OK && frame.kind != WH_RING_END && !puller->open) {
            status = open_chunk(puller, frame.chunk, error);
        }
        if (status == WHERRY_OK) {
            status = check_frame(puller, &frame, error);
        }
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
    wherry_status status = wh_ring_enter(end, error);
    if (status != WHERRY_OK) {
        return status;
    }
    cpu_set_t before;
    pulling puller = {.end = end, .ring = &end->shared->rings[worker], .sink = sink, .worker = worker};
    puller.shares = share_processor(worker, base->workers, &before);
    puller.head = puller.tail = end->frames[worker];
    if (sink->verify && !(puller.digester = wh_digester_create())) {
        status = wh_fail_memory(error, "the digests of chunks");
    }
    if (status == WHERRY_OK) {
        status = pull_round(&puller, error);
    }
    if (puller.shares) {
        sched_setaffinity(0, sizeof(before), &before);
    }
    end->frames[worker] = puller.tail;
    wh_digester_destroy(puller.digester);
    wh_landing_destroy(&puller.landing);
    return status;
}
