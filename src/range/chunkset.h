/**
 * @file chunkset.h  A set of chunk numbers, kept as sorted intervals.
 *
 * Each chunk of the set also has an index: 0 for the smallest chunk number, then counting up.
 * Tables with one entry per chunk of the set use this index.
 */
#ifndef WH_RANGE_CHUNKSET_H
#define WH_RANGE_CHUNKSET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/expert.h>

/** Starts as {0}. */
typedef struct wh_chunk_set {
    wherry_interval *intervals; /**< Ascending; no two touch. */
    uint64_t *starts;           /**< Per interval: the index of its first chunk. */
    size_t count;               /**< Of intervals. */
    size_t interval_capacity;
    size_t start_capacity;
    uint64_t total;         /**< Chunks in the set. */
    _Atomic uint64_t given; /**< Indices that wh_chunk_set_next has handed out. */
} wh_chunk_set;

/**
 * Fills an empty set. The intervals are ascending and do not overlap. @return false if out of
 * memory.
 */
bool wh_chunk_set_init(wh_chunk_set *set, const wherry_interval *intervals, size_t count);

/** Leaves an empty set. */
void wh_chunk_set_destroy(wh_chunk_set *set);

/**
 * Adds chunks first to last. They may overlap the last interval of the set, but must not begin
 * before it.
 * @return false if out of memory; the set is then unchanged.
 */
bool wh_chunk_set_add(wh_chunk_set *set, uint64_t first, uint64_t last);

bool wh_chunk_set_has(const wh_chunk_set *set, uint64_t chunk);

/** The chunk at an index, which is below total. */
uint64_t wh_chunk_set_at(const wh_chunk_set *set, uint64_t index);

/** The index of a chunk; UINT64_MAX if the set does not have it. */
uint64_t wh_chunk_set_find(const wh_chunk_set *set, uint64_t chunk);

/** Hands out each chunk once, in order, to any number of threads. @return false if none is left. */
bool wh_chunk_set_next(wh_chunk_set *set, uint64_t *chunk_p);

#endif
