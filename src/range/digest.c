/*
 * XXH3 with the fastest instruction set of the processor. The libxxhash of Linux distributions is
 * built for the oldest processors and is three times slower.
 *
 * The build compiles this file several times. With WH_DIGEST_ENGINE=NAME, it defines one engine:
 * XXH3 compiled for one instruction set. Without WH_DIGEST_ENGINE, it defines the functions of
 * digest.h, which choose the engine at run time.
 */
#include "range/digest.h"

#include "base/alloc.h"

/** XXH3 for one instruction set. All engines give the same digest. */
typedef struct wh_digest_engine {
    size_t state_bytes;
    void (*begin)(void *state);
    void (*add)(void *state, const void *bytes, size_t size);
    wherry_digest (*end)(const void *state);
} wh_digest_engine;

extern const wh_digest_engine wh_digest_plain;  /* runs on every processor */
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

static wherry_digest end(const void *state) {
    XXH128_canonical_t canonical;
    wherry_digest digest;
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

/** XXH3 requires that its state is aligned to this many bytes. */
enum { STATE_ALIGNMENT = 64 };

/** The engine's state is in the same allocation, after this struct, at an aligned address. */
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
    char *state = (char *)(digester + 1);
    *digester = (wh_digester){engine, state + (STATE_ALIGNMENT - (uintptr_t)state % STATE_ALIGNMENT)};
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

wherry_digest wh_digester_end(const wh_digester *digester) {
    return digester->engine->end(digester->state);
}

wherry_digest wh_digest_of(wh_digester *digester, const struct iovec *segments, size_t count) {
    wh_digester_begin(digester);
    for (size_t i = 0; i < count; i++) {
        wh_digester_add(digester, segments[i].iov_base, segments[i].iov_len);
    }
    return wh_digester_end(digester);
}

#endif
