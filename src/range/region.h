/**
 * @file region.h  A region: the set of bytes of one storage that the views of a state cover.
 *
 * Add the views in any order, then call wh_region_finish. It merges extents that touch or overlap,
 * merges adjacent columns into wider columns, and sorts the result. Views may cross each other in
 * more runs than the limits in region.c allow. Then some bytes stay in two extents and are sent
 * twice, which is harmless.
 */
#ifndef WH_RANGE_REGION_H
#define WH_RANGE_REGION_H

#include <stdbool.h>
#include <stddef.h>

#include "range/extent.h"

/** Initialize with {0}. */
typedef struct wh_region {
    wherry_extent *extents; /**< Each owns its levels. */
    size_t count;
    size_t capacity;
} wh_region;

/**
 * True if the dimensions of a view interleave, so that one normal extent cannot describe it.
 * Slicing a contiguous tensor never results in such a view.
 */
bool wh_view_interleaves(const wh_view *view);

/**
 * Adds the bytes that a view covers. If the view interleaves and would need more than 65,536
 * extents, its whole span is added, including all gaps.
 * @param max_gap  gaps of at most this many bytes are added too.
 * @return false if out of memory.
 */
bool wh_region_add_view(wh_region *region, const wh_view *view, uint64_t max_gap);

/**
 * Merges extents that have equal levels and are at most max_gap bytes apart, and drops strided
 * extents that are inside a contiguous one. Unlike wh_region_finish, it leaves extents that cross
 * as they are. The region never has more extents afterwards than before.
 * @return false if out of memory; the region can then only be destroyed.
 */
bool wh_region_merge(wh_region *region, uint64_t max_gap);

/**
 * Merges and sorts the extents. @return false if out of memory; the region can then only be
 * destroyed.
 */
bool wh_region_finish(wh_region *region, uint64_t max_gap);

/** Frees the memory. The region is empty afterwards. */
void wh_region_destroy(wh_region *region);

#endif
