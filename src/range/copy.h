/**
 * @file copy.h  Strided copies, and boxes (rectangular parts of tensors).
 *
 * A copy is a run of bytes that is repeated with one step on the source side (`from`) and another
 * step on the target side (`to`). It can describe a copy between tensors with different strides, a
 * copy between boxes of two shards, or a single run. Both sides are plain numbers. The caller
 * decides whether they are byte offsets in a storage or positions in the space.
 */
#ifndef WH_RANGE_COPY_H
#define WH_RANGE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "range/extent.h"

/** `count` repetitions, with a step in bytes on each side. Steps may be 0. */
typedef struct wh_copy_level {
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_level;

/**
 * The stored form of a copy. The outermost level comes first. The order of the levels does not
 * change the result.
 */
typedef struct wh_copy {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    const wh_copy_level *levels;
    uint32_t level_count;
} wh_copy;

/** A copy while it is built. The struct contains the levels. */
typedef struct wh_copy_work {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint32_t level_count;
    wh_copy_level levels[WHERRY_NDIM_MAX];
} wh_copy_work;

/**
 * Builds the copy from one view to another view of the same shape and element size. Dimensions that
 * are contiguous on both sides are merged.
 * @return false if the views have no elements.
 */
bool wh_copy_between_views(const wh_view *from, const wh_view *to, wh_copy_work *copy);

/** Builds the copy that reads the bytes of an extent and writes them to the same offsets. */
void wh_copy_of_extent(const wherry_extent *extent, wh_copy_work *copy);

/** Merges levels if one longer run or one longer level can replace them. */
void wh_copy_simplify(wh_copy_work *copy);

/** Returns the stored form of a copy. Its `levels` points into `copy`. */
wh_copy wh_copy_borrow(const wh_copy_work *copy);

/** Returns the distance in bytes from the first byte read to the end of the last run read. */
uint64_t wh_copy_from_span(const wh_copy *copy);

/** Returns the number of bytes written. A byte that is written twice counts twice. */
uint64_t wh_copy_bytes(const wh_copy *copy);

/** What wh_copy_visit passes to its callback: `count` runs, with a step on each side. */
typedef struct wh_copy_runs {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_runs;

/** Callback of wh_copy_visit. A result other than 0 stops the visit. */
typedef int (*wh_copy_visit_fn)(void *context, const wh_copy_runs *runs);

/**
 * Visits the part of the copy whose `from` side is in [begin, end). Runs are cut at these borders.
 * @return 0, or the result that stopped the visit.
 */
int wh_copy_visit(const wh_copy *copy, uint64_t begin, uint64_t end, wh_copy_visit_fn visit, void *context);

/** Part of a tensor: elements offsets[d] to offsets[d] + sizes[d] - 1 in each dimension d. */
typedef struct wh_box {
    uint32_t ndim;
    int64_t offsets[WHERRY_NDIM_MAX];
    int64_t sizes[WHERRY_NDIM_MAX];
} wh_box;

bool wh_box_equal(const wh_box *one, const wh_box *other);

/** True if the box is within a tensor of this shape. */
bool wh_box_within(const wh_box *box, const int64_t *shape);

/** Computes the intersection of two boxes of one tensor. @return false if it is empty. */
bool wh_box_intersect(const wh_box *one, const wh_box *other, wh_box *common);

/**
 * Builds the copy of the intersection of two boxes, from memory that holds one box to memory that
 * holds the other.
 * @param from_view  the memory of `from`; its shape is from->sizes.
 * @param to_view    the memory of `to`; its shape is to->sizes.
 * @return false if the intersection is empty.
 */
bool wh_copy_between_boxes(const wh_box *from, const wh_view *from_view, const wh_box *to, const wh_view *to_view,
                           wh_copy_work *copy);

#endif
