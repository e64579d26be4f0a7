#include "state/path.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "state/value.h"

/** Whether a byte is one of a control character, which a terminal obeys: of ASCII, or of Latin-1 in UTF-8. */
static bool is_control(const char *bytes, size_t size, size_t at) {
    unsigned char byte = (unsigned char)bytes[at];
    unsigned char next = at + 1 < size ? (unsigned char)bytes[at + 1] : 0;
    bool begins = byte == 0xC2 && next >= 0x80 && next < 0xA0;
    bool ends = byte >= 0x80 && byte < 0xA0 && at > 0 && (unsigned char)bytes[at - 1] == 0xC2;
    return byte < 0x20 || byte == 0x7F || begins || ends;
}

void wh_quoted_append(wh_string *text, const char *bytes, size_t size, bool escape_all) {
    wh_string_append(text, "\"", 1);
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        const char *escape = byte == '"'    ? "\\\""
                             : byte == '\\' ? "\\\\"
                             : byte == '\n' ? "\\n"
                             : byte == '\r' ? "\\r"
                             : byte == '\t' ? "\\t"
                                            : NULL;
        if (escape) {
            wh_string_append(text, escape, 2);
        } else if (is_control(bytes, size, i) || (escape_all && byte >= 0x80)) {
            wh_string_format(text, "\\x%02x", byte);
        } else {
            wh_string_append(text, bytes + i, 1);
        }
    }
    wh_string_append(text, "\"", 1);
}

static void append_float(wh_string *text, double number) {
    if (isnan(number)) {
        wh_string_format(text, "nan:%016llx", (unsigned long long)wh_double_bits(number));
    } else if (isinf(number)) {
        wh_string_format(text, "%sinf", number < 0 ? "-" : "");
    } else {
        char plain[WH_DOUBLE_TEXT_MAX];
        wh_string_format(text, "%s", wh_double_format(number, plain));
    }
}

void wh_scalar_append(wh_string *text, const wherry_value *scalar) {
    switch (wherry_value_kind(scalar)) {
    case WHERRY_KIND_BOOL:
        wh_string_format(text, "%s", scalar->as.boolean ? "true" : "false");
        break;
    case WHERRY_KIND_INT:
        wh_string_format(text, "%lld", (long long)scalar->as.integer);
        break;
    case WHERRY_KIND_BIGINT:
        wh_string_format(text, "%s0x", scalar->as.text.negative ? "-" : "");
        for (size_t i = 0; i < scalar->as.text.size; i++) {
            wh_string_format(text, i ? "%02x" : "%x", (unsigned char)scalar->as.text.bytes[i]);
        }
        break;
    case WHERRY_KIND_FLOAT:
        append_float(text, scalar->as.numbers[0]);
        break;
    case WHERRY_KIND_COMPLEX:
        wh_string_append(text, "c(", 2);
        append_float(text, scalar->as.numbers[0]);
        wh_string_append(text, ",", 1);
        append_float(text, scalar->as.numbers[1]);
        wh_string_append(text, ")", 1);
        break;
    case WHERRY_KIND_STRING:
        wh_quoted_append(text, scalar->as.text.bytes, scalar->as.text.size, false);
        break;
    case WHERRY_KIND_BYTES:
        wh_string_append(text, "b", 1);
        wh_quoted_append(text, scalar->as.text.bytes, scalar->as.text.size, true);
        break;
    default:
        wh_string_append(text, "none", 4);
        break;
    }
}

static bool is_name(const wh_text *text) {
    for (size_t i = 0; i < text->size; i++) {
        char c = text->bytes[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) {
            return false;
        }
    }
    return text->size > 0;
}

static void append_step(wh_string *text, const wherry_step *step, bool first) {
    if (!step->key) {
        wh_string_format(text, "[%llu]", (unsigned long long)step->index);
    } else if (step->key->kind != WHERRY_KIND_STRING) {
        wh_string_append(text, "{", 1);
        wh_scalar_append(text, step->key);
        wh_string_append(text, "}", 1);
    } else if (is_name(&step->key->as.text)) {
        wh_string_format(text, "%s%s", first ? "" : ".", step->key->as.text.bytes);
    } else {
        wh_string_append(text, "[", 1);
        wh_scalar_append(text, step->key);
        wh_string_append(text, "]", 1);
    }
}

void wh_path_append(wh_string *text, const wherry_step *steps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        append_step(text, steps + i, i == 0);
    }
}

void wh_trail_append(wh_string *text, const wh_trail *trail) {
    if (trail) {
        wh_trail_append(text, trail->above);
        append_step(text, &trail->step, !trail->above);
    }
}

void wh_fail_trail(wherry_error *error, const wh_trail *trail) {
    if (!error) {
        return;
    }
    wh_string text = {0};
    wh_trail_append(&text, trail);
    if (text.bytes && !text.failed) {
        wh_fail_path(error, text.bytes);
    }
    wh_free(text.bytes);
}

/** The step that leads from a value's parent to it; false where that is none: an object, or a local tensor. */
static bool step_to(const wherry_value *value, wherry_step *step_p) {
    size_t count = value->parent->kind == WHERRY_KIND_OBJECT ? 0 : wh_child_count(value->parent);
    for (size_t i = 0; i < count; i++) {
        if (wh_child_at(value->parent, i, step_p) == value) {
            return true;
        }
    }
    return false;
}

static bool append_above(wh_string *text, const wherry_value *value) {
    if (!value->parent) {
        return true;
    }
    bool first = append_above(text, value->parent);
    wherry_step step;
    if (step_to(value, &step)) {
        append_step(text, &step, first);
        first = false;
    }
    return first;
}

void wh_value_path_append(wh_string *text, const wherry_value *value) {
    append_above(text, value);
}

void wh_fail_value(wherry_error *error, const wherry_value *value) {
    if (!error) {
        return;
    }
    wh_string text = {0};
    append_above(&text, value);
    if (text.bytes && !text.failed) {
        wh_fail_path(error, text.bytes);
    }
    wh_free(text.bytes);
}

wherry_status wherry_path_create(const wherry_step *steps, size_t count, wherry_path **path_p, wherry_error *error) {
    if ((count && !steps) || !path_p || count > WHERRY_PATH_STEPS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a path has steps, at most %d of them", WHERRY_PATH_STEPS_MAX);
    }
    wherry_path *path = wh_alloc(sizeof(*path) + count * sizeof(*steps));
    if (!path) {
        return wh_fail_memory(error, "a path");
    }
    *path = (wherry_path){(wherry_step *)(path + 1), 0, true};
    for (; path->count < count; path->count++) {
        wherry_step *step = path->steps + path->count;
        *step = steps[path->count];
        wherry_status status = WHERRY_OK;
        if (step->key && !wh_value_is_scalar(step->key)) {
            status = wh_fail(error, WHERRY_INVALID_ARGUMENT, "step %zu of the path is not a scalar", path->count);
        } else if (step->key) {
            status = wherry_value_copy(step->key, (wherry_value **)&step->key, error);
        }
        if (status != WHERRY_OK) {
            wherry_path_destroy(path);
            return status;
        }
    }
    *path_p = path;
    return WHERRY_OK;
}

void wherry_path_destroy(wherry_path *path) {
    for (size_t i = 0; path && path->owns_keys && i < path->count; i++) {
        wherry_value_destroy((wherry_value *)path->steps[i].key);
    }
    wh_free(path);
}

wherry_status wherry_path_format(const wherry_path *path, char **text_p, wherry_error *error) {
    wh_string text = {0};
    wh_path_append(&text, path->steps, path->count);
    char *taken = wh_string_take(&text);
    if (!taken) {
        return wh_fail_memory(error, "the text of a path");
    }
    *text_p = taken;
    return WHERRY_OK;
}

size_t wherry_path_count(const wherry_path *path) {
    return path->count;
}

const wherry_step *wherry_path_at(const wherry_path *path, size_t index) {
    return index < path->count ? path->steps + index : NULL;
}

bool wherry_path_equal(const wherry_path *one, const wherry_path *other) {
    if (one->count != other->count) {
        return false;
    }
    for (size_t i = 0; i < one->count; i++) {
        const wherry_step *a = one->steps + i;
        const wherry_step *b = other->steps + i;
        if (!a->key != !b->key || (a->key ? !wh_scalar_equal(a->key, b->key) : a->index != b->index)) {
            return false;
        }
    }
    return true;
}

wherry_value *wherry_value_at(const wherry_value *root, const wherry_path *path) {
    const wherry_value *at = root;
    for (size_t i = 0; i < path->count && at; i++) {
        const wherry_step *step = path->steps + i;
        at = wh_value_inside(at);
        at = step->key ? wherry_dict_find(at, step->key) : wherry_sequence_at(at, step->index);
    }
    return (wherry_value *)(at ? wh_value_inside(at) : NULL);
}

wherry_status wherry_value_find(const wherry_value *root, const char *text, wherry_value **value_p,
                                wherry_error *error) {
    wherry_path *path;
    wherry_status status = wherry_path_parse(text, strlen(text), &path, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_value *value = wherry_value_at(root, path);
    wherry_path_destroy(path);
    if (!value) {
        status =
            wh_fail(error, WHERRY_NOT_FOUND, "there is nothing at '%.200s'; list the paths by wherry_flatten", text);
        wh_fail_path(error, text);
        return status;
    }
    *value_p = value;
    return WHERRY_OK;
}

size_t wh_child_count(const wherry_value *value) {
    const wherry_value *inside = wh_value_inside(value);
    return inside->kind == WHERRY_KIND_DICT ? inside->as.dict->count : wherry_sequence_count(inside);
}

/** How many children ahead to ask for: far enough that they arrive in time, near enough that they are still there. */
enum { AHEAD = 16, HALFWAY = 8 };

static void prefetch(const wherry_value *value) {
    __builtin_prefetch(value);
    __builtin_prefetch((const char *)value + 64);
}

void wh_child_ahead(const wherry_value *value, size_t index) {
    if (value->kind == WHERRY_KIND_DICT) {
        const wh_dict *dict = value->as.dict;
        if (index + AHEAD < dict->count) {
            prefetch(dict->entries[index + AHEAD].item);
            prefetch(dict->entries[index + AHEAD].key);
            const wherry_value *halfway = dict->entries[index + HALFWAY].item;
            if (halfway->kind == WHERRY_KIND_TENSOR) {
                __builtin_prefetch(halfway->as.tensor->storage);
            }
        }
    } else if (index + AHEAD < wherry_sequence_count(value)) {
        prefetch(value->as.sequence.items[index + AHEAD]);
    }
}

wherry_value *wh_child_at(const wherry_value *value, size_t index, wherry_step *step_p) {
    wh_child_ahead(value, index);
    if (value->kind == WHERRY_KIND_DICT) {
        *step_p = (wherry_step){value->as.dict->entries[index].key, 0};
        return value->as.dict->entries[index].item;
    }
    *step_p = (wherry_step){NULL, index};
    return value->as.sequence.items[index];
}
