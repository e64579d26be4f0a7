#include "tensors.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

/* ---- the list ---- */

/** Prints a string key unchanged. Prints strings with a zero byte, and other keys, as in paths. */
static void print_key(FILE *out, const wherry_value *key) {
    wherry_step step = {.key = key};
    wherry_path *path = NULL;
    char *text = NULL;
    size_t size = 0;
    const char *string = wherry_string_get(key, &size);
    if (string && strlen(string) == size) {
        fputs(string, out);
    } else if (wherry_path_create(&step, 1, &path, NULL) == WHERRY_OK &&
               wherry_path_format(path, &text, NULL) == WHERRY_OK) {
        fputs(text, out);
    }
    wherry_free(text);
    wherry_path_destroy(path);
}

/** Builds the name of a leaf. @return the name, which the caller frees. */
static char *name_of(const wherry_path *path) {
    char *name = NULL;
    size_t size;
    FILE *out = wh_need(open_memstream(&name, &size));
    for (size_t i = 0; i < wherry_path_count(path); i++) {
        const wherry_step *step = wherry_path_at(path, i);
        fputs(i ? "." : "", out);
        if (step->key) {
            print_key(out, step->key);
        } else {
            fprintf(out, "%" PRIu64, step->index);
        }
    }
    fclose(out);
    return wh_need(name);
}

wherry_status wh_leaves_list(wh_leaves *leaves, const wherry_value *state, wherry_error *error) {
    wherry_flat *flat;
    wherry_status status = wherry_flatten(state, &flat, error);
    if (status != WHERRY_OK) {
        return status;
    }
    leaves->count = wherry_flat_count(flat);
    leaves->items = wh_need(calloc(leaves->count + 1, sizeof(*leaves->items)));
    for (size_t i = 0; i < leaves->count; i++) {
        const wherry_value *value = wherry_flat_leaf(flat, i);
        leaves->items[i] = (wh_leaf){name_of(wherry_flat_path(flat, i)), value, wherry_tensor_get(value)};
    }
    wherry_flat_destroy(flat);
    return WHERRY_OK;
}

void wh_leaves_free(wh_leaves *leaves) {
    for (size_t i = 0; i < leaves->count; i++) {
        free(leaves->items[i].name);
    }
    free(leaves->items);
    *leaves = (wh_leaves){0};
}

static int by_name(const void *one, const void *other) {
    return strcmp(((const wh_leaf *)one)->name, ((const wh_leaf *)other)->name);
}

void wh_leaves_sort(wh_leaves *leaves) {
    qsort(leaves->items, leaves->count, sizeof(*leaves->items), by_name);
}

void wh_leaf_text(const wh_leaf *leaf, char *text, size_t size) {
    const wherry_tensor *tensor = leaf->tensor;
    char *dump = NULL;
    size_t length;
    FILE *out = wh_need(open_memstream(&dump, &length));
    if (tensor) {
        fprintf(out, "%s [", wherry_dtype_describe(tensor->dtype)->name);
        for (uint32_t i = 0; i < tensor->ndim; i++) {
            fprintf(out, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
        }
        fputc(']', out);
    } else {
        wherry_value_dump(leaf->value, out, NULL); /* Only the first line is used. */
    }
    fclose(out);
    snprintf(text, size, "%.*s", (int)strcspn(wh_need(dump), "\n"), dump);
    free(dump);
}

uint64_t wh_tensor_bytes(const wherry_value *state) {
    wherry_prepared *prepared = NULL;
    wherry_prepared_summary sums = {0};
    if (wherry_prepare(state, NULL, &prepared, NULL) == WHERRY_OK) {
        wherry_prepared_summarize(prepared, &sums);
    }
    wherry_prepared_destroy(prepared);
    return sums.bytes;
}

/* ---- a part of a state ---- */

static wherry_status pick(const char *pattern, const char *name, const wherry_value *value, wherry_value **picked_p,
                          wherry_error *error);

/** Adds the matching parts of an entry of `dict` to `picked`. */
static wherry_status pick_entry(const char *pattern, const char *parent, const wherry_value *dict, size_t index,
                                wherry_value *picked, wherry_error *error) {
    const wherry_value *key = wherry_dict_key_at(dict, index);
    wherry_value *key_copy = NULL;
    wherry_value *item = NULL;
    char *name = NULL;
    size_t size;
    FILE *out = wh_need(open_memstream(&name, &size));
    fprintf(out, "%s%s", parent, *parent ? "." : "");
    print_key(out, key);
    fclose(out);
    wherry_status status = pick(pattern, wh_need(name), wherry_dict_at(dict, index), &item, error);
    free(name);
    if (status != WHERRY_OK || !item) {
        return status;
    }
    status = wherry_value_copy(key, &key_copy, error);
    WH_THEN(status, wherry_dict_set(picked, key_copy, item, error));
    if (status != WHERRY_OK) {
        wherry_value_destroy(key_copy);
        wherry_value_destroy(item);
    }
    return status;
}

/** Copies the matching parts of a dict. Copies any other value as a whole or not at all. */
static wherry_status pick(const char *pattern, const char *name, const wherry_value *value, wherry_value **picked_p,
                          wherry_error *error) {
    wherry_value *picked;
    if (*name && fnmatch(pattern, name, 0) == 0) {
        return wherry_value_copy(value, picked_p, error);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_DICT) {
        return WHERRY_OK;
    }
    wherry_status status = wherry_dict_create(&picked, error);
    if (status != WHERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < wherry_dict_count(value); i++) {
        WH_THEN(status, pick_entry(pattern, name, value, i, picked, error));
    }
    if (status != WHERRY_OK || wherry_dict_count(picked) == 0) {
        wherry_value_destroy(picked);
        return status;
    }
    *picked_p = picked;
    return WHERRY_OK;
}

wherry_status wh_leaves_pick(const wherry_value *state, const char *pattern, wherry_value **state_p,
                             wherry_error *error) {
    *state_p = NULL;
    return pick(pattern, "", state, state_p, error);
}

/* ---- digests ---- */

void wh_digest_hex(const wherry_digest *digest, char hex[WH_HEX_MAX]) {
    for (int i = 0; i < WHERRY_DIGEST_BYTES; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest->bytes[i]);
    }
}

wherry_status wh_digest_slice(const wherry_tensor *slice, char hex[WH_HEX_MAX], wherry_error *error) {
    wherry_value *tensor = NULL;
    wherry_digest digest;
    wherry_status status = wherry_tensor_create(slice, &tensor, error);
    WH_THEN(status, wherry_tensor_digest(tensor, &digest, error));
    if (status == WHERRY_OK) {
        wh_digest_hex(&digest, hex);
    }
    wherry_value_destroy(tensor);
    return status;
}

wherry_status wh_digest_bytes(const void *bytes, size_t size, char hex[WH_HEX_MAX], wherry_error *error) {
    wherry_tensor all = {.dtype = WHERRY_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)size}};
    wherry_status status =
        wherry_storage_wrap((void *)bytes, size, wherry_device_cpu(), NULL, NULL, &all.storage, error);
    WH_THEN(status, wh_digest_slice(&all, hex, error));
    wherry_storage_unref(all.storage);
    return status;
}
