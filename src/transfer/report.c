/* What a failed receive leaves behind, tensor by tensor. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "state/path.h"
#include "transfer/receive.h"

enum { STATES = 3, NAMED_MAX = 3 };

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

static void mark_open(void *context, wh_placed_tensor *tensor) {
    (void)context;
    tensor->landed = tensor->missing = true;
}

static bool add(wherry_report *report, const wh_placed_tensor *tensor) {
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

static wherry_report *make_report(wh_receive *receive) {
    wherry_report *report = wh_alloc_zeroed(1, sizeof(*report));
    const wh_tensor_table *table = report ? wh_receive_table(receive) : NULL;
    if (!table) {
        wh_free(report);
        return NULL;
    }
    const wh_chunk_sink *sink = &receive->sink;
    static const wh_placed_fn marks[] = {[WH_CHUNK_AWAITED] = mark_missing,
                                         [WH_CHUNK_AGAIN] = mark_open,
                                         [WH_CHUNK_OPEN] = mark_open,
                                         [WH_CHUNK_LANDED] = mark_landed,
                                         [WH_CHUNK_BAD] = mark_open};
    for (uint64_t place = 0; place < sink->wanted.total; place++) {
        wh_tensor_table_visit(table, receive->plan, wh_chunk_set_at(&sink->wanted, place),
                              marks[wh_chunk_sink_state(sink, place)], NULL);
    }
    for (size_t i = 0; i < table->count; i++) {
        if (!add(report, table->items + i)) {
            wherry_report_destroy(report);
            return NULL;
        }
    }
    return report;
}

static void add_to_message(wherry_error *error, const char *text) {
    size_t used = strlen(error->message);
    snprintf(error->message + used, sizeof(error->message) - used, "%s", text);
}

/** Adds the figures to the message, and the first names of those that are half written. */
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
        add_to_message(error, text.bytes);
    }
    wh_free(text.bytes);
}

/**
 * Whether a byte may have been written: a chunk that was opened counts, however little of it has
 * come.
 */
static bool began(const wh_chunk_sink *sink) {
    for (uint64_t place = 0; sink->states && place < sink->wanted.total; place++) {
        if (wh_chunk_sink_state(sink, place) != WH_CHUNK_AWAITED) {
            return true;
        }
    }
    return false;
}

void wh_receive_report(wh_receive *receive, wherry_error *error) {
    if (receive->held) {
        add_to_message(
            error, "; what was received into may still be written to, is never freed, and must not be used again; the "
                   "group is closed");
    }
    if (!receive->plan || !began(&receive->sink)) {
        return;
    }
    wherry_report *report = make_report(receive);
    if (!report) {
        return;
    }
    describe(report, receive->in_place, error);
    if (receive->transfer.options.report_p) {
        *receive->transfer.options.report_p = report;
    } else {
        wherry_report_destroy(report);
    }
}
