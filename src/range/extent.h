/**
 * @file extent.h  Extents: runs of bytes, optionally repeated at strides.
 *
 * wherry_extent (wherry/expert.h) is the stored form. wh_extent is the working form, with room for
 * its levels.
 *
 * An extent is *normal* if its levels are sorted (largest stride first), each count is at least 2,
 * and each stride is at least the span of what it repeats. Then runs do not overlap, and their
 * order is that of their addresses.
 */
#ifndef WH_RANGE_EXTENT_H
#define WH_RANGE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>

/** The working form of an extent. */
typedef struct wh_extent {
    uint64_t offset;
    uint64_t length;
    uint32_t level_count;
    wherry_level levels[WHERRY_NDIM_MAX];
} wh_extent;

/** A strided view of bytes. */
typedef struct wh_view {
    uint64_t offset; /**< In bytes. */
    uint32_t item;   /**< Bytes per element. */
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides; /**< In elements. */
} wh_view;

/**
 * The bytes that a view covers. The levels are sorted, but the extent may not be normal yet.
 * Dimensions of size 1 or stride 0 are dropped. The caller has checked that nothing overflows.
 * @return false if the view has no elements.
 */
bool wh_extent_of_view(const wh_view *view, wh_extent *extent);

/**
 * Merges runs that touch, overlap or are at most max_gap bytes apart, from the innermost level
 * outwards.
 * @return the number of outer levels, from levels[0] on, that interleave with the levels inside
 * them, so that the extent is not normal. Nearly always 0. Otherwise the caller repeats the inner
 * extent for each index of these levels.
 */
uint32_t wh_extent_normalize(wh_extent *extent, uint64_t max_gap);

/** Bytes from the first byte to the end of the last run. */
uint64_t wh_extent_span(const wherry_extent *extent);

/** Number of runs. */
uint64_t wh_extent_runs(const wherry_extent *extent);

/** Bytes of all runs. */
uint64_t wh_extent_bytes(const wherry_extent *extent);

/** The offset of run number `run`. */
uint64_t wh_extent_run(const wherry_extent *extent, uint64_t run);

/** The stored form of an extent. It borrows the levels. */
wherry_extent wh_extent_borrow(const wh_extent *extent);

/**
 * Splits a distance from the offset of a normal extent into an index per level and the rest, the
 * offset within the run. If the distance is in a gap, the rest is at least the length.
 * @return false if an index is not below the count of its level.
 */
bool wh_extent_split(const wherry_extent *extent, uint64_t distance, uint64_t indices[WHERRY_NDIM_MAX],
                     uint64_t *rest_p);

/** True if a run of a normal extent has a byte in [begin, end). */
bool wh_extent_touches(const wherry_extent *extent, uint64_t begin, uint64_t end);

/**
 * True if two normal extents have a byte in common.
 * @param work  budget: the number of runs that may still be compared. Counted down; the answer is
 *              false when it is spent.
 */
bool wh_extents_cross(const wherry_extent *a, const wherry_extent *b, int64_t *work);

#endif
