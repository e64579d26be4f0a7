/**
 * @file cbor_reader.h  Reading CBOR items, one behind the other, through libcbor's streaming decoder.
 *
 * The reader knows the restricted form of docs/wire-format.md: it refuses what is not in its shortest form, indefinite lengths,
 * and every type that does not occur. Each fault is reported with the offset of the item.
 */
#ifndef WH_MANIFEST_CBOR_READER_H
#define WH_MANIFEST_CBOR_READER_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>

typedef enum wh_item_type {
    WH_ITEM_UINT,   /**< number */
    WH_ITEM_NEGINT, /**< -1 - number */
    WH_ITEM_BYTES,  /**< bytes, number of them */
    WH_ITEM_TEXT,   /**< bytes, number of them; not yet checked to be UTF-8 */
    WH_ITEM_ARRAY,  /**< number of items, which follow */
    WH_ITEM_TAG,    /**< number, of the item that follows */
    WH_ITEM_BOOL,   /**< number 0 or 1 */
    WH_ITEM_NULL,
    WH_ITEM_OTHER,      /**< Any other type: never handed out. */
    WH_ITEM_INDEFINITE, /**< An indefinite length: never handed out. */
} wh_item_type;

typedef struct wh_item {
    wh_item_type type;
    uint64_t number;
    const unsigned char *bytes; /**< Borrowed from the input. */
} wh_item;

typedef struct wh_reader {
    const unsigned char *bytes;
    size_t size;
    size_t at;             /**< The next item. */
    size_t item;           /**< The offset of the item read last. */
    uint64_t string_bytes; /**< The longest string that is accepted. */
    wherry_error *error;
} wh_reader;

/** Reads the head of the next item, and all of a string. */
wherry_status wh_read_item(wh_reader *reader, wh_item *item);

/**
 * Takes the next item where it is one byte from `first` on that says a number below 24, as most are in a manifest: what follows spares a call to
 * the decoder then. @return the number, or -1 where it is anything else, and nothing is taken.
 */
static inline int wh_take_byte(wh_reader *reader, unsigned char first) {
    unsigned number = reader->at < reader->size ? (unsigned)reader->bytes[reader->at] - first : UINT32_MAX;
    if (number >= 24) {
        return -1;
    }
    reader->item = reader->at++;
    return (int)number;
}

enum { WH_BYTE_UINT = 0x00, WH_BYTE_ARRAY = 0x80, WH_BYTE_NULL = 0xF6 };

/** Bytes that are left. */
static inline size_t wh_reader_left(const wh_reader *reader) {
    return reader->size - reader->at;
}

/** Fails at the item read last. */
wherry_status wh_read_fault(const wh_reader *reader, wherry_status status, const char *format, ...) WHERRY_PRINTF(3, 4);

/** An item of a type, or WHERRY_MALFORMED with what was wanted. */
wherry_status wh_read_typed(wh_reader *reader, wh_item_type type, const char *wanted, wh_item *item);

/** An integer from 0 to most; a larger one is WHERRY_MALFORMED. */
wherry_status wh_read_any_uint(wh_reader *reader, uint64_t most, const char *wanted, uint64_t *number_p);

static inline wherry_status wh_read_uint(wh_reader *reader, uint64_t most, const char *wanted, uint64_t *number_p) {
    size_t before = reader->at;
    int number = wh_take_byte(reader, WH_BYTE_UINT);
    if (number >= 0 && (uint64_t)number <= most) {
        *number_p = (uint64_t)number;
        return WHERRY_OK;
    }
    reader->at = before;
    return wh_read_any_uint(reader, most, wanted, number_p);
}

/** An integer that fits int64_t and is at least `least`. */
wherry_status wh_read_int(wh_reader *reader, int64_t least, const char *wanted, int64_t *number_p);

/** The head of an array; its items, at a byte each, must fit what is left. */
wherry_status wh_read_array(wh_reader *reader, const char *wanted, uint64_t *count_p);

/** The head of an array of so many items. */
wherry_status wh_read_array_of(wh_reader *reader, uint64_t count, const char *wanted);

/** An array of at most `most` integers, each from 0 on; one that is longer is WHERRY_LIMIT. */
wherry_status wh_read_uints(wh_reader *reader, uint32_t most, const char *wanted, int64_t *numbers, uint32_t *count_p);

/** Text that is UTF-8. */
wherry_status wh_read_text(wh_reader *reader, const char *wanted, wh_item *item);

/** Text that is UTF-8 without zero bytes, as a copy that the caller releases by wh_free. */
wherry_status wh_read_name(wh_reader *reader, const char *wanted, char **name_p);

#endif
