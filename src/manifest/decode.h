/**
 * @file decode.h  What decode.c (the manifest, storages, meshes) and decode_value.c (the tree)
 * share.
 */
#ifndef WH_MANIFEST_DECODE_H
#define WH_MANIFEST_DECODE_H

#include <wherry/expert.h>

#include "manifest/cbor.h"
#include "state/prepare.h"

typedef struct wh_decoder {
    wh_reader in;
    wherry_limits limits;
    wherry_prepared *prepared;
    wh_pool pool;    /**< For storages, tensors and strings. */
    uint64_t values; /**< Values read so far. */
    /** Bytes of the manifest for which dicts have reserved memory before reading them. */
    uint64_t claimed;
    size_t next_storage; /**< The number that the next new storage must have. */
    size_t next_mesh;    /**< The number that the next new mesh must have. */
} wh_decoder;

/** Reads a value and everything below it. @param depth  the number of containers around it. */
wherry_status wh_decode_value(wh_decoder *decoder, uint32_t depth, wherry_value **value_p);

/** Reads the kind and the index of a device. */
wherry_status wh_decode_device(wh_decoder *decoder, wherry_device *device_p);

/** Reads the kind of a device. */
wherry_status wh_decode_device_kind(wh_decoder *decoder, wherry_device_kind *kind_p);

/**
 * Turns the status of a function that creates a value into one about bad bytes, with their offset.
 */
wherry_status wh_decode_created(const wh_decoder *decoder, wherry_status status);

#endif
