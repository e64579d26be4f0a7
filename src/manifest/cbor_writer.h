/** @file cbor_writer.h  Writing CBOR items, one behind the other, through libcbor's encoders. */
#ifndef WH_MANIFEST_CBOR_WRITER_H
#define WH_MANIFEST_CBOR_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Starts as {0}. After a failed allocation it stays failed, and writing does nothing. */
typedef struct wh_writer {
    unsigned char *bytes;
    size_t size;
    size_t capacity;
    bool failed;
} wh_writer;

void wh_write_null(wh_writer *writer);
void wh_write_bool(wh_writer *writer, bool content);
void wh_write_int(wh_writer *writer, int64_t number);
void wh_write_array(wh_writer *writer, uint64_t count);
void wh_write_tag(wh_writer *writer, uint64_t tag);
void wh_write_bytes(wh_writer *writer, const void *bytes, size_t size);
void wh_write_text(wh_writer *writer, const char *text, size_t size);

/** An array of integers. */
void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count);

#endif
