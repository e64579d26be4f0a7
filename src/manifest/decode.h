/**
 * @file decode.h  Declarations that decode.c (the manifest, storages, meshes) and decode_value.c
 * (the tree) share.
 */
#ifndef WH_MANIFEST_DECODE_H
#define WH_MANIFEST_DECODE_H

#include <wherry/expert.h>

#include "manifest/cbor.h"
#include "state/prepare.h"

typedef struct wh_decoder {
    wh_cbor_reader in;
    wherry_limits limits;
    wherry_prepared *prepared;
    wh_pool pool;    /**< The pool for storages, tensors and strings. */
    uint64_t values; /**< Number of values read so far. */
    /**
     * Number of bytes of the manifest for which dicts have reserved memory: see reserve_entries.
     */
    uint64_t claimed;
    size_t next_storage; /**< The number that the next new storage must have. */
    size_t next_mesh;    /**< The number that the next new mesh must have. */
} wh_decoder;

/**
 * Reads a value and everything in it. @param depth  the number of containers and objects that
 * surround it.
 */
wherry_status wh_decode_value(wh_decoder *decoder, uint32_t depth, wherry_value **value_p);

/** Reads the kind and the index of a device. */
wherry_status wh_decode_device(wh_decoder *decoder, wherry_device *device_p);

/**
 * Converts an error from a function that creates a value into an error about bad bytes, and adds
 * the offset of the item that was read last. WHERRY_OK and WHERRY_NO_MEMORY stay as they are.
 */
wherry_status wh_decode_created(const wh_decoder *decoder, wherry_status status);

#endif
