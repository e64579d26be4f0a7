/**
 * @file wherry/digest.h  The digest of a tensor's elements: XXH3, 128 bits. It tells whether bytes are the same; it does not keep anybody from forging them.
 */
#ifndef WHERRY_DIGEST_H
#define WHERRY_DIGEST_H

#include <stdint.h>

#include <wherry/error.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes of a digest. */
#define WHERRY_DIGEST_BYTES 16

/** A digest, most significant byte first. Since 0.1. */
typedef struct wherry_digest {
    uint8_t bytes[WHERRY_DIGEST_BYTES]; /**< XXH3's canonical form. */
} wherry_digest;

/**
 * Digests the elements of a tensor in the order of their indices, the last dimension fastest: the same for two tensors of the same elements, whatever their strides.
 * @param tensor    a tensor in host memory; borrowed during the call.
 * @param digest_p  receives the digest.
 * Blocks as long as it takes to read the elements. Any thread.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where it is no tensor; WHERRY_UNSUPPORTED where it is not in host memory; WHERRY_NO_MEMORY. Since 0.1.
 */
WHERRY_API wherry_status wherry_tensor_digest(const wherry_value *tensor, wherry_digest *digest_p, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
