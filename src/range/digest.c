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
#include "base/process.h"

/** XXH3 for one instruction set. All engines give the same digest. */
typedef struct wh_digest_engine {
    size_t state_bytes;
    void (*begin)(void *state);
    void (*add)(void *state, const void *bytes, size_t size);
    wherry_digest (*end)(const void *state);
} wh_digest_engine;

extern const wh_digest_engine wh_digest_plain;  /* This engine runs on every processor. */
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

/* These functions need no memory and cannot fail. The functions that replace them can fail. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

static void begin_strong(void *state) {
    SHA256_Init(state);
}

static void add_strong(void *state, const void *bytes, size_t size) {
    SHA256_Update(state, bytes, size);
}

static wherry_digest end_strong(const void *state) {
    SHA256_CTX copy = *(const SHA256_CTX *)state;
    uint8_t whole[SHA256_DIGEST_LENGTH];
    wherry_digest digest;
    SHA256_Final(whole, &copy);
    memcpy(digest.bytes, whole, sizeof(digest.bytes));
    return digest;
}

static const wh_digest_engine strong_engine = {
    .state_bytes = sizeof(SHA256_CTX),
    .begin = begin_strong,
    .add = add_strong,
    .end = end_strong,
};

/** XXH3 requires that its state is aligned to this many bytes. */
enum { STATE_ALIGNMENT = 64 };

/** The engine's state is in the same allocation, after this struct, at an aligned address. */
struct wh_digester {
    const wh_digest_engine *engine;
    void *state;
};

static const wh_digest_engine *fastest_engine(void) {
#ifdef WH_DIGEST_X86
    if (wh_cpu_features() & WH_CPU_AVX512F) {
        return &wh_digest_avx512;
    }
    if (wh_cpu_features() & WH_CPU_AVX2) {
        return &wh_digest_avx2;
    }
#endif
    return &wh_digest_plain;
}

static wh_digester *create(const wh_digest_engine *engine) {
    wh_digester *digester = wh_alloc(sizeof(*digester) + STATE_ALIGNMENT + engine->state_bytes);
    if (!digester) {
        return NULL;
    }
    char *state = (char *)(digester + 1);
    *digester = (wh_digester){engine, state + (STATE_ALIGNMENT - (uintptr_t)state % STATE_ALIGNMENT)};
    wh_digester_begin(digester);
    return digester;
}

wh_digester *wh_digester_create(void) {
    return create(fastest_engine());
}

wh_digester *wh_digester_create_strong(void) {
    return create(&strong_engine);
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
