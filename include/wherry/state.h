/**
 * @file wherry/state.h  Whole trees: flatten and unflatten, compare, print.
 *
 * A state is a value tree; nothing more is needed to be one. A leaf is a value that is not a container: a scalar, a
 * tensor, a DTensor, a ShardedTensor; also a container or an object without anything in it.
 *
 * No function here blocks, but for writing to a file. The rules of wherry/value.h for threads hold. All since 0.1.
 */
#ifndef WHERRY_STATE_H
#define WHERRY_STATE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/error.h>
#include <wherry/path.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The leaves of a tree with their paths. Opaque. */
typedef struct wherry_flat wherry_flat;

/**
 * Lists the leaves of a tree: dict entries in their order, items by number, depth first.
 * @param state   borrowed until the flat is destroyed, and not to be changed before.
 * @param flat_p  belongs to the caller: wherry_flat_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_flatten(const wherry_value *state, wherry_flat **flat_p, wherry_error *error);

/** Destroys it; the tree stays. flat may be NULL. */
WHERRY_API void wherry_flat_destroy(wherry_flat *flat);

/** The number of leaves. */
WHERRY_API size_t wherry_flat_count(const wherry_flat *flat);

/** The path of a leaf, borrowed; NULL where there is none of that number. */
WHERRY_API const wherry_path *wherry_flat_path(const wherry_flat *flat, size_t index);

/** A leaf, borrowed from the tree; NULL where there is none of that number. */
WHERRY_API const wherry_value *wherry_flat_leaf(const wherry_flat *flat, size_t index);

/**
 * Builds a tree of the same containers, keys and objects, with other leaves.
 * @param flat     from wherry_flatten.
 * @param leaves   as many as the flat has, in its order, each belonging to the caller; taken over on success.
 * @param state_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for another number of leaves, or a leaf that is NULL or
 * belongs to a container or makes the tree deeper than WHERRY_DEPTH_MAX.
 */
WHERRY_API wherry_status wherry_unflatten(const wherry_flat *flat, wherry_value *const *leaves, size_t count,
                                          wherry_value **state_p, wherry_error *error);

/** What wherry_value_compare leaves out. */
enum {
    WHERRY_COMPARE_ALL = 0,
    WHERRY_COMPARE_NO_CONTENT = 1, /**< Do not compare the bytes of tensors. */
    WHERRY_COMPARE_NO_SHARING = 2, /**< Tensors may share storages differently, and storages may differ in size. */
};

/**
 * Compares two trees: kinds, order, keys, scalars bit by bit, geometry and flags of tensors, which tensors share a
 * storage, and the bytes of their elements.
 * @param flags  WHERRY_COMPARE_*
 * @return WHERRY_OK where they are equal; WHERRY_MISMATCH where not, with the path of the first difference and both sides
 * in the error; WHERRY_UNSUPPORTED where bytes are not in host memory; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_compare(const wherry_value *one, const wherry_value *other, unsigned flags,
                                              wherry_error *error);

/**
 * Prints a tree for people, a line a value; tensors that share a storage have its number in common. The form may change from
 * version to version.
 * @return WHERRY_OK; WHERRY_SYSTEM where writing failed; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_dump(const wherry_value *value, FILE *out, wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
