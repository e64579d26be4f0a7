/**
 * @file sharded.h  The private side of meshes, DTensors and ShardedTensors; see wherry/tensor.h.
 *
 * For a plan, both kinds are the same: a local tensor is one or more boxes of a global tensor. It
 * is one box nearly always. Under a strided shard it is several boxes, one after the other along a
 * dimension.
 */
#ifndef WH_STATE_SHARDED_H
#define WH_STATE_SHARDED_H

#include "range/copy.h"
#include "state/tensor.h"

/**
 * The number of ranks in a mesh of that shape. @return false if a size is below 1 or the product
 * overflows.
 */
bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p);

/** True if two meshes have the same contents. */
bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other);

/** Equal meshes have equal hashes. */
uint64_t wh_mesh_hash(const wherry_mesh *mesh);

/** Finds the coordinate of a rank in a mesh. @return false if the rank is not in it. */
bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]);

/** True if two DTensors have the same placements, whatever their meshes. */
bool wh_placements_equal(const wherry_dtensor *one, const wherry_dtensor *other);

/** Releases what a DTensor or ShardedTensor holds outside its block. */
void wh_dtensor_clear(wherry_dtensor *dtensor);
void wh_sharded_clear(wherry_sharded *sharded);

/** A box of the global tensor, and the box of the local tensor that has its elements. */
typedef struct wh_part {
    wh_box global;
    wh_box local;
} wh_part;

/** A result other than 0 stops the visit. */
typedef int (*wh_part_fn)(void *context, const wh_part *part);

typedef enum wh_parts {
    WH_PARTS_KNOWN,
    /**
     * The rank is unspecified or not in the mesh, or the local shape does not follow from the
     * placements.
     */
    WH_PARTS_UNKNOWN,
    WH_PARTS_STOPPED, /**< The visitor stopped. */
    WH_PARTS_NO_MEMORY,
} wh_parts;

/**
 * Visits the parts of local tensor number `index` of a TENSOR, DTENSOR or SHARDED. Boxes without
 * elements are skipped. A plain tensor is one part: all of itself.
 * @param rank  the rank that has it. It matters only for a DTensor.
 */
wh_parts wh_value_visit_parts(const wherry_value *value, size_t index, int64_t rank, wh_part_fn visit, void *context);

#endif
