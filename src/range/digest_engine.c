/*
 * XXH3 with the instructions that this file is compiled for; the build compiles it once for each kind of processor, under the name WH_DIGEST_ENGINE. The
 * packaged libxxhash is made for the oldest processors, and takes three times as long.
 */
#include "range/digest_engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static void begin(void *state) {
    XXH3_INITSTATE((XXH3_state_t *)state);
    XXH3_128bits_reset(state);
}

static void add(void *state, const void *bytes, size_t size) {
    XXH3_128bits_update(state, bytes, size);
}

static wh_digest end(const void *state) {
    XXH128_canonical_t canonical;
    wh_digest digest;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}

const wh_digest_engine WH_DIGEST_ENGINE = {sizeof(XXH3_state_t), begin, add, end};
