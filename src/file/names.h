/** @file names.h  The names of the tensors of a state in a safetensors file. */
#ifndef WH_FILE_NAMES_H
#define WH_FILE_NAMES_H

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

/** The tensors and the metadata of a state. Initialize it with {0}. */
typedef struct wh_names {
    wherry_flat *flat;
    wh_named *items; /**< The tensors in the order of the walk. */
    size_t count;
    size_t capacity;
    wh_index index;
    /** The state's value for WH_SAFETENSORS_METADATA, borrowed; NULL if it has none. */
    const wherry_value *metadata;
} wh_names;

/**
 * Lists the tensors of a state, and checks that safetensors can hold the whole state.
 * @param state  borrowed until wh_names_destroy.
 * @param names  the result. The caller must destroy it even after a failure.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if safetensors cannot hold a value: the error has the path
 * of the value and says what to do; WHERRY_NO_MEMORY.
 */
wherry_status wh_names_of(const wherry_value *state, wh_names *names, wherry_error *error);

void wh_names_destroy(wh_names *names);

#endif
