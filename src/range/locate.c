/*
 * From bytes of a storage to positions of the space. In a contiguous extent the one is the other plus a constant. In a
 * strided one the gaps are missing from the space, so a step of m strides becomes m times what those runs hold; that is
 * exact as long as no index carries over into the next level, which is checked. Whatever does not fit so is cut into its
 * outermost repetitions and tried again; a single run that still does not fit is not covered.
 */
#include "base/checked.h"
#include "range/space.h"

typedef struct search {
    const wh_space *space;
    size_t first;
    size_t count;
    uint64_t *work;
    wh_locate_fn found;
    void *context;
} search;

/** What a step over one index of each level is worth in the space: the bytes of the runs inside it. */
static void pitches(const wherry_extent *extent, uint64_t pitch[WHERRY_NDIM_MAX]) {
    uint64_t bytes = extent->length;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        pitch[i] = bytes;
        bytes *= extent->levels[i].count;
    }
}

/** A distance within an extent as a distance in the space; *rest_p is the part of it within a run. */
static bool measure(const wherry_extent *extent, const uint64_t pitch[], uint64_t distance, uint64_t repeats,
                    uint64_t reach[], uint64_t *rest_p, uint64_t *position_p) {
    uint64_t indices[WHERRY_NDIM_MAX];
    uint64_t rest;
    if (!wh_extent_split(extent, distance, indices, &rest)) {
        return false;
    }
    *position_p = rest;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        *position_p += indices[i] * pitch[i];
        if (!wh_add_product(indices[i], repeats, &reach[i]) || reach[i] >= extent->levels[i].count) {
            return false;
        }
    }
    return wh_add_product(rest, repeats, rest_p);
}

/** The whole copy within one extent, as one copy out of the space. */
static bool locate_within(const wherry_extent *extent, uint64_t begin, const wh_copy *copy, wh_copy_work *result) {
    if (!extent->level_count && !copy->level_count) { /* nearly always */
        uint64_t into = copy->from - extent->offset;
        result->from = begin + into;
        result->to = copy->to;
        result->length = copy->length;
        result->level_count = 0;
        return into <= extent->length && copy->length <= extent->length - into;
    }
    uint64_t pitch[WHERRY_NDIM_MAX];
    uint64_t reach[WHERRY_NDIM_MAX] = {0};
    uint64_t rest = 0;
    uint64_t position;
    pitches(extent, pitch);
    if (!measure(extent, pitch, copy->from - extent->offset, 1, reach, &rest, &position)) {
        return false;
    }
    result->from = begin + position;
    result->to = copy->to;
    result->length = copy->length;
    result->level_count = copy->level_count;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        result->levels[i] = copy->levels[i];
        if (!measure(extent, pitch, copy->levels[i].from_step, copy->levels[i].count - 1, reach, &rest,
                     &result->levels[i].from_step)) {
            return false;
        }
    }
    return rest + copy->length <= extent->length;
}

/** Number of extents of the storage that begin at or before an offset. */
static size_t extents_before(const search *s, uint64_t offset) {
    size_t low = 0;
    size_t high = s->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->space->extents[s->first + middle].offset <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/** Takes units off the work that is left. @return false where there are not so many. */
static bool spend(const search *s, uint64_t units) {
    bool enough = *s->work >= units;
    *s->work = enough ? *s->work - units : 0;
    return enough;
}

/** Tries the extents that may hold the copy, the nearest first. */
static bool locate_whole(const search *s, const wh_copy *copy, wh_copy_work *result) {
    for (size_t i = extents_before(s, copy->from); i-- > 0;) {
        const wherry_extent *extent = s->space->extents + s->first + i;
        if (!spend(s, 1 + (uint64_t)extent->level_count * (1 + copy->level_count))) {
            return false;
        }
        if (locate_within(extent, s->space->begins[s->first + i], copy, result)) {
            return true;
        }
        if (extent->level_count == 0 && copy->from < extent->offset + extent->length) {
            return false;
        }
    }
    return false;
}

static wh_located locate(const search *s, const wh_copy *copy) {
    wh_copy_work work;
    if (locate_whole(s, copy, &work)) {
        wh_copy_simplify(&work);
        wh_copy result = wh_copy_borrow(&work);
        return s->found(s->context, &result) ? WH_LOCATED : WH_LOCATE_STOPPED;
    }
    if (*s->work == 0) {
        return WH_LOCATE_EXHAUSTED;
    }
    if (copy->level_count == 0) {
        return WH_LOCATE_UNCOVERED;
    }
    wh_copy_level level = copy->levels[0];
    wh_copy inner = {copy->from, copy->to, copy->length, copy->levels + 1, copy->level_count - 1};
    wh_located located = WH_LOCATED;
    for (uint64_t i = 0; i < level.count && located == WH_LOCATED; i++) {
        located = spend(s, 1) ? locate(s, &inner) : WH_LOCATE_EXHAUSTED;
        inner.from += level.from_step;
        inner.to += level.to_step;
    }
    return located;
}

wh_located wh_space_locate(const wh_space *space, size_t storage, const wh_copy *copy, uint64_t *work,
                           wh_locate_fn found, void *context) {
    search s = {.space = space, .first = space->firsts[storage], .work = work, .found = found, .context = context};
    wh_space_extents(space, storage, &s.count);
    return locate(&s, copy);
}
