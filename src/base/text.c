#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

static bool reserve(wh_string *string, size_t more) {
    if (string->failed || more >= SIZE_MAX - string->size ||
        !WH_GROW(string->bytes, string->capacity, string->size + more)) {
        string->failed = true;
    }
    return !string->failed;
}

void wh_string_append(wh_string *string, const char *bytes, size_t size) {
    if (reserve(string, size)) {
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
    if (size >= 0 && reserve(string, (size_t)size)) {
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
