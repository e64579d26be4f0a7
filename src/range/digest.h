/**
 * @file digest.h  The digest of a chunk: XXH3, 128 bits, over its bytes in order.
 *
 * It finds bytes that were damaged on the way; it does not keep anybody from forging them.
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

/** A digest that is being made, piece by piece. Large: one a thread, reused. */
typedef struct wh_digester wh_digester;

/** @return NULL where there is no memory. */
WH_SHARED wh_digester *wh_digester_create(void);

/** digester may be NULL. */
WH_SHARED void wh_digester_destroy(wh_digester *digester);

/** Begins anew. */
WH_SHARED void wh_digester_begin(wh_digester *digester);

WH_SHARED void wh_digester_add(wh_digester *digester, const void *bytes, size_t size);

WH_SHARED wh_digest wh_digester_end(const wh_digester *digester);

/** The digest of segments that lie end to end in a chunk. */
wh_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count);

static inline bool wh_digest_equal(const wh_digest *one, const wh_digest *other) {
    return memcmp(one->bytes, other->bytes, sizeof(one->bytes)) == 0;
}

#endif
