/*
 * XXH3 with the fastest instructions of the processor. The packaged libxxhash is built for the
 * oldest processors and takes three times as long.
 *
 * The build compiles this file several times. With WH_DIGEST_ENGINE=NAME it is one engine, NAME:
 * XXH3 compiled for one instruction set. Without, it is the front, which picks the engine at run
 * time.
 */
#include "range/digest.h"

#include "base/alloc.h"

/** XXH3 for one instruction set. All engines give the same digest. */
typedef struct wh_digest_engine {
    size_t state_bytes;
    void (*begin)(void *state);
    void (*add)(void *state, const void *bytes, size_t size);
    wh_digest (*end)(const void *state);
} wh_digest_engine;

extern const wh_digest_engine wh_digest_plain;  /* any processor of this architecture */
extern const wh_digest_engine wh_digest_avx2;   /* x86-64 only */
extern const wh_digest_engine wh_digest_avx512; /* x86-64 only */

#ifdef WH_DIGEST_ENGINE

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

const wh_digest_engine WH_DIGEST_ENGINE = {
    .state_bytes = sizeof(XXH3_state_t),
    .begin = begin,
    .add = add,
    .end = end,
};

#else

/** The alignment of an engine's state, which XXH3 requires. */
enum { STATE_ALIGNMENT = 64 };

/** The engine's state follows in the same block, at an aligned address. */
struct wh_digester {
    const wh_digest_engine *engine;
    void *state;
};

static const wh_digest_engine *fastest_engine(void) {
#ifdef WH_DIGEST_X86
    if (__builtin_cpu_supports("avx512f")) {
        return &wh_digest_avx512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return &wh_digest_avx2;
    }
#endif
    return &wh_digest_plain;
}

wh_digester *wh_digester_create(void) {
    const wh_digest_engine *engine = fastest_engine();
    wh_digester *digester = wh_alloc(sizeof(*digester) + STATE_ALIGNMENT + engine->state_bytes);
    if (!digester) {
        return NULL;
    }
    char *behind = (char *)(digester + 1);
    *digester = (wh_digester){engine, behind + (STATE_ALIGNMENT - (uintptr_t)behind % STATE_ALIGNMENT)};
    wh_digester_begin(digester);
    return digester;
}

void wh_digester_destroy(wh_digester *digester) {
    wh_free(digester);
}

void wh_digester_begin(wh_digester *digester) {
    digester->engine->begin(digester->state);
}

void wh_digester_add(wh_digester *digester, const void *bytes, size_t size) {
    digester->engine->add(digester->state, bytes, size);
}

wh_digest wh_digester_end(const wh_digester *digester) {
    return digester->engine->end(digester->state);
}

wh_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count) {
    wh_digester_begin(digester);
    for (size_t i = 0; i < count; i++) {
        wh_digester_add(digester, segments[i].iov_base, segments[i].iov_len);
    }
    return wh_digester_end(digester);
}

#endif
