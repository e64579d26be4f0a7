/*
 * Compares chunks of the target with those of a source, by digests that both compute at the same
 * time: which chunks the target already has (WHERRY_RECV_COMPARE), whether those of a lost source
 * equal those of another one, and whether all sources have the same (WHERRY_VERIFY_ALL).
 *
 * 1. If a source may be reached over a network, the digests are by SHA-256: an attacker may have
 *    prepared bytes with the same weak digest as other bytes.
 * 2. The target's bytes are read from its memory. Where that is not possible, the weak digest from
 *    when the chunk landed is left.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/recv.h"

bool wh_comparing_take(wh_comparing *comparing, uint64_t first, const void *digests, size_t count, bool strict) {
    if (first > UINT64_MAX - count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t place = wh_chunk_set_find(comparing->chunks, first + i);
        if (place == UINT64_MAX && strict) {
            return false;
        }
        if (place != UINT64_MAX) {
            wh_chunk_digests *one = comparing->digests + place;
            memcpy(&one->claimed, (const char *)digests + i * WHERRY_DIGEST_BYTES, WHERRY_DIGEST_BYTES);
            comparing->left -= !one->has_claimed;
            one->has_claimed = true;
        }
    }
    return true;
}

/**
 * Computes the digest of what the target has in place of a chunk. @return false if that is not
 * possible.
 */
static bool digest_own(const wh_comparing *comparing, uint64_t chunk, wh_gathered *gathered, wh_digester *digester,
                       wherry_digest *digest_p) {
    const wh_chunks *chunks = comparing->recv->chunks;
    const wh_chunk_digests *known = chunks->digests;
    known = known && !comparing->strong ? known + wh_chunk_set_find(&chunks->wanted, chunk) : NULL;
    struct iovec run;
    if (known && known->has_landed) {
        *digest_p = known->landed;
        return true;
    }
    if (!wh_plan_gather(comparing->recv->agreed->plan, chunk, gathered, &run)) {
        return false;
    }
    *digest_p = wh_digest_of(digester, &run, 1);
    return true;
}

/** A worker. It takes chunk after chunk. */
static wherry_status digest_all(void *context, uint32_t worker, wherry_error *error) {
    wh_comparing *comparing = context;
    wh_recv *recv = comparing->recv;
    wh_gathered gathered = {0};
    wh_digester *digester = comparing->strong ? wh_digester_create_strong() : wh_digester_create();
    uint64_t chunk;
    (void)worker;
    while (digester && !wh_stop_requested(&comparing->stop) && wh_chunk_set_next(comparing->chunks, &chunk)) {
        wh_chunk_digests *one = comparing->digests + wh_chunk_set_find(comparing->chunks, chunk);
        one->has_landed = digest_own(comparing, chunk, &gathered, digester, &one->landed);
        if (!recv->schedule) { /* No bytes move yet, so both sides see this progress instead. */
            atomic_fetch_add_explicit(&recv->chunks->moved, gathered.length, memory_order_relaxed);
        }
        wh_point("receiver compared a chunk");
    }
    wh_gathered_destroy(&gathered);
    wh_digester_destroy(digester);
    return wh_check_memory(digester, error, "a digest");
}

/** Digests both sides at the same time. Ends early if the source is lost. */
static wherry_status digest_both(wh_recv_source *source, wh_comparing *comparing, wherry_error *error) {
    wh_recv *recv = source->recv;
    uint32_t workers = (uint32_t)wh_min(recv->call.options.threads, comparing->chunks->total);
    wh_string list = {0};
    wherry_error why;
    wh_intervals_encode(comparing->chunks->intervals, comparing->chunks->count, &list);
    wh_note note = {.type = WH_COMPARE, .strong = comparing->strong, .intervals = {list.bytes, list.size}};
    source->comparing = comparing;
    wh_liveness_note(&source->heard);
    wherry_status status = list.failed ? wh_fail_memory(error, "a question") : wh_source_tell(source, &note, error);
    wh_free(list.bytes);
    recv->moments[WH_AT_TOLD] = wh_clock_now();
    WH_THEN(status, wh_workers_start(&comparing->workers, workers, digest_all, comparing, &comparing->stop,
                                     wh_wake_inbox, recv->inboxes[0], error));
    while (status == WHERRY_OK && wh_source_is_usable(source) &&
           (comparing->left || !wh_workers_have_ended(&comparing->workers))) {
        status = wh_recv_pump(recv, wh_call_tick(&recv->call), "comparing digests", error);
        wh_recv_progress(recv, false);
        if (status == WHERRY_OK && !wh_session_is_open(&source->pull.session)) {
            status = wh_source_look(source, error);
        }
        wh_source_check_progress(source);
    }
    wh_stop_request(&comparing->stop);
    wherry_status result = wh_workers_join(&comparing->workers, &why);
    if (status == WHERRY_OK && result != WHERRY_OK) {
        *error = why;
        status = result;
    }
    return status;
}

wherry_status wh_recv_remove_equal(wh_recv *recv, wh_recv_source *source, wh_chunk_set *chunks, bool weak,
                                   wh_chunk_set *unknown, wherry_error *error) {
    wh_comparing comparing = {.recv = recv, .chunks = chunks, .left = chunks->total, .stop.event = -1};
    wh_chunk_set differing = {0};
    if (!chunks->total) {
        return WHERRY_OK;
    }
    comparing.strong = !weak && recv->remote;
    comparing.digests = wh_alloc_zeroed(chunks->total, sizeof(*comparing.digests));
    wherry_status status = wh_check_memory(comparing.digests, error, "a comparison");
    WH_THEN(status, digest_both(source, &comparing, error));
    source->comparing = NULL;
    for (uint64_t i = 0; i < chunks->total && status == WHERRY_OK; i++) {
        uint64_t chunk = wh_chunk_set_at(chunks, i);
        const wh_chunk_digests *one = comparing.digests + i;
        bool equal = one->has_landed && one->has_claimed && wh_digest_equal(&one->landed, &one->claimed);
        wh_chunk_set *left = !one->has_landed && unknown ? unknown : &differing;
        if (!equal && !wh_chunk_set_add(left, chunk, chunk)) {
            status = wh_fail_memory(error, "a comparison");
        }
    }
    wh_free(comparing.digests);
    wh_chunk_set_destroy(chunks);
    *chunks = differing;
    return status;
}

/* ---- what the target already has ---- */

wherry_status wh_recv_compare(wh_recv *recv, wherry_error *error) {
    uint64_t begin = wh_clock_now();
    wh_recv_source *source = recv->agreed->first;
    const wh_space *space = &recv->agreed->plan->prepared->space;
    wh_chunk_set left = {0};
    bool ok = wh_recv_select(recv, false, &left);
    if (!ok || !left.total) {
        wh_chunk_set_destroy(&left);
        return ok ? WHERRY_OK : wh_fail_memory(error, "a comparison");
    }
    wherry_status status = wh_recv_remove_equal(recv, source, &left, false, NULL, error);
    WH_THEN(status, wh_recv_check_sources(recv, error));
    /* The chunks of devices are not compared. */
    if (status == WHERRY_OK &&
        !wh_chunk_set_clip(&left, &recv->agreed->wanted, wh_space_second_part(space), UINT64_MAX)) {
        status = wh_fail_memory(error, "a comparison");
    }
    if (status == WHERRY_OK) {
        uint64_t bytes = wh_space_bytes_of(space, &left);
        recv->stats.bytes_held = recv->agreed->wanted_bytes - bytes;
        recv->agreed->wanted_bytes = bytes;
        wh_chunk_set_destroy(&recv->agreed->wanted);
        recv->agreed->wanted = left;
        wh_log(WHERRY_LOG_INFO, "the target already has %llu bytes of the state of %s; %llu are requested",
               (unsigned long long)recv->stats.bytes_held, source->name, (unsigned long long)bytes);
    } else {
        wh_chunk_set_destroy(&left);
    }
    atomic_store(&recv->chunks->moved, 0);
    source->heard.bytes = 0;
    recv->stats.compare_seconds = wh_seconds(begin, wh_clock_now());
    wh_trace_phase(&recv->call.options, "compare", begin, wh_clock_now(), recv->sources->rank);
    wh_point("receiver compared");
    return status;
}

/* ---- comparing the sources ---- */

wherry_status wh_recv_compare_sources(wh_recv *recv, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < recv->source_count && status == WHERRY_OK && !recv->on_device; i++) {
        wh_recv_source *one = recv->sources + i;
        wh_chunk_set others = {0};
        wh_chunk_set unknown = {0};
        if (wh_source_is_usable(one)) {
            bool ok = wh_recv_landed(recv, one, false, &others);
            status = ok ? WHERRY_OK : wh_fail_memory(error, "comparing sources");
            WH_THEN(status, wh_recv_remove_equal(recv, one, &others, false, &unknown, error));
        }
        if (wh_source_is_usable(one)) { /* See invariant 2. */
            WH_THEN(status, wh_recv_remove_equal(recv, one, &unknown, true, NULL, error));
        }
        const wh_chunk_set *different = others.total ? &others : &unknown;
        if (status == WHERRY_OK && different->total && wh_source_is_usable(one)) {
            uint64_t chunk = wh_chunk_set_at(different, 0);
            uint64_t place = wh_chunk_set_find(&recv->chunks->wanted, chunk);
            const wh_recv_source *other = recv->sources + atomic_load(recv->chunks->owners + place);
            wh_fail(error, WHERRY_MISMATCH,
                    "%s and %s have different bytes at the same step %lld; one of these states is wrong", other->name,
                    one->name, (long long)recv->call.options.step);
            wh_recv_fail_chunk(recv, chunk, error);
            status = wh_fail_rank(error, one->rank, WHERRY_MISMATCH);
        }
        wh_chunk_set_destroy(&others);
        wh_chunk_set_destroy(&unknown);
    }
    return status;
}
