/** @file tensors.h  The tensors and values of a state by name: keys and indices, joined by dots. */
#ifndef WH_CLI_TENSORS_H
#define WH_CLI_TENSORS_H

#include <stddef.h>

#include <wherry/tensor.h>
#include <wherry/value.h>

typedef struct wh_leaf {
    char *name;
    const wherry_value *value;
    const wherry_tensor *tensor; /**< NULL if it is not a tensor. */
} wh_leaf;

/** The leaves of a state. Starts as {0}. Borrows from the state. */
typedef struct wh_leaves {
    wh_leaf *items;
    size_t count;
} wh_leaves;

wherry_status wh_leaves_list(wh_leaves *leaves, const wherry_value *state, wherry_error *error);

void wh_leaves_free(wh_leaves *leaves);

/** Sorts them by name. */
void wh_leaves_sort(wh_leaves *leaves);

/** Describes a leaf: "float32 [2, 3]", "int 1000", "\"text\"". */
void wh_leaf_text(const wh_leaf *leaf, char *text, size_t size);

/**
 * Copies the leaves whose name matches a shell pattern, with the dicts that hold them.
 * @param state_p  receives the copy, which belongs to the caller; NULL if nothing matches.
 */
wherry_status wh_leaves_pick(const wherry_value *state, const char *pattern, wherry_value **state_p,
                             wherry_error *error);

#endif
