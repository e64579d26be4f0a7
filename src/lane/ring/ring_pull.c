#include "lane/ring/ring_internal.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/error.h"

/* One worker's share of a round. */
typedef struct pulling {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_sink *sink;
    uint32_t worker;
    uint32_t head;        /* frames written, as last seen */
    uint32_t tail;        /* frames read */
    bool open;            /* a chunk is: the next frame goes on with it */
    uint64_t left;        /* bytes of it that are still to come */
    wh_run_cursor cursor; /* in its landing */
    wh_landing landing;
    wh_digester *digester; /* NULL: digests are not wanted */
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
        status = wh_ring_wait(puller->end, &puller->ring->head, &puller->ring->pull_waits, puller->tail, &puller->head,
                              error);
    }
    if (status == WHERRY_OK && puller->head - puller->tail > WH_RING_SLOTS) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d says that it has written %u frames of a ring, of %u read",
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

/* Whether a frame is one that may come next. */
static wherry_status check_frame(const pulling *puller, const arrival *frame, wherry_error *error) {
    bool good = false;
    switch (frame->kind) {
    case WH_RING_MORE:
        good = puller->open && frame->length == WH_RING_SLOT_BYTES && frame->length < puller->left;
        break;
    case WH_RING_LAST:
    case WH_RING_LAST_SUM:
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
                   "rank %d sent a frame of kind %u with %u bytes of chunk %" PRIu64 ", where %" PRIu64
                   " bytes of chunk %" PRIu64 " were to come",
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

/* Copies a run at a time, which is hashed out of the cache. */
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

/* Copies a slot to where it belongs, and gives it back. */
static void empty_slot(pulling *puller, size_t length) {
    const uint8_t *slot = wh_ring_slot(puller->end, puller->worker, puller->tail);
    if (puller->digester) {
        copy_and_hash(puller, slot, length);
    } else {
        wh_run_cursor_unpack(&puller->cursor, slot, length);
    }
    puller->left -= length;
    wh_ring_post(&puller->ring->tail, &puller->ring->push_waits, ++puller->tail);
    puller->sink->moved(puller->sink->context, length);
}

static wherry_status close_chunk(pulling *puller, const arrival *frame, wherry_error *error) {
    wh_digest landed = {0};
    if (puller->digester) {
        landed = wh_digester_end(puller->digester);
    }
    puller->open = false;
    return puller->sink->close(puller->sink->context, &puller->landing, puller->digester ? &landed : NULL,
                               frame->kind == WH_RING_LAST_SUM ? &frame->digest : NULL, error);
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
            wh_ring_post(&puller->ring->tail, &puller->ring->push_waits, ++puller->tail);
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
    pulling puller = {.end = end, .ring = &end->shared->rings[worker], .sink = sink, .worker = worker};
    puller.head = puller.tail = end->frames[worker];
    if (sink->verify && !(puller.digester = wh_digester_create())) {
        status = wh_fail_memory(error, "the digests of chunks");
    }
    if (status == WHERRY_OK) {
        status = pull_round(&puller, error);
    }
    end->frames[worker] = puller.tail;
    wh_digester_destroy(puller.digester);
    wh_landing_destroy(&puller.landing);
    return status;
}
