#include "lane/ring/ring_internal.h"

#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"

/* One worker's share of a round. */
typedef struct pushing {
    wh_ring_end *end;
    wh_ring *ring;
    const wh_feed *feed;
    uint32_t worker;
    uint32_t head;         /* frames written */
    uint32_t tail;         /* frames read, as last seen */
    wh_segments segments;  /* of the chunk */
    wh_digester *digester; /* NULL: digests are not wanted */
} pushing;

/* Waits until there is a slot for the next frame. */
static wherry_status make_room(pushing *pusher, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (wh_stop_requested(pusher->end->site->stop)) {
        return wh_site_cancelled(error);
    }
    if (pusher->head - pusher->tail == WH_RING_SLOTS) {
        status = wh_ring_wait(pusher->end, &pusher->ring->tail, &pusher->ring->push_waits, pusher->tail, &pusher->tail,
                              error);
    }
    if (status == WHERRY_OK && pusher->head - pusher->tail > WH_RING_SLOTS) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d says that it has read %u frames of a ring, of %u written",
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
    wh_ring_post(&pusher->ring->head, &pusher->ring->pull_waits, ++pusher->head);
}

static void fill_slot(pushing *pusher, wh_run_cursor *cursor, size_t length) {
    uint8_t *slot = wh_ring_slot(pusher->end, pusher->worker, pusher->head);
    if (!pusher->digester) {
        wh_run_cursor_pack(cursor, slot, length);
        return;
    }
    while (length > 0) { /* a run at a time, which is hashed out of the cache */
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
            publish(pusher, WH_RING_LAST_SUM, length, chunk, &digest);
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
    pushing pusher = {.end = end, .ring = &end->shared->rings[worker], .feed = feed, .worker = worker};
    pusher.head = end->frames[worker];
    pusher.tail = atomic_load_explicit(&pusher.ring->tail, memory_order_acquire);
    wherry_status status = wh_ring_admit(end, error);
    if (status == WHERRY_OK && feed->verify && !(pusher.digester = wh_digester_create())) {
        status = wh_fail_memory(error, "the digests of chunks");
    }
    if (status == WHERRY_OK) {
        status = push_round(&pusher, error);
    }
    end->frames[worker] = pusher.head;
    wh_digester_destroy(pusher.digester);
    wh_segments_destroy(&pusher.segments);
    return status;
}
