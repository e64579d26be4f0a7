/**
 * @file index.h  A hash index: finds the element of an array that has a given key.
 *
 * It holds only hashes and element numbers. The owner has the array and decides which keys are
 * equal. Elements are never removed.
 */
#ifndef WH_BASE_INDEX_H
#define WH_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/shared.h"

/** The result of wh_index_find if no element has the key. */
#define WH_INDEX_NONE SIZE_MAX

typedef struct wh_index_slot {
    uint32_t hash;     /**< The low half of the hash. */
    uint32_t position; /**< Element number + 1; 0 in an empty slot. */
} wh_index_slot;

typedef struct wh_index {
    wh_index_slot *slots;
    size_t capacity; /**< A power of two, or 0. */
    size_t count;
} wh_index;

/** True if element number `element` of the owner's array has the key. */
typedef bool (*wh_index_equal)(const void *owner, size_t element, const void *key);

/** Frees an index. Initialize an index with {0}. */
WH_SHARED void wh_index_destroy(wh_index *index);

/**
 * Makes room for count elements in total. @return false if out of memory, or if count is 2^31 - 1
 * or more.
 */
bool wh_index_reserve(wh_index *index, size_t count);

/** The element that has the key, or WH_INDEX_NONE. */
WH_SHARED size_t wh_index_find(const wh_index *index, uint64_t hash, wh_index_equal equal, const void *owner,
                               const void *key);

/**
 * Adds an element that the index does not have yet. @return false if out of memory, or if there are
 * too many elements.
 */
WH_SHARED bool wh_index_add(wh_index *index, uint64_t hash, size_t element);

/**
 * Hashes size bytes. Every process has its own random salt, so a peer cannot send keys that all
 * collide. Use different tags for bytes that may be equal but mean different things.
 */
WH_SHARED uint64_t wh_hash(const void *bytes, size_t size, uint64_t tag);

/** Hashes an address. It needs no salt, because a peer cannot choose addresses. */
static inline uint64_t wh_hash_pointer(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer * UINT64_C(0x9E3779B97F4A7C15) >> 32;
}

#endif
