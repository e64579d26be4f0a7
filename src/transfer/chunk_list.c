#include "transfer/chunk_list.h"

#include "base/alloc.h"

bool wh_chunk_list_init(wh_chunk_list *list, const wherry_interval *intervals, size_t count) {
    *list = (wh_chunk_list){.intervals = wh_alloc_array(count, sizeof(*list->intervals)),
                            .starts = wh_alloc_array(count, sizeof(*list->starts))};
    if (!list->intervals || !list->starts) {
        wh_chunk_list_destroy(list);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        list->intervals[i] = intervals[i];
        list->starts[i] = list->total;
        list->total += intervals[i].count;
    }
    list->count = count;
    return true;
}

void wh_chunk_list_destroy(wh_chunk_list *list) {
    wh_free(list->intervals);
    wh_free(list->starts);
    *list = (wh_chunk_list){0};
}

/** The last interval whose `keys` value is not above `key`; the list is not empty and the first is not. */
static size_t search(const wh_chunk_list *list, uint64_t key, bool by_start) {
    size_t low = 0;
    size_t high = list->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if ((by_start ? list->starts[middle] : list->intervals[middle].first) <= key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t wh_chunk_list_at(const wh_chunk_list *list, uint64_t index) {
    size_t at = search(list, index, true);
    return list->intervals[at].first + (index - list->starts[at]);
}

uint64_t wh_chunk_list_find(const wh_chunk_list *list, uint64_t chunk) {
    if (!list->count || chunk < list->intervals[0].first) {
        return UINT64_MAX;
    }
    size_t at = search(list, chunk, false);
    uint64_t within = chunk - list->intervals[at].first;
    return within < list->intervals[at].count ? list->starts[at] + within : UINT64_MAX;
}

bool wh_chunk_list_next(wh_chunk_list *list, uint64_t *chunk_p) {
    uint64_t index = atomic_fetch_add_explicit(&list->given, 1, memory_order_relaxed);
    if (index >= list->total) {
        return false;
    }
    *chunk_p = wh_chunk_list_at(list, index);
    return true;
}
