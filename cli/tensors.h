/** @file tensors.h  The leaves of a state. A leaf's name is its path, with dots between steps. */
#ifndef WH_CLI_TENSORS_H
#define WH_CLI_TENSORS_H

#include <stddef.h>

#include <wherry/tensor.h>
#include <wherry/value.h>

typedef struct wh_leaf {
    char *name;
    const wherry_value *value;
    const wherry_tensor *tensor; /**< NULL if the leaf is not a tensor. */
} wh_leaf;

/** The leaves of a state. Initialize it with {0}. The values are borrowed from the state. */
typedef struct wh_leaves {
    wh_leaf *items;
    size_t count;
} wh_leaves;

wherry_status wh_leaves_list(wh_leaves *leaves, const wherry_value *state, wherry_error *error);

void wh_leaves_free(wh_leaves *leaves);

/** Sorts the leaves by name. */
void wh_leaves_sort(wh_leaves *leaves);

/** Describes a leaf, such as "float32 [2, 3]", "int 1000" or "\"text\"". */
void wh_leaf_text(const wh_leaf *leaf, char *text, size_t size);

/**
 * Copies the values whose names match a shell pattern, with the dicts that contain them.
 * @param state_p  receives the copy, owned by the caller; NULL if nothing matches.
 */
wherry_status wh_leaves_pick(const wherry_value *state, const char *pattern, wherry_value **state_p,
                             wherry_error *error);

#endif
