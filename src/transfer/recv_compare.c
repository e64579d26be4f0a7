/*
 * Compares chunks by their digests: which chunks the target already has (WHERRY_RECV_COMPARE), and
 * whether chunks that came from one source equal those of another.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/recv.h"

/* ---- sets of chunks ---- */

bool wh_recv_select(const wh_recv *recv, bool device, wh_chunk_set *set) {
    const wh_space *space = &recv->agreed.plan->prepared->space;
    uint64_t border = space->order ? space->first_chunks : UINT64_MAX;
    uint64_t least = device ? border : 0;
    uint64_t most = device ? UINT64_MAX : border;
    bool ok = true;
    wh_chunk_set_destroy(set);
    for (size_t i = 0; i < recv->agreed.wanted.count && ok; i++) {
        const wherry_interval *one = recv->agreed.wanted.intervals + i;
        uint64_t first = wh_max(one->first, least);
        uint64_t behind = wh_min(one->first + one->count, most);
        ok = first >= behind || wh_chunk_set_add(set, first, behind - 1);
    }
    return ok;
}

uint64_t wh_recv_bytes_of(const wh_recv *recv, const wh_chunk_set *set) {
    const wh_space *space = &recv->agreed.plan->prepared->space;
    uint64_t bytes = 0;
    for (size_t i = 0; i < set->count; i++) {
        const wherry_interval *one = set->intervals + i;
        bytes += wh_space_chunk_begin(space, one->first + one->count) - wh_space_chunk_begin(space, one->first);
    }
    return bytes;
}

/* ---- asking a source ---- */

static bool comparing_init(wh_comparing *comparing, const wh_chunk_set *chunks) {
    *comparing = (wh_comparing){.chunks = chunks, .left = chunks->total};
    comparing->claimed = wh_alloc_array(chunks->total, sizeof(*comparing->claimed));
    comparing->has_claim = wh_alloc_zeroed(chunks->total, sizeof(*comparing->has_claim));
    return comparing->claimed && comparing->has_claim;
}

static void comparing_destroy(wh_comparing *comparing) {
    wh_free(comparing->claimed);
    wh_free(comparing->has_claim);
}

bool wh_comparing_take(wh_comparing *comparing, uint64_t first, const void *digests, size_t count, bool strict) {
    if (first > UINT64_MAX - count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t place = wh_chunk_set_find(comparing->chunks, first + i);
        if (place == UINT64_MAX && strict) {
            return false;
        }
        if (place == UINT64_MAX) {
            continue;
        }
        memcpy(comparing->claimed[place].bytes, (const char *)digests + i * WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES);
        comparing->left -= !comparing->has_claim[place];
        comparing->has_claim[place] = true;
    }
    return true;
}

/** Asks for the digests of comparing->chunks. */
static wherry_status ask_digests(wh_recv_source *source, wh_comparing *comparing, wherry_error *error) {
    wh_string list = {0};
    wh_intervals_encode(comparing->chunks->intervals, comparing->chunks->count, &list);
    wh_note note = {.type = WH_COMPARE, .intervals = {list.bytes, list.size}};
    source->comparing = comparing;
    wh_liveness_note(&source->heard);
    wherry_status status = list.failed ? wh_fail_memory(error, "a question") : wh_source_tell(source, &note, error);
    wh_free(list.bytes);
    return status;
}

/** Waits once, and looks after the source. */
static wherry_status pump(wh_recv *recv, wh_recv_source *source, wherry_error *error) {
    WH_TRY(wh_recv_pump(recv, wh_call_tick(&recv->call), "comparing digests", error));
    wh_recv_progress(recv, false);
    if (!wh_session_is_open(&source->pull.session)) {
        WH_TRY(wh_source_look(source, error));
    }
    wh_source_check_progress(source);
    return WHERRY_OK;
}

wherry_status wh_recv_confirm_by_digest(wh_recv *recv, wh_recv_source *source, const wh_chunk_set *chunks, bool *equal,
                                        wherry_error *error) {
    wh_comparing comparing;
    wherry_status status = comparing_init(&comparing, chunks) ? WHERRY_OK : wh_fail_memory(error, "comparing digests");
    WH_THEN(status, ask_digests(source, &comparing, error));
    while (status == WHERRY_OK && comparing.left && wh_source_is_usable(source)) {
        status = pump(recv, source, error);
    }
    for (uint64_t i = 0; i < chunks->total && status == WHERRY_OK; i++) {
        uint64_t place = wh_chunk_set_find(&recv->chunks.wanted, wh_chunk_set_at(chunks, i));
        equal[i] = comparing.has_claim[i] && recv->chunks.landed && recv->chunks.has_digest[place] &&
                   wh_digest_equal(recv->chunks.landed + place, comparing.claimed + i);
    }
    source->comparing = NULL;
    comparing_destroy(&comparing);
    return status;
}

/* ---- what the target already has ---- */

/** The bytes of a chunk, gathered from their destinations. Each worker has one and reuses it. */
typedef struct gathering {
    char *bytes;
    size_t room;
    char *covered; /**< Per byte: 1 if it was found. */
    size_t covered_room;
    uint64_t length;
    uint64_t found;
    /** A byte has two destinations, or is on a device: then the chunk is requested. */
    bool unsure;
} gathering;

static int gather_copy(void *context, const wherry_copy *copy) {
    gathering *g = context;
    const char *from = copy->memory;
    g->unsure = g->unsure || wherry_storage_device(copy->storage).kind != WHERRY_DEVICE_CPU || !from;
    for (uint64_t i = 0; i < copy->count && !g->unsure; i++) {
        uint64_t at = copy->chunk_offset + i * copy->chunk_stride;
        g->unsure = memchr(g->covered + at, 1, copy->length) != NULL;
        memset(g->covered + at, 1, copy->length);
        memcpy(g->bytes + at, from + i * copy->storage_stride, copy->length);
        g->found += copy->length;
    }
    return g->unsure;
}

/** Finds the run of memory that has a whole chunk: the usual case, which needs no copy. */
static int find_run(void *context, const wherry_copy *copy) {
    struct iovec *run = context;
    bool whole = !run->iov_base && copy->count == 1 && copy->chunk_offset == 0 && copy->length == run->iov_len &&
                 wherry_storage_device(copy->storage).kind == WHERRY_DEVICE_CPU;
    run->iov_base = whole ? copy->memory : NULL;
    return !whole;
}

/** Digests what the target has in place of a chunk. @return false if that is not possible. */
static bool digest_target(const wherry_plan *plan, uint64_t chunk, gathering *g, wh_digester *digester,
                          wherry_digest *digest_p) {
    uint64_t begin;
    wherry_prepared_chunk(wherry_plan_prepared(plan), chunk, &begin, &g->length);
    struct iovec run = {NULL, g->length};
    if (wherry_plan_visit_chunk(plan, chunk, find_run, &run) != 0 || !run.iov_base) {
        if (!wh_reserve((void **)&g->bytes, &g->room, g->length, 1) ||
            !wh_reserve((void **)&g->covered, &g->covered_room, g->length, 1)) {
            return false;
        }
        memset(g->covered, 0, g->length);
        g->found = 0;
        g->unsure = false;
        wherry_plan_visit_chunk(plan, chunk, gather_copy, g);
        if (g->unsure || g->found != g->length) {
            return false;
        }
        run.iov_base = g->bytes;
    }
    *digest_p = wh_digest_of(digester, &run, 1);
    return true;
}

/** The digests of the target's own chunks. */
typedef struct own_digests {
    wh_recv *recv;
    wh_chunk_set *chunks;
    wherry_digest *digests; /**< By place in `chunks`. */
    bool *known;            /**< By place in `chunks`. */
    wh_stop stop;           /**< Requested when the digests are not needed any more. */
    wh_workers workers;
} own_digests;

/** A worker: takes chunk after chunk. */
static wherry_status digest_own(void *context, uint32_t worker, wherry_error *error) {
    own_digests *own = context;
    gathering g = {.bytes = NULL};
    wh_digester *digester = wh_digester_create();
    uint64_t chunk;
    (void)worker;
    while (digester && !wh_stop_requested(&own->recv->stop) && !wh_stop_requested(&own->stop) &&
           wh_chunk_set_next(own->chunks, &chunk)) {
        uint64_t place = wh_chunk_set_find(own->chunks, chunk);
        own->known[place] = digest_target(own->recv->agreed.plan, chunk, &g, digester, own->digests + place);
        /* So that both sides see the progress. */
        atomic_fetch_add_explicit(&own->recv->chunks.moved, g.length, memory_order_relaxed);
        wh_point("receiver compared a chunk");
    }
    wh_free(g.bytes);
    wh_free(g.covered);
    wh_digester_destroy(digester);
    return wh_check_memory(digester, error, "a digest");
}

/** Digests both sides at the same time. */
static wherry_status digest_both(wh_recv *recv, own_digests *own, wh_comparing *theirs, wherry_error *error) {
    uint32_t workers = (uint32_t)wh_min(recv->call.options.threads, own->chunks->total);
    WH_TRY(ask_digests(recv->first, theirs, error));
    recv->moments[WH_AT_TOLD] = wh_clock_now();
    wherry_status status = wh_workers_start(&own->workers, workers, digest_own, own, &own->stop, recv->inbox, error);
    while (status == WHERRY_OK && (theirs->left || !wh_workers_have_ended(&own->workers))) {
        status = pump(recv, recv->first, error);
        WH_THEN(status, wh_source_is_usable(recv->first) ? WHERRY_OK : wh_recv_check_sources(recv, error));
        if (!wh_source_is_usable(recv->first)) {
            break; /* with several sources, everything is requested from the others */
        }
    }
    wh_stop_request(&own->stop);
    wherry_error why;
    wherry_status result = wh_workers_join(&own->workers, &why);
    if (status == WHERRY_OK && result != WHERRY_OK) {
        *error = why;
        status = result;
    }
    return status;
}

/** Takes the chunks that are equal out of agreed.wanted. Those of devices are not compared. */
static bool keep_differing(wh_recv *recv, const own_digests *own, const wh_comparing *theirs) {
    wh_chunk_set differing = {0};
    wh_chunk_set on_device = {0};
    bool ok = wh_recv_select(recv, true, &on_device);
    for (uint64_t place = 0; place < own->chunks->total && ok; place++) {
        uint64_t chunk = wh_chunk_set_at(own->chunks, place);
        bool equal = own->known[place] && theirs->has_claim[place] &&
                     wh_digest_equal(own->digests + place, theirs->claimed + place);
        ok = equal || wh_chunk_set_add(&differing, chunk, chunk);
    }
    for (size_t i = 0; i < on_device.count && ok; i++) {
        const wherry_interval *one = on_device.intervals + i;
        ok = wh_chunk_set_add(&differing, one->first, one->first + one->count - 1);
    }
    wh_chunk_set_destroy(&on_device);
    if (!ok) {
        wh_chunk_set_destroy(&differing);
        return false;
    }
    uint64_t left = wh_recv_bytes_of(recv, &differing);
    recv->stats.bytes_held = recv->agreed.wanted_bytes - left;
    recv->agreed.wanted_bytes = left;
    wh_chunk_set_destroy(&recv->agreed.wanted);
    recv->agreed.wanted = differing;
    return true;
}

wherry_status wh_recv_compare(wh_recv *recv, wherry_error *error) {
    uint64_t begin = wh_clock_now();
    wh_chunk_set chunks = {0};
    bool selected = wh_recv_select(recv, false, &chunks);
    if (!selected || !chunks.total) {
        wh_chunk_set_destroy(&chunks);
        return selected ? WHERRY_OK : wh_fail_memory(error, "a comparison");
    }
    wh_comparing theirs;
    own_digests own = {.recv = recv, .chunks = &chunks, .stop.event = -1};
    bool ok = comparing_init(&theirs, &chunks);
    own.digests = wh_alloc_array(chunks.total, sizeof(*own.digests));
    own.known = wh_alloc_zeroed(chunks.total, sizeof(*own.known));
    wherry_status status = ok && own.digests && own.known ? WHERRY_OK : wh_fail_memory(error, "a comparison");
    wh_call_set_stop(&recv->call, &recv->stop);
    WH_THEN(status, digest_both(recv, &own, &theirs, error));
    recv->first->comparing = NULL;
    if (status == WHERRY_OK && !keep_differing(recv, &own, &theirs)) {
        status = wh_fail_memory(error, "a comparison");
    }
    if (status == WHERRY_OK) {
        wh_log(WHERRY_LOG_INFO, "the target already has %llu bytes of rank %d's state; %llu are requested",
               (unsigned long long)recv->stats.bytes_held, (int)recv->first->rank,
               (unsigned long long)recv->agreed.wanted_bytes);
    }
    comparing_destroy(&theirs);
    wh_free(own.digests);
    wh_free(own.known);
    wh_chunk_set_destroy(&chunks);
    atomic_store(&recv->chunks.moved, 0);
    recv->first->heard.bytes = 0;
    recv->stats.compare_seconds = wh_seconds(begin, wh_clock_now());
    wh_trace_phase(&recv->trace, "compare", begin, wh_clock_now());
    wh_point("receiver compared");
    return status;
}
