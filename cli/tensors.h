/** @file tensors.h  The leaves of a state, named by paths with dots between steps; digests. */
#ifndef WH_CLI_TENSORS_H
#define WH_CLI_TENSORS_H

#include <stddef.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

/** Size of a digest as text, including the final zero. */
enum { WH_HEX_MAX = 2 * WHERRY_DIGEST_BYTES + 1 };

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

/** The total size of the tensors of a state; 0 if there is no memory to list them. */
uint64_t wh_tensor_bytes(const wherry_value *state);

void wh_digest_hex(const wherry_digest *digest, char hex[WH_HEX_MAX]);

/** Computes the digest of a tensor that is described, but not yet a value. */
wherry_status wh_digest_slice(const wherry_tensor *slice, char hex[WH_HEX_MAX], wherry_error *error);

/** Computes the digest of bytes as if they were the elements of a tensor. */
wherry_status wh_digest_bytes(const void *bytes, size_t size, char hex[WH_HEX_MAX], wherry_error *error);

#endif
