#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

/** Length of the sequence at bytes[0], or 0 where it is not well-formed; left is at least 1. */
static size_t sequence_length(const uint8_t *bytes, size_t left) {
    uint8_t first = bytes[0];
    size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (length > left) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (first == 0xE0 && bytes[1] < 0xA0) || (first == 0xF0 && bytes[1] < 0x90);
    bool surrogate = first == 0xED && bytes[1] >= 0xA0;
    bool too_large = first == 0xF4 && bytes[1] >= 0x90;
    return overlong || surrogate || too_large ? 0 : length;
}

bool wh_utf8_valid(const char *text, size_t size) {
    const uint8_t *bytes = (const uint8_t *)text;
    size_t at = 0;
    while (at < size) {
        uint64_t word;
        if (size >= sizeof(word)) { /* the last word of all may begin before what is left */
            size_t begin = size - at >= sizeof(word) ? at : size - sizeof(word);
            memcpy(&word, bytes + begin, sizeof(word));
            if (!(word & UINT64_C(0x8080808080808080))) {
                at = begin + sizeof(word);
                continue;
            }
        }
        size_t length = sequence_length(bytes + at, size - at);
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

bool wh_utf8_printable(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == 0x7F || (byte == 0xC2 && i + 1 < size && (unsigned char)text[i + 1] < 0xA0)) {
            return false;
        }
    }
    return wh_utf8_valid(text, size);
}
