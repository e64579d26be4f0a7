/**
 * @file index.h  A hash index: finds which element of an array a key belongs to.
 *
 * It holds only hashes and element numbers; the array, and what equal means, stay with the owner. Elements are never
 * removed.
 */
#ifndef WH_BASE_INDEX_H
#define WH_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/shared.h"

/** What wh_index_find answers where there is no such element. */
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

/** Whether element number `element` of the owner's array is the one that `key` means. */
typedef bool (*wh_index_equal)(const void *owner, size_t element, const void *key);

/** An index starts as {0}. */
WH_SHARED void wh_index_destroy(wh_index *index);

/** Makes room for count elements in all. @return false where there is no memory. */
bool wh_index_reserve(wh_index *index, size_t count);

/** The element that has the key, or WH_INDEX_NONE. */
WH_SHARED size_t wh_index_find(const wh_index *index, uint64_t hash, wh_index_equal equal, const void *owner,
                               const void *key);

/** Adds an element that is not there yet. @return false where there is no memory. */
WH_SHARED bool wh_index_add(wh_index *index, uint64_t hash, size_t element);

/**
 * A hash of size bytes. It is salted anew in every process, so that nobody can send keys that all collide. The tag
 * keeps equal bytes of different meaning apart.
 */
WH_SHARED uint64_t wh_hash(const void *bytes, size_t size, uint64_t tag);

/** A hash of an address, for what nobody else can choose. */
static inline uint64_t wh_hash_pointer(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer * UINT64_C(0x9E3779B97F4A7C15) >> 32;
}

#endif
