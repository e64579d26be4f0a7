#include "leaves.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/base.h>

enum { NAME_MAX_BYTES = 4096 };

wherry_status wh_fail_error(wherry_error *error, wherry_status status, const char *format, ...) {
    va_list arguments;
    int number = errno;
    *error = (wherry_error){.status = status, .rank = -1, .offset = UINT64_MAX};
    va_start(arguments, format);
    vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    if (status == WHERRY_SYSTEM) {
        size_t used = strlen(error->message);
        error->errnum = number;
        snprintf(error->message + used, sizeof(error->message) - used, ": %s", strerror(number));
    }
    return status;
}

/* ---- names ---- */

/** Adds a key to a name: a string as it is, any other, and one with a zero in it, as a path writes it. */
static void add_key(FILE *out, const wherry_value *key) {
    wherry_step one = {.key = key};
    wherry_path *path = NULL;
    char *text = NULL;
    size_t size = 0;
    const char *string = wherry_string_get(key, &size);
    if (string && strlen(string) == size) {
        fputs(string, out);
    } else if (wherry_path_create(&one, 1, &path, NULL) == WHERRY_OK &&
               wherry_path_format(path, &text, NULL) == WHERRY_OK) {
        fputs(text, out);
    }
    wherry_free(text);
    wherry_path_destroy(path);
}

static char *name_of(const wherry_path *path) {
    char *name = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&name, &size);
    for (size_t i = 0; out && i < wherry_path_count(path); i++) {
        const wherry_step *step = wherry_path_at(path, i);
        fputs(i ? "." : "", out);
        if (step->key) {
            add_key(out, step->key);
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

/* ---- the list ---- */

uint64_t wh_tensor_bytes(const wherry_tensor *tensor) {
    return wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes;
}

typedef struct seen {
    const wherry_storage *storage;
    size_t leaf;
} seen;

static int compare_seen(const void *one, const void *other) {
    const seen *a = one;
    const seen *b = other;
    if (a->storage != b->storage) {
        return a->storage < b->storage ? -1 : 1;
    }
    return (a->leaf > b->leaf) - (a->leaf < b->leaf);
}

/** Numbers the storages in the order in which they first come. */
static bool number_storages(wh_leaves *leaves) {
    seen *all = calloc(leaves->tensors ? leaves->tensors : 1, sizeof(*all));
    size_t count = 0;
    for (size_t i = 0; all && i < leaves->count; i++) {
        if (leaves->items[i].tensor) {
            all[count++] = (seen){leaves->items[i].tensor->storage, i};
        }
    }
    if (!all) {
        return false;
    }
    qsort(all, count, sizeof(*all), compare_seen);
    for (size_t i = 0; i < count; i++) { /* for now, the first leaf that has it */
        bool same = i && all[i].storage == all[i - 1].storage;
        leaves->items[all[i].leaf].storage = same ? leaves->items[all[i - 1].leaf].storage : all[i].leaf;
    }
    for (size_t i = 0; i < leaves->count; i++) {
        wh_leaf *leaf = leaves->items + i;
        if (leaf->tensor) {
            leaf->storage = leaf->storage == i ? leaves->storages++ : leaves->items[leaf->storage].storage;
        }
    }
    free(all);
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
        leaves->tensors += leaf->tensor != NULL;
        leaves->bytes += leaf->tensor ? wh_tensor_bytes(leaf->tensor) : 0;
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

/* ---- what a leaf is ---- */

static void tensor_text(const wherry_tensor *tensor, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s [", wherry_dtype_describe(tensor->dtype)->name);
    for (uint32_t i = 0; i < tensor->ndim && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

void wh_leaf_text(const wh_leaf *leaf, char *text, size_t size) {
    if (leaf->tensor) {
        tensor_text(leaf->tensor, text, size);
        return;
    }
    /* A line of the dump, which knows every kind. */
    char *dumped = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&dumped, &length);
    bool good = out && wherry_value_dump(leaf->value, out, NULL) == WHERRY_OK;
    good = out && fclose(out) == 0 && good;
    snprintf(text, size, "%.*s", good ? (int)strcspn(dumped, "\n") : 0, good ? dumped : "");
    free(dumped);
}

/* ---- a part of a state ---- */

typedef struct picking {
    const char *pattern;
    char name[NAME_MAX_BYTES];
} picking;

static wherry_status pick(picking *p, size_t used, const wherry_value *value, wherry_value **picked_p,
                          wherry_error *error);

static wherry_status pick_entry(picking *p, size_t used, const wherry_value *dict, size_t index, wherry_value *picked,
                                wherry_error *error) {
    const wherry_value *key = wherry_dict_key_at(dict, index);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out) {
        add_key(out, key);
    }
    if (!out || fclose(out) != 0) {
        return wh_fail_error(error, WHERRY_NO_MEMORY, "no memory for a name");
    }
    int length = snprintf(p->name + used, sizeof(p->name) - used, "%s%s", used ? "." : "", text);
    free(text);
    if (length < 0 || (size_t)length >= sizeof(p->name) - used) {
        return wh_fail_error(error, WHERRY_UNSUPPORTED, "a name has over %d bytes", NAME_MAX_BYTES);
    }
    wherry_value *item = NULL;
    wherry_value *own_key = NULL;
    wherry_status status = pick(p, used + (size_t)length, wherry_dict_at(dict, index), &item, error);
    if (status != WHERRY_OK || !item) {
        return status;
    }
    status = wherry_value_copy(key, &own_key, error);
    if (status == WHERRY_OK) {
        status = wherry_dict_set(picked, own_key, item, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(own_key);
        wherry_value_destroy(item);
    }
    return status;
}

/** Goes into dicts; what is none is taken whole, or not. */
static wherry_status pick(picking *p, size_t used, const wherry_value *value, wherry_value **picked_p,
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
        p->name[used] = '\0';
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
    picking p = {.pattern = pattern};
    return pick(&p, 0, state, state_p, error);
}
