#include "range/extent.h"

#include <string.h>

#include "base/alloc.h"

/**
 * Inserts a level so that the levels stay sorted. Two levels with the same stride become one level
 * that covers the same bytes.
 */
static void insert_level(wh_extent *extent, wherry_level level) {
    uint32_t at = extent->level_count;
    while (at > 0 && extent->levels[at - 1].stride < level.stride) {
        at--;
    }
    if (at > 0 && extent->levels[at - 1].stride == level.stride) {
        extent->levels[at - 1].count += level.count - 1;
        return;
    }
    memmove(extent->levels + at + 1, extent->levels + at, (extent->level_count - at) * sizeof(level));
    extent->levels[at] = level;
    extent->level_count++;
}

bool wh_extent_of_view(const wh_view *view, wh_extent *extent) {
    extent->offset = view->offset;
    extent->length = view->item;
    uint32_t ndim = view->ndim;
    while (ndim > 0 && (uint64_t)view->strides[ndim - 1] * view->item == extent->length && view->shape[ndim - 1] > 0) {
        extent->length *= (uint64_t)view->shape[--ndim];
    }
    extent->level_count = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (view->shape[d] == 0) {
            return false;
        }
        if (view->shape[d] == 1 || view->strides[d] == 0) {
            continue;
        }
        wherry_level level = {(uint64_t)view->shape[d], (uint64_t)view->strides[d] * view->item};
        insert_level(extent, level);
    }
    return true;
}

/**
 * Adds a level outside the `kept` levels. `*outer` points to the outermost kept level, and `span`
 * is the span of all kept levels. @return false if the new level interleaves with the kept levels.
 */
static bool wrap(wherry_level **outer, uint32_t *kept, wherry_level level, uint64_t span) {
    if (*kept) {
        uint64_t ratio = level.stride / (*outer)->stride;
        if (level.stride % (*outer)->stride == 0 && ratio <= (*outer)->count) {
            (*outer)->count += ratio * (level.count - 1);
            return true;
        }
    }
    if (level.stride < span) {
        return false;
    }
    --*outer;
    ++*kept;
    **outer = level;
    return true;
}

uint32_t wh_extent_normalize(wh_extent *extent, uint64_t max_gap) {
    if (extent->level_count == 0) {
        return 0;
    }
    wherry_level kept_levels[WHERRY_NDIM_MAX];
    wherry_level *outer = kept_levels + WHERRY_NDIM_MAX;
    uint32_t kept = 0;
    uint32_t left = extent->level_count;
    uint64_t span = extent->length;
    while (left > 0) {
        wherry_level level = extent->levels[left - 1];
        if (kept == 0 && level.stride <= extent->length + max_gap) {
            extent->length += (level.count - 1) * level.stride;
            span = extent->length;
        } else if (wrap(&outer, &kept, level, span)) {
            span += (level.count - 1) * level.stride;
        } else {
            break;
        }
        left--;
    }
    memmove(extent->levels + left, outer, kept * sizeof(*outer));
    extent->level_count = left + kept;
    return left;
}

bool wh_extent_copy(const wherry_extent *extent, wherry_extent *copy_p) {
    wherry_extent copy = *extent;
    copy.levels = NULL;
    if (extent->level_count) {
        wherry_level *levels = wh_alloc_array(extent->level_count, sizeof(*levels));
        if (!levels) {
            return false;
        }
        copy.levels = memcpy(levels, extent->levels, extent->level_count * sizeof(*levels));
    }
    *copy_p = copy;
    return true;
}

uint64_t wh_extent_span(const wherry_extent *extent) {
    uint64_t span = extent->length;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        span += (extent->levels[i].count - 1) * extent->levels[i].stride;
    }
    return span;
}

uint64_t wh_extent_runs(const wherry_extent *extent) {
    uint64_t runs = 1;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        runs *= extent->levels[i].count;
    }
    return runs;
}

uint64_t wh_extent_bytes(const wherry_extent *extent) {
    return extent->length * wh_extent_runs(extent);
}

uint64_t wh_extent_run(const wherry_extent *extent, uint64_t run) {
    uint64_t at = extent->offset;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        at += run % extent->levels[i].count * extent->levels[i].stride;
        run /= extent->levels[i].count;
    }
    return at;
}

wherry_extent wh_extent_borrow(const wh_extent *extent) {
    return (wherry_extent){extent->offset, extent->length, extent->level_count ? extent->levels : NULL,
                           extent->level_count};
}

bool wh_extent_split(const wherry_extent *extent, uint64_t distance, uint64_t indices[WHERRY_NDIM_MAX],
                     uint64_t *rest_p) {
    for (uint32_t i = 0; i < extent->level_count; i++) {
        indices[i] = distance / extent->levels[i].stride;
        if (indices[i] >= extent->levels[i].count) {
            return false;
        }
        distance -= indices[i] * extent->levels[i].stride;
    }
    *rest_p = distance;
    return true;
}

/**
 * Finds the first byte of the extent that is at least `distance` bytes after the extent's offset.
 * Ignores the levels before `level`.
 * @return its distance from the offset, or UINT64_MAX if there is no such byte.
 */
static uint64_t next_byte(const wherry_extent *extent, uint32_t level, uint64_t distance) {
    if (level == extent->level_count) {
        return distance < extent->length ? distance : UINT64_MAX;
    }
    uint64_t stride = extent->levels[level].stride;
    uint64_t index = distance / stride;
    if (index >= extent->levels[level].count) {
        return UINT64_MAX;
    }
    uint64_t inside = next_byte(extent, level + 1, distance - index * stride);
    if (inside != UINT64_MAX) {
        return index * stride + inside;
    }
    return index + 1 < extent->levels[level].count ? (index + 1) * stride : UINT64_MAX;
}

bool wh_extent_touches(const wherry_extent *extent, uint64_t begin, uint64_t end) {
    if (end <= extent->offset) {
        return false;
    }
    uint64_t from = begin > extent->offset ? begin - extent->offset : 0;
    uint64_t next = next_byte(extent, 0, from);
    return next != UINT64_MAX && extent->offset + next < end;
}

static bool spans_overlap(const wherry_extent *a, const wherry_extent *b) {
    return a->offset < b->offset + wh_extent_span(b) && b->offset < a->offset + wh_extent_span(a);
}

/** True if all strides are multiples of `innermost`. */
static bool is_regular(const wherry_extent *extent, uint64_t innermost) {
    for (uint32_t i = 0; i < extent->level_count; i++) {
        if (extent->levels[i].stride % innermost != 0) {
            return false;
        }
    }
    return true;
}

/**
 * True if two extents are separate columns of one matrix, so that they cannot overlap. Both have
 * the same row length (innermost stride), and their runs do not overlap modulo the row length.
 */
static bool are_apart(const wherry_extent *a, const wherry_extent *b) {
    if (a->level_count == 0 || b->level_count == 0) {
        return false;
    }
    uint64_t stride = a->levels[a->level_count - 1].stride;
    if (stride != b->levels[b->level_count - 1].stride || !is_regular(a, stride) || !is_regular(b, stride)) {
        return false;
    }
    uint64_t a_phase = a->offset % stride;
    uint64_t b_phase = b->offset % stride;
    uint64_t from_a = (b_phase + stride - a_phase) % stride;
    return from_a >= a->length && stride - from_a >= b->length;
}

bool wh_extents_cross(const wherry_extent *a, const wherry_extent *b, int64_t *work) {
    if (!spans_overlap(a, b) || are_apart(a, b)) {
        return false;
    }
    uint64_t runs = wh_extent_runs(a);
    if (wh_extent_runs(b) < runs) {
        const wherry_extent *swap = a;
        a = b;
        b = swap;
        runs = wh_extent_runs(a);
    }
    for (uint64_t i = 0; i < runs; i++) {
        if (*work <= 0) {
            return false;
        }
        --*work;
        uint64_t begin = wh_extent_run(a, i);
        if (wh_extent_touches(b, begin, begin + a->length)) {
            return true;
        }
    }
    return false;
}
