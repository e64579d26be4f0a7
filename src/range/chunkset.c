#include "range/chunkset.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/search.h"

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

bool wh_chunk_set_clip(wh_chunk_set *set, const wh_chunk_set *from, uint64_t first, uint64_t behind) {
    bool ok = true;
    for (size_t i = 0; i < from->count && ok; i++) {
        const wherry_interval *one = from->intervals + i;
        uint64_t begin = wh_max(one->first, first);
        uint64_t end = wh_min(one->first + one->count, behind);
        ok = begin >= end || wh_chunk_set_add(set, begin, end - 1);
    }
    return ok;
}

void wh_chunk_set_destroy(wh_chunk_set *set) {
    wh_free(set->intervals);
    wh_free(set->starts);
    *set = (wh_chunk_set){0};
}

uint64_t wh_chunk_set_at(const wh_chunk_set *set, uint64_t index) {
    size_t at = WH_PARTITION_POINT(set->count, i, set->starts[i] <= index) - 1;
    return set->intervals[at].first + (index - set->starts[at]);
}

uint64_t wh_chunk_set_find(const wh_chunk_set *set, uint64_t chunk) {
    if (!set->count || chunk < set->intervals[0].first) {
        return UINT64_MAX;
    }
    size_t at = WH_PARTITION_POINT(set->count, i, set->intervals[i].first <= chunk) - 1;
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

/* ---- intervals on the wire ---- */

void wh_intervals_encode(const wherry_interval *intervals, size_t count, wh_string *bytes) {
    for (size_t i = 0; i < count; i++) {
        wh_append_number(bytes, intervals[i].first, 8);
        wh_append_number(bytes, intervals[i].count, 8);
    }
}

wherry_status wh_intervals_decode(wh_bytes bytes, uint64_t chunks, wherry_interval **intervals_p, size_t *count_p,
                                  wherry_error *error) {
    wh_cursor cursor = wh_cursor_over(bytes.bytes, bytes.size);
    size_t count = bytes.size / 16;
    wherry_interval *intervals = wh_alloc_array(count, sizeof(*intervals));
    WH_TRY_ALLOC(intervals, error, "a plan");
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t first = wh_cursor_number(&cursor, 8);
        uint64_t length = wh_cursor_number(&cursor, 8);
        if (first >= chunks || length == 0 || length > chunks - first || (i && first <= end)) {
            wh_free(intervals);
            return wh_fail(error, WHERRY_OUT_OF_BOUNDS,
                           "chunks %" PRIu64 " to %" PRIu64 " were asked for, out of order or of only %" PRIu64, first,
                           first + length, chunks);
        }
        intervals[i] = (wherry_interval){first, length};
        end = first + length;
    }
    if (!wh_cursor_ended(&cursor)) {
        wh_free(intervals);
        return wh_fail(error, WHERRY_MALFORMED, "a list of chunks is malformed");
    }
    *intervals_p = intervals;
    *count_p = count;
    return WHERRY_OK;
}

uint64_t wh_intervals_total(wh_bytes bytes) {
    wh_cursor cursor = wh_cursor_over(bytes.bytes, bytes.size);
    uint64_t total = 0;
    while (!cursor.failed && !wh_cursor_ended(&cursor)) {
        wh_cursor_number(&cursor, 8);
        total += wh_cursor_number(&cursor, 8);
    }
    return total;
}
