/* Moving the bytes: a round over all chunks, and further ones over those that came damaged. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "transfer/receive.h"

#define MS UINT64_C(1000000)

/** What one thread leaves to a device by itself, in runs of this length on average. */
#define QUICK_BYTES (UINT64_C(4) << 30)
#define QUICK_RUN (UINT64_C(256) << 10)

/**
 * Rounds in all. What one thread moves by itself. How long a broken lane waits for the source's own
 * account of it. How often progress is told. How long a part of a round may wait.
 */
enum { ROUNDS = 3, ALONE_BYTES = 1 << 20, EXPLAIN_MS = 300, TELL_MS = 100, SHOW_MS = 100 };

static wherry_status pull(void *context, uint32_t worker, wherry_error *error) {
    wh_receive *receive = context;
    wh_sink sink = wh_chunk_sink_face(&receive->sink);
    return receive->lane->pull(receive->end, worker, &sink, error);
}

/* ---- progress ---- */

const wh_tensor_table *wh_receive_table(wh_receive *receive) {
    if (!receive->has_table) {
        receive->has_table = wh_tensor_table_init(&receive->table, receive->plan);
    }
    return receive->has_table ? &receive->table : NULL;
}

static void show_progress(wh_receive *receive, uint64_t now) {
    const wherry_transfer_options *options = &receive->transfer.options;
    uint64_t bytes = atomic_load(&receive->sink.moved);
    uint64_t chunk = atomic_load(&receive->sink.current);
    double seconds = wh_seconds(receive->data_at, now);
    wh_string path = {0};
    const wh_tensor_table *table = chunk == UINT64_MAX || receive->done_at ? NULL : wh_receive_table(receive);
    if (table) {
        wh_tensor_table_path(table, receive->plan, chunk, &path);
    }
    wherry_progress progress = {
        .peer = receive->rank,
        .bytes = bytes,
        .total = receive->wanted_bytes,
        .rate = seconds > 0 ? (double)bytes / seconds : 0,
        .path = path.bytes && !path.failed ? path.bytes : "",
        .lane = receive->lane ? receive->lane->name : "",
    };
    options->progress(options->progress_context, &progress);
    wh_free(path.bytes);
}

void wh_receive_progress(wh_receive *receive, bool last) {
    uint64_t now = wh_clock_now();
    if (receive->transfer.options.progress && (last || now - receive->shown_at >= SHOW_MS * MS)) {
        receive->shown_at = now;
        show_progress(receive, now);
    }
    if (!last && now - receive->told_at >= TELL_MS * MS) {
        receive->told_at = now;
        wh_note note = {.type = WH_PROGRESS, .bytes = atomic_load(&receive->sink.moved)};
        wh_receive_tell(receive, &note, NULL);
    }
}

/** Whether anything has got on lately. */
static wherry_status check_progress(wh_receive *receive, wherry_error *error) {
    uint64_t now = wh_clock_now();
    uint64_t bytes = atomic_load(&receive->sink.moved);
    int64_t limit = receive->transfer.options.no_progress_ms;
    if (bytes != receive->heard_bytes) {
        receive->heard_bytes = bytes;
        receive->heard = now;
    }
    if (now > receive->heard && now - receive->heard > (uint64_t)limit * MS) {
        wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out: no byte has come for %lld ms, at %llu of %llu",
                (int)receive->rank, (long long)limit, (unsigned long long)bytes,
                (unsigned long long)receive->wanted_bytes);
        error->rank = receive->rank;
        return WHERRY_TIMED_OUT;
    }
    return WHERRY_OK;
}

wherry_status wh_receive_look_around(wh_receive *receive, wh_deadline deadline, wherry_error *error) {
    wherry_status status = wh_receive_heed(receive, deadline, "receiving a checkpoint", error);
    if (status == WHERRY_OK) {
        wh_receive_progress(receive, false);
        status = check_progress(receive, error);
    }
    return status;
}

/* ---- a round ---- */

/**
 * A round by this thread alone, a part after another, over a lane that can: it looks around between
 * them.
 */
static wherry_status pull_in_parts(wh_receive *receive, wherry_error *error) {
    wh_sink sink = wh_chunk_sink_face(&receive->sink);
    wherry_status status = WHERRY_OK;
    bool done = false;
    while (status == WHERRY_OK && !done && receive->answer != WH_REFUSE_LANE) {
        status = receive->lane->pull_some(receive->end, &sink, WH_PATIENT_STEP_MS, &done, error);
        if (status != WHERRY_OK) {
            return wh_receive_explain(receive, status, error);
        }
        status = wh_receive_look_around(receive, wh_deadline_in_ms(0), error);
    }
    return status;
}

wherry_status wh_receive_explain(wh_receive *receive, wherry_status status, wherry_error *error) {
    wh_deadline soon = wh_deadline_in_ms(EXPLAIN_MS);
    wherry_error better;
    wherry_status told = WHERRY_OK;
    while (told == WHERRY_OK && receive->answer != WH_REFUSE_LANE && !wh_deadline_passed(soon)) {
        told = wh_receive_heed(receive, wh_deadline_earlier(soon, wh_transfer_tick(&receive->transfer)),
                               "receiving a checkpoint", &better);
    }
    if (told != WHERRY_OK) {
        *error = better;
        return told;
    }
    error->rank = receive->rank;
    return status;
}

wherry_status wh_receive_run_crew(wh_receive *receive, uint32_t workers, wh_work_fn work,
                                  bool (*is_over)(wh_receive *receive), wherry_status *result_p, wherry_error *error) {
    wherry_status status = wh_crew_start(&receive->crew, workers, work, receive, &receive->stop, receive->inbox, error);
    if (status != WHERRY_OK) {
        return status;
    }
    while (status == WHERRY_OK && !is_over(receive)) {
        status = wh_receive_look_around(receive, wh_transfer_tick(&receive->transfer), error);
    }
    if (!wh_crew_ended(&receive->crew)) {
        wh_stop_request(&receive->stop);
    }
    wherry_error broken;
    *result_p = wh_crew_join(&receive->crew, &broken);
    if (status == WHERRY_OK && *result_p != WHERRY_OK) {
        *error = broken;
    }
    return status;
}

static bool is_pulled(wh_receive *receive) {
    return wh_crew_ended(&receive->crew) || receive->answer == WH_REFUSE_LANE;
}

static wherry_status pull_together(wh_receive *receive, uint32_t workers, wherry_error *error) {
    wherry_status result = WHERRY_OK;
    /* the crew asks nobody: this thread does, as it looks around */
    wh_stop_set_question(&receive->stop, NULL, NULL);
    wherry_status status = wh_receive_run_crew(receive, workers, pull, is_pulled, &result, error);
    return status == WHERRY_OK && result != WHERRY_OK ? wh_receive_explain(receive, result, error) : status;
}

/**
 * Whether a device copies all of it in less time than a thread takes to start and to be waited for
 * many times over, and few runs are to be found out.
 */
static bool is_quick(const wh_receive *receive) {
    return receive->lane->traits & WH_LANE_DEVICE && receive->leg.bytes <= QUICK_BYTES &&
           receive->leg.bytes / (receive->summary.copies + 1) >= QUICK_RUN;
}

static wherry_status pull_round(wh_receive *receive, wherry_error *error) {
    bool one_sided = receive->lane->traits & WH_LANE_ONE_SIDED;
    receive->heard = receive->told_at = wh_clock_now();
    if (wh_lane_runs_in_caller(receive->lane, receive->site.group)) {
        receive->stats.workers = 1;
        return pull_in_parts(receive, error);
    }
    if ((one_sided && receive->leg.bytes <= ALONE_BYTES) || is_quick(receive)) {
        receive->stats.workers = 1;
        wherry_status status = pull(receive, 0, error);
        return status == WHERRY_OK ? status : wh_receive_explain(receive, status, error);
    }
    uint64_t workers = wh_min(receive->end->workers, WH_CREW_MAX);
    receive->stats.workers = (uint32_t)(one_sided ? wh_min(workers, receive->sink.round.total) : workers);
    return pull_together(receive, receive->stats.workers, error);
}

/** Waits until the source has told the digests of all chunks of the round. */
static wherry_status await_digests(wh_receive *receive, wh_round_result *result, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    receive->landed_at = wh_clock_now();
    *result = wh_chunk_sink_judge(&receive->sink);
    while (status == WHERRY_OK && result->unclaimed) {
        status = wh_receive_look_around(receive, wh_transfer_tick(&receive->transfer), error);
        *result = wh_chunk_sink_judge(&receive->sink);
    }
    return status;
}

static wherry_status fail_corrupt(wh_receive *receive, const wh_round_result *result, wherry_error *error) {
    wh_string path = {0};
    const wh_tensor_table *table = wh_receive_table(receive);
    if (table) {
        wh_tensor_table_path(table, receive->plan, result->first_bad, &path);
    }
    wh_fail(error, WHERRY_CORRUPT,
            "%" PRIu64 " chunks from rank %d came damaged %d times; suspect the memory or the network between the two",
            result->bad, (int)receive->rank, ROUNDS);
    error->rank = receive->rank;
    if (path.bytes && !path.failed) {
        wh_fail_path(error, path.bytes);
    }
    wh_free(path.bytes);
    return WHERRY_CORRUPT;
}

/** Asks for the bad chunks again. */
static wherry_status retry(wh_receive *receive, const wh_round_result *result, wherry_error *error) {
    wh_log(WHERRY_LOG_WARN, "%" PRIu64 " chunks from rank %d came damaged and are asked for again", result->bad,
           (int)receive->rank);
    receive->stats.retries += (uint32_t)result->bad;
    if (!wh_chunk_sink_retry(&receive->sink)) {
        return wh_fail_memory(error, "a retry");
    }
    wh_string list = {0};
    wh_intervals_encode(receive->sink.round.intervals, receive->sink.round.count, &list);
    wh_note note = {.type = WH_RETRY, .intervals = {list.bytes, list.size}};
    wherry_status status = list.failed ? wh_fail_memory(error, "a retry") : wh_receive_tell(receive, &note, error);
    wh_free(list.bytes);
    return status;
}

wherry_status wh_receive_data(wh_receive *receive, wherry_error *error) {
    const wh_leg *leg = &receive->leg;
    receive->sink.bases = receive->lane->traits & WH_LANE_ONE_SIDED ? receive->offer.addresses.bytes : NULL;
    if (!wh_chunk_sink_begin(&receive->sink, leg->intervals, leg->count, receive->verify,
                             receive->lane->traits & WH_LANE_DIGESTS)) {
        return wh_fail_memory(error, "a receive");
    }
    for (int round = 1;; round++) {
        wh_round_result result;
        receive->stats.chunks += receive->sink.round.total;
        wherry_status status = pull_round(receive, error);
        if (status == WHERRY_OK && receive->answer != WH_REFUSE_LANE) {
            status = wh_chunk_sink_settle(&receive->sink, error);
        }
        if (status == WHERRY_OK && receive->answer != WH_REFUSE_LANE) {
            status = await_digests(receive, &result, error);
        }
        if (receive->answer == WH_REFUSE_LANE) {
            return WHERRY_REFUSED;
        }
        if (status != WHERRY_OK) {
            return status;
        }
        if (result.missing) {
            return wh_fail(error, WHERRY_TRUNCATED, "rank %d ended before %" PRIu64 " chunks had come",
                           (int)receive->rank, result.missing);
        }
        if (!result.bad) {
            return WHERRY_OK;
        }
        if (round == ROUNDS) {
            return fail_corrupt(receive, &result, error);
        }
        status = retry(receive, &result, error);
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

void wh_receive_end_lane(wh_receive *receive) {
    if (receive->end) {
        wh_transfer_describe(receive->lane, receive->end, &receive->stats);
        receive->lane->close(receive->end);
    }
    receive->end = NULL;
}
