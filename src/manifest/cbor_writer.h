/** @file cbor_writer.h  Writing CBOR items, one behind the other; libcbor's encoders write those that are rare. */
#ifndef WH_MANIFEST_CBOR_WRITER_H
#define WH_MANIFEST_CBOR_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manifest/format.h"

/** Starts as {0}. After a failed allocation it stays failed, and writing does nothing. */
typedef struct wh_writer {
    unsigned char *bytes;
    size_t size;
    size_t capacity;
    bool failed;
} wh_writer;

/** Makes room for so many bytes in all, in the hope that no more are needed. */
void wh_writer_reserve(wh_writer *writer, size_t size);

/** The longest head of an item: a byte and eight more. */
enum { WH_HEAD_MAX = 9 };

/** A head that is not short, by way of libcbor. @return behind it. */
unsigned char *wh_put_long_head(unsigned char *at, unsigned major, uint64_t number);

/**
 * Writes the head of an item where there is room for WH_HEAD_MAX bytes; `major` is its type, as CBOR numbers it. Whoever writes many takes room for all of them, so
 * that nothing but this is done for each: nearly all are short.
 * @return behind it.
 */
static inline unsigned char *wh_put_head(unsigned char *at, unsigned major, uint64_t number) {
    if (number < 24) {
        at[0] = (unsigned char)(major << 5 | number);
        return at + 1;
    }
    if (number <= UINT8_MAX) {
        at[0] = (unsigned char)(major << 5 | 24);
        at[1] = (unsigned char)number;
        return at + 2;
    }
    if (number <= UINT16_MAX) {
        at[0] = (unsigned char)(major << 5 | 25);
        at[1] = (unsigned char)(number >> 8);
        at[2] = (unsigned char)number;
        return at + 3;
    }
    return wh_put_long_head(at, major, number);
}

static inline unsigned char *wh_put_int(unsigned char *at, int64_t number) {
    return wh_put_head(at, number < 0 ? WH_MAJOR_NEGINT : WH_MAJOR_UINT, (uint64_t)(number < 0 ? -1 - number : number));
}

static inline unsigned char *wh_put_array(unsigned char *at, uint64_t count) {
    return wh_put_head(at, WH_MAJOR_ARRAY, count);
}

static inline unsigned char *wh_put_null(unsigned char *at) {
    return wh_put_head(at, WH_MAJOR_SIMPLE, WH_SIMPLE_NULL);
}

/** An array of integers; it takes count + 1 heads. */
static inline unsigned char *wh_put_ints(unsigned char *at, const int64_t *numbers, size_t count) {
    at = wh_put_array(at, count);
    for (size_t i = 0; i < count; i++) {
        at = wh_put_int(at, numbers[i]);
    }
    return at;
}

/** Room for so many bytes, or NULL. */
unsigned char *wh_writer_room(wh_writer *writer, size_t more);

/** All before `at`, which lies in the room that was taken last, is written. at may be NULL: nothing is. */
static inline void wh_writer_take(wh_writer *writer, const unsigned char *at) {
    writer->size = at ? (size_t)(at - writer->bytes) : writer->size;
}

static inline void wh_write_head(wh_writer *writer, unsigned major, uint64_t number) {
    unsigned char *at = wh_writer_room(writer, WH_HEAD_MAX);
    wh_writer_take(writer, at ? wh_put_head(at, major, number) : NULL);
}

static inline void wh_write_int(wh_writer *writer, int64_t number) {
    unsigned char *at = wh_writer_room(writer, WH_HEAD_MAX);
    wh_writer_take(writer, at ? wh_put_int(at, number) : NULL);
}

static inline void wh_write_array(wh_writer *writer, uint64_t count) {
    wh_write_head(writer, WH_MAJOR_ARRAY, count);
}

static inline void wh_write_null(wh_writer *writer) {
    wh_write_head(writer, WH_MAJOR_SIMPLE, WH_SIMPLE_NULL);
}

void wh_write_bool(wh_writer *writer, bool content);
void wh_write_tag(wh_writer *writer, uint64_t tag);
void wh_write_bytes(wh_writer *writer, const void *bytes, size_t size);
/** What another writer wrote. */
void wh_write_items(wh_writer *writer, const void *items, size_t size);

void wh_write_text(wh_writer *writer, const char *text, size_t size);

/** An array of integers. */
void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count);

#endif
