/**
 * @file cbor.h  Reading and writing CBOR items one by one.
 *
 * The reader accepts only the restricted form of docs/wire-format.md: shortest heads, definite
 * lengths, and the types that occur. Each error about the input contains the offset of the bad
 * item.
 */
#ifndef WH_MANIFEST_CBOR_H
#define WH_MANIFEST_CBOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "base/bytes.h"
#include "base/text.h"

/** Major types of CBOR. */
enum {
    WH_MAJOR_UINT = 0,
    WH_MAJOR_NEGINT = 1,
    WH_MAJOR_BYTES = 2,
    WH_MAJOR_TEXT = 3,
    WH_MAJOR_ARRAY = 4,
    WH_MAJOR_MAP = 5,
    WH_MAJOR_TAG = 6,
    WH_MAJOR_SIMPLE = 7,
};

/**
 * The low five bits of a head. A smaller value is the number itself; 28 to 30 are not used.
 */
enum { WH_FORM_U8 = 24, WH_FORM_U16 = 25, WH_FORM_U32 = 26, WH_FORM_U64 = 27, WH_FORM_INDEFINITE = 31 };

enum { WH_SIMPLE_FALSE = 20, WH_SIMPLE_TRUE = 21, WH_SIMPLE_NULL = 22 };

enum { WH_TAG_POSITIVE = 2, WH_TAG_NEGATIVE = 3 };

typedef enum wh_item_type {
    WH_ITEM_UINT = WH_MAJOR_UINT,     /**< `number` */
    WH_ITEM_NEGINT = WH_MAJOR_NEGINT, /**< -1 - `number` */
    WH_ITEM_BYTES = WH_MAJOR_BYTES,   /**< `bytes` has `number` bytes */
    WH_ITEM_TEXT = WH_MAJOR_TEXT,     /**< `bytes` has `number` bytes, not yet checked for UTF-8 */
    WH_ITEM_ARRAY = WH_MAJOR_ARRAY,   /**< `number` items follow */
    WH_ITEM_TAG = WH_MAJOR_TAG,       /**< `number` is the tag of the next item */
    WH_ITEM_BOOL,                     /**< `number` is 0 or 1 */
    WH_ITEM_NULL,
} wh_item_type;

typedef struct wh_item {
    wh_item_type type;
    uint64_t number;
    const unsigned char *bytes; /**< Borrowed from the input. */
} wh_item;

typedef struct wh_cbor_reader {
    const unsigned char *bytes;
    size_t size;
    size_t at;             /**< The offset of the next item. */
    size_t item;           /**< The offset of the item that was read last. */
    uint64_t string_bytes; /**< The maximum length of a string. */
    wherry_error *error;
} wh_cbor_reader;

/** The number of bytes left. */
static inline size_t wh_reader_left(const wh_cbor_reader *reader) {
    return reader->size - reader->at;
}

/**
 * Decodes the head of the next item without advancing. This is the fast path for nearly all heads.
 * @param major_p  the major type, 0 to 7.
 * @return the length of the head; 0 if the head has a number of eight bytes or is invalid. If it is
 * 0, call wh_read_any_item, which reads the item or reports the fault.
 */
static inline size_t wh_peek_head(const wh_cbor_reader *reader, unsigned *major_p, uint64_t *number_p) {
    const unsigned char *head = reader->bytes + reader->at;
    size_t left = wh_reader_left(reader);
    unsigned form = left ? *head & 0x1F : WH_FORM_INDEFINITE;
    *major_p = left ? *head >> 5 : WH_MAJOR_SIMPLE;
    *number_p = form;
    if (form < WH_FORM_U8) {
        return 1;
    }
    if (form == WH_FORM_U8 && left >= 2) {
        *number_p = head[1];
        return head[1] >= WH_FORM_U8 ? 2 : 0;
    }
    if (form == WH_FORM_U16 && left >= 3) {
        *number_p = (uint64_t)head[1] << 8 | head[2];
        return *number_p > UINT8_MAX ? 3 : 0;
    }
    if (form == WH_FORM_U32 && left >= 5) {
        *number_p = wh_load_be32(head + 1);
        return *number_p > UINT16_MAX ? 5 : 0;
    }
    return 0;
}

/** Like wh_read_item, for any item, but slower. */
wherry_status wh_read_any_item(wh_cbor_reader *reader, wh_item *item);

/** Reads the next item. For an array or a tag, it reads only the head. */
static inline wherry_status wh_read_item(wh_cbor_reader *reader, wh_item *item) {
    unsigned major;
    uint64_t number;
    size_t head = wh_peek_head(reader, &major, &number);
    bool string = major == WH_MAJOR_BYTES || major == WH_MAJOR_TEXT;
    bool null = major == WH_MAJOR_SIMPLE && number == WH_SIMPLE_NULL;
    uint64_t content = string ? number : 0;
    if (head == 0 || (major > WH_MAJOR_ARRAY && !null) || content > wh_reader_left(reader) - head ||
        content > reader->string_bytes) {
        return wh_read_any_item(reader, item);
    }
    item->type = null ? WH_ITEM_NULL : (wh_item_type)major;
    item->number = number;
    item->bytes = string ? reader->bytes + reader->at + head : NULL;
    reader->item = reader->at;
    reader->at += head + content;
    return WHERRY_OK;
}

/** Fails with an error that contains the offset of the item that was read last. */
wherry_status wh_read_fault(const wh_cbor_reader *reader, wherry_status status, const char *format, ...)
    WHERRY_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* The same as in base/error.h. */
#define wh_read_fault(reader, status, ...) ((wh_read_fault)(reader, status, __VA_ARGS__), (status))
#endif

/**
 * Reads an item of the given type. Any other type is WHERRY_MALFORMED. `wanted` names the item in
 * the message.
 */
wherry_status wh_read_typed(wh_cbor_reader *reader, wh_item_type type, const char *wanted, wh_item *item);

/** Reads an integer from 0 to `most`. A larger one is WHERRY_MALFORMED. */
wherry_status wh_read_any_uint(wh_cbor_reader *reader, uint64_t most, const char *wanted, uint64_t *number_p);

static inline wherry_status wh_read_uint(wh_cbor_reader *reader, uint64_t most, const char *wanted,
                                         uint64_t *number_p) {
    unsigned major;
    uint64_t number;
    size_t head = wh_peek_head(reader, &major, &number);
    if (head == 0 || major != WH_MAJOR_UINT || number > most) {
        return wh_read_any_uint(reader, most, wanted, number_p);
    }
    reader->item = reader->at;
    reader->at += head;
    *number_p = number;
    return WHERRY_OK;
}

/** Reads an integer that fits in int64_t and is at least `least`. */
wherry_status wh_read_int(wh_cbor_reader *reader, int64_t least, const char *wanted, int64_t *number_p);

/**
 * Reads the head of an array. Fails if the array has more items than there are bytes left, because
 * each item takes at least one byte.
 */
wherry_status wh_read_array(wh_cbor_reader *reader, const char *wanted, uint64_t *count_p);

/** Reads the head of an array with exactly `count` items. */
wherry_status wh_read_array_of(wh_cbor_reader *reader, uint64_t count, const char *wanted);

/** Reads an array of at most `most` integers, each at least 0. A longer array is WHERRY_LIMIT. */
wherry_status wh_read_uints(wh_cbor_reader *reader, uint32_t most, const char *wanted, int64_t *numbers,
                            uint32_t *count_p);

/** Reads a text and checks that it is UTF-8. */
wherry_status wh_read_text(wh_cbor_reader *reader, const char *wanted, wh_item *item);

/** Reads a text without zero bytes and copies it. The caller frees the copy with wh_free. */
wherry_status wh_read_name(wh_cbor_reader *reader, const char *wanted, char **name_p);

/** The maximum length of a head in bytes: one byte, followed by a number of eight bytes. */
enum { WH_HEAD_MAX = 9 };

/** Writes a head whose number needs four or eight bytes. @return the position after the head. */
unsigned char *wh_put_long_head(unsigned char *at, unsigned major, uint64_t number);

/**
 * Writes the head of an item. There must be room for WH_HEAD_MAX bytes. To write many heads
 * quickly, make room for all of them with one call of wh_string_room.
 * @param major  the major type.
 * @return the position after the head.
 */
static inline unsigned char *wh_put_head(unsigned char *at, unsigned major, uint64_t number) {
    if (number < WH_FORM_U8) {
        at[0] = (unsigned char)(major << 5 | number);
        return at + 1;
    }
    if (number <= UINT8_MAX) {
        at[0] = (unsigned char)(major << 5 | WH_FORM_U8);
        at[1] = (unsigned char)number;
        return at + 2;
    }
    if (number <= UINT16_MAX) {
        at[0] = (unsigned char)(major << 5 | WH_FORM_U16);
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

/** Writes an array of integers. There must be room for count + 1 heads. */
static inline unsigned char *wh_put_ints(unsigned char *at, const int64_t *numbers, size_t count) {
    at = wh_put_array(at, count);
    for (size_t i = 0; i < count; i++) {
        at = wh_put_int(at, numbers[i]);
    }
    return at;
}

/** wh_string_room for unsigned bytes. */
static inline unsigned char *wh_room_for_items(wh_string *out, size_t more) {
    return (unsigned char *)wh_string_room(out, more);
}

/**
 * Ends a write to the room that wh_room_for_items returned. The bytes before `at` become part of
 * the output. Does nothing if at is NULL.
 */
static inline void wh_items_end(wh_string *out, const unsigned char *at) {
    out->size = at ? (size_t)(at - (unsigned char *)out->bytes) : out->size;
}

static inline void wh_write_head(wh_string *out, unsigned major, uint64_t number) {
    unsigned char *at = wh_room_for_items(out, WH_HEAD_MAX);
    wh_items_end(out, at ? wh_put_head(at, major, number) : NULL);
}

static inline void wh_write_int(wh_string *out, int64_t number) {
    unsigned char *at = wh_room_for_items(out, WH_HEAD_MAX);
    wh_items_end(out, at ? wh_put_int(at, number) : NULL);
}

static inline void wh_write_array(wh_string *out, uint64_t count) {
    wh_write_head(out, WH_MAJOR_ARRAY, count);
}

static inline void wh_write_null(wh_string *out) {
    wh_write_head(out, WH_MAJOR_SIMPLE, WH_SIMPLE_NULL);
}

void wh_write_bytes(wh_string *out, const void *bytes, size_t size);
void wh_write_text(wh_string *out, const char *text, size_t size);

/** Writes an array of integers. */
void wh_write_ints(wh_string *out, const int64_t *numbers, size_t count);

#endif
