#include "base/bulk.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64, SHORT = 2 << 10 };

void wh_copy_past_cache(void *restrict to, const void *restrict from, size_t size) {
    if (size < SHORT) {
        memcpy(to, from, size);
        return;
    }
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (size_t)(-(uintptr_t)out & (LINE - 1));
    memcpy(out, in, head);
    out += head;
    in += head;
    size -= head;
    for (; size >= LINE; size -= LINE, out += LINE, in += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)in);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(in + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(in + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(in + 48));
        _mm_stream_si128((__m128i *)(void *)out, a);
        _mm_stream_si128((__m128i *)(void *)(out + 16), b);
        _mm_stream_si128((__m128i *)(void *)(out + 32), c);
        _mm_stream_si128((__m128i *)(void *)(out + 48), d);
    }
    memcpy(out, in, size);
    _mm_sfence(); /* such stores are not ordered with later ones by themselves */
}
#else
void wh_copy_past_cache(void *restrict to, const void *restrict from, size_t size) {
    memcpy(to, from, size);
}
#endif
