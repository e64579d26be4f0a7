/**
 * @file decode.h  What the three parts of the decoder share: decode.c, decode_value.c and
 * decode_parts.c.
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
    wh_pool pool;    /**< Storages, tensors and strings are cut from it. */
    uint64_t values; /**< Read so far. */
    /** Bytes of the manifest that room was made for on the word of heads alone. */
    uint64_t claimed;
    size_t next_storage; /**< Storages named so far: the next new one must have this number. */
    size_t next_mesh;    /**< Likewise for meshes. */
} wh_decoder;

/** Reads a value and all below it; depth is that of the containers around it. */
wherry_status wh_decode_value(wh_decoder *decoder, uint32_t depth, wherry_value **value_p);

/** Reads a whole tensor, its array's head included. */
wherry_status wh_decode_tensor(wh_decoder *decoder, wherry_value **value_p);

/** Reads what follows the kind of a DTensor, or of a ShardedTensor. */
wherry_status wh_decode_dtensor(wh_decoder *decoder, wherry_value **value_p);
wherry_status wh_decode_sharded(wh_decoder *decoder, wherry_value **value_p);

/**
 * Reads the number of a storage or a mesh, of which there are count; new ones must come in order.
 */
wherry_status wh_decode_reference(wh_decoder *decoder, size_t count, size_t *next, const char *wanted,
                                  size_t *number_p);

/** Reads a dtype, and strides that are null or as many as the sizes. */
wherry_status wh_decode_dtype(wh_decoder *decoder, wherry_dtype *dtype_p);
wherry_status wh_decode_strides(wh_decoder *decoder, uint32_t ndim, const int64_t *shape, int64_t *strides);

/** Checks that a tensor of these sizes has fewer than 2^63 bytes. */
wherry_status wh_decode_check_sizes(const wh_decoder *decoder, wherry_dtype dtype, uint32_t ndim, const int64_t *shape);

/** Reads the kind and the index of a device. */
wherry_status wh_decode_device(wh_decoder *decoder, wherry_device *device_p);

/** Reads the kind of a device. */
wherry_status wh_decode_device_kind(wh_decoder *decoder, wherry_device_kind *kind_p);

/**
 * Turns a status of a function that creates values into one about bytes, with the place where they
 * are.
 */
wherry_status wh_decode_created(const wh_decoder *decoder, wherry_status status);

#endif
