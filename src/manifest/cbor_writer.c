#include "manifest/cbor_writer.h"

#include <cbor.h>
#include <string.h>

#include "base/alloc.h"

/** The longest head of an item: a byte and eight more. */
enum { HEAD_MAX = 9 };

void wh_writer_reserve(wh_writer *writer, size_t size) {
    writer->failed = !WH_RESERVE(writer->bytes, writer->capacity, size);
}

/** Room for so many bytes, or NULL. */
static unsigned char *room(wh_writer *writer, size_t more) {
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
    unsigned char *at = room(writer, HEAD_MAX);
    writer->size += at ? cbor_encode_bool(content, at, HEAD_MAX) : 0;
}

void wh_write_any_head(wh_writer *writer, unsigned major, uint64_t number) {
    unsigned char *at = room(writer, HEAD_MAX);
    if (at) { /* an integer's head, made that of another type */
        writer->size += cbor_encode_uint(number, at, HEAD_MAX);
        *at = (unsigned char)(*at | major << 5);
    }
}

void wh_write_tag(wh_writer *writer, uint64_t tag) {
    unsigned char *at = room(writer, HEAD_MAX);
    writer->size += at ? cbor_encode_tag(tag, at, HEAD_MAX) : 0;
}

static void write_string(wh_writer *writer, unsigned major, const void *bytes, size_t size) {
    wh_write_head(writer, major, size);
    unsigned char *at = room(writer, size);
    if (at && size) {
        memcpy(at, bytes, size);
        writer->size += size;
    }
}

void wh_write_bytes(wh_writer *writer, const void *bytes, size_t size) {
    write_string(writer, WH_MAJOR_BYTES, bytes, size);
}

void wh_write_text(wh_writer *writer, const char *text, size_t size) {
    write_string(writer, WH_MAJOR_TEXT, text, size);
}

void wh_write_ints(wh_writer *writer, const int64_t *numbers, size_t count) {
    wh_write_array(writer, count);
    for (size_t i = 0; i < count; i++) {
        wh_write_int(writer, numbers[i]);
    }
}
