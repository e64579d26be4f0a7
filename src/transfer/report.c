#include "transfer/recv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "plan/tensor_table.h"
#include "transfer/transfer_timing.h"

/* ---- progress of a receive ---- */

wh_tensor_table *wh_recv_table(wh_recv *recv) {
    bool has = recv->table.items || wh_tensor_table_init(&recv->table, recv->agreed->plan);
    return has ? &recv->table : NULL;
}

/** Finds the path of a tensor in a chunk. The path stays valid as long as `text`; "": not known. */
static const char *find_path(wh_recv *recv, uint64_t chunk, wh_string *text) {
    const wh_tensor_table *table = wh_recv_table(recv);
    if (table) {
        wh_tensor_table_path(table, recv->agreed->plan, chunk, text);
    }
    return text->bytes && !text->failed ? text->bytes : "";
}

void wh_recv_fail_chunk(wh_recv *recv, uint64_t chunk, wherry_error *error) {
    wh_string path = {0};
    wh_fail_path(error, find_path(recv, chunk, &path));
    wh_free(path.bytes);
}

static void show_progress(wh_recv *recv, uint64_t now) {
    const wherry_transfer_options *options = &recv->call.options;
    uint64_t bytes = atomic_load(&recv->chunks->moved);
    uint64_t chunk = atomic_load(&recv->chunks->current);
    double seconds = wh_seconds(recv->moments[WH_AT_DATA], now);
    wh_string path = {0};
    bool none = chunk == UINT64_MAX || recv->moments[WH_AT_DONE] || !recv->chunks->states;
    const wh_recv_source *active = recv->sources;
    for (size_t i = 0; i < recv->source_count && !wh_source_lane(active); i++) {
        active = recv->sources + i;
    }
    wherry_progress progress = {
        .peer = active->rank,
        .bytes = bytes,
        .total = recv->agreed->wanted_bytes,
        .rate = seconds > 0 ? (double)bytes / seconds : 0,
        .path = none ? "" : find_path(recv, chunk, &path),
        .lane = wh_source_lane(active) ? wh_source_lane(active)->name : "",
    };
    options->progress(options->progress_context, &progress);
    wh_free(path.bytes);
}

/** Tells the sources how much this side has, so that silence means trouble. */
static void tell_progress(wh_recv *recv) {
    for (WH_EACH_SOURCE(one, recv)) {
        if (one->state == WH_SOURCE_OFFERED) {
            /*
             * This also goes to sources on standby, whose leases last as long as the receive makes
             * progress.
             */
            wh_note note = {.type = WH_PROGRESS, .bytes = atomic_load(&recv->chunks->moved)};
            recv->stats.messages++;
            wh_note_try_send(&note, one->transport->group, one->rank, one->offer.id, wh_deadline_in_ms(0));
        }
    }
}

void wh_recv_progress(wh_recv *recv, bool last) {
    uint64_t now = wh_clock_now();
    if (recv->call.options.progress && (last || now - recv->moments[WH_AT_SHOWN] >= WH_SHOW_MS * WH_NS_PER_MS)) {
        recv->moments[WH_AT_SHOWN] = now;
        show_progress(recv, now);
    }
    if (!last && now - recv->moments[WH_AT_TOLD] >= WH_RECV_TELL_MS * WH_NS_PER_MS) {
        recv->moments[WH_AT_TOLD] = now;
        tell_progress(recv);
    }
}

/* ---- the result of a receive ---- */

void wh_recv_finish_stats(wh_recv *recv) {
    wherry_stats *stats = &recv->stats;
    const wherry_transfer_options *options = &recv->call.options;
    const uint64_t *at = recv->moments;
    int32_t peer = recv->sources->rank;
    uint64_t now = wh_clock_now();
    uint64_t done = at[WH_AT_DONE] ? at[WH_AT_DONE] : now;
    uint64_t data = at[WH_AT_DATA] ? at[WH_AT_DATA] : at[WH_AT_DONE];
    stats->struct_size = sizeof(*stats);
    stats->offer_seconds = wh_seconds(at[WH_AT_ASKED], at[WH_AT_OFFERED]);
    stats->plan_seconds = wh_seconds(at[WH_AT_OFFERED], data + recv->ready_ns);
    stats->data_seconds = wh_seconds(data, done);
    stats->check_seconds = stats->checked ? wh_seconds(at[WH_AT_LANDED], at[WH_AT_DONE]) : 0;
    stats->release_seconds = wh_seconds(at[WH_AT_DONE], now);
    stats->total_seconds = wh_seconds(recv->call.begin, now);
    wh_trace_phase(options, "offer", at[WH_AT_ASKED], at[WH_AT_OFFERED], peer);
    wh_trace_phase(options, "plan", at[WH_AT_OFFERED], data, peer);
    wh_trace_phase(options, "data", data, done, peer);
    wh_trace_phase(options, "release", at[WH_AT_DONE], now, peer);
    stats->tensors = recv->agreed->summary.tensors;
    stats->bytes_wanted = recv->agreed->wanted_bytes;
    stats->bytes_moved = atomic_load(&recv->chunks->moved);
    stats->verified = stats->checked && !recv->clear;
    stats->source_count = (uint32_t)recv->source_count;
    for (size_t i = 0; i < recv->source_count; i++) {
        const wh_recv_source *source = recv->sources + i;
        const wh_lane_ops *lane = wh_source_lane(source);
        wherry_source_stats *one = stats->sources + i;
        one->rank = source->rank;
        snprintf(one->lane, sizeof(one->lane), "%s", lane ? lane->name : "");
        /* BROKEN: the other sources were done before its reason arrived. */
        if (source->state >= WH_SOURCE_BROKEN) {
            one->status = source->failure.status;
            snprintf(one->reason, sizeof(one->reason), "%.*s", WHERRY_SOURCE_REASON_MAX - 1, source->failure.message);
        } else if (source->state < WH_SOURCE_OFFERED) {
            one->status = WHERRY_TIMED_OUT;
            snprintf(one->reason, sizeof(one->reason), "%s",
                     source->state == WH_SOURCE_ABSENT ? "it has not joined the group" : "it has not sent");
        }
    }
    if (options->stats) {
        *options->stats = *stats;
    }
}

/** "2 tensors, 300 bytes from rank 0"; of several sources "3.0 GiB from ranks 0 (1.1), 2 (1.9)". */
static void describe_sources(const wh_recv *recv, wh_string *text) {
    const wherry_stats *stats = &recv->stats;
    if (recv->source_count == 1) {
        wh_string_format(text, "%" PRIu64 " tensor%s, %" PRIu64 " bytes from %s", stats->tensors,
                         stats->tensors == 1 ? "" : "s", stats->bytes_moved, recv->sources->name);
        return;
    }
    bool large = stats->bytes_moved >= 1 << 30;
    double unit = large ? 1 << 30 : 1 << 20;
    bool named = false; /* The caller has named the source. */
    for (WH_EACH_SOURCE(one, recv)) {
        named = named || strncmp(one->name, "rank ", strlen("rank ")) != 0;
    }
    const char *before = named ? "" : "ranks ";
    wh_string_format(text, "%.1f %s from %s", (double)stats->bytes_moved / unit, large ? "GiB" : "MiB",
                     stats->bytes_moved ? "" : "no source");
    for (size_t i = 0; i < recv->source_count; i++) {
        if (stats->sources[i].bytes) {
            const char *name = recv->sources[i].name + (named ? 0 : strlen("rank "));
            wh_string_format(text, "%s%s (%.1f)", before, name, (double)stats->sources[i].bytes / unit);
            before = ", ";
        }
    }
}

void wh_recv_log_success(const wh_recv *recv) {
    const wherry_stats *stats = &recv->stats;
    double rate = stats->data_seconds > 0 ? (double)stats->bytes_moved / stats->data_seconds : 0;
    char speed[32] = ""; /* The rate of a small state means nothing. */
    if (stats->bytes_moved >= 1 << 20) {
        snprintf(speed, sizeof(speed), rate >= 1e9 ? ", %.2f GB/s" : ", %.1f MB/s",
                 rate >= 1e9 ? rate * 1e-9 : rate * 1e-6);
    }
    wh_string what = {0};
    describe_sources(recv, &what);
    wh_log(WHERRY_LOG_INFO,
           "received %s over %s%s%s%s%s in %.3f s (data %.3f s%s; offer %.3f, plan %.3f, release %.3f)",
           what.failed ? "a checkpoint" : what.bytes, *stats->lane ? stats->lane : "no lane",
           *stats->detail ? " (" : "", stats->detail, *stats->detail ? ")" : "",
           stats->verified  ? ", verified"
           : stats->checked ? ", checked"
                            : "",
           stats->total_seconds, stats->data_seconds, speed, stats->offer_seconds, stats->plan_seconds,
           stats->release_seconds);
    wh_free(what.bytes);
}

/** The tensor has bytes in a chunk with this state. */
static void mark(void *context, wh_placed_tensor *tensor) {
    wh_chunk_state state = *(const wh_chunk_state *)context;
    tensor->landed |= state != WH_CHUNK_AWAITED;
    tensor->missing |= state != WH_CHUNK_UNCHECKED && state != WH_CHUNK_LANDED;
}

/** Lists what the failure leaves behind. Does nothing if out of memory. */
static void report_tensors(wh_recv *recv, wh_tensor_table *table, wherry_error *error) {
    const wh_chunks *chunks = recv->chunks;
    for (uint64_t place = 0; place < chunks->wanted.total; place++) {
        wh_chunk_state state = wh_chunks_state(chunks, place);
        wh_tensor_table_visit(table, chunks->plan, wh_chunk_set_at(&chunks->wanted, place), mark, &state);
    }
    wherry_report *report = wh_report_create(table);
    if (report) {
        wh_report_describe(report, recv->agreed->in_place, error);
    }
    if (recv->call.options.report_p) {
        *recv->call.options.report_p = report;
    } else {
        wherry_report_destroy(report);
    }
}

void wh_recv_report_failure(wh_recv *recv, wherry_error *error) {
    if (recv->held) {
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof(error->message) - used, "%s",
                 "; the memory that was received into may still be written to, is never freed, and must not be used "
                 "again; the group is closed");
    }
    wh_tensor_table *table = wh_chunks_have_begun(recv->chunks) ? wh_recv_table(recv) : NULL;
    if (table) {
        report_tensors(recv, table, error);
    }
}
