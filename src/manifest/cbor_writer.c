#include "manifest/cbor_writer.h"

#include <cbor.h>
#include <string.h>

#include "base/alloc.h"

void wh_writer_reserve(wh_writer *writer, size_t size) {
    writer->failed = !WH_RESERVE(writer->bytes, writer->capacity, size);
}

unsigned char *wh_writer_room(wh_writer *writer, size_t more) {
    if (more <= writer->capacity - writer->size && writer->bytes) {
        return writer->bytes + writer->size;
    }
    if (writer->failed || more > SIZE_MAX / 2 - writer->size ||
        !WH_GROW(writer->bytes, writer->capacity, writer->size + more)) {
        writer->failed = true;
        return NULL;
    }
    return writer->bytes + writer->size;
}

void wh_write_bool(wh_writer *writer, bool content) {
    unsigned char *at = wh_writer_room(writer, WH_HEAD_MAX);
    writer->size += at ? cbor_encode_bool(content, at, WH_HEAD_MAX) : 0;
}

unsigned char *wh_put_long_head(unsigned char *at, unsigned major, uint64_t number) {
    size_t size = cbor_encode_uint(number, at, WH_HEAD_MAX);
    *at = (unsigned char)(*at | major << 5); /* an integer's head, made that of another type */
    return at + size;
}

void wh_write_tag(wh_writer *writer, uint64_t tag) {
    unsigned char *at = wh_writer_room(writer, WH_HEAD_MAX);
    writer->size += at ? cbor_encode_tag(tag, at, WH_HEAD_MAX) : 0;
}

static void write_string(wh_writer *writer, unsigned major, const void *bytes, size_t size) {
    unsigned char *at = size < SIZE_MAX / 2 ? wh_writer_room(writer, WH_HEAD_MAX + size) : NULL;
    if (at) {
        at = wh_put_head(at, major, size);
        if (size) {
            memcpy(at, bytes, size);
        }
        wh_writer_take(writer, at + size);
    }
    writer->failed = writer->failed || !at;
}

void wh_write_items(wh_writer *writer, const void *items, size_t size) {
    unsigned char *at = wh_writer_room(writer, size);
    if (at && size) {
        memcpy(at, items, size);
        wh_writer_take(writer, at + size);
    }
}

void wh_write_bytes(wh_writer *writer, const void *bytes, size_t size) {
    write_string(writer, WH_MAJOR_BYTES, bytes, size);
}

void wh_write_text(wh_writer *writer, const char *text, size_t size) {
    write_string(writer, WH_MAJOR_TEXT, text, size);
}

void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count) {
    unsigned char *at = count < SIZE_MAX / 2 / WH_HEAD_MAX ? wh_writer_room(writer, (count + 1) * WH_HEAD_MAX) : NULL;
    wh_writer_take(writer, at ? wh_put_ints(at, numbers, count) : NULL);
    writer->failed = writer->failed || !at;
}
