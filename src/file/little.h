/** @file little.h  Numbers as bytes, least significant first, as safetensors has them. */
#ifndef WH_FILE_LITTLE_H
#define WH_FILE_LITTLE_H

#include <stdint.h>

#include "base/text.h"

static inline uint64_t wh_load_little(const void *bytes, int width) {
    uint64_t number = 0;
    for (int i = width - 1; i >= 0; i--) {
        number = number << 8 | ((const uint8_t *)bytes)[i];
    }
    return number;
}

static inline void wh_store_little(void *bytes, uint64_t number, int width) {
    for (int i = 0; i < width; i++) {
        ((uint8_t *)bytes)[i] = (uint8_t)(number >> 8 * i);
    }
}

static inline void wh_append_little(wh_string *out, uint64_t number, int width) {
    char bytes[8];
    wh_store_little(bytes, number, width);
    wh_string_append(out, bytes, (size_t)width);
}

#endif
