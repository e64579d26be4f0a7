#include "range/chunkset.h"

#include "base/alloc.h"

bool wh_chunk_set_add(wh_chunk_set *set, uint64_t first, uint64_t last) {
    if (set->count) {
        wherry_interval *before = set->intervals + set->count - 1;
        uint64_t end = before->first + before->count;
        if (first <= end) {
            uint64_t more = last >= end ? last + 1 - end : 0;
            before->count += more;
            set->total += more;
            return true;
        }
    }
    if (!WH_GROW(set->intervals, set->interval_capacity, set->count) ||
        !WH_GROW(set->starts, set->start_capacity, set->count)) {
        return false;
    }
    set->intervals[set->count] = (wherry_interval){first, last - first + 1};
    set->starts[set->count++] = set->total;
    set->total += last - first + 1;
    return true;
}

bool wh_chunk_set_init(wh_chunk_set *set, const wherry_interval *intervals, size_t count) {
    *set = (wh_chunk_set){0};
    bool ok = WH_RESERVE(set->intervals, set->interval_capacity, count) &&
              WH_RESERVE(set->starts, set->start_capacity, count);
    for (size_t i = 0; i < count && ok; i++) {
        ok = wh_chunk_set_add(set, intervals[i].first, intervals[i].first + intervals[i].count - 1);
    }
    if (!ok) {
        wh_chunk_set_destroy(set);
    }
    return ok;
}

void wh_chunk_set_destroy(wh_chunk_set *set) {
    wh_free(set->intervals);
    wh_free(set->starts);
    *set = (wh_chunk_set){0};
}

/**
 * Returns the number of the last interval whose first chunk (or first index, if by_index) is at
 * most `key`. Such an interval must exist.
 */
static size_t search(const wh_chunk_set *set, uint64_t key, bool by_index) {
    size_t low = 0;
    size_t high = set->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if ((by_index ? set->starts[middle] : set->intervals[middle].first) <= key) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t wh_chunk_set_at(const wh_chunk_set *set, uint64_t index) {
    size_t at = search(set, index, true);
    return set->intervals[at].first + (index - set->starts[at]);
}

uint64_t wh_chunk_set_find(const wh_chunk_set *set, uint64_t chunk) {
    if (!set->count || chunk < set->intervals[0].first) {
        return UINT64_MAX;
    }
    size_t at = search(set, chunk, false);
    uint64_t within = chunk - set->intervals[at].first;
    return within < set->intervals[at].count ? set->starts[at] + within : UINT64_MAX;
}

bool wh_chunk_set_has(const wh_chunk_set *set, uint64_t chunk) {
    return wh_chunk_set_find(set, chunk) != UINT64_MAX;
}

bool wh_chunk_set_next(wh_chunk_set *set, uint64_t *chunk_p) {
    uint64_t index = atomic_fetch_add_explicit(&set->given, 1, memory_order_relaxed);
    if (index >= set->total) {
        return false;
    }
    *chunk_p = wh_chunk_set_at(set, index);
    return true;
}
