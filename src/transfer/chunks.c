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
        chunks->opened[place] = wh_trace_now(chunks->trace);
    }
    wh_point("receiver opened a chunk");
    return WHERRY_OK;
}

/** Ends an open chunk. */
static void finish(wh_chunks *chunks, uint64_t chunk, wh_chunk_state state) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    set_state(chunks, place, state);
    if (chunks->opened) {
        uint64_t begin;
        uint64_t length;
        wherry_prepared_chunk(wherry_plan_prepared(chunks->plan), chunk, &begin, &length);
        unsigned char owner = atomic_load(chunks->owners + place);
        wh_trace_range(chunks->trace, chunks->opened[place], chunk, length, chunks->sources[owner].lane,
                       chunks->sources[owner].rank);
    }
    wh_point("receiver closed a chunk");
}

/** The copies to a device have completed. A digest that comes by message may still be missing. */
static void finish_delivered(void *context, uint64_t chunk) {
    wh_chunks *chunks = context;
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    bool unchecked = chunks->unchecked && chunks->unchecked[place];
    if (wh_chunks_state(chunks, place) == WH_CHUNK_OPEN) { /* else it was taken back meanwhile */
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

bool wh_chunks_init(wh_chunks *chunks, const wherry_plan *plan, const wh_chunk_set *wanted, const wh_stop *stop,
                    wh_deadline deadline) {
    chunks->plan = plan;
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
    return chunks->states && chunks->owners;
}

void wh_chunks_destroy(wh_chunks *chunks) {
    wh_delivery_destroy(&chunks->delivery);
    wh_chunk_set_destroy(&chunks->wanted);
    wh_free(chunks->states);
    wh_free(chunks->owners);
    wh_free(chunks->unchecked);
    wh_free(chunks->has_digest);
    wh_free(chunks->landed);
    wh_free(chunks->claimed);
    wh_free(chunks->has_claim);
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
    uint64_t total = chunks->wanted.total;
    if (!chunks->landed) {
        chunks->landed = wh_alloc_zeroed(total, sizeof(*chunks->landed));
        chunks->claimed = wh_alloc_zeroed(total, sizeof(*chunks->claimed));
        chunks->has_claim = wh_alloc_zeroed(total, sizeof(*chunks->has_claim));
        chunks->unchecked = wh_alloc_zeroed(total, sizeof(*chunks->unchecked));
        chunks->has_digest = wh_alloc_zeroed(total, sizeof(*chunks->has_digest));
    }
    return chunks->landed && chunks->claimed && chunks->has_claim && chunks->unchecked && chunks->has_digest;
}

bool wh_chunks_set_trace(wh_chunks *chunks, const wh_trace *trace) {
    chunks->trace = trace;
    chunks->opened = wh_trace_now(trace) ? wh_alloc_zeroed(chunks->wanted.total, sizeof(*chunks->opened)) : NULL;
    return chunks->opened || !wh_trace_now(trace);
}

void wh_chunks_assign(wh_chunks *chunks, uint64_t chunk, uint8_t source) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    if (wh_chunks_state(chunks, place) != WH_CHUNK_AWAITED) {
        set_state(chunks, place, WH_CHUNK_AGAIN);
    }
    if (chunks->has_claim) {
        chunks->has_claim[place] = chunks->unchecked[place] = chunks->has_digest[place] = false;
    }
    atomic_store(chunks->owners + place, source);
}

void wh_chunks_reset(wh_chunks *chunks, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    atomic_store(chunks->owners + place, WH_NO_SOURCE);
    set_state(chunks, place, WH_CHUNK_AGAIN);
}

void wh_chunks_take_back(wh_chunks *chunks, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(&chunks->wanted, chunk);
    wh_chunk_state state = wh_chunks_state(chunks, place);
    if (state != WH_CHUNK_LANDED) {
        atomic_store(chunks->owners + place, WH_NO_SOURCE);
        set_state(chunks, place, state == WH_CHUNK_AWAITED ? WH_CHUNK_AWAITED : WH_CHUNK_AGAIN);
    }
}

wherry_status wh_chunks_settle(wh_chunks *chunks, wherry_error *error) {
    return wh_delivery_settle(&chunks->delivery, error);
}

/* ---- where bytes go: host memory ---- */

typedef struct landing_work {
    wh_landing *landing;
    uint64_t length; /**< Length of the chunk. */
    uint64_t at;     /**< Bytes of the chunk that are laid out. */
    bool fill;       /**< Gaps get scratch memory, so that all bytes can be digested. */
    bool failed;
    uint64_t widest; /**< The longest gap. */
} landing_work;

static bool reserve_scratch(wh_landing *landing, uint64_t bytes) {
    return wh_reserve(&landing->scratch, &landing->scratch_bytes, bytes, 1);
}

/** Adds bytes without a destination. */
static void add_gap(landing_work *work, uint64_t length) {
    if (length) {
        work->failed = work->failed || (work->fill && !reserve_scratch(work->landing, work->length));
        char *base = work->fill && !work->failed ? (char *)work->landing->scratch + work->at : NULL;
        work->failed = work->failed || !wh_segments_add(&work->landing->segments, base, length);
        work->at += length;
        work->widest = wh_max(work->widest, length);
    }
}

static int add_copy(void *context, const wherry_copy *copy) {
    landing_work *work = context;
    add_gap(work, copy->chunk_offset - work->at);
    work->failed = work->failed || !wh_segments_add(&work->landing->segments, copy->memory, copy->length);
    work->at += copy->length;
    return work->failed;
}

/** Fills landing->segments with the destinations of a chunk in host memory. */
static bool lay_out(const wh_pull *pull, uint64_t chunk, uint64_t length, wh_landing *landing) {
    const wh_chunks *chunks = pull->chunks;
    wh_segments_clear(&landing->segments);
    landing->staged = !wherry_plan_chunk_is_direct(chunks->plan, chunk);
    if (landing->staged) {
        return reserve_scratch(landing, length) && wh_segments_add(&landing->segments, landing->scratch, length);
    }
    landing_work work = {.landing = landing, .length = length, .fill = pull->verify};
    wherry_plan_visit_chunk(chunks->plan, chunk, add_copy, &work);
    if (!work.failed) {
        add_gap(&work, length - work.at);
    }
    return !work.failed && (work.fill || reserve_scratch(landing, work.widest));
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error) {
    const wh_pull *pull = context;
    wh_chunks *chunks = pull->chunks;
    uint64_t begin;
    uint64_t length;
    WH_TRY(admit(pull, chunk, error));
    wherry_prepared_chunk(wherry_plan_prepared(chunks->plan), chunk, &begin, &length);
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
    return ok ? WHERRY_OK : wh_fail_memory(error, "a chunk that has come");
}

/** Wakes the thread inside the call, if it may want to request more. */
static void note_finished(const wh_pull *pull) {
    if (atomic_load(&pull->wakes)) {
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
    if (pull->verify) {
        uint64_t place = wh_chunk_set_find(&chunks->wanted, landing->chunk);
        bool in_band = pull->session.lane->traits & WH_LANE_DIGESTS;
        if (digest) {
            chunks->landed[place] = *digest;
            chunks->has_digest[place] = true;
        }
        bool equal = digest && claimed && wh_digest_equal(digest, claimed);
        state = !in_band ? WH_CHUNK_UNCHECKED : equal ? WH_CHUNK_LANDED : WH_CHUNK_BAD;
        chunks->unchecked[place] = !in_band;
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
    bool failed;
} routing;

/** Appends a route, merging it with the previous one if contiguous. */
static bool add_route(wh_routes *routes, uint64_t from, char *to, uint64_t length, int32_t device) {
    wh_route *last = routes->count ? routes->items + routes->count - 1 : NULL;
    routes->bytes += length;
    if (last && last->device == device && last->from + last->length == from && (char *)last->to + last->length == to) {
        last->length += length;
        return true;
    }
    if (!WH_GROW(routes->items, routes->capacity, routes->count)) {
        return false;
    }
    routes->items[routes->count++] = (wh_route){from, to, length, device};
    return true;
}

/** The last segment that begins at or before a position of the chunk, by binary search. */
static size_t find_segment(const wh_routes *routes, uint64_t position) {
    size_t low = 0;
    size_t high = routes->origin.count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (routes->begins[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int route_copy(void *context, const wherry_copy *copy) {
    routing *r = context;
    const wh_segments *origin = &r->routes->origin;
    char *to = copy->memory;
    int32_t device = wherry_storage_device(copy->storage).kind != WHERRY_DEVICE_CPU
                         ? wherry_storage_device(copy->storage).index
                         : -1;
    for (uint64_t i = 0; i < copy->count && !r->failed; i++) {
        uint64_t position = copy->chunk_offset + i * copy->chunk_stride;
        if (r->by_position) {
            r->failed =
                !add_route(r->routes, r->routes->span + position, to + i * copy->storage_stride, copy->length, device);
            continue;
        }
        size_t at = find_segment(r->routes, position);
        for (uint64_t done = 0; done < copy->length && !r->failed; at++) {
            uint64_t into = position + done - r->routes->begins[at];
            uint64_t part = wh_min(copy->length - done, origin->items[at].iov_len - into);
            uint64_t from = (uint64_t)(uintptr_t)origin->items[at].iov_base + into;
            r->failed = !add_route(r->routes, from, to + i * copy->storage_stride + done, part, device);
            done += part;
        }
    }
    return r->failed;
}

/** Finds the runs of a chunk at the source, and where in the chunk each of them begins. */
static wherry_status find_origin(const wh_pull *pull, uint64_t chunk, wh_routes *routes, wherry_error *error) {
    WH_TRY(wh_origin_gather(pull->chunks->plan->prepared, pull->addresses, chunk, &routes->origin, error));
    if (!WH_RESERVE(routes->begins, routes->begin_capacity, routes->origin.count)) {
        return wh_fail_memory(error, "the routes of a chunk");
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < routes->origin.count; i++) {
        routes->begins[i] = begin;
        begin += routes->origin.items[i].iov_len;
    }
    return WHERRY_OK;
}

static wherry_status sink_route(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error) {
    const wh_pull *pull = context;
    const wh_chunks *chunks = pull->chunks;
    uint64_t begin;
    uint64_t length;
    WH_TRY(admit(pull, chunk, error));
    if (pull->addresses) {
        WH_TRY(find_origin(pull, chunk, routes, error));
    }
    wherry_prepared_chunk(chunks->plan->prepared, chunk, &begin, &length);
    routing r = {routes, !pull->addresses, false};
    wherry_plan_visit_chunk(chunks->plan, chunk, route_copy, &r);
    routes->span += length;
    return r.failed ? wh_fail_memory(error, "the routes of a chunk") : WHERRY_OK;
}

static wherry_status sink_arrived(void *context, uint64_t chunk, wherry_error *error) {
    const wh_pull *pull = context;
    (void)error;
    finish(pull->chunks, chunk, WH_CHUNK_LANDED);
    note_finished(pull);
    return WHERRY_OK;
}

/* ---- the interface for lanes ---- */

static bool sink_next(void *context, uint64_t *chunk_p) {
    return wh_session_next(&((wh_pull *)context)->session, chunk_p);
}

static wh_more sink_more(void *context, uint32_t wait_ms) {
    return wh_session_more(&((wh_pull *)context)->session, wait_ms);
}

static wherry_status sink_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    const wh_pull *pull = context;
    return wh_origin_gather(wherry_plan_prepared(pull->chunks->plan), pull->addresses, chunk, segments, error);
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
        .verify = pull->verify,
        .next = sink_next,
        .more = sink_more,
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
    if (state == WH_CHUNK_UNCHECKED && chunks->has_claim[place]) {
        bool equal = wh_digest_equal(chunks->landed + place, chunks->claimed + place);
        state = equal ? WH_CHUNK_LANDED : WH_CHUNK_BAD;
        set_state(chunks, place, state);
    }
    return state;
}

bool wh_chunks_claim(wh_chunks *chunks, uint8_t source, uint64_t first, const void *digests, size_t count,
                     bool strict) {
    if (!chunks->has_claim || first > UINT64_MAX - count) {
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
        memcpy(chunks->claimed[place].bytes, (const char *)digests + i * WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES);
        chunks->has_claim[place] = true;
        wh_chunks_judge(chunks, first + i);
    }
    return true;
}
