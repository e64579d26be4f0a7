#include "tensors.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

enum { NAME_BYTES = 4096 };

/* ---- the list ---- */

/** Prints a key of a name: a string as it is; other keys, and strings with a zero byte, as paths write them. */
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

/** @return the name of a leaf, to be freed; NULL without memory. */
static char *name_of(const wherry_path *path) {
    char *name = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&name, &size);
    for (size_t i = 0; out && i < wherry_path_count(path); i++) {
        const wherry_step *step = wherry_path_at(path, i);
        fputs(i ? "." : "", out);
        if (step->key) {
            print_key(out, step->key);
        } else {
            fprintf(out, "%" PRIu64, step->index);
        }
    }
    if (!out || fclose(out) != 0) {
        free(name);
        return NULL;
    }
    return name;
}

uint64_t wh_tensor_bytes(const wherry_tensor *tensor) {
    return wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes;
}

static int by_storage(const void *one, const void *other) {
    const wh_leaf *a = *(wh_leaf *const *)one;
    const wh_leaf *b = *(wh_leaf *const *)other;
    if (a->tensor->storage != b->tensor->storage) {
        return a->tensor->storage < b->tensor->storage ? -1 : 1;
    }
    return (a > b) - (a < b);
}

/** Numbers the storages in the order in which they first occur. @return false without memory. */
static bool number_storages(wh_leaves *leaves) {
    wh_leaf **tensors = calloc(leaves->count + 1, sizeof(wh_leaf *));
    size_t count = 0;
    size_t storages = 0;
    for (size_t i = 0; tensors && i < leaves->count; i++) {
        if (leaves->items[i].tensor) {
            tensors[count++] = leaves->items + i;
        }
    }
    if (!tensors) {
        return false;
    }
    qsort(tensors, count, sizeof(*tensors), by_storage);
    for (size_t i = 0; i < count; i++) { /* first: the index of the first leaf with the same storage */
        bool same = i && tensors[i]->tensor->storage == tensors[i - 1]->tensor->storage;
        tensors[i]->storage = same ? tensors[i - 1]->storage : (size_t)(tensors[i] - leaves->items);
    }
    for (size_t i = 0; i < leaves->count; i++) {
        wh_leaf *leaf = leaves->items + i;
        if (leaf->tensor) {
            leaf->storage = leaf->storage == i ? storages++ : leaves->items[leaf->storage].storage;
        }
    }
    free(tensors);
    return true;
}

wherry_status wh_leaves_list(wh_leaves *leaves, const wherry_value *state, wherry_error *error) {
    wherry_flat *flat;
    wherry_status status = wherry_flatten(state, &flat, error);
    if (status != WHERRY_OK) {
        return status;
    }
    leaves->items = calloc(wherry_flat_count(flat) + 1, sizeof(*leaves->items));
    bool good = leaves->items != NULL;
    for (size_t i = 0; good && i < wherry_flat_count(flat); i++) {
        wh_leaf *leaf = leaves->items + leaves->count++;
        leaf->value = wherry_flat_leaf(flat, i);
        leaf->tensor = wherry_tensor_get(leaf->value);
        leaf->name = name_of(wherry_flat_path(flat, i));
        good = leaf->name != NULL;
    }
    wherry_flat_destroy(flat);
    good = good && number_storages(leaves);
    return good ? WHERRY_OK : wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for the list of tensors");
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
    size_t length = 0;
    FILE *out = open_memstream(&dump, &length);
    bool good = out;
    if (out && tensor) {
        fprintf(out, "%s [", wherry_dtype_describe(tensor->dtype)->name);
        for (uint32_t i = 0; i < tensor->ndim; i++) {
            fprintf(out, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
        }
        fputc(']', out);
    } else if (out) {
        good = wherry_value_dump(leaf->value, out, NULL) == WHERRY_OK; /* its first line */
    }
    good = out && fclose(out) == 0 && good;
    snprintf(text, size, "%.*s", good ? (int)strcspn(dump, "\n") : 0, good ? dump : "");
    free(dump);
}

/* ---- a part of a state ---- */

typedef struct picker {
    const char *pattern;
    char name[NAME_BYTES]; /**< Of the value that is looked at. */
} picker;

static wherry_status pick(picker *p, size_t used, const wherry_value *value, wherry_value **picked_p,
                          wherry_error *error);

/** Adds what matches in an entry of dict to picked. */
static wherry_status pick_entry(picker *p, size_t used, const wherry_value *dict, size_t index, wherry_value *picked,
                                wherry_error *error) {
    const wherry_value *key = wherry_dict_key_at(dict, index);
    wherry_value *key_copy = NULL;
    wherry_value *item = NULL;
    FILE *out = fmemopen(p->name + used, sizeof(p->name) - used, "w");
    if (!out) {
        return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a name");
    }
    fputs(used ? "." : "", out);
    print_key(out, key);
    if (fflush(out) != 0 || ftello(out) >= (off_t)(sizeof(p->name) - used - 1)) {
        fclose(out);
        return wh_fail_error(error, WHERRY_UNSUPPORTED, "a name has more than %d bytes", NAME_BYTES);
    }
    fclose(out);
    wherry_status status = pick(p, used + strlen(p->name + used), wherry_dict_at(dict, index), &item, error);
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

/** Looks into dicts. Any other value is taken as a whole, or not. */
static wherry_status pick(picker *p, size_t used, const wherry_value *value, wherry_value **picked_p,
                          wherry_error *error) {
    *picked_p = NULL;
    if (used && fnmatch(p->pattern, p->name, 0) == 0) {
        return wherry_value_copy(value, picked_p, error);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_DICT) {
        return WHERRY_OK;
    }
    wherry_value *picked;
    wherry_status status = wherry_dict_create(&picked, error);
    if (status != WHERRY_OK) {
        return status;
    }
    for (size_t i = 0; status == WHERRY_OK && i < wherry_dict_count(value); i++) {
        status = pick_entry(p, used, value, i, picked, error);
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
    picker p = {.pattern = pattern};
    return pick(&p, 0, state, state_p, error);
}
