/** @file sharded.h  Private side of meshes, DTensors and ShardedTensors; see wherry/tensor.h. */
#ifndef WH_STATE_SHARDED_H
#define WH_STATE_SHARDED_H

#include "range/copy.h"
#include "state/tensor.h"

/** The number of ranks of a mesh of that shape. @return false where a size is below 1 or the product overflows. */
bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p);

/** Whether two meshes are made of the same. */
bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other);

/** A hash that equal meshes have in common. */
uint64_t wh_mesh_hash(const wherry_mesh *mesh);

/** Where a rank stands in a mesh. @return false where it does not. */
bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]);

/** Whether two DTensors are placed in the same way, whatever their meshes. */
bool wh_placements_equal(const wherry_dtensor *one, const wherry_dtensor *other);

/** Gives back the references that a value of this kind holds beyond its block. */
void wh_dtensor_clear(wherry_dtensor *dtensor);
void wh_sharded_clear(wherry_sharded *sharded);

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
