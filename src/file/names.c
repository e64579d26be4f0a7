#include "file/names.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "file/safetensors.h"

/** Advice for values that safetensors cannot hold. */
#define USE_NATIVE "write a .wherry file instead, which holds any state"

/**
 * Fails with WHERRY_UNSUPPORTED. The error names the path of the value that safetensors cannot
 * hold.
 */
static wherry_status refuse(wherry_error *error, const wherry_path *path, const char *advice, const char *format, ...)
    WHERRY_PRINTF(4, 5);
static wherry_status refuse(wherry_error *error, const wherry_path *path, const char *advice, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    char *text = NULL;
    wherry_path_format(path, &text, NULL);
    wh_fail(error, WHERRY_UNSUPPORTED, "safetensors cannot hold the value at '%.150s': %s; %s", text ? text : "", what,
            advice);
    if (text) {
        wh_fail_path(error, text);
    }
    wherry_free(text);
    return WHERRY_UNSUPPORTED;
}

static wherry_status check_tensor(const wherry_tensor *tensor, const wherry_path *path, wherry_error *error) {
    if (!wh_safetensors_dtype_of(tensor->dtype)) {
        return refuse(error, path, USE_NATIVE, "a tensor of %s", wherry_dtype_describe(tensor->dtype)->name);
    }
    if (tensor->flags & (WHERRY_TENSOR_CONJ | WHERRY_TENSOR_NEG)) {
        return refuse(error, path, "resolve the bit first, or " USE_NATIVE, "a tensor with the conj or neg bit set");
    }
    if (!wh_tensor_is_dense(tensor)) {
        return refuse(error, path, "copy it to a contiguous tensor first, or " USE_NATIVE,
                      "a tensor that is not contiguous");
    }
    return WHERRY_OK;
}

static bool has_name(const void *owner, size_t element, const void *key) {
    const wh_named *one = ((const wh_names *)owner)->items + element;
    const wh_named *other = key;
    return one->size == other->size && memcmp(one->name, other->name, one->size) == 0;
}

/**
 * Joins the steps of a path by dots.
 * @return false if a key is not a string, or contains a zero byte.
 */
static bool join(const wherry_path *path, wh_string *name) {
    for (size_t i = 0; i < wherry_path_count(path); i++) {
        const wherry_step *step = wherry_path_at(path, i);
        if (i > 0) {
            wh_string_append(name, ".", 1);
        }
        if (!step->key) {
            wh_string_format(name, "%" PRIu64, step->index);
            continue;
        }
        size_t size;
        const char *text = wherry_string_get(step->key, &size);
        if (!text || memchr(text, '\0', size)) {
            return false;
        }
        wh_string_append(name, text, size);
    }
    return true;
}

static wherry_status add_tensor(wh_names *names, const wherry_tensor *tensor, const wherry_path *path,
                                wherry_error *error) {
    wh_string text = {0};
    WH_TRY(check_tensor(tensor, path, error));
    if (!join(path, &text)) {
        wh_free(text.bytes);
        return refuse(error, path, USE_NATIVE, "a key that is not a string, or contains a zero byte");
    }
    size_t size = text.size;
    wh_named named = {wh_string_take(&text), size, tensor, path};
    WH_TRY_ALLOC(named.name, error, "the names of tensors");
    uint64_t hash = wh_hash(named.name, size, 0);
    if (wh_index_find(&names->index, hash, has_name, names, &named) != WH_INDEX_NONE ||
        strcmp(named.name, WH_SAFETENSORS_METADATA) == 0) {
        wh_free(named.name);
        return refuse(error, path, "rename it, or " USE_NATIVE,
                      "its path, joined by dots, is also the name of another value");
    }
    if (!WH_GROW(names->items, names->capacity, names->count) || !wh_index_add(&names->index, hash, names->count)) {
        wh_free(named.name);
        return wh_fail_memory(error, "the names of tensors");
    }
    names->items[names->count++] = named;
    return WHERRY_OK;
}

/** True if a path starts with the key of the metadata. */
static bool is_metadata(const wherry_path *path) {
    const wherry_step *step = wherry_path_at(path, 0);
    const char *key = step && step->key ? wherry_string_get(step->key, NULL) : NULL;
    return key && strcmp(key, WH_SAFETENSORS_METADATA) == 0;
}

static bool has_zero(const wherry_value *string) {
    size_t size;
    const char *text = wherry_string_get(string, &size);
    return memchr(text, '\0', size) != NULL;
}

static wherry_status add_metadata(wh_names *names, const wherry_value *state, size_t leaf, wherry_error *error) {
    const wherry_path *path = wherry_flat_path(names->flat, leaf);
    const wherry_value *value = wherry_flat_leaf(names->flat, leaf);
    const wherry_value *key = wherry_path_count(path) == 2 ? wherry_path_at(path, 1)->key : NULL;
    bool empty = wherry_path_count(path) == 1 && wherry_value_kind(value) == WHERRY_KIND_DICT;
    bool text = key && wherry_value_kind(key) == WHERRY_KIND_STRING && wherry_value_kind(value) == WHERRY_KIND_STRING &&
                !has_zero(key) && !has_zero(value);
    if (!empty && !text) {
        return refuse(error, path, USE_NATIVE, "metadata other than a dict of strings without zero bytes");
    }
    names->metadata = wherry_dict_get(state, WH_SAFETENSORS_METADATA);
    return WHERRY_OK;
}

/**
 * The range of bytes of a tensor. The bounds are addresses, or offsets in the storage if the
 * storage has no memory.
 */
typedef struct span {
    const void *storage; /**< NULL if the bounds are addresses. */
    uint64_t begin;
    uint64_t end;
    const wh_named *named;
} span;

static int compare_spans(const void *one, const void *other) {
    const span *a = one;
    const span *b = other;
    int order = wh_order((uintptr_t)a->storage, (uintptr_t)b->storage);
    return order ? order : wh_order(a->begin, b->begin);
}

/**
 * Refuses tensors that share memory. The file would contain the shared bytes twice, and tensors
 * read from it would not share memory.
 */
static wherry_status check_sharing(const wh_names *names, wherry_error *error) {
    span *spans = wh_alloc_array(names->count, sizeof(*spans));
    size_t count = 0;
    WH_TRY_ALLOC(spans, error, "the names of tensors");
    for (size_t i = 0; i < names->count; i++) {
        const wherry_tensor *tensor = names->items[i].tensor;
        const void *data = wherry_storage_data(tensor->storage);
        uint64_t begin =
            (uint64_t)(uintptr_t)data + (uint64_t)tensor->offset * wherry_dtype_describe(tensor->dtype)->bytes;
        uint64_t nbytes = wh_dense_bytes(tensor);
        if (nbytes > 0) {
            spans[count++] = (span){data ? NULL : tensor->storage, begin, begin + nbytes, names->items + i};
        }
    }
    if (count > 0) {
        qsort(spans, count, sizeof(*spans), compare_spans);
    }
    wherry_status status = WHERRY_OK;
    for (size_t i = 1; i < count && status == WHERRY_OK; i++) {
        if (spans[i].storage == spans[i - 1].storage && spans[i].begin < spans[i - 1].end) {
            status = refuse(error, spans[i].named->path, "leave one of them out, or " USE_NATIVE,
                            "a tensor that shares memory with '%.100s'", spans[i - 1].named->name);
        }
    }
    wh_free(spans);
    return status;
}

wherry_status wh_names_of(const wherry_value *state, wh_names *names, wherry_error *error) {
    WH_TRY(wherry_flatten(state, &names->flat, error));
    wherry_status status = WHERRY_OK;
    size_t leaves = wherry_flat_count(names->flat);
    for (size_t i = 0; i < leaves && status == WHERRY_OK; i++) {
        const wherry_value *leaf = wherry_flat_leaf(names->flat, i);
        const wherry_path *path = wherry_flat_path(names->flat, i);
        const wherry_tensor *tensor = wherry_tensor_get(leaf);
        bool empty_state = wherry_path_count(path) == 0 && wherry_value_kind(leaf) == WHERRY_KIND_DICT;
        if (is_metadata(path)) {
            status = add_metadata(names, state, i, error);
        } else if (tensor && wherry_path_count(path) > 0) {
            status = add_tensor(names, tensor, path, error);
        } else if (!empty_state) {
            status = refuse(error, path, USE_NATIVE, "a %s%s", wherry_kind_name(wherry_value_kind(leaf)),
                            tensor ? " without a name" : "");
        }
    }
    return status == WHERRY_OK ? check_sharing(names, error) : status;
}

void wh_names_destroy(wh_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        wh_free(names->items[i].name);
    }
    wh_free(names->items);
    wh_index_destroy(&names->index);
    wherry_flat_destroy(names->flat);
    *names = (wh_names){0};
}
