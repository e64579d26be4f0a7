/** @file value.h  What a value is made of; for this folder, the manifest and the plan. */
#ifndef WH_STATE_VALUE_H
#define WH_STATE_VALUE_H

#include <wherry/tensor.h>
#include <wherry/value.h>

#include "base/alloc.h"
#include "base/index.h"

typedef struct wh_text {
    char *bytes; /**< With a zero behind them. */
    size_t size;
    bool negative; /**< Of a bigint, whose bytes are the magnitude. */
} wh_text;

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
    wh_index index; /**< Of the keys; empty while there are few. */
} wh_dict;

typedef struct wh_object {
    char *type;
    wherry_value *payload;
} wh_object;

/** The strings, arrays and structs that the pointers lead to lie behind the value, in the same block. */
struct wherry_value {
    uint8_t kind;         /**< A wherry_kind. */
    uint16_t height;      /**< Containers within each other from here down: 0 for a leaf. */
    uint32_t pool_offset; /**< For wh_pool_free. */
    wherry_value *parent; /**< Who owns it; NULL: the caller. */
    union {
        bool boolean;
        int64_t integer;
        double numbers[2];
        wh_text text;
        wh_sequence sequence;
        wh_object object;
        wh_dict *dict;
        wherry_tensor *tensor;
        wherry_dtensor *dtensor;
        wherry_sharded *sharded;
    } as;
};

/** A value with `extra` bytes behind it, which begin at value + 1, or NULL where there is no memory. pool may be NULL. */
wherry_value *wh_value_new(wh_pool *pool, wherry_kind kind, size_t extra);

/** wherry_string_create out of a pool. */
wherry_status wh_string_build(wh_pool *pool, const char *text, size_t size, wherry_value **value_p,
                              wherry_error *error);

/** Whether it may be a dict's key. */
bool wh_value_is_scalar(const wherry_value *value);

/** Whether two scalars are of the same kind and have the same content, floats bit by bit. */
bool wh_scalar_equal(const wherry_value *one, const wherry_value *other);

/** Hashes a scalar. */
uint64_t wh_scalar_hash(const wherry_value *value);

/** Checks that container may take item over: free, no ancestor of it, not too deep. */
wherry_status wh_value_check_adopt(const wherry_value *container, const wherry_value *item, wherry_error *error);

/**
 * Marks a free value as taken, to find the same one twice in a list; the caller clears its parent again.
 * @return false where it is taken already.
 */
bool wh_value_claim(wherry_value *value);

/** Makes container, which may be NULL, the owner of item; checked before. */
void wh_value_adopt(wherry_value *container, wherry_value *item);

/** Follows objects down to the value that they stand for. */
const wherry_value *wh_value_inside(const wherry_value *value);

/** Makes room for count entries in all. @return false where there is no memory. */
bool wh_dict_reserve(wh_dict *dict, size_t count);

/** Whether a dict has a key; *hash_p is for wh_dict_add, as long as nothing else is added before. */
bool wh_dict_has(const wherry_value *dict, const wherry_value *key, uint64_t *hash_p);

/** Adds an entry that was checked: the key is not there, and the dict may take both over. */
wherry_status wh_dict_add(wherry_value *dict, wherry_value *key, uint64_t hash, wherry_value *item,
                          wherry_error *error);

/** Destroys what a dict holds. */
void wh_dict_clear(wh_dict *dict);

/** Gives the leaf that is to stand where `leaf` stands. */
typedef wherry_status (*wh_leaf_fn)(const wherry_value *leaf, wherry_value **copy_p, wherry_error *error);

/** Builds containers, keys and objects anew; an empty container is a leaf. */
wherry_status wh_value_rebuild(const wherry_value *value, wh_leaf_fn leaf, wherry_value **copy_p, wherry_error *error);

#endif
