/** @file storage.h  Private side of storages; see wherry/tensor.h. */
#ifndef WH_STATE_STORAGE_H
#define WH_STATE_STORAGE_H

#include <stdbool.h>

#include <wherry/tensor.h>

#include "base/alloc.h"

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

#endif
