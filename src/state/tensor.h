/** @file tensor.h  Private functions for storages and tensors; see wherry/tensor.h. */
#ifndef WH_STATE_TENSOR_H
#define WH_STATE_TENSOR_H

#include "range/extent.h"
#include "state/value.h"

/**
 * True if the storage has a size above 0 but no memory. The storages of a decoded manifest are like
 * this.
 */
bool wh_storage_is_bare(const wherry_storage *storage);

/** Like wherry_storage_describe, but allocates the storage from a pool. */
wherry_status wh_storage_describe(wh_pool *pool, uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                  wherry_error *error);

/**
 * Common properties of many storages. They are collected in one pass, because a second access to
 * each storage would be a cache miss. Initialize with {0}.
 */
typedef struct wh_storage_traits {
    bool devices;     /**< True if some storages are not in host memory. */
    uint64_t cuda;    /**< One bit per CUDA device that has storages. */
    bool bare;        /**< True if some storages are bare: see wh_storage_is_bare. */
    uint64_t largest; /**< Size of the largest storage in bytes. */
} wh_storage_traits;

void wh_storage_traits_add(wh_storage_traits *traits, const wherry_storage *storage);

/**
 * True if most of the large storages in host memory are on small pages, counted by size. Only a
 * sample of these storages is examined. False if there are no such storages, or if their pages
 * cannot be examined. Takes a few microseconds per sample.
 * @param traits  the traits of these storages.
 */
bool wh_storages_on_small_pages(wherry_storage *const *storages, size_t count, const wh_storage_traits *traits);

/**
 * Writes the strides of a contiguous tensor of this shape. @return false if the product of all
 * sizes above 1 does not fit in 63 bits.
 */
bool wh_contiguous_strides(uint32_t ndim, const int64_t *shape, int64_t *strides);

/** True if the strides are those of wh_contiguous_strides. */
bool wh_strides_are_contiguous(uint32_t ndim, const int64_t *shape, const int64_t *strides);

/** Describes a tensor as a view of bytes. */
wh_view wh_tensor_view(const wherry_tensor *tensor);

/**
 * Like wherry_tensor_create, but allocates the tensor from a pool.
 * @param bounds  the status to return if an element is outside the storage or beyond 2^63 bytes. It
 *                differs for tensors from the program and tensors from a peer.
 */
wherry_status wh_tensor_build(wh_pool *pool, const wherry_tensor *tensor, wherry_status bounds, wherry_value **value_p,
                              wherry_error *error);

/**
 * The number of tensors of a leaf: 1 for a TENSOR or DTENSOR, the number of local shards for a
 * SHARDED, otherwise 0.
 */
size_t wh_value_tensor_count(const wherry_value *value);

/** Tensor number `index` of a leaf: a value of kind TENSOR. */
wherry_value *wh_value_tensor_at(const wherry_value *value, size_t index);

/** Callback for a TENSOR, DTENSOR or SHARDED leaf. Returns false to stop the visit. */
typedef bool (*wh_leaf_visit_fn)(void *context, wherry_value *leaf);

/**
 * Visits the TENSOR, DTENSOR and SHARDED leaves of a tree, depth first, in the order of entries and
 * items.
 * @return false if the visitor stopped.
 */
bool wh_visit_tensor_leaves(const wherry_value *state, wh_leaf_visit_fn visit, void *context);

#endif
