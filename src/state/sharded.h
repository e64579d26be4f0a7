/**
 * @file sharded.h  Private functions for meshes, DTensors and ShardedTensors; see wherry/tensor.h.
 *
 * A plan treats DTensors and ShardedTensors alike: a local tensor consists of boxes of a global
 * tensor. It is nearly always one box. With a strided shard it can be several boxes.
 */
#ifndef WH_STATE_SHARDED_H
#define WH_STATE_SHARDED_H

#include "base/text.h"
#include "range/copy.h"
#include "state/tensor.h"

/**
 * Computes the number of ranks in a mesh of this shape. @return false if a size is below 1 or the
 * product overflows.
 */
bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p);

/** True if two meshes have the same contents. */
bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other);

/** Hashes the contents of a mesh. Equal meshes have equal hashes. */
uint64_t wh_mesh_hash(const wherry_mesh *mesh);

/** Finds the coordinate of a rank in a mesh. @return false if the rank is not in it. */
bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]);

/** True if two DTensors have the same placements. Their meshes may differ. */
bool wh_placements_equal(const wherry_dtensor *one, const wherry_dtensor *other);

/** Releases everything that a DTensor or ShardedTensor owns outside its own memory block. */
void wh_dtensor_clear(wherry_dtensor *dtensor);
void wh_sharded_clear(wherry_sharded *sharded);

/** A box of the global tensor, and the box of the local tensor that contains the same elements. */
typedef struct wh_part {
    wh_box global;
    wh_box local;
} wh_part;

/** Callback for one part. A result other than 0 stops the visit. */
typedef int (*wh_part_fn)(void *context, const wh_part *part);

typedef enum wh_parts_result {
    WH_PARTS_KNOWN,
    /**
     * The boxes cannot be computed: the rank is unspecified or not in the mesh, the local shape
     * does not match the placements, or there are too many boxes.
     */
    WH_PARTS_UNKNOWN,
    WH_PARTS_STOPPED, /**< The visitor stopped. */
    WH_PARTS_NO_MEMORY,
} wh_parts_result;

/**
 * Visits the parts of local tensor number `index` of a TENSOR, DTENSOR or SHARDED. Boxes without
 * elements are skipped. A plain tensor has one part, the whole tensor.
 * @param rank  the rank that has this local tensor. It matters only for a DTensor.
 */
wh_parts_result wh_value_visit_parts(const wherry_value *value, size_t index, int64_t rank, wh_part_fn visit,
                                     void *context);

/**
 * Sets *same_p to true if the local tensors of two DTensors are the same boxes, or if the boxes of
 * either are unknown.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
wherry_status wh_boxes_equal(const wherry_value *source, int64_t source_rank, const wherry_value *target,
                             int64_t target_rank, bool *same_p, wherry_error *error);

/** Appends the boxes of a DTensor's local tensor, such as "[0:2, 0:8]". */
void wh_boxes_append(wh_string *text, const wherry_value *dtensor, int64_t rank);

/**
 * Compares the layouts of two trees: their structure, and the dtype, shape, strides, sharing and
 * kind of device of their tensors. The local tensors of a DTensor or ShardedTensor must be the same
 * boxes. Scalars, device indices, meshes and the places of shards are not compared.
 * @param one_rank, other_rank  the ranks that have the local tensors.
 * @return as wherry_value_compare.
 */
wherry_status wh_layout_compare(const wherry_value *one, int64_t one_rank, const wherry_value *other,
                                int64_t other_rank, wherry_error *error);

#endif
