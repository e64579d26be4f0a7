#include "transfer/tensor_table.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/checked.h"
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

static int compare(const void *one, const void *other) {
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
        qsort(table->items, table->count, sizeof(*table->items), compare);
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
