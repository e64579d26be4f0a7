/**
 * @file copy.h  Copies: runs of bytes from one place to another, repeated with a stride on each side.
 *
 * One notion serves all: a tensor into one of other strides, a box of a shard into a box of another, a run as it is. The
 * two sides are numbers; what they count (bytes of a storage, positions of the space) is the caller's.
 */
#ifndef WH_RANGE_COPY_H
#define WH_RANGE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "range/extent.h"

/** `count` repetitions, so far apart on each side. Steps may be 0. */
typedef struct wh_copy_level {
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_level;

/** A copy as it is kept. The order of the levels does not matter; large steps come first. */
typedef struct wh_copy {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    const wh_copy_level *levels;
    uint32_t level_count;
} wh_copy;

/** A copy to work on. */
typedef struct wh_copy_work {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint32_t level_count;
    wh_copy_level levels[WHERRY_NDIM_MAX];
} wh_copy_work;

/**
 * The copy that takes each element of a view to the same element of another view of the same shape and element size.
 * Dimensions that run on in both are merged.
 * @return false where there are no elements.
 */
bool wh_copy_between_views(const wh_view *from, const wh_view *to, wh_copy_work *copy);

/** The copy of an extent onto itself, at other offsets by `to - from`. */
void wh_copy_of_extent(const wherry_extent *extent, wh_copy_work *copy);

/** Merges levels that run on. */
void wh_copy_simplify(wh_copy_work *copy);

/** wh_copy_work as a wh_copy that borrows its levels. */
wh_copy wh_copy_borrow(const wh_copy_work *copy);

/** From the first byte that is read to behind the last one. */
uint64_t wh_copy_from_span(const wh_copy *copy);

/** Bytes that are written, each time that one is written counted. */
uint64_t wh_copy_bytes(const wh_copy *copy);

/** `count` runs, as a visitor gets them. */
typedef struct wh_copy_runs {
    uint64_t from;
    uint64_t to;
    uint64_t length;
    uint64_t count;
    uint64_t from_step;
    uint64_t to_step;
} wh_copy_runs;

/** A result other than 0 ends the visit. */
typedef int (*wh_copy_visit_fn)(void *context, const wh_copy_runs *runs);

/** Visits what the copy reads of [begin, end), runs cut at its borders. @return 0, or what the visitor returned. */
int wh_copy_visit(const wh_copy *copy, uint64_t begin, uint64_t end, wh_copy_visit_fn visit, void *context);

/** Elements offsets[d] to offsets[d] + sizes[d] - 1 in each dimension. */
typedef struct wh_box {
    uint32_t ndim;
    int64_t offsets[WHERRY_NDIM_MAX];
    int64_t sizes[WHERRY_NDIM_MAX];
} wh_box;

bool wh_box_equal(const wh_box *one, const wh_box *other);

/** Whether the box is that of a tensor of this shape, or a part of it. */
bool wh_box_within(const wh_box *box, const int64_t *shape);

/** What two boxes of one tensor have in common. @return false where that is nothing. */
bool wh_box_intersect(const wh_box *one, const wh_box *other, wh_box *common);

/**
 * The copy of what two boxes have in common from memory that holds the one to memory that holds the other.
 * @param from_view  the memory of `from`: its shape is the box's sizes.
 * @param to_view    likewise.
 * @return false where they have nothing in common.
 */
bool wh_copy_between_boxes(const wh_box *from, const wh_view *from_view, const wh_box *to, const wh_view *to_view,
                           wh_copy_work *copy);

#endif
