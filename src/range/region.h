/**
 * @file region.h  A region: the set of bytes of one storage that the views of a state cover.
 *
 * Add the views in any order, then call wh_region_finish. It merges extents that touch or overlap,
 * merges adjacent columns into wider columns, and sorts the result. A byte stays in two extents
 * only if views cross in more than EXPAND_MAX runs. Then it is sent twice, which does no harm.
 */
#ifndef WH_RANGE_REGION_H
#define WH_RANGE_REGION_H

#include <stdbool.h>
#include <stddef.h>

#include "range/extent.h"

/** Starts as {0}. */
typedef struct wh_region {
    wherry_extent *extents; /**< Each owns its levels. */
    size_t count;
    size_t capacity;
} wh_region;

/**
 * True if the dimensions of a view interleave, so that it is more than one normal extent. Slicing
 * never gives such strides.
 */
bool wh_view_interleaves(const wh_view *view);

/**
 * Adds the bytes that a view covers. If it interleaves in more than EXPAND_MAX runs, its gaps are
 * added too, whatever max_gap is.
 * @return false if out of memory.
 */
bool wh_region_add_view(wh_region *region, const wh_view *view, uint64_t max_gap);

/**
 * Merges extents that touch, but keeps bytes that are in two extents that cross. Never gives more
 * extents than were added.
 * @return as wh_region_finish.
 */
bool wh_region_merge(wh_region *region, uint64_t max_gap);

/**
 * Merges and sorts the extents. @return false if out of memory; the region can then only be
 * destroyed.
 */
bool wh_region_finish(wh_region *region, uint64_t max_gap);

/** Leaves an empty region. */
void wh_region_destroy(wh_region *region);

#endif
