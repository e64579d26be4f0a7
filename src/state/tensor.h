/** @file tensor.h  Private side of tensors and storages; see wherry/tensor.h. */
#ifndef WH_STATE_TENSOR_H
#define WH_STATE_TENSOR_H

#include "range/extent.h"
#include "state/value.h"

/** Whether the storage has no memory though it has bytes: it came from a manifest. */
bool wh_storage_is_bare(const wherry_storage *storage);

/** wherry_storage_describe out of a pool. */
wherry_status wh_storage_describe(wh_pool *pool, uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                  wherry_error *error);

/** What is known of many storages together, so that not all of them must be looked at again: each lies somewhere else in memory. Starts as {0}. */
typedef struct wh_census {
    bool devices;     /**< Some are not in host memory. */
    uint64_t cuda;    /**< A bit for each CUDA device that has some. */
    bool bare;        /**< Some are bare. */
    uint64_t largest; /**< Bytes of the largest. */
} wh_census;

/** Counts a storage in. */
void wh_census_add(wh_census *census, const wherry_storage *storage);

/**
 * Whether storages lie on small pages for the most part, by samples of large ones that it can be known of. A few microseconds a sample.
 * @param census  of these storages.
 */
bool wh_storages_on_small_pages(wherry_storage *const *storages, size_t count, const wh_census *census);

/** Writes the strides of a contiguous tensor of that shape. @return false where they do not fit 63 bits. */
bool wh_contiguous_strides(uint32_t ndim, const int64_t *shape, int64_t *strides);

/** Whether strides are those. */
bool wh_strides_are_contiguous(uint32_t ndim, const int64_t *shape, const int64_t *strides);

/** A tensor as a view for the arithmetic on ranges. */
wh_view wh_tensor_view(const wherry_tensor *tensor);

/**
 * wherry_tensor_create out of a pool, with the status to answer where an element lies outside the storage: an argument of the caller's
 * and bytes of a peer's are different faults.
 */
wherry_status wh_tensor_build(wh_pool *pool, const wherry_tensor *tensor, wherry_status bounds, wherry_value **value_p,
                              wherry_error *error);

/** Counts the tensors of a value that is a tensor or has local ones: 1, or the number of shards; else 0. */
size_t wh_value_tensor_count(const wherry_value *value);

/** One of them: a value of kind TENSOR. */
wherry_value *wh_value_tensor_at(const wherry_value *value, size_t index);

/** Receives a leaf that is or has tensors; false ends the visit. */
typedef bool (*wh_leaf_visit_fn)(void *context, wherry_value *leaf);

/**
 * Visits the TENSOR, DTENSOR and SHARDED leaves of a tree, depth first, each container in its order.
 * @return false where the visitor said so.
 */
bool wh_visit_tensor_leaves(const wherry_value *state, wh_leaf_visit_fn visit, void *context);

#endif
