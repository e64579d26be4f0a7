#include "file/named.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "file/layout.h"

/** The way out, for everything that a format cannot hold. */
#define WAY_OUT "write a .wherry file instead, which holds any state"

/** WHERRY_UNSUPPORTED about the value at a path. */
static wherry_status refuse(wherry_error *error, const wh_naming *naming, const wherry_path *path, const char *what,
                            const char *way_out) {
    char *text = NULL;
    if (path) {
        wherry_path_format(path, &text, NULL);
    }
    wh_fail(error, WHERRY_UNSUPPORTED, "%s cannot hold what is at '%.150s': %s; %s", naming->format, text ? text : "",
            what, way_out);
    if (text) {
        wh_fail_path(error, text);
    }
    wherry_free(text);
    return WHERRY_UNSUPPORTED;
}

wherry_status wh_naming_check(const wh_naming *naming, const wherry_tensor *tensor, const wherry_path *path,
                              wherry_error *error) {
    wh_string text = {0};
    if (!naming->has_dtype(tensor->dtype)) {
        wh_string_format(&text, "a tensor of %s", wherry_dtype_describe(tensor->dtype)->name);
        wherry_status status = refuse(error, naming, path, text.bytes ? text.bytes : "its dtype", WAY_OUT);
        wh_free(text.bytes);
        return status;
    }
    if (tensor->flags & (WHERRY_TENSOR_CONJ | WHERRY_TENSOR_NEG)) {
        return refuse(error, naming, path, "a tensor whose conj or neg bit is set", "resolve it first, or " WAY_OUT);
    }
    if (!wh_tensor_is_dense(tensor)) {
        return refuse(error, naming, path, "a tensor that is not contiguous", "copy it first, or " WAY_OUT);
    }
    return WHERRY_OK;
}

static bool has_name(const void *owner, size_t element, const void *key) {
    const wh_named *one = ((const wh_names *)owner)->items + element;
    const wh_named *other = key;
    return one->size == other->size && memcmp(one->name, other->name, one->size) == 0;
}

/** The steps of a path joined by dots. @return a status other than OK where a key is no text. */
static wherry_status join(const wherry_path *path, wh_string *name) {
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
            return WHERRY_UNSUPPORTED;
        }
        wh_string_append(name, text, size);
    }
    return WHERRY_OK;
}

static wherry_status add_tensor(wh_names *names, const wh_naming *naming, const wherry_tensor *tensor,
                                const wherry_path *path, wherry_error *error) {
    wh_string text = {0};
    wherry_status status = wh_naming_check(naming, tensor, path, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (join(path, &text) != WHERRY_OK) {
        wh_free(text.bytes);
        return refuse(error, naming, path, "a key that is no text, or has a zero in it", WAY_OUT);
    }
    size_t size = text.size;
    wh_named named = {wh_string_take(&text), size, tensor, path};
    if (!named.name) {
        return wh_fail_memory(error, "the names of tensors");
    }
    uint64_t hash = wh_hash(named.name, size, 0);
    if (wh_index_find(&names->index, hash, has_name, names, &named) != WH_INDEX_NONE ||
        (naming->metadata && strcmp(named.name, naming->metadata) == 0)) {
        wh_free(named.name);
        return refuse(error, naming, path, "joined by dots its keys are the name of something else",
                      "rename it, or " WAY_OUT);
    }
    if (!WH_GROW(names->items, names->capacity, names->count) || !wh_index_add(&names->index, hash, names->count)) {
        wh_free(named.name);
        return wh_fail_memory(error, "the names of tensors");
    }
    names->items[names->count++] = named;
    return WHERRY_OK;
}

/** Whether a path begins with the key under which metadata is kept. */
static bool is_metadata(const wh_naming *naming, const wherry_path *path) {
    const wherry_step *step = wherry_path_at(path, 0);
    const char *key = naming->metadata && step && step->key ? wherry_string_get(step->key, NULL) : NULL;
    return key && strcmp(key, naming->metadata) == 0;
}

static wherry_status add_metadata(wh_names *names, const wh_naming *naming, const wherry_value *state, size_t leaf,
                                  wherry_error *error) {
    const wherry_path *path = wherry_flat_path(names->flat, leaf);
    const wherry_value *value = wherry_flat_leaf(names->flat, leaf);
    size_t steps = wherry_path_count(path);
    bool empty = steps == 1 && wherry_value_kind(value) == WHERRY_KIND_DICT;
    bool text = steps == 2 && wherry_value_kind(value) == WHERRY_KIND_STRING && wherry_path_at(path, 1)->key &&
                wherry_value_kind(wherry_path_at(path, 1)->key) == WHERRY_KIND_STRING;
    size_t sizes[2] = {0, 0};
    if (text) {
        const char *key = wherry_string_get(wherry_path_at(path, 1)->key, &sizes[0]);
        const char *content = wherry_string_get(value, &sizes[1]);
        text = !memchr(key, '\0', sizes[0]) && !memchr(content, '\0', sizes[1]);
    }
    if (!empty && !text) {
        return refuse(error, naming, path, "metadata that is no dict of texts without zeros", WAY_OUT);
    }
    names->metadata = wherry_dict_get(state, naming->metadata);
    return WHERRY_OK;
}

/** A run of memory, or of bytes of a storage that has none. */
typedef struct span {
    const void *storage; /**< NULL: of memory. */
    uint64_t begin;
    uint64_t end;
    const wh_named *named;
} span;

static int compare_spans(const void *one, const void *other) {
    const span *a = one;
    const span *b = other;
    if (a->storage != b->storage) {
        return (uintptr_t)a->storage < (uintptr_t)b->storage ? -1 : 1;
    }
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/** The format would make two of what is one, and nobody would tie them again. */
static wherry_status check_sharing(const wh_names *names, const wh_naming *naming, wherry_error *error) {
    span *spans = wh_alloc_array(names->count, sizeof(*spans));
    size_t count = 0;
    if (!spans) {
        return wh_fail_memory(error, "the names of tensors");
    }
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
            wh_string what = {0};
            wh_string_format(&what, "a tensor that shares memory with '%.100s'", spans[i - 1].named->name);
            status =
                refuse(error, naming, spans[i].named->path, what.bytes ? what.bytes : "a tensor that shares memory",
                       "leave one of them out, or " WAY_OUT);
            wh_free(what.bytes);
        }
    }
    wh_free(spans);
    return status;
}

wherry_status wh_names_of(const wherry_value *state, const wh_naming *naming, wh_names *names, wherry_error *error) {
    wherry_status status = wherry_flatten(state, &names->flat, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t leaves = wherry_flat_count(names->flat);
    for (size_t i = 0; i < leaves && status == WHERRY_OK; i++) {
        const wherry_value *leaf = wherry_flat_leaf(names->flat, i);
        const wherry_path *path = wherry_flat_path(names->flat, i);
        const wherry_tensor *tensor = wherry_tensor_get(leaf);
        bool nothing = wherry_path_count(path) == 0 && wherry_value_kind(leaf) == WHERRY_KIND_DICT;
        if (is_metadata(naming, path)) {
            status = add_metadata(names, naming, state, i, error);
        } else if (tensor && wherry_path_count(path) > 0) {
            status = add_tensor(names, naming, tensor, path, error);
        } else if (!nothing) {
            wh_string what = {0};
            wh_string_format(&what, "a %s%s", wherry_kind_name(wherry_value_kind(leaf)),
                             tensor ? " without a name" : "");
            status = refuse(error, naming, path, what.bytes ? what.bytes : "no tensor", WAY_OUT);
            wh_free(what.bytes);
        }
    }
    return status == WHERRY_OK ? check_sharing(names, naming, error) : status;
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
