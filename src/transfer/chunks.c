#include "transfer/chunks.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "state/tensor.h"
#include "transfer/offer.h"

/* ---- states ---- */

static void set_state(wh_chunks *chunks, uint64_t place, wh_chunk_state state) {
    atomic_store(chunks->states + place, (unsigned char)state);
}

static bool change_state(wh_chunks *chunks, uint64_t place, wh_chunk_state from, wh_chunk_state to) {
    unsigned char present = (unsigned char)from;
    return atomic_compare_exchange_strong(chunks->states + place, &present, (unsigned char)to);
}

/** Marks a chunk as open. @return WHERRY_OK; WHERRY_MALFORMED if this source must not send it. */
static wherry_status admit(const wh_pull *pull, uint64_t chunk, wherry_error *error) {
    wh_chunks *chunks = pull->chunks;
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    bool owned = place != UINT64_MAX && atomic_load(chunks->owners + place) == pull->source;
    if (!owned || !(change_state(chunks, place, WH_CHUNK_AWAITED, WH_CHUNK_OPEN) ||
                    change_state(chunks, place, WH_CHUNK_AGAIN, WH_CHUNK_OPEN))) {
        return wh_fail(error, WHERRY_MALFORMED, "chunk %" PRIu64 " came, which was not requested", chunk);
    }
    atomic_store_explicit(&chunks->current, chunk, memory_order_relaxed);
    if (chunks->opened) {
        chunks->opened[place] = wh_clock_now();
    }
    wh_point("receiver opened a chunk");
    return WHERRY_OK;
}

/** Ends an open chunk. */
static void finish(wh_chunks *chunks, uint64_t chunk, wh_chunk_state state) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    set_state(chunks, place, state);
    if (chunks->opened) {
        uint64_t length = wh_prepared_chunk_length(chunks->plan->prepared, chunk);
        unsigned char owner = atomic_load(chunks->owners + place);
        wh_trace(chunks->options,
                 (wherry_trace_event){"chunk", chunks->sources[owner].lane->name, chunks->opened[place], wh_clock_now(),
                                      chunk, length, chunks->sources[owner].rank, 0});
    }
    wh_point("receiver closed a chunk");
}

/** The copies to a device have completed. A digest that comes by message may still be missing. */
static void finish_delivered(void *context, uint64_t chunk) {
    wh_chunks *chunks = context;
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    bool unchecked = chunks->digests && chunks->digests[place].by_message;
    /* Otherwise the chunk was taken back in the meantime. */
    if (wh_chunks_state(chunks, place) == WH_CHUNK_OPEN) {
        finish(chunks, chunk, unchecked ? WH_CHUNK_UNCHECKED : WH_CHUNK_LANDED);
    }
}

bool wh_chunks_have_begun(const wh_chunks *chunks) {
    for (uint64_t place = 0; chunks->states && place < chunks->wanted.total; place++) {
        if (wh_chunks_state(chunks, place) != WH_CHUNK_AWAITED) {
            return true;
        }
    }
    return false;
}

/* ---- creating and assigning ---- */

bool wh_chunks_init(wh_chunks *chunks, const wherry_plan *plan, const wh_chunk_set *wanted,
                    const wherry_transfer_options *options, const wh_stop *stop, wh_deadline deadline) {
    chunks->plan = plan;
    chunks->options = options;
    atomic_store(&chunks->current, UINT64_MAX);
    wh_delivery_init(&chunks->delivery, plan, finish_delivered, chunks, stop, deadline);
    if (!wh_chunk_set_init(&chunks->wanted, wanted->intervals, wanted->count)) {
        return false;
    }
    chunks->states = wh_alloc_zeroed(chunks->wanted.total, sizeof(*chunks->states));
    chunks->owners = wh_alloc_zeroed(chunks->wanted.total, sizeof(*chunks->owners));
    for (uint64_t place = 0; chunks->owners && place < chunks->wanted.total; place++) {
        atomic_store_explicit(chunks->owners + place, WH_NO_SOURCE, memory_order_relaxed);
    }
    chunks->opened = options->trace ? wh_alloc_zeroed(chunks->wanted.total, sizeof(*chunks->opened)) : NULL;
    return chunks->states && chunks->owners && (chunks->opened || !options->trace);
}

void wh_chunks_destroy(wh_chunks *chunks) {
    wh_delivery_destroy(&chunks->delivery);
    wh_chunk_set_destroy(&chunks->wanted);
    wh_free(chunks->states);
    wh_free(chunks->owners);
    wh_free(chunks->digests);
    wh_free(chunks->opened);
    *chunks = (wh_chunks){0};
}

void wh_chunks_leak(wh_chunks *chunks) {
    wh_delivery_end_copies(&chunks->delivery);
    wh_chunks *kept = wh_alloc(sizeof(*kept));
    if (kept) {
        *kept = *chunks;
        wh_leak(kept);
    }
    *chunks = (wh_chunks){0};
}

bool wh_chunks_reserve_digests(wh_chunks *chunks) {
    if (!chunks->digests) {
        chunks->digests = wh_alloc_zeroed(chunks->wanted.total, sizeof(*chunks->digests));
    }
    return chunks->digests != NULL;
}

void wh_chunks_assign(wh_chunks *chunks, uint64_t chunk, uint8_t source) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    if (wh_chunks_state(chunks, place) != WH_CHUNK_AWAITED) {
        set_state(chunks, place, WH_CHUNK_AGAIN);
    }
    if (chunks->digests) {
        chunks->digests[place] = (wh_chunk_digests){.by_message = false};
    }
    atomic_store(chunks->owners + place, source);
}

void wh_chunks_take_back(wh_chunks *chunks, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    bool awaited = wh_chunks_state(chunks, place) == WH_CHUNK_AWAITED;
    atomic_store(chunks->owners + place, WH_NO_SOURCE);
    set_state(chunks, place, awaited ? WH_CHUNK_AWAITED : WH_CHUNK_AGAIN);
}

/* ---- where bytes go: host memory ---- */

typedef struct landing_work {
    wh_landing *landing;
    uint64_t length; /**< Length of the chunk. */
    uint64_t at;     /**< Number of bytes of the chunk that were handled so far. */
    bool fill;       /**< Gaps get scratch memory, so that all bytes can be digested. */
    uint64_t widest; /**< Length of the longest gap. */
} landing_work;

static bool reserve_scratch(wh_landing *landing, uint64_t bytes) {
    return wh_reserve(&landing->scratch, &landing->scratch_bytes, bytes, 1);
}

/** Adds bytes without a destination. */
static bool add_gap(landing_work *work, uint64_t length) {
    if (!length) {
        return true;
    }
    if (work->fill && !reserve_scratch(work->landing, work->length)) {
        return false;
    }
    char *base = work->fill ? (char *)work->landing->scratch + work->at : NULL;
    work->at += length;
    work->widest = wh_max(work->widest, length);
    return wh_segments_add(&work->landing->segments, base, length);
}

/** @return 1 if out of memory. */
static int add_copy(void *context, const wherry_copy *copy) {
    landing_work *work = context;
    bool ok = add_gap(work, copy->chunk_offset - work->at);
    work->at += copy->length;
    return !ok || !wh_segments_add(&work->landing->segments, copy->memory, copy->length);
}

/** Fills landing->segments with the destinations of a chunk in host memory. */
static bool lay_out(const wh_pull *pull, uint64_t chunk, uint64_t length, wh_landing *landing) {
    const wh_chunks *chunks = pull->chunks;
    wh_segments_clear(&landing->segments);
    landing->staged = !wherry_plan_chunk_is_direct(chunks->plan, chunk);
    if (landing->staged) {
        return reserve_scratch(landing, length) && wh_segments_add(&landing->segments, landing->scratch, length);
    }
    landing_work work = {.landing = landing, .length = length, .fill = pull->session.verify};
    return wherry_plan_visit_chunk(chunks->plan, chunk, add_copy, &work) == 0 && add_gap(&work, length - work.at) &&
           (work.fill || reserve_scratch(landing, work.widest));
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error) {
    const wh_pull *pull = context;
    wh_chunks *chunks = pull->chunks;
    WH_TRY(admit(pull, chunk, error));
    uint64_t length = wh_prepared_chunk_length(chunks->plan->prepared, chunk);
    landing->chunk = chunk;
    landing->slot = NULL;
    bool ok;
    if (wh_delivery_takes(&chunks->delivery, chunk)) {
        wh_slot *slot;
        WH_TRY(wh_delivery_open(&chunks->delivery, chunk, &slot, error));
        landing->slot = slot;
        landing->staged = true;
        wh_segments_clear(&landing->segments);
        ok = wh_segments_add(&landing->segments, slot->memory, length);
    } else {
        ok = lay_out(pull, chunk, length, landing);
    }
    return ok ? WHERRY_OK : wh_fail_memory(error, "a chunk that has arrived");
}

/**
 * Wakes the thread inside the call if it may want to request more chunks. After the last request,
 * waking it for each chunk would only take time from the workers.
 */
static void note_finished(const wh_pull *pull) {
    if (!atomic_load(&pull->session.queue.last)) {
        wh_inbox_wake(pull->session.inbox);
    }
}

static wherry_status sink_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                const wherry_digest *claimed, wherry_error *error) {
    const wh_pull *pull = context;
    wh_chunks *chunks = pull->chunks;
    wh_chunk_state state = WH_CHUNK_LANDED;
    wh_slot *slot = landing->slot;
    wherry_status status = WHERRY_OK;
    landing->slot = NULL;
    if (pull->session.verify) {
        uint64_t place = wh_chunk_set_find(&chunks->wanted, landing->chunk);
        wh_chunk_digests *digests = chunks->digests + place;
        digests->by_message = !(pull->session.lane->traits & WH_LANE_DIGESTS);
        digests->has_landed = digest != NULL;
        digests->landed = digest ? *digest : digests->landed;
        bool equal = digest && claimed && wh_digest_equal(digest, claimed);
        state = digests->by_message ? WH_CHUNK_UNCHECKED : equal ? WH_CHUNK_LANDED : WH_CHUNK_BAD;
    }
    if (slot && state != WH_CHUNK_BAD) {
        status = wh_delivery_close(&chunks->delivery, slot, error); /* finish_delivered follows */
    } else {
        if (landing->staged && !slot && state != WH_CHUNK_BAD) {
            status = wherry_plan_place(chunks->plan, landing->chunk, landing->scratch, landing->segments.bytes, error);
        }
        if (status == WHERRY_OK) {
            finish(chunks, landing->chunk, state);
        }
        if (slot) {
            wh_delivery_discard(&chunks->delivery, slot);
        }
    }
    note_finished(pull);
    return status;
}

/* ---- where bytes go: straight to devices ---- */

typedef struct routing {
    wh_routes *routes;
    bool by_position; /**< The lane has push: routes start at positions, not at addresses. */
} routing;

/** @return 1 if out of memory. */
static int route_copy(void *context, const wherry_copy *copy) {
    const routing *r = context;
    int32_t device = wherry_storage_device(copy->storage).kind != WHERRY_DEVICE_CPU
                         ? wherry_storage_device(copy->storage).index
                         : -1;
    bool ok = true;
    for (uint64_t i = 0; i < copy->count && ok; i++) {
        uint64_t position = copy->chunk_offset + i * copy->chunk_stride;
        char *to = (char *)copy->memory + i * copy->storage_stride;
        ok = r->by_position ? wh_routes_add(r->routes, r->routes->span + position, to, copy->length, device)
                            : wh_routes_add_run(r->routes, position, to, copy->length, device);
    }
    return !ok;
}

static wherry_status sink_route(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error) {
    const wh_pull *pull = context;
    const wh_chunks *chunks = pull->chunks;
    WH_TRY(admit(pull, chunk, error));
    const void *addresses = chunks->sources[pull->source].addresses;
    if (addresses) {
        WH_TRY(wh_origin_gather(chunks->plan->prepared, addresses, chunk, &routes->origin, error));
        WH_TRY_ALLOC(wh_routes_locate(routes), error, "the routes of a chunk");
    }
    routing r = {routes, !addresses};
    WH_TRY_ALLOC(wherry_plan_visit_chunk(chunks->plan, chunk, route_copy, &r) == 0, error, "the routes of a chunk");
    routes->span += wh_prepared_chunk_length(chunks->plan->prepared, chunk);
    return WHERRY_OK;
}

static wherry_status sink_arrived(void *context, uint64_t chunk, wherry_error *error) {
    const wh_pull *pull = context;
    (void)error;
    finish(pull->chunks, chunk, WH_CHUNK_LANDED);
    note_finished(pull);
    return WHERRY_OK;
}

/* ---- the interface for lanes ---- */

static wherry_status sink_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    const wh_pull *pull = context;
    const void *addresses = pull->chunks->sources[pull->source].addresses;
    return wh_origin_gather(wherry_plan_prepared(pull->chunks->plan), addresses, chunk, segments, error);
}

static void sink_moved(void *context, uint64_t bytes) {
    wh_pull *pull = context;
    atomic_fetch_add_explicit(&pull->session.moved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pull->chunks->moved, bytes, memory_order_relaxed);
}

static uint64_t sink_continues(void *context, uint64_t chunk) {
    return wh_prepared_chunk_continues(wherry_plan_prepared(((wh_pull *)context)->chunks->plan), chunk);
}

wh_sink wh_pull_sink(wh_pull *pull) {
    return (wh_sink){
        .context = pull,
        .verify = pull->session.verify,
        .next = wh_session_next,
        .more = wh_session_more,
        .origin = sink_origin,
        .open = sink_open,
        .close = sink_close,
        .moved = sink_moved,
        .continues = sink_continues,
        .route = sink_route,
        .arrived = sink_arrived,
    };
}

/* ---- comparing digests ---- */

wh_chunk_state wh_chunks_judge(wh_chunks *chunks, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    wh_chunk_state state = wh_chunks_state(chunks, place);
    const wh_chunk_digests *digests = chunks->digests + place;
    if (state == WH_CHUNK_UNCHECKED && digests->has_claimed) {
        bool equal = digests->has_landed && wh_digest_equal(&digests->landed, &digests->claimed);
        state = equal ? WH_CHUNK_LANDED : WH_CHUNK_BAD;
        set_state(chunks, place, state);
    }
    return state;
}

bool wh_chunks_claim(wh_chunks *chunks, uint8_t source, uint64_t first, const void *digests, size_t count,
                     bool strict) {
    if (!chunks->digests || first > UINT64_MAX - count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t place = wh_chunk_set_find(&chunks->wanted, first + i);
        bool owned = place != UINT64_MAX && atomic_load(chunks->owners + place) == source;
        if (place == UINT64_MAX || (strict && !owned)) {
            return false;
        }
        if (!owned) {
            continue;
        }
        memcpy(&chunks->digests[place].claimed, (const char *)digests + i * WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES);
        chunks->digests[place].has_claimed = true;
        wh_chunks_judge(chunks, first + i);
    }
    return true;
}
