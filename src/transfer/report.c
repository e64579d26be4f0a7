#include "transfer/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "state/path.h"
#include "state/tensor.h"
#include "transfer/recv.h"

#define MS UINT64_C(1000000)

/** The number of tensor states, and of tensors that a message names. */
enum { STATES = 3, NAMED_MAX = 3 };

enum {
    TELL_MS = 100, /**< How often the sources are told how far the receive is. */
    SHOW_MS = 100, /**< How often progress is shown to the user. */
};

/* ---- the table of tensors ---- */

static bool add_leaf(void *context, wherry_value *leaf) {
    wh_tensor_table *table = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        const wherry_tensor *tensor = wherry_tensor_get(wh_value_tensor_at(leaf, i));
        wh_view view = wh_tensor_view(tensor);
        wh_extent work;
        if (!wh_extent_of_view(&view, &work)) {
            continue;
        }
        wherry_extent extent = wh_extent_borrow(&work);
        if (!WH_GROW(table->items, table->capacity, table->count)) {
            return false;
        }
        uint64_t end = extent.offset + wh_extent_span(&extent);
        table->items[table->count++] = (wh_placed_tensor){tensor->storage, extent.offset, end, end, leaf, false, false};
    }
    return true;
}

static int compare_places(const void *one, const void *other) {
    const wh_placed_tensor *a = one;
    const wh_placed_tensor *b = other;
    if (a->storage != b->storage) {
        return (uintptr_t)a->storage < (uintptr_t)b->storage ? -1 : 1;
    }
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

bool wh_tensor_table_init(wh_tensor_table *table, const wherry_plan *plan) {
    if (!wh_visit_tensor_leaves(wherry_prepared_state(wherry_plan_prepared(plan)), add_leaf, table)) {
        wh_tensor_table_destroy(table);
        return false;
    }
    if (table->count) {
        qsort(table->items, table->count, sizeof(*table->items), compare_places);
    }
    for (size_t i = 1; i < table->count; i++) {
        if (table->items[i].storage == table->items[i - 1].storage) {
            table->items[i].reach = wh_max(table->items[i].end, table->items[i - 1].reach);
        }
    }
    return true;
}

void wh_tensor_table_destroy(wh_tensor_table *table) {
    wh_free(table->items);
    *table = (wh_tensor_table){0};
}

typedef struct visiting {
    const wh_tensor_table *table;
    wh_placed_fn visit;
    void *context;
} visiting;

/** Visits all tensors that overlap the copy: binary search for the last, then back by `reach`. */
static int visit_copy(void *context, const wherry_copy *copy) {
    const visiting *v = context;
    uint64_t begin = copy->storage_offset;
    uint64_t end = begin + (copy->count - 1) * copy->storage_stride + copy->length;
    size_t low = 0;
    size_t high = v->table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const wh_placed_tensor *one = v->table->items + middle;
        bool before =
            one->storage == copy->storage ? one->begin < end : (uintptr_t)one->storage < (uintptr_t)copy->storage;
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    while (low > 0 && v->table->items[low - 1].storage == copy->storage && v->table->items[low - 1].reach > begin) {
        low--;
        if (v->table->items[low].end > begin) {
            v->visit(v->context, v->table->items + low);
        }
    }
    return 0;
}

void wh_tensor_table_visit(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_placed_fn visit,
                           void *context) {
    visiting v = {table, visit, context};
    wherry_plan_visit_chunk(plan, chunk, visit_copy, &v);
}

static void take_leaf(void *context, wh_placed_tensor *tensor) {
    *(const wherry_value **)context = tensor->leaf;
}

void wh_tensor_table_path(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_string *path) {
    const wherry_value *leaf = NULL;
    wh_tensor_table_visit(table, plan, chunk, take_leaf, &leaf);
    wh_string_append(path, "", 0);
    if (leaf) {
        wh_value_path_append(path, leaf);
    }
}

/* ---- the report ---- */

struct wherry_report {
    char **paths[STATES];
    size_t counts[STATES];
    size_t capacities[STATES];
};

size_t wherry_report_count(const wherry_report *report, wherry_tensor_state state) {
    return report && (unsigned)state < STATES ? report->counts[state] : 0;
}

const char *wherry_report_path(const wherry_report *report, wherry_tensor_state state, size_t index) {
    return index < wherry_report_count(report, state) ? report->paths[state][index] : NULL;
}

void wherry_report_destroy(wherry_report *report) {
    if (!report) {
        return;
    }
    for (size_t i = 0; i < STATES; i++) {
        for (size_t k = 0; k < report->counts[i]; k++) {
            wh_free(report->paths[i][k]);
        }
        wh_free(report->paths[i]);
    }
    wh_free(report);
}

static void mark_landed(void *context, wh_placed_tensor *tensor) {
    (void)context;
    tensor->landed = true;
}

static void mark_missing(void *context, wh_placed_tensor *tensor) {
    (void)context;
    tensor->missing = true;
}

static void mark_partial(void *context, wh_placed_tensor *tensor) {
    (void)context;
    tensor->landed = tensor->missing = true;
}

static bool add_tensor(wherry_report *report, const wh_placed_tensor *tensor) {
    wherry_tensor_state state = !tensor->missing ? WHERRY_TENSOR_COMPLETE
                                : tensor->landed ? WHERRY_TENSOR_PARTIAL
                                                 : WHERRY_TENSOR_UNTOUCHED;
    wh_string path = {0};
    wh_string_append(&path, "", 0);
    wh_value_path_append(&path, tensor->leaf);
    char *text = wh_string_take(&path);
    if (!text || !WH_GROW(report->paths[state], report->capacities[state], report->counts[state])) {
        wh_free(text);
        return false;
    }
    report->paths[state][report->counts[state]++] = text;
    return true;
}

static wherry_report *create_report(wh_tensor_table *table, const wh_chunks *chunks) {
    static const wh_placed_fn marks[] = {
        [WH_CHUNK_AWAITED] = mark_missing,  [WH_CHUNK_AGAIN] = mark_partial, [WH_CHUNK_OPEN] = mark_partial,
        [WH_CHUNK_UNCHECKED] = mark_landed, [WH_CHUNK_LANDED] = mark_landed, [WH_CHUNK_BAD] = mark_partial};
    wherry_report *report = wh_alloc_zeroed(1, sizeof(*report));
    if (!report) {
        return NULL;
    }
    for (uint64_t place = 0; place < chunks->wanted.total; place++) {
        wh_tensor_table_visit(table, chunks->plan, wh_chunk_set_at(&chunks->wanted, place),
                              marks[wh_chunks_state(chunks, place)], NULL);
    }
    for (size_t i = 0; i < table->count; i++) {
        if (!add_tensor(report, table->items + i)) {
            wherry_report_destroy(report);
            return NULL;
        }
    }
    return report;
}

/** Appends the numbers to the message, and the first names of partly written tensors. */
static void describe(const wherry_report *report, bool in_place, wherry_error *error) {
    wh_string text = {0};
    size_t partial = report->counts[WHERRY_TENSOR_PARTIAL];
    wh_string_format(&text, "; %s: %zu tensors complete, %zu half written", in_place ? "the target" : "so far",
                     report->counts[WHERRY_TENSOR_COMPLETE], partial);
    for (size_t i = 0; i < partial && i < NAMED_MAX; i++) {
        wh_string_format(&text, "%s%s", i ? ", " : " (", report->paths[WHERRY_TENSOR_PARTIAL][i]);
    }
    wh_string_format(&text, "%s, %zu untouched",
                     partial > NAMED_MAX ? ", ...)"
                     : partial           ? ")"
                                         : "",
                     report->counts[WHERRY_TENSOR_UNTOUCHED]);
    if (!text.failed) {
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof(error->message) - used, "%s", text.bytes);
    }
    wh_free(text.bytes);
}

void wh_report_failure(wh_tensor_table *table, const wh_chunks *chunks, bool in_place, wherry_report **report_p,
                       wherry_error *error) {
    wherry_report *report = create_report(table, chunks);
    if (!report) {
        return;
    }
    describe(report, in_place, error);
    if (report_p) {
        *report_p = report;
    } else {
        wherry_report_destroy(report);
    }
}

/* ---- progress of a receive ---- */

wh_tensor_table *wh_recv_table(wh_recv *recv) {
    if (!recv->has_table) {
        recv->has_table = wh_tensor_table_init(&recv->table, recv->agreed.plan);
    }
    return recv->has_table ? &recv->table : NULL;
}

void wh_recv_fail_chunk(wh_recv *recv, uint64_t chunk, wherry_error *error) {
    wh_string path = {0};
    const wh_tensor_table *table = wh_recv_table(recv);
    if (table) {
        wh_tensor_table_path(table, recv->agreed.plan, chunk, &path);
    }
    if (path.bytes && !path.failed) {
        wh_fail_path(error, path.bytes);
    }
    wh_free(path.bytes);
}

static void show_progress(wh_recv *recv, uint64_t now) {
    const wherry_transfer_options *options = &recv->call.options;
    uint64_t bytes = atomic_load(&recv->chunks.moved);
    uint64_t chunk = atomic_load(&recv->chunks.current);
    double seconds = wh_seconds(recv->moments[WH_AT_DATA], now);
    wh_string path = {0};
    bool none = chunk == UINT64_MAX || recv->moments[WH_AT_DONE] || !recv->chunks.states;
    const wh_tensor_table *table = none ? NULL : wh_recv_table(recv);
    const wh_recv_source *active = recv->sources;
    for (size_t i = 0; i < recv->source_count && !active->lane; i++) {
        active = recv->sources + i;
    }
    if (table) {
        wh_tensor_table_path(table, recv->agreed.plan, chunk, &path);
    }
    wherry_progress progress = {
        .peer = active->rank,
        .bytes = bytes,
        .total = recv->agreed.wanted_bytes,
        .rate = seconds > 0 ? (double)bytes / seconds : 0,
        .path = path.bytes && !path.failed ? path.bytes : "",
        .lane = active->lane ? active->lane->name : "",
    };
    options->progress(options->progress_context, &progress);
    wh_free(path.bytes);
}

/** Tells the sources how far this side is, so that silence means trouble. */
static void tell_progress(wh_recv *recv) {
    for (size_t i = 0; i < recv->source_count; i++) {
        wh_recv_source *one = recv->sources + i;
        if (one->state == WH_SOURCE_OFFERED) {
            /* Also to sources that stand by: their leases last as long as the receive gets on. */
            wh_note note = {.type = WH_PROGRESS, .bytes = atomic_load(&recv->chunks.moved)};
            recv->stats.messages++;
            wh_note_try_send(&note, recv->call.transport->group, one->rank, one->offer.id, wh_deadline_in_ms(0));
        }
    }
}

void wh_recv_progress(wh_recv *recv, bool last) {
    uint64_t now = wh_clock_now();
    if (recv->call.options.progress && (last || now - recv->moments[WH_AT_SHOWN] >= SHOW_MS * MS)) {
        recv->moments[WH_AT_SHOWN] = now;
        show_progress(recv, now);
    }
    if (!last && now - recv->moments[WH_AT_TOLD] >= TELL_MS * MS) {
        recv->moments[WH_AT_TOLD] = now;
        tell_progress(recv);
    }
}

/* ---- the result of a receive ---- */

static void finish_source_stats(const wh_recv_source *source, wherry_source_stats *stats) {
    stats->rank = source->rank;
    stats->rate = stats->rate > 0 ? (double)stats->bytes / stats->rate : 0;
    if (source->lane) {
        snprintf(stats->lane, sizeof(stats->lane), "%s", source->lane->name);
    }
    /* BROKEN: the others were done before its reason came */
    if (source->state >= WH_SOURCE_BROKEN) {
        stats->status = source->failure.status;
        snprintf(stats->reason, sizeof(stats->reason), "%.*s", WHERRY_SOURCE_REASON_MAX - 1, source->failure.message);
    } else if (source->state < WH_SOURCE_OFFERED) {
        stats->status = WHERRY_TIMED_OUT;
        snprintf(stats->reason, sizeof(stats->reason), "%s",
                 source->state == WH_SOURCE_ABSENT ? "it has not joined the group" : "it has not sent");
    }
}

void wh_recv_finish_stats(wh_recv *recv) {
    wherry_stats *stats = &recv->stats;
    const uint64_t *at = recv->moments;
    uint64_t now = wh_clock_now();
    uint64_t done = at[WH_AT_DONE] ? at[WH_AT_DONE] : now;
    uint64_t data = at[WH_AT_DATA] ? at[WH_AT_DATA] : at[WH_AT_DONE];
    stats->struct_size = sizeof(*stats);
    stats->offer_seconds = wh_seconds(at[WH_AT_ASKED], at[WH_AT_OFFERED]);
    stats->plan_seconds = wh_seconds(at[WH_AT_OFFERED], data + recv->ready_ns);
    stats->data_seconds = wh_seconds(data, done);
    stats->check_seconds = recv->checked ? wh_seconds(at[WH_AT_LANDED], at[WH_AT_DONE]) : 0;
    stats->release_seconds = wh_seconds(at[WH_AT_DONE], now);
    stats->total_seconds = wh_seconds(recv->call.begin, now);
    wh_trace_phase(&recv->trace, "offer", at[WH_AT_ASKED], at[WH_AT_OFFERED]);
    wh_trace_phase(&recv->trace, "plan", at[WH_AT_OFFERED], data);
    wh_trace_phase(&recv->trace, "data", data, done);
    wh_trace_phase(&recv->trace, "release", at[WH_AT_DONE], now);
    stats->tensors = recv->agreed.summary.tensors;
    stats->bytes_wanted = recv->agreed.wanted_bytes;
    stats->bytes_moved = atomic_load(&recv->chunks.moved);
    stats->checked = recv->checked;
    stats->source_count = (uint32_t)recv->source_count;
    for (size_t i = 0; i < recv->source_count; i++) {
        finish_source_stats(recv->sources + i, stats->sources + i);
    }
    if (recv->call.options.stats) {
        *recv->call.options.stats = *stats;
    }
}

/** "ranks 0 (1.1), 2 (1.0 GiB)" */
static void describe_sources(const wherry_stats *stats, wh_string *text) {
    const char *separator = "ranks ";
    for (uint32_t i = 0; i < stats->source_count; i++) {
        if (stats->sources[i].bytes) {
            wh_string_format(text, "%s%d (%.2f GiB)", separator, (int)stats->sources[i].rank,
                             (double)stats->sources[i].bytes / (1 << 30));
            separator = ", ";
        }
    }
}

void wh_recv_log_success(const wh_recv *recv) {
    const wherry_stats *stats = &recv->stats;
    double rate = stats->data_seconds > 0 ? (double)stats->bytes_moved / stats->data_seconds * 1e-9 : 0;
    wh_string from = {0};
    if (recv->source_count == 1) {
        wh_string_format(&from, "rank %d", (int)recv->sources->rank);
    } else {
        describe_sources(stats, &from);
    }
    wh_log(WHERRY_LOG_INFO,
           "received %" PRIu64 " tensors, %" PRIu64 " bytes from %s over %s%s%s%s%s in %.3f s (data %.3f s, %.2f GB/s; "
           "offer %.3f, plan %.3f, release %.3f)",
           stats->tensors, stats->bytes_moved, from.bytes && !from.failed ? from.bytes : "no source",
           *stats->lane ? stats->lane : "no lane", *stats->detail ? " (" : "", stats->detail, *stats->detail ? ")" : "",
           stats->checked ? ", checked" : "", stats->total_seconds, stats->data_seconds, rate, stats->offer_seconds,
           stats->plan_seconds, stats->release_seconds);
    wh_free(from.bytes);
}

void wh_recv_report_failure(wh_recv *recv, wherry_error *error) {
    if (recv->held) {
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof(error->message) - used, "%s",
                 "; the memory that was received into may still be written to, is never freed, and must not be used "
                 "again; the group is closed");
    }
    wh_tensor_table *table = wh_chunks_have_begun(&recv->chunks) ? wh_recv_table(recv) : NULL;
    if (table) {
        wh_report_failure(table, &recv->chunks, recv->agreed.in_place, recv->call.options.report_p, error);
    }
}
