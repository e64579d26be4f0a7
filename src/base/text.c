#include "base/text.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

char *wh_string_room(wh_string *string, size_t more) {
    if (string->failed || more >= SIZE_MAX - string->size ||
        !WH_GROW(string->bytes, string->capacity, string->size + more)) {
        string->failed = true;
    }
    return string->failed ? NULL : string->bytes + string->size;
}

void wh_string_append(wh_string *string, const char *bytes, size_t size) {
    if (wh_string_room(string, size)) {
        if (size) {
            memcpy(string->bytes + string->size, bytes, size);
        }
        string->size += size;
        string->bytes[string->size] = '\0';
    }
}

void wh_string_format(wh_string *string, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, arguments);
    if (size >= 0 && wh_string_room(string, (size_t)size)) {
        vsnprintf(string->bytes + string->size, (size_t)size + 1, format, again);
        string->size += (size_t)size;
    }
    va_end(again);
    va_end(arguments);
}

char *wh_string_take(wh_string *string) {
    wh_string_append(string, "", 0);
    char *bytes = string->bytes;
    if (string->failed) {
        wh_free(bytes);
        bytes = NULL;
    }
    *string = (wh_string){0};
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

/**
 * The length of the UTF-8 sequence at bytes[0]; 0 if it is malformed. `left` is the number of bytes
 * left, at least 1.
 */
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
        if (size >= sizeof(word)) { /* The last word may include bytes that were already checked. */
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

size_t wh_utf8_cut(const char *text, size_t size, size_t most) {
    size_t cut = size < most ? size : most;
    while (cut > 0 && cut < size && wh_utf8_continues(text[cut])) {
        cut--;
    }
    return cut;
}

char *wh_double_format(double number, char text[WH_DOUBLE_TEXT_MAX]) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = uselocale(plain);
    int digits = 15;
    int size;
    do {
        size = snprintf(text, WH_DOUBLE_TEXT_MAX, "%.*g", digits, number);
    } while (strtod(text, NULL) != number && ++digits <= 17);
    uselocale(before);
    freelocale(plain);
    if (!strpbrk(text, ".e")) {
        snprintf(text + size, WH_DOUBLE_TEXT_MAX - (size_t)size, ".0");
    }
    return text;
}

bool wh_double_parse(const char *text, double *number_p) {
    if (!strpbrk(text, "0123456789") || strspn(text, "0123456789.e+-") != strlen(text)) {
        return false;
    }
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    double number = strtod_l(text, &end, plain);
    freelocale(plain);
    if (*end || !isfinite(number)) {
        return false;
    }
    *number_p = number;
    return true;
}
