#include "range/digest.h"

#include "base/alloc.h"
#include "range/digest_engine.h"

/** Its state lies at an aligned address behind it, within what was allocated. */
struct wh_digester {
    const wh_digest_engine *engine;
    void *state;
};

/** The fastest that this processor has. */
static const wh_digest_engine *choose(void) {
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
    const wh_digest_engine *engine = choose();
    wh_digester *digester = wh_alloc(sizeof(*digester) + WH_DIGEST_ALIGNMENT + engine->state_bytes);
    if (!digester) {
        return NULL;
    }
    char *behind = (char *)(digester + 1);
    *digester = (wh_digester){engine, behind + (WH_DIGEST_ALIGNMENT - (uintptr_t)behind % WH_DIGEST_ALIGNMENT)};
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
