#include "range/digest.h"

#define XXH_STATIC_LINKING_ONLY /* the size of its state */
#include <xxhash.h>

#include "base/alloc.h"

enum { ALIGNMENT = 64 };

/** Lies at an aligned address within what was allocated. */
struct wh_digester {
    XXH3_state_t state;
    void *allocated;
};

wh_digester *wh_digester_create(void) {
    char *allocated = wh_alloc(sizeof(wh_digester) + ALIGNMENT);
    if (!allocated) {
        return NULL;
    }
    wh_digester *digester = (void *)(allocated + (ALIGNMENT - (uintptr_t)allocated % ALIGNMENT));
    XXH3_INITSTATE(&digester->state);
    digester->allocated = allocated;
    wh_digester_begin(digester);
    return digester;
}

void wh_digester_destroy(wh_digester *digester) {
    if (digester) {
        wh_free(digester->allocated);
    }
}

void wh_digester_begin(wh_digester *digester) {
    XXH3_128bits_reset(&digester->state);
}

void wh_digester_add(wh_digester *digester, const void *bytes, size_t size) {
    XXH3_128bits_update(&digester->state, bytes, size);
}

wh_digest wh_digester_end(const wh_digester *digester) {
    XXH128_canonical_t canonical;
    wh_digest digest;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&digester->state));
    memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}

wh_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count) {
    wh_digester_begin(digester);
    for (size_t i = 0; i < count; i++) {
        wh_digester_add(digester, segments[i].iov_base, segments[i].iov_len);
    }
    return wh_digester_end(digester);
}
