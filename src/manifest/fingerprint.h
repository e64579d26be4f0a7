/** @file fingerprint.h  A manifest in 16 bytes, to be told from others without being sent. */
#ifndef WH_MANIFEST_FINGERPRINT_H
#define WH_MANIFEST_FINGERPRINT_H

#include "range/digest.h"
#include "state/prepare.h"

/**
 * States whose manifests have the same fingerprint have the same storages, the same tensors in them, the same chunks and the same plain values: a manifest is
 * canonical. The rank that wrote it counts only where there are DTensors, for which it says which box is local.
 * @param manifest  what wherry_manifest_encode wrote of the prepared state.
 * @return false where there is no memory.
 */
bool wh_manifest_fingerprint(const wherry_prepared *prepared, const void *manifest, size_t size,
                             wh_digest *fingerprint);

#endif
