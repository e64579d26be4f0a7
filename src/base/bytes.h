/**
 * @file bytes.h  Numbers as bytes in a fixed byte order, and a cursor that reads bytes from a peer
 * without reading past their end.
 */
#ifndef WH_BASE_BYTES_H
#define WH_BASE_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** Borrowed bytes. */
typedef struct wh_bytes {
    const void *bytes;
    size_t size;
} wh_bytes;

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

/** @name Big endian: used on the wire and in Wherry's own file format. */
/** @{ */
static inline void wh_store_be64(uint8_t bytes[8], uint64_t number) {
    number = htobe64(number);
    memcpy(bytes, &number, sizeof(number));
}

static inline void wh_store_be32(uint8_t bytes[4], uint32_t number) {
    number = htobe32(number);
    memcpy(bytes, &number, sizeof(number));
}

static inline uint32_t wh_load_be32(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline uint64_t wh_load_be64(const uint8_t bytes[8]) {
    uint64_t number;
    memcpy(&number, bytes, sizeof(number));
    return be64toh(number);
}
/** @} */

/** @name Little endian: used in safetensors files. */
/** @{ */
static inline void wh_store_le64(uint8_t bytes[8], uint64_t number) {
    number = htole64(number);
    memcpy(bytes, &number, sizeof(number));
}

static inline uint64_t wh_load_le64(const uint8_t bytes[8]) {
    uint64_t number;
    memcpy(&number, bytes, sizeof(number));
    return le64toh(number);
}
/** @} */

/**
 * Reads items from a buffer, one after the other. After an attempt to read past the end, `failed`
 * stays set and every read returns 0 or NULL.
 */
typedef struct wh_cursor {
    const uint8_t *at;
    size_t left;
    bool failed;
} wh_cursor;

static inline wh_cursor wh_cursor_over(const void *bytes, size_t size) {
    return (wh_cursor){bytes, size, false};
}

/** Reads the next `size` bytes. @return the bytes, borrowed; NULL if fewer are left. */
static inline const uint8_t *wh_cursor_bytes(wh_cursor *cursor, size_t size) {
    const uint8_t *bytes = cursor->at;
    if (cursor->failed || size > cursor->left) {
        cursor->failed = true;
        return NULL;
    }
    cursor->at += size;
    cursor->left -= size;
    return bytes;
}

/** Reads the next `size` bytes into `to`. Copies nothing if fewer are left. */
static inline void wh_cursor_copy(wh_cursor *cursor, void *to, size_t size) {
    const uint8_t *bytes = wh_cursor_bytes(cursor, size);
    if (bytes) {
        memcpy(to, bytes, size);
    }
}

/** Reads a big-endian number of `width` bytes, at most 8. */
static inline uint64_t wh_cursor_number(wh_cursor *cursor, size_t width) {
    const uint8_t *bytes = wh_cursor_bytes(cursor, width);
    uint64_t number = 0;
    for (size_t i = 0; bytes && i < width; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

/**
 * Reads bytes that wh_append_sized (text.h) has written. @return the bytes, borrowed; NULL if they
 * are incomplete.
 */
static inline wh_bytes wh_cursor_sized(wh_cursor *cursor, size_t width) {
    size_t size = (size_t)wh_cursor_number(cursor, width);
    const uint8_t *bytes = wh_cursor_bytes(cursor, size);
    return (wh_bytes){bytes, bytes ? size : 0};
}

/** True if every read succeeded and nothing is left. */
static inline bool wh_cursor_ended(const wh_cursor *cursor) {
    return !cursor->failed && cursor->left == 0;
}

#endif
