/**
 * @file manifest.h  The numbers of docs/wire-format.md, and writing a manifest; see
 * wherry/expert.h.
 */
#ifndef WH_MANIFEST_MANIFEST_H
#define WH_MANIFEST_MANIFEST_H

#include "range/digest.h"
#include "state/prepare.h"

#define WH_MANIFEST_MAGIC "wherry"

/** How many items each array has. */
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

enum { WH_SHARDED_REQUIRES_GRAD = 1, WH_SHARDED_PIN_MEMORY = 2, WH_SHARDED_FLAGS = 3 };

/** Whether the extents are one run of all bytes, which is written as null. */
static inline bool wh_extents_are_whole(const wherry_extent *extents, size_t count, uint64_t nbytes) {
    return count == 1 && extents->level_count == 0 && extents->offset == 0 && extents->length == nbytes;
}

/**
 * As wherry_prepare and then wherry_manifest_encode, both of which walk the state: values lie all
 * over memory, and whoever comes to them waits.
 * @param state       not NULL.
 * @param prepared_p  belongs to the caller: wherry_prepared_destroy.
 * @param bytes_p     belongs to the caller: wherry_free.
 * @return WHERRY_OK, or an error of either.
 */
wherry_status wh_manifest_prepare(const wherry_value *state, const wherry_prepare_options *options,
                                  wherry_prepared **prepared_p, void **bytes_p, size_t *size_p, wherry_error *error);

/**
 * States whose manifests have the same fingerprint have the same storages, the same tensors in
 * them, the same chunks and the same plain values: a manifest is canonical. The rank that wrote it
 * counts only where there are DTensors, for which it says which box is local.
 * @param manifest  what wherry_manifest_encode wrote of the prepared state.
 * @return false where there is no memory.
 */
bool wh_manifest_fingerprint(const wherry_prepared *prepared, const void *manifest, size_t size,
                             wh_digest *fingerprint);

#endif
