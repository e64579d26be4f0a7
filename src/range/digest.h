/**
 * @file digest.h  The digest of a chunk: the 128-bit XXH3 hash of its bytes, or the first 128 bits
 * of SHA-256.
 *
 * XXH3 detects accidental damage. It does not protect against an attacker. SHA-256 does, and is
 * about ten times slower.
 */
#ifndef WH_RANGE_DIGEST_H
#define WH_RANGE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include <wherry/expert.h>

#include "base/shared.h"

/** Computes a digest piece by piece. The struct is large, so create one per thread and reuse it. */
typedef struct wh_digester wh_digester;

/** @return NULL if out of memory. */
WH_SHARED wh_digester *wh_digester_create(void);

/** Like wh_digester_create, for SHA-256. */
wh_digester *wh_digester_create_strong(void);

/** digester may be NULL. */
WH_SHARED void wh_digester_destroy(wh_digester *digester);

/** Starts a new digest. */
WH_SHARED void wh_digester_begin(wh_digester *digester);

WH_SHARED void wh_digester_add(wh_digester *digester, const void *bytes, size_t size);

WH_SHARED wherry_digest wh_digester_end(const wh_digester *digester);

/** Returns the digest of all segments, as if they were one buffer. */
wherry_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count);

static inline bool wh_digest_equal(const wherry_digest *one, const wherry_digest *other) {
    return memcmp(one->bytes, other->bytes, sizeof(one->bytes)) == 0;
}

#endif
