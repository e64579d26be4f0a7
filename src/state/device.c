#include <wherry/tensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

wherry_device wherry_device_cpu(void) {
    return (wherry_device){WHERRY_DEVICE_CPU, -1};
}

const char *wherry_device_kind_text(wherry_device_kind kind) {
    switch (kind) {
#define WHERRY_X(name, value, text)                                                                                    \
    case WHERRY_DEVICE_##name:                                                                                         \
        return text;
        WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
    }
    return "?";
}

char *wherry_device_text(wherry_device device, char text[WHERRY_DEVICE_TEXT_MAX]) {
    const char *kind = wherry_device_kind_text(device.kind);
    if (device.index < 0) {
        snprintf(text, WHERRY_DEVICE_TEXT_MAX, "%s", kind);
    } else {
        snprintf(text, WHERRY_DEVICE_TEXT_MAX, "%s:%d", kind, (int)device.index);
    }
    return text;
}

static const struct {
    const char *text;
    wherry_device_kind kind;
} kinds[] = {
#define WHERRY_X(name, value, text) {text, WHERRY_DEVICE_##name},
    WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
};

static wherry_status refuse(const char *text, wherry_error *error) {
#define WHERRY_X(name, value, kind) kind " "
    return wh_fail(error, WHERRY_INVALID_ARGUMENT, "'%.64s' is not a device; write KIND or KIND:INDEX, KIND one of %s",
                   text, WHERRY_DEVICE_LIST(WHERRY_X));
#undef WHERRY_X
}

wherry_status wherry_device_parse(const char *text, wherry_device *device_p, wherry_error *error) {
    if (!text || !device_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "text and device_p must not be NULL");
    }
    size_t length = strcspn(text, ":");
    wherry_device device = {WHERRY_DEVICE_CPU, -1};
    if (text[length] == ':') {
        const char *digits = text + length + 1;
        char *end;
        long index = strtol(digits, &end, 10);
        if (*digits < '0' || *digits > '9' || *end || index > INT32_MAX) {
            return refuse(text, error);
        }
        device.index = (int32_t)index;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strlen(kinds[i].text) == length && memcmp(kinds[i].text, text, length) == 0) {
            device.kind = kinds[i].kind;
            *device_p = device;
            return WHERRY_OK;
        }
    }
    return refuse(text, error);
}
