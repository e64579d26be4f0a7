/**
 * @file wherry/sharded.h  ShardedTensor: local shards, each a box of a global tensor.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */
#ifndef WHERRY_SHARDED_H
#define WHERRY_SHARDED_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/device.h>
#include <wherry/dtype.h>
#include <wherry/error.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Where a shard lives: PyTorch's "rank:3/cuda:1". */
typedef struct wherry_shard_place {
    int64_t rank;         /**< -1 where none is said. */
    wherry_device device; /**< Of that rank. */
} wherry_shard_place;

/** The box that a shard is, and where it lives. */
typedef struct wherry_shard_info {
    const int64_t *offsets;   /**< The box's first element, one number for each dimension of the global tensor. */
    const int64_t *sizes;     /**< The box's sizes. */
    wherry_shard_place place; /**< Who holds it. */
} wherry_shard_info;

/** A shard that this rank holds. */
typedef struct wherry_shard {
    wherry_value *tensor;   /**< A value of kind TENSOR whose shape is info.sizes. */
    wherry_shard_info info; /**< Which box it is. */
} wherry_shard;

/** How the shards were cut. The values travel on the wire and never change. */
typedef enum wherry_sharding_kind {
    WHERRY_SHARDING_NONE = 0,       /**< Not said. */
    WHERRY_SHARDING_CHUNK = 1,      /**< Along one dimension, a piece for each place. */
    WHERRY_SHARDING_ENUMERABLE = 2, /**< A list of boxes. */
} wherry_sharding_kind;

/** The sharding specification. */
typedef struct wherry_sharding {
    wherry_sharding_kind kind;        /**< Which of the members below are used. */
    int64_t dim;                      /**< CHUNK: the dimension. Else 0. */
    uint32_t count;                   /**< CHUNK: how many places. ENUMERABLE: how many boxes. */
    const wherry_shard_place *places; /**< CHUNK. Else NULL. */
    const wherry_shard_info *boxes;   /**< ENUMERABLE. Else NULL. */
} wherry_sharding;

/** PyTorch's memory formats. The values travel on the wire and never change. */
typedef enum wherry_memory_format {
    WHERRY_FORMAT_CONTIGUOUS = 0,
    WHERRY_FORMAT_CHANNELS_LAST = 1,
    WHERRY_FORMAT_CHANNELS_LAST_3D = 2,
    WHERRY_FORMAT_PRESERVE = 3,
} wherry_memory_format;

/** What a ShardedTensor is made of. The layout of its tensor properties is always strided. */
typedef struct wherry_sharded {
    wherry_dtype dtype;              /**< Of the global tensor, and of each shard. */
    bool requires_grad;              /**< As PyTorch's tensor properties have it. */
    bool pin_memory;                 /**< Likewise. */
    wherry_memory_format format;     /**< Likewise. */
    uint32_t ndim;                   /**< Dimensions of the global tensor. */
    const int64_t *shape;            /**< ndim global sizes. */
    uint32_t shard_count;            /**< Shards that this rank holds; 0 is allowed. */
    const wherry_shard *shards;      /**< shard_count of them. */
    uint32_t global_count;           /**< Shards on all ranks. */
    const wherry_shard_info *global; /**< global_count boxes: the metadata of all shards. */
    wherry_sharding sharding;        /**< How it was cut. */
} wherry_sharded;

/**
 * Makes a ShardedTensor.
 * @param sharded  borrowed. The tensors of its shards are taken over on success; everything else is copied.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a box lies outside the global tensor, or a local
 * tensor has another dtype or shape than its box or belongs to a container.
 */
WHERRY_API wherry_status wherry_sharded_create(const wherry_sharded *sharded, wherry_value **value_p,
                                               wherry_error *error);

/** What a SHARDED is made of, borrowed; NULL for any other kind. */
WHERRY_API const wherry_sharded *wherry_sharded_get(const wherry_value *value);

#ifdef __cplusplus
}
#endif
#endif
