#include "base/cache_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>

#include "base/process.h"

enum { LINE = 64, SHORT = 2 << 10, PAGE = 4 << 10 };

/** Copies whole cache lines to an aligned destination. */
typedef void copy_lines_fn(uint8_t *restrict to, const uint8_t *restrict from, size_t lines);

static void copy_lines(uint8_t *restrict to, const uint8_t *restrict from, size_t lines) {
    for (; lines > 0; lines--, to += LINE, from += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
}

/**
 * Writes a full cache line per store. Some processors split smaller non-temporal stores if two
 * threads share a core.
 */
__attribute__((target("avx512f"))) static void copy_lines_avx512(uint8_t *restrict to, const uint8_t *restrict from,
                                                                 size_t lines) {
    for (; lines >= 4; lines -= 4, to += 4 * LINE, from += 4 * LINE) {
        __builtin_prefetch(from + PAGE);
        __m512i a = _mm512_loadu_si512(from);
        __m512i b = _mm512_loadu_si512(from + LINE);
        __m512i c = _mm512_loadu_si512(from + 2 * LINE);
        __m512i d = _mm512_loadu_si512(from + 3 * LINE);
        _mm512_stream_si512((void *)to, a);
        _mm512_stream_si512((void *)(to + LINE), b);
        _mm512_stream_si512((void *)(to + 2 * LINE), c);
        _mm512_stream_si512((void *)(to + 3 * LINE), d);
    }
    for (; lines > 0; lines--, to += LINE, from += LINE) {
        _mm512_stream_si512((void *)to, _mm512_loadu_si512(from));
    }
}

void wh_memcpy_nontemporal(void *restrict to, const void *restrict from, size_t size) {
    if (size < SHORT) {
        memcpy(to, from, size);
        return;
    }
    copy_lines_fn *copy = wh_cpu_features() & WH_CPU_AVX512F ? copy_lines_avx512 : copy_lines;
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (size_t)(-(uintptr_t)out & (LINE - 1));
    memcpy(out, in, head);
    size_t lines = (size - head) / LINE;
    copy(out + head, in + head, lines);
    size_t done = head + lines * LINE;
    memcpy(out + done, in + done, size - done);
}

void wh_memcpy_fence(void) {
    _mm_sfence();
}

void wh_memcpy_into_cache(void *restrict to, const void *restrict from, size_t size) {
    if (size < SHORT || !(wh_cpu_features() & WH_CPU_ERMS)) {
        memcpy(to, from, size);
        return;
    }
    uint8_t *out = to;
    const uint8_t *in = from;
    while (size > 0) {
        size_t step = size < PAGE ? size : PAGE;
        size_t left = step;
        __builtin_prefetch(in + PAGE); /* A prefetch past the end is harmless. */
        __asm__ volatile("rep movsb" : "+D"(out), "+S"(in), "+c"(left) : : "memory");
        size -= step;
    }
}
#else
void wh_memcpy_fence(void) {
}

void wh_memcpy_into_cache(void *restrict to, const void *restrict from, size_t size) {
    memcpy(to, from, size);
}

void wh_memcpy_nontemporal(void *restrict to, const void *restrict from, size_t size) {
    memcpy(to, from, size);
}
#endif
