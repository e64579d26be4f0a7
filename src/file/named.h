/** @file named.h  The tensors of a state by name, for formats that know nothing else. */
#ifndef WH_FILE_NAMED_H
#define WH_FILE_NAMED_H

#include <wherry/tensor.h>
#include <wherry/value.h>

#include "base/index.h"

/** A tensor and its name: the steps of its path, joined by dots. */
typedef struct wh_named {
    char *name; /**< Zero-terminated. */
    size_t size;
    const wherry_tensor *tensor;
    const wherry_path *path;
} wh_named;

/** Starts as {0}. */
typedef struct wh_names {
    wherry_flat *flat;
    wh_named *items; /**< In the order of the walk. */
    size_t count;
    size_t capacity;
    wh_index index;
    const wherry_value *metadata; /**< What the state has under the name for it, borrowed; NULL: nothing. */
} wh_names;

/** What a format can hold. */
typedef struct wh_naming {
    const char *format; /**< Its name, for messages. */
    const char
        *metadata; /**< Where a state keeps a dict of texts that the format has a place for; NULL: it has none. */
    bool (*has_dtype)(wherry_dtype dtype); /**< Whether it has that element type. */
} wh_naming;

/**
 * Lists the tensors of a state, each fit for the format.
 * @param state  borrowed until wh_names_destroy.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the path of what does not fit, and the way out; WHERRY_NO_MEMORY. Destroy it in any case.
 */
wherry_status wh_names_of(const wherry_value *state, const wh_naming *naming, wh_names *names, wherry_error *error);

void wh_names_destroy(wh_names *names);

/** Checks one tensor alone: dtype, order of its elements, flags. path may be NULL. */
wherry_status wh_naming_check(const wh_naming *naming, const wherry_tensor *tensor, const wherry_path *path,
                              wherry_error *error);

#endif
