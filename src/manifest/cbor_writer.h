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

/** Makes room for so many bytes in all, in the hope that no more are needed. */
void wh_writer_reserve(wh_writer *writer, size_t size);

/** Any integer, and the head of any array. */
void wh_write_any_int(wh_writer *writer, int64_t number);
void wh_write_any_array(wh_writer *writer, uint64_t count);

/** Writes a byte that is a whole item, where there is room. @return false where there is none. */
static inline bool wh_put_byte(wh_writer *writer, unsigned char byte) {
    bool room = writer->size < writer->capacity;
    if (room) {
        writer->bytes[writer->size++] = byte;
    }
    return room;
}

/** Numbers below 24 fit the first byte of an item, as most do: the encoder is called for the rest. */
static inline void wh_write_int(wh_writer *writer, int64_t number) {
    if (number < 0 || number >= 24 || !wh_put_byte(writer, (unsigned char)number)) {
        wh_write_any_int(writer, number);
    }
}

static inline void wh_write_array(wh_writer *writer, uint64_t count) {
    if (count >= 24 || !wh_put_byte(writer, (unsigned char)(0x80 | count))) {
        wh_write_any_array(writer, count);
    }
}

void wh_write_null(wh_writer *writer);
void wh_write_bool(wh_writer *writer, bool content);
void wh_write_tag(wh_writer *writer, uint64_t tag);
void wh_write_bytes(wh_writer *writer, const void *bytes, size_t size);
void wh_write_text(wh_writer *writer, const char *text, size_t size);

/** An array of integers. */
void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count);

#endif
