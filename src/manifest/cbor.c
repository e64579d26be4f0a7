#include "manifest/cbor.h"

#include <cbor.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

static void on_number(void *context, wh_item_type type, uint64_t number) {
    wh_item *item = context;
    item->type = type;
    item->number = number;
}

/** Defines a callback for libcbor that receives a number. */
#define ON_NUMBER(name, c_type, item_type)                                                                             \
    static void name(void *context, c_type number) {                                                                   \
        on_number(context, item_type, number);                                                                         \
    }
ON_NUMBER(on_uint8, uint8_t, WH_ITEM_UINT)
ON_NUMBER(on_uint16, uint16_t, WH_ITEM_UINT)
ON_NUMBER(on_uint32, uint32_t, WH_ITEM_UINT)
ON_NUMBER(on_uint64, uint64_t, WH_ITEM_UINT)
ON_NUMBER(on_negint8, uint8_t, WH_ITEM_NEGINT)
ON_NUMBER(on_negint16, uint16_t, WH_ITEM_NEGINT)
ON_NUMBER(on_negint32, uint32_t, WH_ITEM_NEGINT)
ON_NUMBER(on_negint64, uint64_t, WH_ITEM_NEGINT)
ON_NUMBER(on_array, uint64_t, WH_ITEM_ARRAY)
ON_NUMBER(on_tag, uint64_t, WH_ITEM_TAG)
ON_NUMBER(on_bool, bool, WH_ITEM_BOOL)
ON_NUMBER(on_map, uint64_t, WH_ITEM_OTHER)
#undef ON_NUMBER

static void on_bytes(void *context, cbor_data bytes, uint64_t size) {
    on_number(context, WH_ITEM_BYTES, size);
    ((wh_item *)context)->bytes = bytes;
}

static void on_text(void *context, cbor_data bytes, uint64_t size) {
    on_number(context, WH_ITEM_TEXT, size);
    ((wh_item *)context)->bytes = bytes;
}

static void on_null(void *context) {
    on_number(context, WH_ITEM_NULL, 0);
}

static void on_indefinite(void *context) {
    on_number(context, WH_ITEM_INDEFINITE, 0);
}

static void on_other(void *context) {
    on_number(context, WH_ITEM_OTHER, 0);
}

static void on_float(void *context, float number) {
    (void)number;
    on_other(context);
}

static void on_double(void *context, double number) {
    (void)number;
    on_other(context);
}

static const struct cbor_callbacks callbacks = {
    .uint8 = on_uint8,
    .uint16 = on_uint16,
    .uint32 = on_uint32,
    .uint64 = on_uint64,
    .negint8 = on_negint8,
    .negint16 = on_negint16,
    .negint32 = on_negint32,
    .negint64 = on_negint64,
    .byte_string = on_bytes,
    .byte_string_start = on_indefinite,
    .string = on_text,
    .string_start = on_indefinite,
    .array_start = on_array,
    .indef_array_start = on_indefinite,
    .map_start = on_map,
    .indef_map_start = on_indefinite,
    .tag = on_tag,
    .boolean = on_bool,
    .null = on_null,
    .undefined = on_other,
    .float2 = on_float,
    .float4 = on_float,
    .float8 = on_double,
    .indef_break = on_other,
};

wherry_status wh_read_fault(const wh_cbor_reader *reader, wherry_status status, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return wh_fail_at(reader->error, status, reader->item, "byte %zu of the manifest: %s", reader->item, what);
}

/** The length in bytes of the shortest head for a number. */
static size_t head_size(uint64_t number) {
    return number < 24 ? 1 : number <= UINT8_MAX ? 2 : number <= UINT16_MAX ? 3 : number <= UINT32_MAX ? 5 : 9;
}

/**
 * The string length that is in the head of a truncated string; 0 if the head itself is truncated.
 */
static uint64_t claimed_length(const wh_cbor_reader *reader) {
    const unsigned char *head = reader->bytes + reader->item;
    unsigned form = head[0] & 0x1F;
    if (form < 24) {
        return form;
    }
    size_t width = (size_t)1 << (form - 24);
    uint64_t length = 0;
    if (width >= reader->size - reader->item) {
        return 0;
    }
    for (size_t i = 1; i <= width; i++) {
        length = length << 8 | head[i];
    }
    return length;
}

/** Fails because the input ends within an item. */
static wherry_status fault_at_end(const wh_cbor_reader *reader) {
    unsigned char major = reader->item < reader->size ? reader->bytes[reader->item] >> 5 : 0;
    bool string = major == 2 || major == 3;
    uint64_t length = string ? claimed_length(reader) : 0;
    if (length > reader->string_bytes) {
        return wh_read_fault(reader, WHERRY_LIMIT, "a string has %llu bytes; the limit is %llu",
                             (unsigned long long)length, (unsigned long long)reader->string_bytes);
    }
    return wh_read_fault(reader, WHERRY_TRUNCATED, "the manifest ends within an item");
}

wherry_status wh_read_any_item(wh_cbor_reader *reader, wh_item *item) {
    reader->item = reader->at;
    item->bytes = NULL;
    struct cbor_decoder_result result =
        cbor_stream_decode(reader->bytes + reader->at, reader->size - reader->at, &callbacks, item);
    if (result.status == CBOR_DECODER_NEDATA) {
        return fault_at_end(reader);
    }
    if (result.status != CBOR_DECODER_FINISHED) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "invalid CBOR");
    }
    if (item->type == WH_ITEM_INDEFINITE) {
        return wh_read_fault(reader, WHERRY_NOT_CANONICAL, "an item has an indefinite length");
    }
    bool string = item->type == WH_ITEM_BYTES || item->type == WH_ITEM_TEXT;
    size_t head = result.read - (string ? item->number : 0);
    if (item->type <= WH_ITEM_TAG && head != head_size(item->number)) {
        return wh_read_fault(reader, WHERRY_NOT_CANONICAL, "a number is not in its shortest form");
    }
    if (item->type == WH_ITEM_OTHER) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "the item has a type that manifests do not use");
    }
    if (string && item->number > reader->string_bytes) {
        return wh_read_fault(reader, WHERRY_LIMIT, "a string has %llu bytes; the limit is %llu",
                             (unsigned long long)item->number, (unsigned long long)reader->string_bytes);
    }
    reader->at += result.read;
    return WHERRY_OK;
}

wherry_status wh_read_typed(wh_cbor_reader *reader, wh_item_type type, const char *wanted, wh_item *item) {
    WH_TRY(wh_read_item(reader, item));
    if (item->type != type) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "expected %s, but the item has another type", wanted);
    }
    return WHERRY_OK;
}

wherry_status wh_read_any_uint(wh_cbor_reader *reader, uint64_t most, const char *wanted, uint64_t *number_p) {
    wh_item item;
    WH_TRY(wh_read_typed(reader, WH_ITEM_UINT, wanted, &item));
    if (item.number > most) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "%llu is out of range for %s", (unsigned long long)item.number,
                             wanted);
    }
    *number_p = item.number;
    return WHERRY_OK;
}

wherry_status wh_read_int(wh_cbor_reader *reader, int64_t least, const char *wanted, int64_t *number_p) {
    wh_item item;
    WH_TRY(wh_read_item(reader, &item));
    bool integer = item.type == WH_ITEM_UINT || item.type == WH_ITEM_NEGINT;
    int64_t number = item.type == WH_ITEM_NEGINT ? -1 - (int64_t)item.number : (int64_t)item.number;
    if (!integer || item.number > INT64_MAX || number < least) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "%s is not an integer, or is out of range", wanted);
    }
    *number_p = number;
    return WHERRY_OK;
}

wherry_status wh_read_array(wh_cbor_reader *reader, const char *wanted, uint64_t *count_p) {
    wh_item item;
    WH_TRY(wh_read_typed(reader, WH_ITEM_ARRAY, wanted, &item));
    if (item.number > wh_reader_left(reader)) {
        return wh_read_fault(reader, WHERRY_TRUNCATED, "only %zu bytes are left for the %llu items of %s",
                             wh_reader_left(reader), (unsigned long long)item.number, wanted);
    }
    *count_p = item.number;
    return WHERRY_OK;
}

wherry_status wh_read_array_of(wh_cbor_reader *reader, uint64_t count, const char *wanted) {
    uint64_t found = 0;
    WH_TRY(wh_read_array(reader, wanted, &found));
    if (found != count) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "expected %llu items in %s, but there are %llu",
                             (unsigned long long)count, wanted, (unsigned long long)found);
    }
    return WHERRY_OK;
}

wherry_status wh_read_uints(wh_cbor_reader *reader, uint32_t most, const char *wanted, int64_t *numbers,
                            uint32_t *count_p) {
    wh_item item;
    WH_TRY(wh_read_typed(reader, WH_ITEM_ARRAY, wanted, &item));
    if (item.number > most) {
        return wh_read_fault(reader, WHERRY_LIMIT, "there are %llu numbers in %s; the maximum is %u",
                             (unsigned long long)item.number, wanted, most);
    }
    if (item.number > wh_reader_left(reader)) {
        return wh_read_fault(reader, WHERRY_TRUNCATED, "the manifest ends within %s", wanted);
    }
    for (uint64_t i = 0; i < item.number; i++) {
        uint64_t number = 0;
        WH_TRY(wh_read_uint(reader, INT64_MAX, wanted, &number));
        numbers[i] = (int64_t)number;
    }
    *count_p = (uint32_t)item.number;
    return WHERRY_OK;
}

wherry_status wh_read_text(wh_cbor_reader *reader, const char *wanted, wh_item *item) {
    WH_TRY(wh_read_typed(reader, WH_ITEM_TEXT, wanted, item));
    if (!wh_utf8_valid((const char *)item->bytes, item->number)) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "%s is not UTF-8", wanted);
    }
    return WHERRY_OK;
}

wherry_status wh_read_name(wh_cbor_reader *reader, const char *wanted, char **name_p) {
    wh_item item;
    WH_TRY(wh_read_text(reader, wanted, &item));
    if (item.bytes && memchr(item.bytes, 0, item.number)) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "%s contains a zero byte", wanted);
    }
    char *name = wh_copy_text((const char *)item.bytes, item.number);
    if (!name) {
        return wh_fail_memory(reader->error, wanted);
    }
    *name_p = name;
    return WHERRY_OK;
}

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
    /* changes the head of an integer to another major type */
    *at = (unsigned char)(*at | major << 5);
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
