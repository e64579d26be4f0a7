/**
 * @file region.h  A set of bytes of one storage: what the views of a state cover of it.
 *
 * Add the extents of the views in any order, then finish: what touches or overlaps is merged, equal ones are counted
 * once, columns that lie side by side become wider columns, and the result is sorted. A byte may remain in two extents
 * only where views cross each other in more than EXPAND_MAX runs; that costs a second copy of it, nothing else.
 */
#ifndef WH_RANGE_REGION_H
#define WH_RANGE_REGION_H

#include <stdbool.h>
#include <stddef.h>

#include "range/extent.h"

/** A region starts as {0}. */
typedef struct wh_region {
    wherry_extent *extents; /**< Each owns its levels. */
    size_t count;
    size_t capacity;
} wh_region;

/** Whether a view's dimensions interleave, so that it is more than one normal extent. Only strides that no slicing gives do that. */
bool wh_view_interleaves(const wh_view *view);

/**
 * Adds what a view covers. One that interleaves in over EXPAND_MAX runs is covered as a whole, gaps included, whatever max_gap says.
 * @return false where there is no memory.
 */
bool wh_region_add_view(wh_region *region, const wh_view *view, uint64_t max_gap);

/** Merges what touches, and nothing more: where extents cross, bytes stay in both. Never more extents than were added. @return as below. */
bool wh_region_merge(wh_region *region, uint64_t max_gap);

/** Merges and sorts. @return false where there is no memory; the region is then fit only to be destroyed. */
bool wh_region_finish(wh_region *region, uint64_t max_gap);

/** Destroys the extents. */
void wh_region_destroy(wh_region *region);

#endif
