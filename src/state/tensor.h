/** @file tensor.h  The private side of storages and tensors; see wherry/tensor.h. */
#ifndef WH_STATE_TENSOR_H
#define WH_STATE_TENSOR_H

#include "range/extent.h"
#include "state/value.h"

/** True if the storage has bytes but no memory, as in a decoded manifest. */
bool wh_storage_is_bare(const wherry_storage *storage);

/** wherry_storage_describe from a pool. */
wherry_status wh_storage_describe(wh_pool *pool, uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                  wherry_error *error);

/**
 * What is known about many storages together. It saves a second look at each, which would be a
 * cache miss. Starts as {0}.
 */
typedef struct wh_storage_traits {
    bool devices;     /**< Some are not in host memory. */
    uint64_t cuda;    /**< One bit per CUDA device that has some. */
    bool bare;        /**< Some are bare. */
    uint64_t largest; /**< Bytes of the largest. */
} wh_storage_traits;

void wh_storage_traits_add(wh_storage_traits *traits, const wherry_storage *storage);

/**
 * True if most bytes of the storages are on small pages. It samples large storages, a few
 * microseconds per sample.
 * @param traits  of these storages.
 */
bool wh_storages_on_small_pages(wherry_storage *const *storages, size_t count, const wh_storage_traits *traits);

/**
 * Writes the strides of a contiguous tensor of that shape. @return false if they do not fit 63
 * bits.
 */
bool wh_contiguous_strides(uint32_t ndim, const int64_t *shape, int64_t *strides);

/** True if the strides are those of wh_contiguous_strides. */
bool wh_strides_are_contiguous(uint32_t ndim, const int64_t *shape, const int64_t *strides);

/** A tensor as a view of bytes. */
wh_view wh_tensor_view(const wherry_tensor *tensor);

/**
 * wherry_tensor_create from a pool.
 * @param bounds  the status if an element is outside the storage: a bad argument of the caller and
 *                bad bytes from a peer are different faults.
 */
wherry_status wh_tensor_build(wh_pool *pool, const wherry_tensor *tensor, wherry_status bounds, wherry_value **value_p,
                              wherry_error *error);

/**
 * The number of tensors of a leaf: 1 for a TENSOR or DTENSOR, the number of local shards for a
 * SHARDED, otherwise 0.
 */
size_t wh_value_tensor_count(const wherry_value *value);

/** One of them: a value of kind TENSOR. */
wherry_value *wh_value_tensor_at(const wherry_value *value, size_t index);

/** Receives a TENSOR, DTENSOR or SHARDED leaf. Returns false to stop the visit. */
typedef bool (*wh_leaf_visit_fn)(void *context, wherry_value *leaf);

/**
 * Visits the TENSOR, DTENSOR and SHARDED leaves of a tree, depth first, in the order of entries and
 * items.
 * @return false if the visitor stopped.
 */
bool wh_visit_tensor_leaves(const wherry_value *state, wh_leaf_visit_fn visit, void *context);

#endif
