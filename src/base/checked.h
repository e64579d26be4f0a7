/**
 * @file checked.h  Size arithmetic that cannot wrap.
 *
 * Sizes, offsets and strides stay within 63 bits everywhere, so they fit both int64_t and uint64_t.
 * If a result does not fit in 63 bits, the function returns false and leaves *result unchanged.
 */
#ifndef WH_BASE_CHECKED_H
#define WH_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool wh_add(uint64_t a, uint64_t b, uint64_t *result) {
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum) || sum > INT64_MAX) {
        return false;
    }
    *result = sum;
    return true;
}

static inline bool wh_mul(uint64_t a, uint64_t b, uint64_t *result) {
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product) || product > INT64_MAX) {
        return false;
    }
    *result = product;
    return true;
}

/** Adds a * b to *result. */
static inline bool wh_add_product(uint64_t a, uint64_t b, uint64_t *result) {
    uint64_t product;
    return wh_mul(a, b, &product) && wh_add(*result, product, result);
}

/** The sum, or UINT64_MAX if it is larger. */
static inline uint64_t wh_add_saturating(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/** For qsort: -1, 0 or 1. */
static inline int wh_order(uint64_t a, uint64_t b) {
    return a < b ? -1 : a > b;
}

static inline uint64_t wh_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t wh_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
