#include "state/value.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"

static const char *const kind_names[] = {
    [WHERRY_KIND_NONE] = "none",     [WHERRY_KIND_BOOL] = "bool",       [WHERRY_KIND_INT] = "int",
    [WHERRY_KIND_BIGINT] = "bigint", [WHERRY_KIND_FLOAT] = "float",     [WHERRY_KIND_COMPLEX] = "complex",
    [WHERRY_KIND_STRING] = "string", [WHERRY_KIND_BYTES] = "bytes",     [WHERRY_KIND_LIST] = "list",
    [WHERRY_KIND_TUPLE] = "tuple",   [WHERRY_KIND_DICT] = "dict",       [WHERRY_KIND_OBJECT] = "object",
    [WHERRY_KIND_TENSOR] = "tensor", [WHERRY_KIND_DTENSOR] = "dtensor", [WHERRY_KIND_SHARDED] = "sharded tensor",
};

const char *wherry_kind_name(wherry_kind kind) {
    return (size_t)kind < sizeof(kind_names) / sizeof(*kind_names) ? kind_names[kind] : "?";
}

wherry_kind wherry_value_kind(const wherry_value *value) {
    return (wherry_kind)value->kind;
}

wherry_value *wh_value_new(wh_pool *pool, wherry_kind kind, size_t extra) {
    uint32_t offset;
    wherry_value *value =
        extra <= SIZE_MAX - sizeof(*value) ? wh_pool_alloc(pool, sizeof(*value) + extra, &offset) : NULL;
    if (value) {
        memset(value, 0, sizeof(*value));
        value->kind = (uint8_t)kind;
        value->pool_offset = offset;
    }
    return value;
}

void wherry_value_destroy(wherry_value *value) {
    if (!value) {
        return;
    }
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
        for (size_t i = 0; i < value->as.sequence.count; i++) {
            wherry_value_destroy(value->as.sequence.items[i]);
        }
        wh_free(value->as.sequence.items);
        break;
    case WHERRY_KIND_DICT:
        wh_dict_clear(value->as.dict);
        break;
    case WHERRY_KIND_OBJECT:
        wherry_value_destroy(value->as.object.payload);
        break;
    case WHERRY_KIND_TENSOR:
        wherry_storage_unref(value->as.tensor->storage);
        break;
    case WHERRY_KIND_DTENSOR:
        wh_dtensor_clear(value->as.dtensor);
        break;
    case WHERRY_KIND_SHARDED:
        wh_sharded_clear(value->as.sharded);
        break;
    default:
        break;
    }
    wh_pool_free(value, value->pool_offset);
}

static wherry_status deliver(wherry_value *value, wherry_value **value_p, wherry_error *error) {
    if (!value) {
        return wh_fail_memory(error, "a value");
    }
    *value_p = value;
    return WHERRY_OK;
}

wherry_status wherry_none_create(wherry_value **value_p, wherry_error *error) {
    return deliver(wh_value_new(NULL, WHERRY_KIND_NONE, 0), value_p, error);
}

wherry_status wherry_bool_create(bool content, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_BOOL, 0);
    if (value) {
        value->as.boolean = content;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_int_create(int64_t content, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_INT, 0);
    if (value) {
        value->as.integer = content;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_float_create(double content, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_FLOAT, 0);
    if (value) {
        value->as.numbers[0] = content;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_complex_create(double real, double imaginary, wherry_value **value_p, wherry_error *error) {
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_COMPLEX, 0);
    if (value) {
        value->as.numbers[0] = real;
        value->as.numbers[1] = imaginary;
    }
    return deliver(value, value_p, error);
}

/** A value with a copy of bytes and a zero behind it. */
static wherry_value *new_text(wh_pool *pool, wherry_kind kind, const void *bytes, size_t size) {
    wherry_value *value = size < SIZE_MAX ? wh_value_new(pool, kind, size + 1) : NULL;
    if (value) {
        value->as.text.bytes = (char *)(value + 1);
        value->as.text.size = size;
        if (size) {
            memcpy(value->as.text.bytes, bytes, size);
        }
        value->as.text.bytes[size] = '\0';
    }
    return value;
}

wherry_status wherry_bigint_create(bool negative, const void *magnitude, size_t size, wherry_value **value_p,
                                   wherry_error *error) {
    const uint8_t *bytes = magnitude;
    if (!bytes && size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "magnitude must not be NULL");
    }
    while (size > 0 && *bytes == 0) {
        bytes++;
        size--;
    }
    if (size <= 8) {
        uint8_t padded[8] = {0};
        if (size) {
            memcpy(padded + 8 - size, bytes, size);
        }
        uint64_t number = wh_load_be64(padded);
        if (number <= (uint64_t)INT64_MAX + negative) {
            return wherry_int_create(negative ? (int64_t)(0 - number) : (int64_t)number, value_p, error);
        }
    }
    wherry_value *value = new_text(NULL, WHERRY_KIND_BIGINT, bytes, size);
    if (value) {
        value->as.text.negative = negative;
    }
    return deliver(value, value_p, error);
}

wherry_status wherry_string_create(const char *text, size_t size, wherry_value **value_p, wherry_error *error) {
    return wh_string_build(NULL, text, size, value_p, error);
}

wherry_status wh_string_build(wh_pool *pool, const char *text, size_t size, wherry_value **value_p,
                              wherry_error *error) {
    if ((!text && size) || !wh_utf8_valid(text, size)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a string must be UTF-8; use bytes for anything else");
    }
    return deliver(new_text(pool, WHERRY_KIND_STRING, text, size), value_p, error);
}

wherry_status wherry_bytes_create(const void *bytes, size_t size, wherry_value **value_p, wherry_error *error) {
    if (!bytes && size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "bytes must not be NULL");
    }
    return deliver(new_text(NULL, WHERRY_KIND_BYTES, bytes, size), value_p, error);
}

bool wherry_bool_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_BOOL && value->as.boolean;
}

int64_t wherry_int_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_INT ? value->as.integer : 0;
}

double wherry_float_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_FLOAT ? value->as.numbers[0] : 0;
}

void wherry_complex_get(const wherry_value *value, double *real_p, double *imaginary_p) {
    bool is_complex = value->kind == WHERRY_KIND_COMPLEX;
    *real_p = is_complex ? value->as.numbers[0] : 0;
    *imaginary_p = is_complex ? value->as.numbers[1] : 0;
}

static const char *text_of(const wherry_value *value, wherry_kind kind, size_t *size_p) {
    bool is = value->kind == kind;
    if (size_p) {
        *size_p = is ? value->as.text.size : 0;
    }
    return is ? value->as.text.bytes : NULL;
}

const uint8_t *wherry_bigint_get(const wherry_value *value, bool *negative_p, size_t *size_p) {
    *negative_p = value->kind == WHERRY_KIND_BIGINT && value->as.text.negative;
    return (const uint8_t *)text_of(value, WHERRY_KIND_BIGINT, size_p);
}

const char *wherry_string_get(const wherry_value *value, size_t *size_p) {
    return text_of(value, WHERRY_KIND_STRING, size_p);
}

const void *wherry_bytes_get(const wherry_value *value, size_t *size_p) {
    return text_of(value, WHERRY_KIND_BYTES, size_p);
}

wherry_status wherry_object_create(const char *type_name, wherry_value *payload, wherry_value **value_p,
                                   wherry_error *error) {
    size_t size = type_name ? strlen(type_name) : 0;
    if (size == 0 || !wh_utf8_valid(type_name, size) || !payload) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "an object needs a type name in UTF-8 and a payload");
    }
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_OBJECT, size + 1);
    if (!value) {
        return wh_fail_memory(error, "an object");
    }
    wherry_status status = wh_value_check_adopt(value, payload, error);
    if (status != WHERRY_OK) {
        wh_pool_free(value, value->pool_offset);
        return status;
    }
    value->as.object.type = memcpy(value + 1, type_name, size + 1);
    value->as.object.payload = payload;
    wh_value_adopt(value, payload);
    *value_p = value;
    return WHERRY_OK;
}

const char *wherry_object_type(const wherry_value *value) {
    return value->kind == WHERRY_KIND_OBJECT ? value->as.object.type : NULL;
}

wherry_value *wherry_object_payload(const wherry_value *value) {
    return value->kind == WHERRY_KIND_OBJECT ? value->as.object.payload : NULL;
}

const wherry_value *wh_value_inside(const wherry_value *value) {
    while (value->kind == WHERRY_KIND_OBJECT) {
        value = value->as.object.payload;
    }
    return value;
}
