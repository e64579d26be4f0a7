#include "file/formats.h"

#include <string.h>

#include "base/error.h"

/** Longer endings before those that end them; formats that are told by strict marks before those that are not. */
static const wh_format *const formats[] = {&wh_format_native, &wh_format_sharded, &wh_format_safetensors,
                                           &wh_format_bytes};

enum { FORMATS = sizeof(formats) / sizeof(*formats) };

static bool ends_with(const char *text, const char *ending) {
    size_t length = strlen(text);
    size_t wanted = ending ? strlen(ending) : SIZE_MAX;
    return length >= wanted && strcmp(text + length - wanted, ending) == 0;
}

const wh_format *wh_format_get(wherry_file_format format) {
    for (size_t i = 0; i < FORMATS; i++) {
        if (formats[i]->format == format) {
            return formats[i];
        }
    }
    return NULL;
}

const wh_format *wh_format_detect(const char *path, const uint8_t *head, size_t size) {
    for (size_t i = 0; i < FORMATS; i++) {
        const wh_format *format = formats[i];
        if (format->matches ? format->matches(head, size) : ends_with(path, format->ending)) {
            return format;
        }
    }
    return NULL;
}

const char *wherry_file_format_name(wherry_file_format format) {
    const wh_format *found = wh_format_get(format);
    return found ? found->name : format == WHERRY_FILE_AUTO ? "auto" : "?";
}

wherry_file_format wherry_file_format_of(const char *path) {
    for (size_t i = 0; i < FORMATS; i++) {
        if (ends_with(path, formats[i]->ending)) {
            return formats[i]->format;
        }
    }
    return WHERRY_FILE_AUTO;
}

wherry_status wherry_file_accepts(wherry_file_format format, const wherry_value *state, wherry_error *error) {
    const wh_format *found = wh_format_get(format);
    if (!found || !state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "state is NULL, or %d is no format", (int)format);
    }
    return found->accepts(state, error);
}
