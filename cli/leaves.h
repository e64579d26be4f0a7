/** @file leaves.h  The leaves of a state by names for people: keys joined by dots, items by their number. */
#ifndef WH_CLI_LEAVES_H
#define WH_CLI_LEAVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/tensor.h>
#include <wherry/value.h>

/** One leaf. */
typedef struct wh_leaf {
    char *name;
    const wherry_value *value;
    const wherry_tensor *tensor; /**< NULL where it is none. */
    size_t storage;              /**< Of a tensor: the number of its storage, in the order of the leaves. */
} wh_leaf;

/** Starts as {0}. Borrows from the state. */
typedef struct wh_leaves {
    wh_leaf *items;
    size_t count;
    size_t storages; /**< Different ones. */
    uint64_t bytes;  /**< Of all tensors, each counted in full. */
    size_t tensors;
} wh_leaves;

wherry_status wh_leaves_list(wh_leaves *leaves, const wherry_value *state, wherry_error *error);

void wh_leaves_free(wh_leaves *leaves);

/** Puts them in the order of their names. */
void wh_leaves_sort(wh_leaves *leaves);

/** Bytes of the elements of a tensor. */
uint64_t wh_tensor_bytes(const wherry_tensor *tensor);

/** Writes what a leaf is: "float32 [2, 3]", "int 1000", "\"text\"". */
void wh_leaf_text(const wh_leaf *leaf, char *text, size_t size);

/** Fills an error with a text, and for WHERRY_SYSTEM with what errno says. @return status. */
__attribute__((format(printf, 3, 4))) wherry_status wh_fail_error(wherry_error *error, wherry_status status,
                                                                  const char *format, ...);

/** Copies the part of a state whose leaves have a name that fits a pattern of the shell; dicts without such a leaf are left out. @param state_p  NULL where none has. */
wherry_status wh_leaves_pick(const wherry_value *state, const char *pattern, wherry_value **state_p,
                             wherry_error *error);

#endif
