#include "range/region.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/search.h"

enum {
    EXPAND_MAX = 65536,      /* Maximum number of runs from split extents. */
    CROSSING_WORK = 1 << 22, /* Maximum number of comparisons of extents. */
};

static bool append(wh_region *region, const wherry_extent *extent) {
    bool ok = WH_GROW(region->extents, region->capacity, region->count) &&
              wh_extent_copy(extent, region->extents + region->count);
    region->count += ok;
    return ok;
}

/**
 * Adds an extent whose first `outer` levels interleave with the other levels. It becomes several
 * extents: one for each combination of indices of the first `outer` levels.
 */
static bool append_each(wh_region *region, const wh_extent *extent, uint32_t outer) {
    wherry_extent inner = wh_extent_borrow(extent);
    inner.levels = inner.level_count > outer ? inner.levels + outer : NULL;
    inner.level_count -= outer;
    wherry_extent repeat = {0, 1, extent->levels, outer};
    uint64_t runs = wh_extent_runs(&repeat);
    for (uint64_t i = 0; i < runs; i++) {
        inner.offset = extent->offset + wh_extent_run(&repeat, i);
        if (!append(region, &inner)) {
            return false;
        }
    }
    return true;
}

/** True if splitting the first `outer` levels would make more than EXPAND_MAX extents. */
static bool is_tangled(const wh_extent *extent, uint32_t outer) {
    uint64_t runs = 1;
    for (uint32_t i = 0; i < outer && runs <= EXPAND_MAX; i++) {
        runs = extent->levels[i].count > EXPAND_MAX ? EXPAND_MAX + 1 : runs * extent->levels[i].count;
    }
    return runs > EXPAND_MAX;
}

static bool add(wh_region *region, wh_extent *extent, uint64_t max_gap) {
    uint32_t outer = wh_extent_normalize(extent, max_gap);
    wherry_extent whole = wh_extent_borrow(extent);
    if (outer == 0) {
        return append(region, &whole);
    }
    if (is_tangled(extent, outer)) {
        wherry_extent cover = {whole.offset, wh_extent_span(&whole), NULL, 0};
        return append(region, &cover);
    }
    return append_each(region, extent, outer);
}

bool wh_view_interleaves(const wh_view *view) {
    wh_extent extent;
    return wh_extent_of_view(view, &extent) && wh_extent_normalize(&extent, 0) > 0;
}

bool wh_region_add_view(wh_region *region, const wh_view *view, uint64_t max_gap) {
    wh_extent extent;
    return !wh_extent_of_view(view, &extent) || add(region, &extent, max_gap);
}

static int compare_levels(const wherry_extent *a, const wherry_extent *b) {
    if (a->level_count != b->level_count) {
        return wh_order(a->level_count, b->level_count);
    }
    return a->levels && b->levels ? memcmp(a->levels, b->levels, a->level_count * sizeof(*a->levels)) : 0;
}

static int compare_offsets(const wherry_extent *a, const wherry_extent *b) {
    int order = wh_order(a->offset, b->offset);
    return order ? order : wh_order(a->length, b->length);
}

/**
 * Sorts contiguous extents first, then strided extents grouped by their levels. Each group is
 * sorted by offset.
 */
static int by_levels(const void *one, const void *other) {
    const wherry_extent *a = one;
    const wherry_extent *b = other;
    int order = compare_levels(a, b);
    return order ? order : compare_offsets(a, b);
}

/** Sorts extents in the order that they have in the space. */
static int by_offset(const void *one, const void *other) {
    const wherry_extent *a = one;
    const wherry_extent *b = other;
    int order = compare_offsets(a, b);
    return order ? order : compare_levels(a, b);
}

static void sort(wh_region *region, int (*order)(const void *, const void *)) {
    for (size_t i = 1; i < region->count; i++) {
        if (order(region->extents + i - 1, region->extents + i) > 0) {
            qsort(region->extents, region->count, sizeof(*region->extents), order);
            return;
        }
    }
}

static void drop(wherry_extent *extent) {
    wh_free((void *)extent->levels);
}

/** Copies an extent together with its levels. */
static void load(const wherry_extent *extent, wh_extent *work) {
    work->offset = extent->offset;
    work->length = extent->length;
    work->level_count = extent->level_count;
    if (extent->levels) {
        memcpy(work->levels, extent->levels, extent->level_count * sizeof(*extent->levels));
    }
}

/**
 * True if the extent can still be brought into normal form after its runs have grown to `length`
 * bytes. Longer runs can overlap the next repetition.
 */
static bool stays_normal(const wherry_extent *extent, uint64_t length, uint64_t max_gap) {
    if (extent->level_count == 0 || length == extent->length) {
        return true;
    }
    wh_extent work;
    load(extent, &work);
    work.length = length;
    return wh_extent_normalize(&work, max_gap) == 0;
}

/**
 * Merges neighbours that have equal levels.
 * @return true if a strided extent grew. Such an extent may have a simpler form.
 */
static bool merge_neighbours(wh_region *region, uint64_t max_gap) {
    bool grew = false;
    size_t kept = 0;
    for (size_t i = 1; i < region->count; i++) {
        wherry_extent *last = region->extents + kept;
        wherry_extent *next = region->extents + i;
        uint64_t end = last->offset + last->length;
        uint64_t length = wh_max(end, next->offset + next->length) - last->offset;
        if (compare_levels(last, next) == 0 && next->offset <= end + max_gap && stays_normal(last, length, max_gap)) {
            grew |= last->level_count && length != last->length;
            last->length = length;
            drop(next);
        } else {
            region->extents[++kept] = *next;
        }
    }
    region->count = kept + 1;
    return grew;
}

/** Brings all extents back to normal form after some of them grew. */
static bool normalize_all(wh_region *region, uint64_t max_gap) {
    wh_region again = {0};
    for (size_t i = 0; i < region->count; i++) {
        wh_extent work;
        load(region->extents + i, &work);
        if (!add(&again, &work, max_gap)) {
            wh_region_destroy(&again);
            return false;
        }
    }
    wh_region_destroy(region);
    *region = again;
    return true;
}

static bool merge(wh_region *region, uint64_t max_gap) {
    bool grew = true;
    while (grew && region->count > 1) {
        sort(region, by_levels);
        grew = merge_neighbours(region, max_gap);
        if (grew && !normalize_all(region, max_gap)) {
            return false;
        }
    }
    return true;
}

/**
 * Marks extents that cross another extent. Stops after CROSSING_WORK comparisons. @return the
 * number of runs in the marked extents. At most EXPAND_MAX + 1 runs are counted per extent.
 */
static uint64_t mark_crossing(const wh_region *region, bool *marks) {
    int64_t work = CROSSING_WORK;
    uint64_t runs = 0;
    for (size_t i = 0; i < region->count; i++) {
        const wherry_extent *one = region->extents + i;
        for (size_t j = one->level_count ? 0 : region->count; j < region->count && work > 0; j++, work--) {
            const wherry_extent *other = region->extents + j;
            if (i != j && !(marks[i] && marks[j]) && wh_extents_cross(one, other, &work)) {
                marks[i] = marks[j] = true;
            }
        }
    }
    for (size_t i = 0; i < region->count; i++) {
        runs += marks[i] ? wh_min(wh_extent_runs(region->extents + i), EXPAND_MAX + 1) : 0;
    }
    return runs;
}

/**
 * Splits extents that cross each other into single runs, and merges the runs. If no extents cross,
 * or if there would be more than EXPAND_MAX runs, nothing changes and *expanded_p is false.
 * @return false if out of memory.
 */
static bool expand_crossing(wh_region *region, uint64_t max_gap, bool *expanded_p) {
    bool *marks = wh_alloc_zeroed(region->count, sizeof(*marks));
    if (!marks) {
        return false;
    }
    uint64_t runs = mark_crossing(region, marks);
    *expanded_p = runs > 0 && runs <= EXPAND_MAX;
    size_t count = *expanded_p ? region->count : 0;
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        wherry_extent whole = region->extents[i];
        for (uint64_t run = 1; ok && marks[i] && run < wh_extent_runs(&whole); run++) {
            wherry_extent single = {wh_extent_run(&whole, run), whole.length, NULL, 0};
            ok = append(region, &single);
        }
        if (marks[i] && ok) {
            drop(&whole);
            region->extents[i].levels = NULL;
            region->extents[i].level_count = 0;
        }
    }
    wh_free(marks);
    return ok && merge(region, max_gap);
}

/**
 * Removes strided extents that are inside a contiguous extent. The contiguous extents must be
 * sorted and come first.
 */
static void drop_contained(wh_region *region) {
    size_t flat = 0;
    while (flat < region->count && region->extents[flat].level_count == 0) {
        flat++;
    }
    size_t kept = flat;
    for (size_t i = flat; i < region->count; i++) {
        wherry_extent *extent = region->extents + i;
        size_t low = WH_PARTITION_POINT(flat, k, region->extents[k].offset <= extent->offset);
        const wherry_extent *before = region->extents + low - 1;
        if (low > 0 && extent->offset + wh_extent_span(extent) <= before->offset + before->length) {
            drop(extent);
        } else {
            region->extents[kept++] = *extent;
        }
    }
    region->count = kept;
}

/**
 * If the extents have more bytes in total than the range from the first byte to the last, replaces
 * them with this range. This can happen if some extents still cross.
 */
static void flatten_excess(wh_region *region) {
    uint64_t begin = UINT64_MAX;
    uint64_t end = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < region->count; i++) {
        const wherry_extent *extent = region->extents + i;
        begin = wh_min(begin, extent->offset);
        end = wh_max(end, extent->offset + wh_extent_span(extent));
        bytes += wh_extent_bytes(extent);
    }
    if (region->count > 1 && bytes > end - begin) {
        for (size_t i = 0; i < region->count; i++) {
            drop(region->extents + i);
        }
        region->extents[0] = (wherry_extent){begin, end - begin, NULL, 0};
        region->count = 1;
    }
}

bool wh_region_merge(wh_region *region, uint64_t max_gap) {
    if (region->count < 2) {
        return true;
    }
    if (!merge(region, max_gap)) {
        return false;
    }
    drop_contained(region);
    return true;
}

bool wh_region_finish(wh_region *region, uint64_t max_gap) {
    bool expanded = region->count > 1;
    if (!wh_region_merge(region, max_gap)) {
        return false;
    }
    while (expanded) {
        expanded = false;
        bool strided = region->extents[region->count - 1].level_count > 0;
        if (strided && region->count > 1 && !expand_crossing(region, max_gap, &expanded)) {
            return false;
        }
        drop_contained(region);
    }
    flatten_excess(region);
    sort(region, by_offset);
    return true;
}

void wh_region_destroy(wh_region *region) {
    for (size_t i = 0; i < region->count; i++) {
        drop(region->extents + i);
    }
    wh_free(region->extents);
    *region = (wh_region){0};
}
