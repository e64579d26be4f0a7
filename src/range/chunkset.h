/**
 * @file chunkset.h  A set of chunk numbers, stored as sorted intervals.
 *
 * Each chunk of the set also has an index. The smallest chunk number has index 0, the next one
 * index 1, and so on. Tables with one entry per chunk of the set use this index.
 */
#ifndef WH_RANGE_CHUNKSET_H
#define WH_RANGE_CHUNKSET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/expert.h>

/** Initialize with {0}. */
typedef struct wh_chunk_set {
    wherry_interval *intervals; /**< In ascending order. No two overlap or are adjacent. */
    uint64_t *starts;           /**< The index of the first chunk, per interval. */
    size_t count;               /**< Number of intervals. */
    size_t interval_capacity;
    size_t start_capacity;
    uint64_t total;         /**< Number of chunks in the set. */
    _Atomic uint64_t given; /**< Number of calls of wh_chunk_set_next. */
} wh_chunk_set;

/**
 * Fills an empty set. The intervals must be in ascending order, must not overlap, and must not be
 * empty.
 * @return false if out of memory.
 */
bool wh_chunk_set_init(wh_chunk_set *set, const wherry_interval *intervals, size_t count);

/** Frees the memory. The set is empty afterwards. */
void wh_chunk_set_destroy(wh_chunk_set *set);

/**
 * Adds the chunks from `first` to `last`, inclusive. They may overlap the last interval of the set,
 * but must not begin before it.
 * @return false if out of memory; the set is then unchanged.
 */
bool wh_chunk_set_add(wh_chunk_set *set, uint64_t first, uint64_t last);

bool wh_chunk_set_has(const wh_chunk_set *set, uint64_t chunk);

/** Returns the chunk at an index. The index must be less than set->total. */
uint64_t wh_chunk_set_at(const wh_chunk_set *set, uint64_t index);

/** Returns the index of a chunk, or UINT64_MAX if the chunk is not in the set. */
uint64_t wh_chunk_set_find(const wh_chunk_set *set, uint64_t chunk);

/** Returns each chunk of the set once, in order. Thread-safe. @return false if none is left. */
bool wh_chunk_set_next(wh_chunk_set *set, uint64_t *chunk_p);

#endif
