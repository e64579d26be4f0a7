#include "plan/tensor_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/search.h"
#include "state/path.h"
#include "state/tensor.h"

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
    int order = wh_order((uintptr_t)a->storage, (uintptr_t)b->storage);
    return order ? order : wh_order(a->begin, b->begin);
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

/**
 * Visits all tensors that overlap the copy: finds the last one by binary search, then goes back as
 * far as `reach` says.
 */
static int visit_copy(void *context, const wherry_copy *copy) {
    const visiting *v = context;
    uint64_t begin = copy->storage_offset;
    uint64_t end = begin + (copy->count - 1) * copy->storage_stride + copy->length;
    const wh_placed_tensor *items = v->table->items;
    size_t low =
        WH_PARTITION_POINT(v->table->count, i,
                           items[i].storage == copy->storage ? items[i].begin < end
                                                             : (uintptr_t)items[i].storage < (uintptr_t)copy->storage);
    while (low > 0 && items[low - 1].storage == copy->storage && items[low - 1].reach > begin) {
        low--;
        if (items[low].end > begin) {
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

/* ---- the report of a failure ---- */

/** The number of tensor states, and of tensors that a message names. */
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

wherry_report *wh_report_create(const wh_tensor_table *table) {
    wherry_report *report = wh_alloc_zeroed(1, sizeof(*report));
    for (size_t i = 0; report && i < table->count; i++) {
        if (!add_tensor(report, table->items + i)) {
            wherry_report_destroy(report);
            report = NULL;
        }
    }
    return report;
}

void wh_report_describe(const wherry_report *report, bool in_place, wherry_error *error) {
    wh_string text = {0};
    size_t partial = report->counts[WHERRY_TENSOR_PARTIAL];
    size_t complete = report->counts[WHERRY_TENSOR_COMPLETE];
    wh_string_format(&text, "; %s: %zu tensor%s complete, %zu half written", in_place ? "the target" : "so far",
                     complete, complete == 1 ? "" : "s", partial);
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
