/*
 * What the target holds already: its bytes are digested here, the same chunks at the source, and
 * those that are equal are not asked for.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/receive.h"

/**
 * The bytes of a chunk, put together from where they would land. Belongs to one worker, which
 * reuses it.
 */
typedef struct gathering {
    char *bytes;
    size_t room;
    char *covered; /**< Which of them have been found. */
    size_t covered_room;
    uint64_t length;
    uint64_t found;
    /**
     * A byte that lands in two places, or where this process cannot read: then the chunk is
     * asked for.
     */
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

/**
 * The run of memory that a whole chunk lies in, where it does: the usual case, and without a copy.
 */
static int find_run(void *context, const wherry_copy *copy) {
    struct iovec *run = context;
    bool whole = !run->iov_base && copy->count == 1 && copy->chunk_offset == 0 && copy->length == run->iov_len &&
                 wherry_storage_device(copy->storage).kind == WHERRY_DEVICE_CPU;
    run->iov_base = whole ? copy->memory : NULL;
    return !whole;
}

/**
 * Digests what the target has where a chunk would land. @return false where that cannot be said, or
 * there is no memory for it.
 */
static bool digest_target(const wherry_plan *plan, uint64_t chunk, gathering *g, wh_digester *digester,
                          wh_digest *digest_p) {
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

/** A worker: takes chunk after chunk. */
static wherry_status digest_own(void *context, uint32_t worker, wherry_error *error) {
    (void)worker;
    wh_receive *receive = context;
    wh_chunk_sink *sink = &receive->sink;
    gathering g = {.bytes = NULL};
    wh_digester *digester = wh_digester_create();
    uint64_t chunk;
    while (digester && !wh_stop_requested(&receive->stop) && wh_chunk_set_next(&sink->round, &chunk)) {
        uint64_t place = wh_chunk_set_find(&sink->wanted, chunk);
        if (digest_target(receive->plan, chunk, &g, digester, sink->landed + place)) {
            atomic_store(sink->states + place, (unsigned char)WH_CHUNK_LANDED);
        }
        atomic_fetch_add_explicit(&sink->moved, g.length,
                                  /* so that both sides see that it gets on */
                                  memory_order_relaxed);
        wh_point("receiver compared a chunk");
    }
    wh_free(g.bytes);
    wh_free(g.covered);
    wh_digester_destroy(digester);
    return digester ? WHERRY_OK : wh_fail_memory(error, "a digest");
}

static wherry_status ask_digests(wh_receive *receive, wherry_error *error) {
    wh_string list = {0};
    wh_intervals_encode(receive->leg.intervals, receive->leg.count, &list);
    wh_note note = {.type = WH_COMPARE, .intervals = {list.bytes, list.size}};
    wherry_status status = list.failed ? wh_fail_memory(error, "a question") : wh_receive_tell(receive, &note, error);
    wh_free(list.bytes);
    return status;
}

static bool both_are_digested(wh_receive *receive) {
    bool all = wh_crew_ended(&receive->crew);
    for (uint64_t place = 0; place < receive->sink.wanted.total && all; place++) {
        all = receive->sink.has_claim[place];
    }
    return all;
}

/** Digests both sides at once, and waits until both are done. */
static wherry_status digest_both(wh_receive *receive, wherry_error *error) {
    wherry_status result = WHERRY_OK;
    wherry_status status = ask_digests(receive, error);
    uint32_t workers = (uint32_t)wh_min(receive->transfer.options.threads, receive->sink.wanted.total);
    receive->heard = receive->told_at = receive->data_at = wh_clock_now();
    if (status == WHERRY_OK) {
        status = wh_receive_run_crew(receive, workers, digest_own, both_are_digested, &result, error);
    }
    return status == WHERRY_OK ? result : status;
}

/**
 * Finds the chunks that differ, and those of devices, which are not compared: their bytes would
 * have to come to the host first.
 */
static bool find_differing(wh_receive *receive, wh_chunk_set *differing, uint64_t *held_p) {
    const wh_chunk_sink *sink = &receive->sink;
    bool ok = true;
    for (uint64_t place = 0; place < sink->wanted.total && ok; place++) {
        uint64_t begin;
        uint64_t length;
        uint64_t chunk = wh_chunk_set_at(&sink->wanted, place);
        wherry_prepared_chunk(wherry_plan_prepared(receive->plan), chunk, &begin, &length);
        if (wh_chunk_sink_state(sink, place) == WH_CHUNK_LANDED &&
            wh_digest_equal(sink->landed + place, sink->claimed + place)) {
            *held_p += length;
        } else {
            ok = wh_chunk_set_add(differing, chunk, chunk);
        }
    }
    ok = ok && wh_receive_make_leg(receive, true);
    for (size_t i = 0; ok && i < receive->leg.count; i++) {
        const wherry_interval *one = receive->leg.intervals + i;
        ok = wh_chunk_set_add(differing, one->first, one->first + one->count - 1);
    }
    return ok;
}

/** Leaves the chunks out that are equal. */
static wherry_status keep_differing(wh_receive *receive, wherry_error *error) {
    wh_chunk_set differing = {0};
    uint64_t held = 0;
    bool ok = find_differing(receive, &differing, &held);
    if (ok) {
        wh_chunk_set_destroy(&receive->wanted);
        receive->wanted = differing;
        receive->wanted_bytes -= held;
        receive->stats.bytes_held = held;
    } else {
        wh_chunk_set_destroy(&differing);
    }
    return ok ? WHERRY_OK : wh_fail_memory(error, "a comparison");
}

/**
 * A sink over the chunks of the leg, for the digests of both sides. @return false where there is no
 * memory.
 */
static bool begin_sink(wh_receive *receive) {
    wh_chunk_set list = {0};
    const wh_leg *leg = &receive->leg;
    bool ok = wh_chunk_set_init(&list, leg->intervals, leg->count) &&
              wh_chunk_sink_init(&receive->sink, receive->plan, &list, &receive->stop, receive->transfer.deadline) &&
              wh_chunk_sink_begin(&receive->sink, leg->intervals, leg->count, true, false);
    wh_chunk_set_destroy(&list);
    return ok;
}

wherry_status wh_receive_compare(wh_receive *receive, wherry_error *error) {
    wherry_cancel *cancel = receive->transfer.options.cancel;
    uint64_t begin = wh_clock_now();
    if (!wh_receive_make_leg(receive, false)) {
        return wh_fail_memory(error, "a comparison");
    }
    if (!receive->leg.count) {
        return WHERRY_OK;
    }
    wherry_status status = wh_stop_init(&receive->stop, error);
    if (status == WHERRY_OK && !begin_sink(receive)) {
        status = wh_fail_memory(error, "a comparison");
    }
    if (status == WHERRY_OK) {
        wh_cancel_aim(cancel, &receive->cancellable, &receive->stop);
        status = digest_both(receive, error);
        wh_cancel_aim(cancel, &receive->cancellable, NULL);
    }
    if (status == WHERRY_OK) {
        status = keep_differing(receive, error);
        wh_log(WHERRY_LOG_INFO, "the target holds %llu bytes of rank %d's state already, and %llu are asked for",
               (unsigned long long)receive->stats.bytes_held, (int)receive->rank,
               (unsigned long long)receive->wanted_bytes);
    }
    /* Nothing was written: a failure leaves nothing behind, and data begins anew. */
    wh_chunk_sink_destroy(&receive->sink);
    receive->heard_bytes = 0;
    receive->stats.compare_seconds = wh_seconds(begin, wh_clock_now());
    wh_trace_phase(&receive->trace, "compare", begin, wh_clock_now());
    wh_point("receiver compared");
    return status;
}
