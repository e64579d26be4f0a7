/**
 * @file wherry/manifest.h  A prepared state as bytes, and back.
 *
 * The manifest holds everything but the bytes of the tensors. It is CBOR, canonical (the same state always gives the same
 * bytes), and specified in docs/wire-format.md. Decoding treats every byte as hostile and executes nothing.
 *
 * No function here blocks. Any thread. All since 0.1.
 */
#ifndef WHERRY_MANIFEST_H
#define WHERRY_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>
#include <wherry/prepare.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the format that this library writes, and the only one that it reads. */
#define WHERRY_MANIFEST_VERSION 1

/** What a decoder accepts. Fill it by wherry_limits_init, then change what you need. */
typedef struct wherry_limits {
    uint32_t struct_size;    /**< sizeof(wherry_limits). */
    uint32_t depth;          /**< Containers within each other. Default 256; at most WHERRY_DEPTH_MAX. */
    uint64_t manifest_bytes; /**< The manifest itself. Default 1 GiB. */
    uint64_t values;         /**< Values, containers and keys included. Default 64 Mi. */
    uint64_t string_bytes;   /**< One string, byte string or big integer. Default 64 MiB. */
    uint64_t total_bytes;    /**< All storages added up, and the space too. Default 64 TiB. */
} wherry_limits;

/** Fills the defaults. */
WHERRY_API void wherry_limits_init(wherry_limits *limits);

/**
 * Writes the manifest of a prepared state.
 * @param bytes_p  the manifest; release with wherry_free.
 * @param size_p   its length.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a plan has given its state away, or was made of it to
 * receive in place.
 */
WHERRY_API wherry_status wherry_manifest_encode(const wherry_prepared *prepared, void **bytes_p, size_t *size_p,
                                                wherry_error *error);

/**
 * Reads a manifest.
 * @param bytes       borrowed during the call only.
 * @param limits      NULL for the defaults.
 * @param prepared_p  the state, its storages without memory; belongs to the caller: wherry_prepared_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for bad limits; and for bad bytes WHERRY_TRUNCATED,
 * WHERRY_MALFORMED, WHERRY_NOT_CANONICAL, WHERRY_BAD_VERSION, WHERRY_LIMIT, WHERRY_OUT_OF_BOUNDS, WHERRY_REPEATED_KEY or
 * WHERRY_TRAILING_BYTES, with the offset of the first bad item in the error. Memory is only ever taken in proportion to
 * `size`.
 */
WHERRY_API wherry_status wherry_manifest_decode(const void *bytes, size_t size, const wherry_limits *limits,
                                                wherry_prepared **prepared_p, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
