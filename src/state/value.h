/** @file value.h  The fields of a value, and private functions for values. */
#ifndef WH_STATE_VALUE_H
#define WH_STATE_VALUE_H

#include <wherry/tensor.h>
#include <wherry/value.h>

#include "base/alloc.h"
#include "base/index.h"

/** The content of a STRING, BYTES or BIGINT. */
typedef struct wh_content {
    char *bytes; /**< The content, followed by a final zero. */
    size_t size;
    bool negative; /**< The sign of a BIGINT. Its bytes are its magnitude. */
} wh_content;

typedef struct wh_sequence {
    wherry_value **items;
    size_t count;
    size_t capacity;
} wh_sequence;

typedef struct wh_entry {
    wherry_value *key;
    wherry_value *item;
} wh_entry;

typedef struct wh_dict {
    wh_entry *entries;
    size_t count;
    size_t capacity;
    wh_index index; /**< The index of the keys. It is empty in a small dict. */
} wh_dict;

typedef struct wh_object {
    char *type;
    wherry_value *payload;
} wh_object;

/** A value. Its texts, structs and shapes follow it in the same block of memory. */
struct wherry_value {
    uint8_t kind; /**< A wherry_kind. */
    /** Levels of nested containers and objects, including this value; 0 if it is neither. */
    uint16_t height;
    uint32_t pool_offset; /**< Passed to wh_pool_free. */
    wherry_value *parent; /**< The owner; NULL if the caller owns it. */
    union {
        bool boolean;
        int64_t integer;
        double numbers[2];
        wh_content text;
        wh_sequence sequence;
        wh_object object;
        wh_dict *dict;
        wherry_tensor *tensor;
        wherry_dtensor *dtensor;
        wherry_sharded *sharded;
    } as;
};

/**
 * Creates a value followed by `extra` bytes, which start at value + 1. pool may be NULL. @return
 * NULL if out of memory.
 */
wherry_value *wh_value_new(wh_pool *pool, wherry_kind kind, size_t extra);

/** Like wherry_string_create, but allocates the value from a pool. */
wherry_status wh_string_build(wh_pool *pool, const char *text, size_t size, wherry_value **value_p,
                              wherry_error *error);

/** True if the value may be the key of a dict. */
bool wh_value_is_scalar(const wherry_value *value);

/** True if two scalars have the same kind and the same content. Floats are compared bit by bit. */
bool wh_scalar_equal(const wherry_value *one, const wherry_value *other);

/**
 * Marks a value that has no owner, to find values that occur twice in a list. The caller must reset
 * `parent` to NULL afterwards.
 * @return false if the value has an owner or is already marked.
 */
bool wh_value_claim(wherry_value *value);

/**
 * Makes container the owner of item, which has no owner, is not an ancestor of the container and
 * does not make the tree too deep. container may be NULL.
 */
void wh_value_adopt(wherry_value *container, wherry_value *item);

/** Follows payloads of objects down to the first value that is not an object. */
const wherry_value *wh_value_inside(const wherry_value *value);

/** Reserves room for `count` entries in total. @return false if out of memory. */
bool wh_dict_reserve(wh_dict *dict, size_t count);

/**
 * True if a dict has a key. To add the key, pass *hash_p to wh_dict_add before any other entry is
 * added.
 */
bool wh_dict_has(const wherry_value *dict, const wherry_value *key, uint64_t *hash_p);

/** Adds an entry. The caller has checked that the key is new and that the dict may adopt both. */
wherry_status wh_dict_add(wherry_value *dict, wherry_value *key, uint64_t hash, wherry_value *item,
                          wherry_error *error);

/** Creates the leaf that replaces `leaf` in a copy. */
typedef wherry_status (*wh_leaf_fn)(void *context, const wherry_value *leaf, wherry_value **copy_p,
                                    wherry_error *error);

/**
 * Copies the containers, keys and objects of a tree. `leaf` creates each leaf of the copy. An empty
 * container counts as a leaf.
 */
wherry_status wh_value_rebuild(const wherry_value *value, wh_leaf_fn leaf, void *context, wherry_value **copy_p,
                               wherry_error *error);

/**
 * Copies a tree. `tensor` creates each tensor of the copy, also the local tensors of a DTENSOR or
 * SHARDED, in the order of the walk.
 */
WH_SHARED wherry_status wh_value_copy_with(const wherry_value *value, wh_leaf_fn tensor, void *context,
                                           wherry_value **copy_p, wherry_error *error);

#endif
