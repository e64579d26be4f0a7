#include "base/cursor.h"

#include <string.h>

const uint8_t *wh_cursor_bytes(wh_cursor *cursor, size_t size) {
    const uint8_t *bytes = cursor->at;
    if (cursor->failed || size > cursor->left) {
        cursor->failed = true;
        return NULL;
    }
    cursor->at += size;
    cursor->left -= size;
    return bytes;
}

void wh_cursor_copy(wh_cursor *cursor, void *to, size_t size) {
    const uint8_t *bytes = wh_cursor_bytes(cursor, size);
    if (bytes) {
        memcpy(to, bytes, size);
    }
}

uint64_t wh_cursor_number(wh_cursor *cursor, size_t width) {
    const uint8_t *bytes = wh_cursor_bytes(cursor, width);
    uint64_t number = 0;
    for (size_t i = 0; bytes && i < width; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

const uint8_t *wh_cursor_sized(wh_cursor *cursor, size_t width, size_t *size_p) {
    *size_p = (size_t)wh_cursor_number(cursor, width);
    const uint8_t *bytes = wh_cursor_bytes(cursor, *size_p);
    *size_p = bytes ? *size_p : 0;
    return bytes;
}

void wh_append_number(wh_string *string, uint64_t number, size_t width) {
    char bytes[8];
    for (size_t i = width; i-- > 0;) {
        bytes[i] = (char)(number & 0xFF);
        number >>= 8;
    }
    wh_string_append(string, bytes, width);
}

void wh_append_sized(wh_string *string, const void *bytes, size_t size, size_t width) {
    wh_append_number(string, size, width);
    wh_string_append(string, bytes, size);
}
