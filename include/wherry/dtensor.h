/**
 * @file wherry/dtensor.h  DTensor: a local tensor that is a part of a global one, spread over a mesh of ranks.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */
#ifndef WHERRY_DTENSOR_H
#define WHERRY_DTENSOR_H

#include <stdint.h>

#include <wherry/device.h>
#include <wherry/dtype.h>
#include <wherry/error.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A mesh of ranks, counted by references, shared by the DTensors over it. Opaque and never changed. */
typedef struct wherry_mesh wherry_mesh;

/** What a mesh is made of. */
typedef struct wherry_mesh_info {
    wherry_device_kind device;    /**< The kind of device that the ranks compute on. */
    uint32_t ndim;                /**< 1 to WHERRY_NDIM_MAX. */
    const int64_t *shape;         /**< ndim sizes, each at least 1. */
    const int64_t *ranks;         /**< The product of the sizes of them, the last dimension fastest; each >= 0. */
    const char *const *dim_names; /**< ndim names, UTF-8; or NULL where the dimensions have none. */
} wherry_mesh_info;

/**
 * Makes a mesh.
 * @param info    borrowed; all of it is copied.
 * @param mesh_p  the mesh, with one reference that the caller gives back by wherry_mesh_unref.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a size or a rank is out of its range.
 */
WHERRY_API wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error);

/** Takes one more reference. @return mesh. Any thread. */
WHERRY_API wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh);

/** Gives one reference back. mesh may be NULL. Any thread. */
WHERRY_API void wherry_mesh_unref(wherry_mesh *mesh);

/** What the mesh is made of, borrowed. */
WHERRY_API const wherry_mesh_info *wherry_mesh_get(const wherry_mesh *mesh);

/** How a tensor lies over one dimension of a mesh. The values travel on the wire and never change. */
typedef enum wherry_placement_kind {
    WHERRY_REPLICATE = 0,     /**< Every rank has all of it. */
    WHERRY_SHARD = 1,         /**< Cut along `dim` into equal pieces, the last ones smaller or empty. */
    WHERRY_STRIDED_SHARD = 2, /**< Cut along `dim` into split_factor times as many pieces, dealt out in turn. */
    WHERRY_PARTIAL = 3,       /**< Every rank has a summand of it. */
} wherry_placement_kind;

/** One placement. */
typedef struct wherry_placement {
    wherry_placement_kind kind; /**< Which of the members below are used. */
    uint32_t dim;               /**< SHARD and STRIDED_SHARD: the dimension of the tensor. Else 0. */
    int64_t split_factor;       /**< STRIDED_SHARD: at least 1. Else 0. */
    const char *reduce_op;      /**< PARTIAL: "sum", "avg" and the like, UTF-8. Else NULL. */
} wherry_placement;

/** What a DTensor is made of. */
typedef struct wherry_dtensor {
    wherry_value *local;                /**< A value of kind TENSOR: this rank's part. */
    wherry_mesh *mesh;                  /**< The ranks. */
    const wherry_placement *placements; /**< One for each dimension of the mesh. */
    wherry_dtype dtype;                 /**< Of the global tensor; the local one has the same. */
    uint32_t flags;                     /**< WHERRY_TENSOR_REQUIRES_GRAD or 0, of the DTensor itself. */
    uint32_t ndim;                      /**< Dimensions of the global tensor; the local one has as many. */
    const int64_t *shape;               /**< ndim global sizes. */
    const int64_t *strides;             /**< ndim global strides. */
} wherry_dtensor;

/**
 * Makes a DTensor.
 * @param dtensor  borrowed. `local` is taken over on success; the arrays are copied; a reference to the mesh is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where local is not a TENSOR of that dtype and number of
 * dimensions or belongs to a container, or a placement names a dimension that is not there.
 */
WHERRY_API wherry_status wherry_dtensor_create(const wherry_dtensor *dtensor, wherry_value **value_p,
                                               wherry_error *error);

/** What a DTENSOR is made of, borrowed; NULL for any other kind. */
WHERRY_API const wherry_dtensor *wherry_dtensor_get(const wherry_value *value);

#ifdef __cplusplus
}
#endif
#endif
