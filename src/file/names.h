/** @file names.h  The tensors of a state by name, as safetensors files hold them. */
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

/** Starts as {0}. */
typedef struct wh_names {
    wherry_flat *flat;
    wh_named *items; /**< In the order of the walk. */
    size_t count;
    size_t capacity;
    wh_index index;
    const wherry_value *metadata; /**< The state's WH_SAFETENSORS_METADATA, borrowed; NULL: none. */
} wh_names;

/**
 * Lists the tensors of a state that safetensors can hold.
 * @param state  borrowed until wh_names_destroy.
 * @param names  to be destroyed even on failure.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED with the path of the first value that does not fit, and
 * what to do; WHERRY_NO_MEMORY.
 */
wherry_status wh_names_of(const wherry_value *state, wh_names *names, wherry_error *error);

void wh_names_destroy(wh_names *names);

#endif
