/** @file digest_engine.h  XXH3 made for one kind of processor: the same digest by other instructions. */
#ifndef WH_RANGE_DIGEST_ENGINE_H
#define WH_RANGE_DIGEST_ENGINE_H

#include "range/digest.h"

typedef struct wh_digest_engine {
    size_t state_bytes;
    void (*begin)(void *state);
    void (*add)(void *state, const void *bytes, size_t size);
    wh_digest (*end)(const void *state);
} wh_digest_engine;

/** A state lies at a multiple of this. */
enum { WH_DIGEST_ALIGNMENT = 64 };

/** For every processor of this architecture; then for those that have more. The build says which there are. */
extern const wh_digest_engine wh_digest_plain;
extern const wh_digest_engine wh_digest_avx2;
extern const wh_digest_engine wh_digest_avx512;

#endif
