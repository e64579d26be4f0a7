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

/** The head of any item, by way of libcbor; `major` is its type, as CBOR numbers it. */
void wh_write_any_head(wh_writer *writer, unsigned major, uint64_t number);

/** The head of an item; one that is short, as nearly all are, and has room, is written without a call. */
static inline void wh_write_head(wh_writer *writer, unsigned major, uint64_t number) {
    enum { SHORT = 3 };
    if (number > UINT16_MAX || writer->capacity - writer->size < SHORT) {
        wh_write_any_head(writer, major, number);
        return;
    }
    unsigned char *at = writer->bytes + writer->size;
    if (number < 24) {
        *at = (unsigned char)(major << 5 | number);
        writer->size++;
    } else if (number <= UINT8_MAX) {
        at[0] = (unsigned char)(major << 5 | 24);
        at[1] = (unsigned char)number;
        writer->size += 2;
    } else {
        at[0] = (unsigned char)(major << 5 | 25);
        at[1] = (unsigned char)(number >> 8);
        at[2] = (unsigned char)number;
        writer->size += SHORT;
    }
}

static inline void wh_write_int(wh_writer *writer, int64_t number) {
    wh_write_head(writer, number < 0 ? WH_MAJOR_NEGINT : WH_MAJOR_UINT, (uint64_t)(number < 0 ? -1 - number : number));
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
void wh_write_text(wh_writer *writer, const char *text, size_t size);

/** An array of integers. */
void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count);

#endif
