/** @file byteorder.h  Numbers as bytes, most significant first; doubles bit by bit. */
#ifndef WH_BASE_BYTEORDER_H
#define WH_BASE_BYTEORDER_H

#include <stdint.h>
#include <string.h>

static inline uint64_t wh_double_bits(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static inline double wh_bits_double(uint64_t bits) {
    double number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

static inline void wh_store_be64(uint8_t bytes[8], uint64_t number) {
    for (int i = 7; i >= 0; i--) {
        bytes[i] = (uint8_t)number;
        number >>= 8;
    }
}

static inline void wh_store_be32(uint8_t bytes[4], uint32_t number) {
    for (int i = 3; i >= 0; i--) {
        bytes[i] = (uint8_t)number;
        number >>= 8;
    }
}

static inline uint32_t wh_load_be32(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline uint64_t wh_load_be64(const uint8_t bytes[8]) {
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

#endif
