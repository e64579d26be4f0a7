/**
 * @file extent.h  Extents: runs of bytes, also repeated at strides. The unit of everything in this folder.
 *
 * wherry_extent (wherry/expert.h) is the form that is kept; wh_extent is the same with room for its levels, to work on.
 * In a normal extent the levels are sorted (largest stride first), each count is at least 2 and each stride is at least
 * the span of what it repeats: runs do not overlap, and their order is that of their addresses.
 */
#ifndef WH_RANGE_EXTENT_H
#define WH_RANGE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>

/** An extent to work on. */
typedef struct wh_extent {
    uint64_t offset;
    uint64_t length;
    uint32_t level_count;
    wherry_level levels[WHERRY_NDIM_MAX];
} wh_extent;

/** A strided view as it is kept in a tensor; offset in bytes, strides in elements. */
typedef struct wh_view {
    uint64_t offset;
    uint32_t item; /**< Bytes of an element. */
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides;
} wh_view;

/**
 * The bytes that a view covers, as levels sorted but not yet normal: dimensions of size 1 and of stride 0 are gone.
 * @return false where the view has no elements. The view was checked before: nothing overflows.
 */
bool wh_extent_of_view(const wh_view *view, wh_extent *extent);

/**
 * Merges runs that touch, overlap or lie at most max_gap bytes apart, from the innermost level outwards.
 * @return the number of outer levels, from levels[0] on, that interleave with what is inside them, so that the extent is not
 * normal: 0 nearly always. The caller repeats the inner extent for each of their indices.
 */
uint32_t wh_extent_normalize(wh_extent *extent, uint64_t max_gap);

/** From the first byte to behind the last one. */
uint64_t wh_extent_span(const wherry_extent *extent);

/** The number of runs. */
uint64_t wh_extent_runs(const wherry_extent *extent);

/** All bytes of all runs. */
uint64_t wh_extent_bytes(const wherry_extent *extent);

/** Where run number `run` begins. */
uint64_t wh_extent_run(const wherry_extent *extent, uint64_t run);

/** wh_extent as a wherry_extent that borrows its levels. */
wherry_extent wh_extent_borrow(const wh_extent *extent);

/**
 * Takes an offset apart along the levels of a normal extent: which index of each level, and how far into the run.
 * `distance` may lie in a gap: then *rest_p is at least the length. It is one from the extent's offset on.
 * @return false where an index is beyond its level's count.
 */
bool wh_extent_split(const wherry_extent *extent, uint64_t distance, uint64_t indices[WHERRY_NDIM_MAX],
                     uint64_t *rest_p);

/** Whether [begin, end) touches a run of a normal extent. */
bool wh_extent_touches(const wherry_extent *extent, uint64_t begin, uint64_t end);

/**
 * Whether two normal extents have a byte in common.
 * @param work  how many runs may still be looked at, counted down; at its end the answer is no.
 */
bool wh_extents_cross(const wherry_extent *a, const wherry_extent *b, int64_t *work);

#endif
