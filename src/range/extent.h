/**
 * @file extent.h  Extents: runs of bytes, optionally repeated at strides.
 *
 * wherry_extent (wherry/expert.h) is the stored form, with a pointer to its levels. wh_extent
 * contains its levels and is used while an extent is built.
 *
 * An extent is *normal* if its levels are sorted (largest stride first), each count is at least 2,
 * and each stride is at least the span of all levels inside it. Then runs do not overlap, and they
 * are in the order of their addresses.
 */
#ifndef WH_RANGE_EXTENT_H
#define WH_RANGE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>

#include "base/shared.h"

/** An extent while it is built. The struct contains the levels. */
typedef struct wh_extent {
    uint64_t offset;
    uint64_t length;
    uint32_t level_count;
    wherry_level levels[WHERRY_NDIM_MAX];
} wh_extent;

/** The layout of a strided tensor in a storage. */
typedef struct wh_view {
    uint64_t offset; /**< Offset of the first element, in bytes. */
    uint32_t item;   /**< Bytes per element. */
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides; /**< In elements. */
} wh_view;

/**
 * Computes the bytes that a view covers. The levels are sorted, but the extent may not be normal
 * yet. Dimensions of size 1 or stride 0 are dropped. The caller must have checked that sizes and
 * offsets do not overflow.
 * @return false if the view has no elements.
 */
bool wh_extent_of_view(const wh_view *view, wh_extent *extent);

/**
 * Brings an extent into normal form, if possible. Runs that touch, overlap or are at most max_gap
 * bytes apart are merged, starting with the innermost level.
 * @return 0 if the extent is now normal, which is nearly always the case. Otherwise a number N:
 * level N - 1 interleaves with the levels inside it. The caller must then split the extent into one
 * extent for each combination of indices of the first N levels.
 */
uint32_t wh_extent_normalize(wh_extent *extent, uint64_t max_gap);

/**
 * Copies an extent with its levels, which the caller frees with wh_free. @return false if out of
 * memory.
 */
bool wh_extent_copy(const wherry_extent *extent, wherry_extent *copy_p);

/** Returns the distance in bytes from the first byte to the end of the last run. */
WH_SHARED uint64_t wh_extent_span(const wherry_extent *extent);

/** Returns the number of runs. */
WH_SHARED uint64_t wh_extent_runs(const wherry_extent *extent);

/** Returns the number of bytes in all runs. */
uint64_t wh_extent_bytes(const wherry_extent *extent);

/** Returns the offset of a run. `run` counts from 0. */
WH_SHARED uint64_t wh_extent_run(const wherry_extent *extent, uint64_t run);

/** Returns the stored form of an extent. Its `levels` points into `extent`. */
wherry_extent wh_extent_borrow(const wh_extent *extent);

/**
 * Finds the run that contains the byte `distance` bytes after the offset of a normal extent. Writes
 * one index per level to `indices`, and the offset within the run to *rest_p.
 * @return false if an index is too large for its level. If the byte is in a gap or after the last
 * run, the result can still be true. *rest_p is then at least the length of a run.
 */
bool wh_extent_split(const wherry_extent *extent, uint64_t distance, uint64_t indices[WHERRY_NDIM_MAX],
                     uint64_t *rest_p);

/** True if a normal extent has at least one byte in [begin, end). */
bool wh_extent_touches(const wherry_extent *extent, uint64_t begin, uint64_t end);

/**
 * True if two normal extents have a byte in common.
 * @param work  the number of runs that may still be compared. The function counts it down, and
 *              returns false when it reaches 0.
 */
bool wh_extents_cross(const wherry_extent *a, const wherry_extent *b, int64_t *work);

#endif
