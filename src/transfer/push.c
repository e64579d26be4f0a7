#include "transfer/push.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "state/prepare.h"

static void close_nothing(wh_lane_end *end) {
    (void)end;
}

const wh_lane_ops wh_lane_digests = {.name = "digests", .traits = WH_LANE_ONE_SIDED, .close = close_nothing};

/* ---- digests that go by message ---- */

static void digest_chunk(wh_push *push, wh_digester *digester, uint64_t chunk, const wh_segments *segments) {
    push->digests[chunk] = wh_digest_of(digester, segments->items, segments->count);
    if (wh_session_finish(&push->session, chunk)) {
        wh_inbox_wake(push->session.inbox);
    }
}

/** A worker that only computes digests, for a receiver that reads the memory itself. */
static wherry_status digest_all(wh_session *session, uint32_t worker, uint32_t wait_ms, bool *again_p,
                                wherry_error *error) {
    wh_push *push = (wh_push *)session;
    (void)worker, (void)wait_ms, (void)again_p;
    wh_segments segments = {0};
    wh_digester *digester = push->strong ? wh_digester_create_strong() : wh_digester_create();
    wherry_status status = wh_check_memory(digester, error, "a digest");
    wh_more more = WH_MORE_NOW;
    while (status == WHERRY_OK && more != WH_MORE_NEVER) {
        uint64_t chunk;
        while (status == WHERRY_OK && wh_session_next(&push->session, &chunk)) {
            status = wh_origin_gather(push->offer->prepared, push->offer->addresses.bytes, chunk, &segments, error);
            if (status == WHERRY_OK) {
                digest_chunk(push, digester, chunk, &segments);
                atomic_fetch_add_explicit(&push->digested, segments.bytes, memory_order_relaxed);
            }
        }
        more = wh_session_more(&push->session, WH_STOP_LOOK_MS);
    }
    wh_segments_destroy(&segments);
    wh_digester_destroy(digester);
    return status;
}

/* ---- the feed ---- */

static wherry_status feed_gather(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    wh_push *push = context;
    wh_point("source gathers a chunk");
    if (wh_fetch_exists(&push->fetch)) {
        struct iovec run;
        WH_TRY(wh_fetch_gather(&push->fetch, chunk, &run, error));
        wh_segments_clear(segments);
        WH_TRY_ALLOC(wh_segments_add(segments, run.iov_base, run.iov_len), error, "a chunk's segments");
    } else {
        WH_TRY(wh_origin_gather(push->offer->prepared, push->offer->addresses.bytes, chunk, segments, error));
    }
    if (push->digests) { /* The lane does not carry digests. */
        wh_digester *digester = wh_digester_create();
        WH_TRY(wh_check_memory(digester, error, "a digest"));
        digest_chunk(push, digester, chunk, segments);
        wh_digester_destroy(digester);
    }
    return WHERRY_OK;
}

static void feed_moved(void *context, uint64_t bytes) {
    atomic_fetch_add_explicit(&((wh_push *)context)->session.moved, bytes, memory_order_relaxed);
}

static uint64_t feed_continues(void *context, uint64_t chunk) {
    return wh_prepared_chunk_continues(((wh_push *)context)->offer->prepared, chunk);
}

static void feed_done(void *context, uint64_t chunk) {
    wh_push *push = context;
    if (wh_fetch_exists(&push->fetch)) {
        wh_fetch_done(&push->fetch, chunk);
    }
}

static wherry_status push_all(wh_session *session, uint32_t worker, uint32_t wait_ms, bool *again_p,
                              wherry_error *error) {
    wh_push *push = (wh_push *)session;
    wh_feed feed = {.context = push,
                    .verify = session->verify,
                    .wait_ms = wait_ms,
                    .again_p = again_p,
                    .next = wh_session_next,
                    .more = wh_session_more,
                    .gather = feed_gather,
                    .moved = feed_moved,
                    .continues = feed_continues,
                    .done = feed_done};
    return session->lane->push(session->end, worker, &feed, error);
}

/* ---- the session ---- */

wherry_status wh_push_prepare(wh_push *push, const wh_offer *offer, const wh_lane_ops *lane, const wh_lane_site *site,
                              wh_inbox *inbox, bool verify, wherry_error *error) {
    *push = (wh_push){.offer = offer};
    WH_TRY(wh_session_prepare(&push->session, lane, site, inbox, error));
    push->session.verify = verify;
    return WHERRY_OK;
}

wherry_status wh_push_request(wh_push *push, wh_bytes bytes, bool last, wherry_error *error) {
    wherry_interval *intervals;
    size_t count;
    WH_TRY(wh_intervals_decode(bytes, push->offer->summary.chunks, &intervals, &count, error));
    wherry_status status = WHERRY_OK;
    if (push->session.queue.last || (!count && (!last || !push->session.queue.count))) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d requests %s", (int)push->session.site.peer,
                         count ? "chunks after the last request" : "no chunk");
    }
    if (status == WHERRY_OK && count) { /* all in host memory, or all in device memory */
        const wherry_interval *end = intervals + count - 1;
        bool first_on = wh_prepared_chunk_on_device(push->offer->prepared, intervals->first);
        bool last_on = wh_prepared_chunk_on_device(push->offer->prepared, end->first + end->count - 1);
        push->on_device = push->session.queue.count ? push->on_device : first_on;
        if (first_on != last_on || first_on != push->on_device) {
            status = wh_fail(error, WHERRY_MALFORMED, "rank %d asks for host memory and device memory at once",
                             (int)push->session.site.peer);
        }
    }
    bool fetches = wh_fetch_exists(&push->fetch);
    if (status == WHERRY_OK && ((fetches && !wh_fetch_add(&push->fetch, intervals, count)) ||
                                !wh_session_request(&push->session, intervals, count, last))) {
        status = wh_fail_memory(error, "a request");
    }
    wh_free(intervals);
    return status;
}

/** Chunks on a device go through host memory, unless the lane moves device memory itself. */
static wherry_status prepare_fetch(wh_push *push, wherry_error *error) {
    const wh_session *session = &push->session;
    uint32_t traits = session->lane->traits;
    bool moves_device = traits & WH_LANE_DEVICE;
    if (moves_device != push->on_device && (moves_device || !(traits & WH_LANE_STAGES))) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asks for %s memory over the lane %s, which cannot move it",
                       (int)session->site.peer, moves_device ? "host" : "device", session->lane->name);
    }
    if (moves_device && session->verify) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d wants digests over the lane %s, which has none",
                       (int)session->site.peer, session->lane->name);
    }
    if (moves_device || !push->on_device) {
        return WHERRY_OK;
    }
    wh_fetch_init(&push->fetch, push->offer->prepared, session->end ? session->end->workers : 1, &session->stop,
                  session->site.deadline);
    for (size_t i = 0; i < session->queue.count; i++) {
        const wh_chunk_set *request = &session->queue.requests[i].chunks;
        if (!wh_fetch_add(&push->fetch, request->intervals, request->count)) {
            return wh_fail_memory(error, "fetching from a device");
        }
    }
    return WHERRY_OK;
}

wherry_status wh_push_start(wh_push *push, uint32_t *workers_p, wherry_error *error) {
    wh_session *session = &push->session;
    bool one_sided = session->lane->traits & WH_LANE_ONE_SIDED;
    bool digests = session->verify && !(session->lane->traits & WH_LANE_DIGESTS);
    *workers_p = 0;
    WH_TRY(prepare_fetch(push, error));
    if (one_sided && !digests) {
        return WHERRY_OK;
    }
    if (digests) {
        push->digests = wh_alloc_array(push->offer->summary.chunks, sizeof(*push->digests));
        WH_TRY(wh_check_memory(push->digests, error, "digests"));
    }
    bool in_caller = !one_sided && wh_lane_runs_in_caller(session->lane, session->site.group);
    uint64_t workers =
        one_sided ? wh_min(session->site.threads, session->queue.requests[0].chunks.total) : session->end->workers;
    *workers_p = (uint32_t)wh_min(workers, WH_WORKERS_MAX);
    return wh_session_start(session, in_caller ? 0 : *workers_p, one_sided ? digest_all : push_all, error);
}

void wh_push_close(wh_push *push) {
    if (!wh_session_is_open(&push->session)) {
        return;
    }
    wh_session_close(&push->session);
    wh_fetch_destroy(&push->fetch);
    wh_free(push->digests);
    *push = (wh_push){.session.stop.event = -1};
}
