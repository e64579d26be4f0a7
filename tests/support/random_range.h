/**
 * @file random_range.h  Random views for the tests of src/range, and simple byte-by-byte models of
 * what they cover.
 */
#ifndef TEST_RANDOM_RANGE_H
#define TEST_RANDOM_RANGE_H

#include <stdint.h>
#include <string.h>

#include "range/copy.h"
#include "range/extent.h"

/** Pseudorandom numbers from a seed. A failing test prints the seed. */
typedef struct dice {
    uint64_t state;
} dice;

static inline uint64_t mix(uint64_t number) {
    number = (number ^ (number >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ (number >> 27)) * UINT64_C(0x94D049BB133111EB);
    return number ^ (number >> 31);
}

static inline uint64_t roll(dice *d) {
    d->state += UINT64_C(0x9E3779B97F4A7C15);
    return mix(d->state);
}

/** 0 to count - 1; 0 if count is 0. */
static inline uint64_t below(dice *d, uint64_t count) {
    return count ? roll(d) % count : 0;
}

/** least to most, both included. */
static inline int64_t between(dice *d, int64_t least, int64_t most) {
    return least + (int64_t)below(d, (uint64_t)(most - least + 1));
}

enum { RANDOM_NDIM_MAX = 5 };

/**
 * A view and its shape and strides. view.shape and view.strides point into this struct, so do not
 * copy it.
 */
typedef struct random_view {
    wh_view view;
    int64_t shape[RANDOM_NDIM_MAX];
    int64_t strides[RANDOM_NDIM_MAX];
} random_view;

static inline uint64_t view_elements(const wh_view *view) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < view->ndim; i++) {
        count *= (uint64_t)view->shape[i];
    }
    return count;
}

/** Offset of element `number` in row-major order. */
static inline uint64_t view_element(const wh_view *view, uint64_t number) {
    uint64_t at = view->offset;
    for (uint32_t i = view->ndim; i-- > 0;) {
        uint64_t size = (uint64_t)view->shape[i];
        at += number % size * (uint64_t)view->strides[i] * view->item;
        number /= size;
    }
    return at;
}

/** Bytes from the view's offset to the end of its last element. No dimension may have size 0. */
static inline uint64_t view_span(const wh_view *view) {
    uint64_t span = view->item;
    for (uint32_t i = 0; i < view->ndim; i++) {
        span += (uint64_t)(view->shape[i] - 1) * (uint64_t)view->strides[i] * view->item;
    }
    return span;
}

/**
 * Strides that do not overlap, for a random order of the dimensions, with up to `padding` extra
 * elements per dimension.
 */
static inline void random_dense_strides(dice *d, uint32_t ndim, const int64_t *shape, int64_t padding,
                                        int64_t *strides) {
    uint32_t order[RANDOM_NDIM_MAX] = {0};
    for (uint32_t i = 0; i < ndim; i++) {
        uint32_t at = (uint32_t)below(d, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    if (below(d, 2)) {
        for (uint32_t i = 0; i < ndim; i++) {
            order[i] = ndim - 1 - i;
        }
    }
    int64_t stride = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        strides[order[i]] = stride;
        stride *= shape[order[i]] + between(d, 0, padding);
    }
}

/**
 * Strides that are contiguous, permuted, padded, expanded (0), or arbitrary, so that elements may
 * overlap.
 */
static inline void random_strides(dice *d, uint32_t ndim, const int64_t *shape, int64_t *strides) {
    switch (below(d, 4)) {
    case 0:
        random_dense_strides(d, ndim, shape, 0, strides);
        break;
    case 1:
        random_dense_strides(d, ndim, shape, 5, strides);
        break;
    case 2:
        random_dense_strides(d, ndim, shape, 2, strides);
        if (ndim) {
            strides[below(d, ndim)] = 0;
        }
        break;
    default:
        for (uint32_t i = 0; i < ndim; i++) {
            strides[i] = between(d, 0, 24);
        }
    }
}

/** A view of a storage of `limit` bytes. About one in thirty has no elements. */
static inline void random_view_make(dice *d, uint64_t limit, random_view *result) {
    static const uint32_t items[] = {1, 1, 2, 4, 8, 16};
    wh_view *view = &result->view;
    *view = (wh_view){.item = items[below(d, 6)], .ndim = (uint32_t)below(d, RANDOM_NDIM_MAX)};
    view->shape = result->shape;
    view->strides = result->strides;
    for (uint32_t i = 0; i < view->ndim; i++) {
        result->shape[i] = between(d, 1, view->ndim > 2 ? 5 : 12);
    }
    random_strides(d, view->ndim, result->shape, result->strides);
    while (view_span(view) > limit) {
        uint32_t at = (uint32_t)below(d, view->ndim);
        result->shape[at] = (result->shape[at] + 1) / 2;
    }
    view->offset = below(d, (limit - view_span(view)) / view->item + 1) * view->item;
    if (view->ndim && below(d, 30) == 0) {
        result->shape[below(d, view->ndim)] = 0;
    }
}

/** Adds one to marks[] at each byte of each element. */
static inline void view_mark(const wh_view *view, uint32_t *marks) {
    uint64_t count = view_elements(view);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = view_element(view, i);
        for (uint32_t b = 0; b < view->item; b++) {
            marks[at + b]++;
        }
    }
}

/** Number of runs, and the offset of one: a second implementation, independent of src/range. */
static inline uint64_t slow_runs(const wherry_extent *extent) {
    uint64_t runs = 1;
    for (uint32_t i = 0; i < extent->level_count; i++) {
        runs *= extent->levels[i].count;
    }
    return runs;
}

static inline uint64_t slow_run(const wherry_extent *extent, uint64_t run) {
    uint64_t at = extent->offset;
    uint64_t inside = slow_runs(extent);
    for (uint32_t i = 0; i < extent->level_count; i++) {
        inside /= extent->levels[i].count;
        at += run / inside * extent->levels[i].stride;
        run %= inside;
    }
    return at;
}

/** Adds one to marks[] at each byte of each run. */
static inline void extent_mark(const wherry_extent *extent, uint32_t *marks) {
    uint64_t runs = slow_runs(extent);
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t at = slow_run(extent, i);
        for (uint64_t b = 0; b < extent->length; b++) {
            marks[at + b]++;
        }
    }
}

/** True if the extent is normal, as range/extent.h defines it. */
static inline bool extent_is_normal(const wherry_extent *extent) {
    uint64_t span = extent->length;
    for (uint32_t i = extent->level_count; i-- > 0;) {
        if (extent->levels[i].count < 2 || extent->levels[i].stride < span) {
            return false;
        }
        span += (extent->levels[i].count - 1) * extent->levels[i].stride;
    }
    return extent->length > 0 && (extent->level_count == 0) == (extent->levels == NULL);
}

/** The length of the longest part of a run that wanted[] does not mark. */
static inline uint64_t longest_gap(const wherry_extent *extent, const uint32_t *wanted) {
    uint64_t longest = 0;
    uint64_t runs = slow_runs(extent);
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t at = slow_run(extent, i);
        uint64_t gap = 0;
        for (uint64_t b = 0; b < extent->length; b++) {
            gap = wanted[at + b] ? 0 : gap + 1;
            longest = gap > longest ? gap : longest;
        }
    }
    return longest;
}

/**
 * A summary of copied bytes that does not depend on their order: their number, and a sum of hashes
 * of all (from, to) pairs.
 */
typedef struct pairs {
    uint64_t count;
    uint64_t sum;
} pairs;

static inline void pairs_add(pairs *p, uint64_t from, uint64_t to) {
    p->count++;
    p->sum += mix(from * UINT64_C(1000003) + to + 1);
}

/** A visitor of wh_copy_visit whose context is a `pairs`. */
static inline int pairs_visit(void *context, const wh_copy_runs *runs) {
    for (uint64_t i = 0; i < runs->count; i++) {
        for (uint64_t b = 0; b < runs->length; b++) {
            pairs_add(context, runs->from + i * runs->from_step + b, runs->to + i * runs->to_step + b);
        }
    }
    return 0;
}

static inline uint64_t slow_copy_runs(const wh_copy *copy) {
    uint64_t runs = 1;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        runs *= copy->levels[i].count;
    }
    return runs;
}

/** Where run number `run` of a copy reads from and writes to. */
static inline void slow_copy_run(const wh_copy *copy, uint64_t run, uint64_t *from_p, uint64_t *to_p) {
    *from_p = copy->from;
    *to_p = copy->to;
    for (uint32_t i = 0; i < copy->level_count; i++) {
        *from_p += run % copy->levels[i].count * copy->levels[i].from_step;
        *to_p += run % copy->levels[i].count * copy->levels[i].to_step;
        run /= copy->levels[i].count;
    }
}

/** The pairs of a copy that read from [begin, end), computed byte by byte from its levels. */
static inline pairs pairs_of_copy(const wh_copy *copy, uint64_t begin, uint64_t end) {
    pairs result = {0, 0};
    uint64_t runs = slow_copy_runs(copy);
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t from;
        uint64_t to;
        slow_copy_run(copy, run, &from, &to);
        for (uint64_t b = 0; b < copy->length; b++) {
            if (from + b >= begin && from + b < end) {
                pairs_add(&result, from + b, to + b);
            }
        }
    }
    return result;
}

/** The pairs that read from [begin, end) when one view is copied to another element by element. */
static inline pairs pairs_of_views(const wh_view *from, const wh_view *to, uint64_t begin, uint64_t end) {
    pairs result = {0, 0};
    uint64_t count = view_elements(from);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t source = view_element(from, i);
        uint64_t target = view_element(to, i);
        for (uint32_t b = 0; b < from->item; b++) {
            if (source + b >= begin && source + b < end) {
                pairs_add(&result, source + b, target + b);
            }
        }
    }
    return result;
}

#endif
