#include "transfer/sink.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/sink_device.h"
#include "transfer/source.h"

bool wh_chunk_sink_init(wh_chunk_sink *sink, const wherry_plan *plan, const wh_chunk_set *wanted, const wh_stop *stop,
                        wh_deadline deadline) {
    sink->plan = plan;
    sink->stop = stop;
    atomic_store(&sink->current, UINT64_MAX);
    wh_chunk_sink_init_stage(sink, deadline);
    if (!wh_chunk_set_init(&sink->wanted, wanted->intervals, wanted->count)) {
        return false;
    }
    sink->states = wh_alloc_zeroed(sink->wanted.total, sizeof(*sink->states));
    return sink->states != NULL;
}

static bool reserve_digests(wh_chunk_sink *sink) {
    if (!sink->landed) {
        sink->landed = wh_alloc_zeroed(sink->wanted.total, sizeof(*sink->landed));
        sink->claimed = wh_alloc_zeroed(sink->wanted.total, sizeof(*sink->claimed));
        sink->has_claim = wh_alloc_zeroed(sink->wanted.total, sizeof(*sink->has_claim));
    }
    return sink->landed && sink->claimed && sink->has_claim;
}

static bool reserve_moments(wh_chunk_sink *sink) {
    if (!sink->opened && wh_trace_now(sink->trace)) {
        sink->opened = wh_alloc_zeroed(sink->wanted.total, sizeof(*sink->opened));
        return sink->opened != NULL;
    }
    return true;
}

bool wh_chunk_sink_begin(wh_chunk_sink *sink, const wherry_interval *intervals, size_t count, bool verify,
                         bool in_band) {
    sink->verify = verify;
    sink->in_band = in_band;
    wh_chunk_set_destroy(&sink->round);
    if (!wh_chunk_set_init(&sink->round, intervals, count) || (verify && !reserve_digests(sink)) ||
        !reserve_moments(sink)) {
        return false;
    }
    for (uint64_t i = 0; i < sink->round.total; i++) {
        uint64_t place = wh_chunk_set_find(&sink->wanted, wh_chunk_set_at(&sink->round, i));
        atomic_store(sink->states + place, (unsigned char)WH_CHUNK_AWAITED);
        if (verify) {
            sink->has_claim[place] = false;
        }
    }
    return true;
}

void wh_chunk_sink_keep(wh_chunk_sink *sink) {
    wh_stage_end_copies(&sink->stage);
    wh_chunk_sink *kept = wh_alloc(sizeof(*kept));
    if (kept) {
        *kept = *sink;
        wh_leak(kept);
    }
    *sink = (wh_chunk_sink){0};
}

void wh_chunk_sink_destroy(wh_chunk_sink *sink) {
    wh_chunk_sink_destroy_stage(sink);
    wh_chunk_set_destroy(&sink->wanted);
    wh_chunk_set_destroy(&sink->round);
    wh_free(sink->states);
    wh_free(sink->landed);
    wh_free(sink->claimed);
    wh_free(sink->has_claim);
    wh_free(sink->opened);
    *sink = (wh_chunk_sink){0};
}

static bool sink_next(void *context, uint64_t *chunk_p) {
    wh_chunk_sink *sink = context;
    if (wh_stop_requested(sink->stop)) {
        return false;
    }
    return wh_chunk_set_next(&sink->round, chunk_p);
}

static wherry_status sink_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    const wh_chunk_sink *sink = context;
    return wh_origin_gather(wherry_plan_prepared(sink->plan), sink->bases, chunk, segments, error);
}

/* ---- where bytes go ---- */

typedef struct landing_work {
    wh_landing *landing;
    uint64_t length; /**< Of the chunk. */
    uint64_t at;     /**< How far it is covered. */
    bool fill;       /**< Gaps get scratch memory of their own, made at the first. */
    bool failed;
    uint64_t widest;
} landing_work;

static bool reserve_scratch(wh_landing *landing, uint64_t bytes) {
    return wh_reserve(&landing->scratch, &landing->scratch_bytes, bytes, 1);
}

/** Bytes that have no place. */
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

static bool lay_out(const wh_chunk_sink *sink, uint64_t chunk, uint64_t length, wh_landing *landing) {
    wh_segments_clear(&landing->segments);
    landing->staged = !wherry_plan_chunk_is_direct(sink->plan, chunk);
    if (landing->staged) {
        return reserve_scratch(landing, length) && wh_segments_add(&landing->segments, landing->scratch, length);
    }
    landing_work work = {.landing = landing, .length = length, .fill = sink->verify};
    wherry_plan_visit_chunk(sink->plan, chunk, add_copy, &work);
    if (!work.failed) {
        add_gap(&work, length - work.at);
    }
    return !work.failed && (work.fill || reserve_scratch(landing, work.widest));
}

static bool change(wh_chunk_sink *sink, uint64_t place, wh_chunk_state from, wh_chunk_state to) {
    unsigned char present = (unsigned char)from;
    return atomic_compare_exchange_strong(sink->states + place, &present, (unsigned char)to);
}

wherry_status wh_chunk_sink_admit(wh_chunk_sink *sink, uint64_t chunk, wherry_error *error) {
    uint64_t place = wh_chunk_set_find(&sink->wanted, chunk);
    if (place == UINT64_MAX ||
        !(change(sink, place, WH_CHUNK_AWAITED, WH_CHUNK_OPEN) || change(sink, place, WH_CHUNK_AGAIN, WH_CHUNK_OPEN))) {
        return wh_fail(error, WHERRY_MALFORMED, "chunk %" PRIu64 " came, which is not awaited", chunk);
    }
    atomic_store_explicit(&sink->current, chunk, memory_order_relaxed);
    if (sink->opened) {
        sink->opened[place] = wh_trace_now(sink->trace);
    }
    wh_point("receiver opened a chunk");
    return WHERRY_OK;
}

void wh_chunk_sink_note(wh_chunk_sink *sink, uint64_t chunk, wh_chunk_state state) {
    uint64_t place = wh_chunk_set_find(&sink->wanted, chunk);
    atomic_store(sink->states + place, (unsigned char)state);
    if (sink->opened) {
        uint64_t begin;
        uint64_t length;
        wherry_prepared_chunk(wherry_plan_prepared(sink->plan), chunk, &begin, &length);
        wh_trace_range(sink->trace, sink->opened[place], chunk, length);
    }
    wh_point("receiver closed a chunk");
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error) {
    wh_chunk_sink *sink = context;
    uint64_t begin;
    uint64_t length;
    wherry_status status = wh_chunk_sink_admit(sink, chunk, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_prepared_chunk(wherry_plan_prepared(sink->plan), chunk, &begin, &length);
    landing->chunk = chunk;
    landing->slot = NULL;
    if (wh_chunk_sink_goes_to_device(sink, chunk)) {
        return wh_chunk_sink_open_slot(sink, length, landing, error);
    }
    return lay_out(sink, chunk, length, landing) ? WHERRY_OK : wh_fail_memory(error, "a chunk that has come");
}

static wherry_status sink_close(void *context, wh_landing *landing, const wh_digest *digest, const wh_digest *claimed,
                                wherry_error *error) {
    wh_chunk_sink *sink = context;
    wh_chunk_state state = WH_CHUNK_LANDED;
    if (sink->verify && sink->in_band) {
        state = digest && claimed && wh_digest_equal(digest, claimed) ? WH_CHUNK_LANDED : WH_CHUNK_BAD;
    } else if (sink->verify && digest) {
        sink->landed[wh_chunk_set_find(&sink->wanted, landing->chunk)] = *digest;
    }
    wherry_status status = WHERRY_OK;
    if (landing->slot) {
        status = wh_chunk_sink_close_slot(sink, landing, state, error);
    } else {
        if (landing->staged && state == WH_CHUNK_LANDED) {
            status = wherry_plan_place(sink->plan, landing->chunk, landing->scratch, landing->segments.bytes, error);
        }
        wh_chunk_sink_note(sink, landing->chunk, state);
    }
    return status;
}

static void sink_moved(void *context, uint64_t bytes) {
    atomic_fetch_add_explicit(&((wh_chunk_sink *)context)->moved, bytes, memory_order_relaxed);
}

static uint64_t sink_continues(void *context, uint64_t chunk) {
    return wh_prepared_chunk_continues(wherry_plan_prepared(((wh_chunk_sink *)context)->plan), chunk);
}

wh_sink wh_chunk_sink_face(wh_chunk_sink *sink) {
    return (wh_sink){sink,       sink->verify, sink_next,      sink_origin,         sink_open,
                     sink_close, sink_moved,   sink_continues, wh_chunk_sink_route, wh_chunk_sink_arrived};
}

/* ---- judging ---- */

bool wh_chunk_sink_claim(wh_chunk_sink *sink, uint64_t first, const void *digests, size_t count) {
    if (!sink->verify || first > UINT64_MAX - count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t place = wh_chunk_set_find(&sink->wanted, first + i);
        if (place == UINT64_MAX) {
            return false;
        }
        memcpy(sink->claimed[place].bytes, (const char *)digests + i * WH_DIGEST_BYTES, WH_DIGEST_BYTES);
        sink->has_claim[place] = true;
    }
    return true;
}

wh_round_result wh_chunk_sink_judge(wh_chunk_sink *sink) {
    wh_round_result result = {0};
    for (uint64_t i = 0; i < sink->round.total; i++) {
        uint64_t chunk = wh_chunk_set_at(&sink->round, i);
        uint64_t place = wh_chunk_set_find(&sink->wanted, chunk);
        wh_chunk_state state = wh_chunk_sink_state(sink, place);
        if (state == WH_CHUNK_LANDED && sink->verify && !sink->in_band) {
            result.unclaimed += !sink->has_claim[place];
            if (sink->has_claim[place] && !wh_digest_equal(sink->landed + place, sink->claimed + place)) {
                state = WH_CHUNK_BAD;
                atomic_store(sink->states + place, (unsigned char)state);
            }
        }
        result.missing += state < WH_CHUNK_LANDED;
        if (state == WH_CHUNK_BAD && result.bad++ == 0) {
            result.first_bad = chunk;
        }
    }
    return result;
}

bool wh_chunk_sink_retry(wh_chunk_sink *sink) {
    wh_chunk_set bad = {0};
    bool ok = true;
    for (uint64_t place = 0; place < sink->wanted.total && ok; place++) {
        if (wh_chunk_sink_state(sink, place) == WH_CHUNK_BAD) {
            uint64_t chunk = wh_chunk_set_at(&sink->wanted, place);
            atomic_store(sink->states + place, (unsigned char)WH_CHUNK_AGAIN);
            sink->has_claim[place] = false;
            ok = wh_chunk_set_add(&bad, chunk, chunk);
        }
    }
    if (!ok) {
        wh_chunk_set_destroy(&bad);
        return false;
    }
    wh_chunk_set_destroy(&sink->round);
    sink->round = bad;
    return true;
}
