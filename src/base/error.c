#define WH_DEFINES_ERRORS
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/**
 * If truncation has cut a UTF-8 character at the end of the text, removes the rest of that
 * character.
 */
static void cut_text(char *text) {
    size_t at = strlen(text);
    size_t end = at;
    while (at > 0 && wh_utf8_continues(text[at - 1])) {
        at--;
    }
    if (at > 0 && (unsigned char)text[at - 1] >= 0xC0) {
        unsigned char first = (unsigned char)text[at - 1];
        size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
        if (end - (at - 1) < wanted) {
            text[at - 1] = '\0';
        }
    }
}

static void fill(wherry_error *error, wherry_status status, const char *format, va_list arguments) {
    *error = (wherry_error){.status = status, .rank = -1, .offset = UINT64_MAX};
    int size = vsnprintf(error->message, sizeof(error->message), format, arguments);
    if (size >= (int)sizeof(error->message)) {
        cut_text(error->message);
    }
}

wherry_status wh_fail(wherry_error *error, wherry_status status, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, format, arguments);
        va_end(arguments);
    }
    return status;
}

wherry_status wh_fail_at(wherry_error *error, wherry_status status, uint64_t offset, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, format, arguments);
        va_end(arguments);
        error->offset = offset;
    }
    return status;
}

wherry_status wh_fail_errno(wherry_error *error, wherry_status status, int errnum, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, format, arguments);
        va_end(arguments);
        error->errnum = errnum;
        char space[128];
        size_t used = strlen(error->message);
        int more = snprintf(error->message + used, sizeof(error->message) - used, ": %s",
                            strerror_r(errnum, space, sizeof(space)));
        if (more >= (int)(sizeof(error->message) - used)) {
            cut_text(error->message);
        }
    }
    return status;
}

wherry_status wh_fail_memory(wherry_error *error, const char *purpose) {
    return wh_fail(error, WHERRY_NO_MEMORY, "out of memory for %s; free some memory and call again", purpose);
}

wherry_status wh_fail_rank(wherry_error *error, int32_t rank, wherry_status status) {
    if (error) {
        error->rank = rank;
    }
    return status;
}

void wh_fail_path(wherry_error *error, const char *path) {
    if (!error) {
        return;
    }
    static const char ellipsis[] = "\xE2\x80\xA6";
    size_t length = strlen(path);
    if (length < sizeof(error->path)) {
        memcpy(error->path, path, length + 1);
        return;
    }
    size_t room = sizeof(error->path) - sizeof(ellipsis);
    size_t head = room / 2;
    size_t tail = length - (room - head);
    while (head > 0 && wh_utf8_continues(path[head])) {
        head--;
    }
    while (wh_utf8_continues(path[tail])) {
        tail++;
    }
    memcpy(error->path, path, head);
    memcpy(error->path + head, ellipsis, sizeof(ellipsis) - 1);
    memcpy(error->path + head + sizeof(ellipsis) - 1, path + tail, length - tail + 1);
}

static const struct status_info {
    wherry_status status;
    wherry_status_class class_;
    const char *name;
    const char *text;
} statuses[] = {
#define WHERRY_X(name, value, group, text) {WHERRY_##name, WHERRY_STATUS_CLASS_##group, "WHERRY_" #name, text},
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
};

static const struct status_info *info_of(wherry_status status) {
    static const struct status_info unknown = {WHERRY_OK, WHERRY_STATUS_CLASS_BUG, "WHERRY_?", "an unknown status"};
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        if (statuses[i].status == status) {
            return statuses + i;
        }
    }
    return &unknown;
}

const char *wherry_status_name(wherry_status status) {
    return info_of(status)->name;
}

const char *wherry_status_text(wherry_status status) {
    return info_of(status)->text;
}

wherry_status_class wherry_status_class_of(wherry_status status) {
    return info_of(status)->class_;
}

const char *wherry_version(void) {
    return WHERRY_VERSION_STRING;
}
