/**
 * @file manifest.h  Constants of the manifest format (docs/wire-format.md), and functions for a
 * source that encodes a manifest; see wherry/expert.h.
 */
#ifndef WH_MANIFEST_MANIFEST_H
#define WH_MANIFEST_MANIFEST_H

#include "range/digest.h"
#include "state/prepare.h"

#define WH_MANIFEST_MAGIC "wherry"

/** The number of items in each kind of array. */
enum {
    WH_MANIFEST_ITEMS = 7,
    WH_STORAGE_ITEMS = 4,
    WH_MESH_ITEMS = 4,
    WH_TENSOR_ITEMS = 7,
    WH_DTENSOR_ITEMS = 8,
    WH_SHARDED_ITEMS = 8,
    WH_INFO_ITEMS = 5,
    WH_PLACE_ITEMS = 3,
};

/** Bits of the flags of a ShardedTensor. */
enum { WH_SHARDED_REQUIRES_GRAD = 1, WH_SHARDED_PIN_MEMORY = 2, WH_SHARDED_FLAGS = 3 };

/**
 * True if there is one extent, which is contiguous and covers the whole storage. The manifest has
 * null instead of such an extent.
 */
static inline bool wh_extents_are_whole(const wherry_extent *extents, size_t count, uint64_t nbytes) {
    return count == 1 && extents->level_count == 0 && extents->offset == 0 && extents->length == nbytes;
}

/**
 * Does wherry_prepare and wherry_manifest_encode in one walk over the state. Each value is a cache
 * miss, so one walk takes half the time of two.
 * @param state       not NULL.
 * @param prepared_p  owned by the caller. Destroy it with wherry_prepared_destroy.
 * @param bytes_p     owned by the caller. Free it with wherry_free.
 * @return WHERRY_OK, or an error of either function.
 */
wherry_status wh_manifest_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                  wherry_prepared **prepared_p, void **bytes_p, size_t *size_p, wherry_error *error);

/**
 * The fingerprint of a manifest. Manifests are canonical, so states with the same fingerprint have
 * the same storages, tensors, chunks and plain values. The fingerprint depends on the rank in the
 * manifest only if there are DTensors, because this rank decides which boxes of a DTensor are
 * local.
 * @param manifest  from wherry_manifest_encode for this prepared state.
 * @return false if out of memory.
 */
bool wh_manifest_fingerprint(const wherry_prepared *prepared, const void *manifest, size_t size,
                             wherry_digest *fingerprint);

/**
 * True if two manifests have the same bytes, except perhaps for the rank that wrote them. They must
 * have been decoded successfully, or come from wherry_manifest_encode, or differ.
 */
bool wh_manifests_are_equal(const void *one, size_t one_size, const void *other, size_t other_size);

#endif
