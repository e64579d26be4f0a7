/**
 * @file part.h  Which boxes of its global tensor a local tensor is.
 *
 * This is where DTensor and ShardedTensor become one notion for the planner. A local tensor is one box nearly always; under a
 * strided shard it is several, which lie one behind the other along a dimension.
 */
#ifndef WH_STATE_PART_H
#define WH_STATE_PART_H

#include <stdbool.h>
#include <stddef.h>

#include "range/copy.h"
#include "state/value.h"

/** A box of the global tensor, and the box of the local tensor that holds it. */
typedef struct wh_part {
    wh_box global;
    wh_box local;
} wh_part;

/** A result other than 0 ends the visit. */
typedef int (*wh_part_fn)(void *context, const wh_part *part);

/** What came of finding parts. */
typedef enum wh_parts {
    WH_PARTS_KNOWN,
    WH_PARTS_UNKNOWN, /**< The rank is not said or not in the mesh, or the local shape is not what the placements give. */
    WH_PARTS_STOPPED, /**< The visitor said so. */
    WH_PARTS_NO_MEMORY,
} wh_parts;

/**
 * Visits the parts that local tensor number `index` of a TENSOR, DTENSOR or SHARDED is, boxes without elements left out. A
 * plain tensor is one part: all of itself.
 * @param rank  the rank that holds it; matters for a DTensor only.
 */
wh_parts wh_value_visit_parts(const wherry_value *value, size_t index, int64_t rank, wh_part_fn visit, void *context);

#endif
