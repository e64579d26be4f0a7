/**
 * @file copy.h  Copies: runs of bytes from one side to another, repeated with a step on each side.
 * And boxes.
 *
 * The same form describes a tensor copied into one with other strides, a box of one shard copied
 * into a box of another, and a single run. The two sides are numbers. The caller decides what they
 * count: bytes of a storage, or positions of the space.
 */
#ifndef WH_RANGE_COPY_H
#define WH_RANGE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "range/extent.h"

/** `count` repetitions, with a step on each side. Steps may be 0. */
typedef struct wh_copy_level {
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_level;

/**
 * The stored form of a copy. Levels with large steps come first, but the result does not depend on
 * their order.
 */
typedef struct wh_copy {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    const wh_copy_level *levels;
    uint32_t level_count;
} wh_copy;

/** The working form of a copy, with room for its levels. */
typedef struct wh_copy_work {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint32_t level_count;
    wh_copy_level levels[WHERRY_NDIM_MAX];
} wh_copy_work;

/**
 * The copy from each element of one view to the same element of another view of the same shape and
 * element size. Dimensions that are contiguous on both sides are merged.
 * @return false if there are no elements.
 */
bool wh_copy_between_views(const wh_view *from, const wh_view *to, wh_copy_work *copy);

/** The copy of an extent to the same offsets. */
void wh_copy_of_extent(const wherry_extent *extent, wh_copy_work *copy);

/** Merges levels that continue each other. */
void wh_copy_simplify(wh_copy_work *copy);

/** The stored form of a copy. It borrows the levels. */
wh_copy wh_copy_borrow(const wh_copy_work *copy);

/** Bytes from the first byte that is read to the end of the last run that is read. */
uint64_t wh_copy_from_span(const wh_copy *copy);

/** Bytes that are written. A byte that is written several times counts each time. */
uint64_t wh_copy_bytes(const wh_copy *copy);

/** `count` runs with a step on each side, as a visitor receives them. */
typedef struct wh_copy_runs {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_runs;

/** A result other than 0 stops the visit. */
typedef int (*wh_copy_visit_fn)(void *context, const wh_copy_runs *runs);

/**
 * Visits the part of the copy that reads in [begin, end). Runs are cut at these borders.
 * @return 0, or the result that stopped the visit.
 */
int wh_copy_visit(const wh_copy *copy, uint64_t begin, uint64_t end, wh_copy_visit_fn visit, void *context);

/** A box of a tensor: elements offsets[d] to offsets[d] + sizes[d] - 1 in each dimension d. */
typedef struct wh_box {
    uint32_t ndim;
    int64_t offsets[WHERRY_NDIM_MAX];
    int64_t sizes[WHERRY_NDIM_MAX];
} wh_box;

bool wh_box_equal(const wh_box *one, const wh_box *other);

/** True if the box is within a tensor of this shape. */
bool wh_box_within(const wh_box *box, const int64_t *shape);

/** The intersection of two boxes of one tensor. @return false if it is empty. */
bool wh_box_intersect(const wh_box *one, const wh_box *other, wh_box *common);

/**
 * The copy of the intersection of two boxes, from memory that holds one box to memory that holds
 * the other.
 * @param from_view  the memory of `from`; its shape is from->sizes.
 * @param to_view    the memory of `to`; its shape is to->sizes.
 * @return false if the intersection is empty.
 */
bool wh_copy_between_boxes(const wh_box *from, const wh_view *from_view, const wh_box *to, const wh_view *to_view,
                           wh_copy_work *copy);

#endif
