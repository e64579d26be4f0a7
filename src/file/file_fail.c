#include "file/file_fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <wherry/base.h>
#include <wherry/value.h>

#include "base/error.h"

/** Bytes of a file's path that a message keeps: its end says more than its beginning. */
enum { PATH_SHOWN = 200, NAME_SHOWN = 150 };

/** The text of the path that leads to a tensor, to release with wherry_free; NULL where there is no memory. */
static char *path_text(const wh_spot *spot) {
    wherry_value *key = NULL;
    wherry_path *path = NULL;
    char *text = NULL;
    if (wherry_string_create(spot->name, spot->name_size, &key, NULL) == WHERRY_OK &&
        wherry_path_create(&(wherry_step){key, 0}, 1, &path, NULL) == WHERRY_OK) {
        wherry_path_format(path, &text, NULL);
    }
    wherry_path_destroy(path);
    wherry_value_destroy(key);
    return text;
}

/** Where the shown end of a path begins: not within a character. */
static const char *shown_end(const char *path) {
    size_t length = strlen(path);
    const char *at = length > PATH_SHOWN ? path + (length - PATH_SHOWN) : path;
    while (((unsigned char)*at & 0xC0) == 0x80) {
        at++;
    }
    return at;
}

wherry_status wh_file_fail(wherry_error *error, wherry_status status, wh_spot spot, const char *format, ...) {
    if (!error) {
        return status;
    }
    char text[WHERRY_ERROR_MESSAGE_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const char *shown = shown_end(spot.path);
    char *name = spot.name ? path_text(&spot) : NULL;
    if (name) {
        wh_fail_at(error, status, spot.offset, "%s%s: tensor %.*s: %s", shown > spot.path ? "..." : "", shown,
                   NAME_SHOWN, name, text);
        wh_fail_path(error, name);
    } else {
        wh_fail_at(error, status, spot.offset, "%s%s: %s", shown > spot.path ? "..." : "", shown, text);
    }
    wherry_free(name);
    return status;
}

wherry_status wh_file_fail_errno(wherry_error *error, int errnum, const char *path, const char *what) {
    const char *shown = shown_end(path);
    return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "%s%s: %s", shown > path ? "..." : "", shown, what);
}
