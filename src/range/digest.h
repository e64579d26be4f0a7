/**
 * @file digest.h  The digest of a chunk: XXH3, 128 bits, over its bytes in order.
 *
 * It detects damaged bytes. It does not protect against forged ones.
 */
#ifndef WH_RANGE_DIGEST_H
#define WH_RANGE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include <wherry/base.h>

#include "base/shared.h"

enum { WH_DIGEST_BYTES = 16 };

/** In canonical (big endian) form. */
typedef struct wh_digest {
    uint8_t bytes[WH_DIGEST_BYTES];
} wh_digest;

/** Computes a digest piece by piece. Large: create one per thread and reuse it. */
typedef struct wh_digester wh_digester;

/** @return NULL if out of memory. */
WH_SHARED wh_digester *wh_digester_create(void);

/** digester may be NULL. */
WH_SHARED void wh_digester_destroy(wh_digester *digester);

/** Starts a new digest. */
WH_SHARED void wh_digester_begin(wh_digester *digester);

WH_SHARED void wh_digester_add(wh_digester *digester, const void *bytes, size_t size);

WH_SHARED wh_digest wh_digester_end(const wh_digester *digester);

/** The digest of the segments, end to end. */
wh_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count);

static inline bool wh_digest_equal(const wh_digest *one, const wh_digest *other) {
    return memcmp(one->bytes, other->bytes, sizeof(one->bytes)) == 0;
}

#endif
