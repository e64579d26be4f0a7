/**
 * @file box.h  Boxes: parts of an n-dimensional tensor, and what two of them have in common.
 *
 * "This local tensor is that box of that global tensor" is all that a planner needs to know of a shard, however it was
 * cut.
 */
#ifndef WH_RANGE_BOX_H
#define WH_RANGE_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "range/copy.h"

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
