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

#include "base/bytes.h"
#include "base/text.h"

/** Initialize with {0}. */
typedef struct wh_chunk_set {
    wherry_interval *intervals; /**< In ascending order. No two overlap or are adjacent. */
    uint64_t *starts;           /**< Per interval: the index of its first chunk in the set. */
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

/**
 * Adds the chunks of `from` that are in [first, behind), as wh_chunk_set_add.
 * @return false if out of memory; the set then has some of them.
 */
bool wh_chunk_set_clip(wh_chunk_set *set, const wh_chunk_set *from, uint64_t first, uint64_t behind);

bool wh_chunk_set_has(const wh_chunk_set *set, uint64_t chunk);

/** Returns the chunk at an index. The index must be less than set->total. */
uint64_t wh_chunk_set_at(const wh_chunk_set *set, uint64_t index);

/** Returns the index of a chunk, or UINT64_MAX if the chunk is not in the set. */
uint64_t wh_chunk_set_find(const wh_chunk_set *set, uint64_t chunk);

/** Returns each chunk of the set once, in order. Thread-safe. @return false if none is left. */
bool wh_chunk_set_next(wh_chunk_set *set, uint64_t *chunk_p);

/* ---- intervals on the wire ---- */

/** Appends intervals: 16 bytes each, first and count in big endian. */
void wh_intervals_encode(const wherry_interval *intervals, size_t count, wh_string *bytes);

/**
 * Reads intervals, which must be ascending and must not touch.
 * @param chunks       the number of chunks: all intervals must be below it.
 * @param intervals_p  belongs to the caller: wh_free.
 * @return WHERRY_OK; WHERRY_MALFORMED; WHERRY_OUT_OF_BOUNDS; WHERRY_NO_MEMORY.
 */
wherry_status wh_intervals_decode(wh_bytes bytes, uint64_t chunks, wherry_interval **intervals_p, size_t *count_p,
                                  wherry_error *error);

/** The number of chunks of encoded intervals, which may be malformed. */
uint64_t wh_intervals_total(wh_bytes bytes);

#endif
