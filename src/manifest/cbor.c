#include "manifest/cbor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

wherry_status(wh_read_fault)(const wh_cbor_reader *reader, wherry_status status, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return wh_fail_at(reader->error, status, reader->item, "byte %zu of the manifest: %s", reader->item, what);
}

/** The length in bytes of the shortest head for a number. */
static size_t head_size(uint64_t number) {
    return number < WH_FORM_U8 ? 1 : number <= UINT8_MAX ? 2 : number <= UINT16_MAX ? 3 : number <= UINT32_MAX ? 5 : 9;
}

static wherry_status fault_at_end(const wh_cbor_reader *reader) {
    return wh_read_fault(reader, WHERRY_TRUNCATED, "the manifest ends within an item");
}

wherry_status wh_read_any_item(wh_cbor_reader *reader, wh_item *item) {
    const unsigned char *head = reader->bytes + reader->at;
    size_t left = wh_reader_left(reader);
    unsigned major = left ? *head >> 5 : 0;
    unsigned form = left ? *head & 0x1F : 0;
    size_t width = form >= WH_FORM_U8 && form <= WH_FORM_U64 ? (size_t)1 << (form - WH_FORM_U8) : 0;
    uint64_t number = width ? 0 : form;
    reader->item = reader->at;
    if (left <= width) {
        return fault_at_end(reader);
    }
    for (size_t i = 1; i <= width; i++) {
        number = number << 8 | head[i];
    }
    if (form == WH_FORM_INDEFINITE && major >= WH_MAJOR_BYTES && major <= WH_MAJOR_MAP) {
        return wh_read_fault(reader, WHERRY_NOT_CANONICAL, "an item has an indefinite length");
    }
    if (form > WH_FORM_U64) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "invalid CBOR");
    }
    bool boolean = major == WH_MAJOR_SIMPLE && (form == WH_SIMPLE_FALSE || form == WH_SIMPLE_TRUE);
    bool null = major == WH_MAJOR_SIMPLE && form == WH_SIMPLE_NULL;
    if (major == WH_MAJOR_MAP || (major == WH_MAJOR_SIMPLE && !boolean && !null)) {
        return wh_read_fault(reader, WHERRY_MALFORMED, "the item has a type that manifests do not use");
    }
    if (1 + width != head_size(number)) {
        return wh_read_fault(reader, WHERRY_NOT_CANONICAL, "a number is not in its shortest form");
    }
    bool string = major == WH_MAJOR_BYTES || major == WH_MAJOR_TEXT;
    if (string && number > reader->string_bytes) {
        return wh_read_fault(reader, WHERRY_LIMIT, "a string has %llu bytes; the limit is %llu",
                             (unsigned long long)number, (unsigned long long)reader->string_bytes);
    }
    if (string && number > left - 1 - width) {
        return fault_at_end(reader);
    }
    item->type = boolean ? WH_ITEM_BOOL : null ? WH_ITEM_NULL : (wh_item_type)major;
    item->number = boolean ? form == WH_SIMPLE_TRUE : number;
    item->bytes = string ? head + 1 + width : NULL;
    reader->at += 1 + width + (string ? number : 0);
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
    char *name = wh_text_copy((const char *)item.bytes, item.number);
    WH_TRY_ALLOC(name, reader->error, wanted);
    *name_p = name;
    return WHERRY_OK;
}

unsigned char *wh_put_long_head(unsigned char *at, unsigned major, uint64_t number) {
    size_t width = number <= UINT32_MAX ? 4 : 8;
    *at = (unsigned char)(major << 5 | (width == 4 ? WH_FORM_U32 : WH_FORM_U64));
    for (size_t i = width; i > 0; i--, number >>= 8) {
        at[i] = (unsigned char)number;
    }
    return at + 1 + width;
}

static void write_string(wh_string *out, unsigned major, const void *bytes, size_t size) {
    unsigned char *at = size < SIZE_MAX / 2 ? wh_room_for_items(out, WH_HEAD_MAX + size) : NULL;
    if (at) {
        at = wh_put_head(at, major, size);
        if (size) {
            memcpy(at, bytes, size);
        }
        wh_items_end(out, at + size);
    }
    out->failed = out->failed || !at;
}

void wh_write_bytes(wh_string *out, const void *bytes, size_t size) {
    write_string(out, WH_MAJOR_BYTES, bytes, size);
}

void wh_write_text(wh_string *out, const char *text, size_t size) {
    write_string(out, WH_MAJOR_TEXT, text, size);
}

void wh_write_ints(wh_string *out, const int64_t *numbers, size_t count) {
    unsigned char *at = count < SIZE_MAX / 2 / WH_HEAD_MAX ? wh_room_for_items(out, (count + 1) * WH_HEAD_MAX) : NULL;
    wh_items_end(out, at ? wh_put_ints(at, numbers, count) : NULL);
    out->failed = out->failed || !at;
}
