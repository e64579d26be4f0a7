/**
 * @file space.h  The space: all extents of all storages, one after the other, cut into numbered
 * chunks.
 *
 * A space is built storage by storage and does not change afterwards. Its chunks depend only on the
 * extents, the chunk size and the division (docs/wire-format.md).
 *
 * A space may be divided into two parts: host memory first, then device memory. The parts move over
 * different lanes, so no chunk contains bytes of both. The first chunk of the second part begins at
 * the first byte of that part.
 */
#ifndef WH_RANGE_SPACE_H
#define WH_RANGE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/shared.h"
#include "range/chunkset.h"
#include "range/copy.h"
#include "range/extent.h"

/** Initialize with {.chunk_bytes = ...}. */
typedef struct wh_space {
    uint64_t chunk_bytes;
    uint64_t bytes;         /**< Length of the space. */
    wherry_extent *extents; /**< Sorted by storage. Each owns its levels. */
    uint64_t *begins;       /**< The position of each extent. */
    /** Indices of the extents, sorted by position. NULL if they are 0, 1, 2 and so on. */
    size_t *order;
    uint64_t first_bytes; /**< Length of the first part; 0 if the space is not divided. */
    /** Number of chunks in the first part; 0 if the space is not divided. */
    uint64_t first_chunks;
    size_t extent_count;
    size_t extent_capacity;
    size_t begin_capacity;
    size_t *firsts; /**< The index of the first extent of each storage. */
    size_t storage_count;
    size_t first_capacity;
} wh_space;

/** True if the chunks of two spaces have the same numbers and lengths. */
static inline bool wh_space_is_divided_like(const wh_space *one, const wh_space *other) {
    return one->chunk_bytes == other->chunk_bytes && one->bytes == other->bytes &&
           one->first_chunks == other->first_chunks;
}

/** Reserves room for `count` storages with one extent each. @return false if out of memory. */
bool wh_space_reserve(wh_space *space, size_t count);

/** Adds a storage without extents. @return false if out of memory. */
bool wh_space_add_storage(wh_space *space);

/**
 * Adds a normal extent to the storage that was added last. The caller must have checked that the
 * length of the space still fits in 63 bits.
 * @param extent  copied. On success, the space owns its levels.
 * @return false if out of memory.
 */
bool wh_space_add_extent(wh_space *space, const wherry_extent *extent);

/**
 * Divides the space into two parts. Call it at most once, after all extents were added.
 * @param second  one entry per storage: true if its extents belong to the second part.
 * @return false if out of memory.
 */
bool wh_space_divide(wh_space *space, const bool *second);

/** Frees the memory and sets the struct to {0}. */
void wh_space_destroy(wh_space *space);

/** Removes all storages. The chunk size stays. */
void wh_space_clear(wh_space *space);

/** Returns the extents of a storage; NULL if it has none. */
const wherry_extent *wh_space_extents(const wh_space *space, size_t storage, size_t *count_p);

uint64_t wh_space_chunk_count(const wh_space *space);

/** Returns an upper limit for the length of a chunk. */
uint64_t wh_space_chunk_max(const wh_space *space);

/** Returns the position of a chunk, or the length of the space if there is no such chunk. */
uint64_t wh_space_chunk_begin(const wh_space *space, uint64_t chunk);

/** Returns the number of bytes of some chunks. */
uint64_t wh_space_bytes_of(const wh_space *space, const wh_chunk_set *chunks);

/** Returns the first chunk of the second part; UINT64_MAX if the space is not divided. */
static inline uint64_t wh_space_second_part(const wh_space *space) {
    return space->order ? space->first_chunks : UINT64_MAX;
}

/** Returns the number of the chunk that contains a position. */
uint64_t wh_space_chunk_of(const wh_space *space, uint64_t position);

/** Part of a storage: `count` runs of `length` bytes that begin `stride` bytes apart. */
typedef struct wh_piece {
    size_t storage;
    uint64_t offset;
    uint64_t length;
    uint64_t count;
    uint64_t stride;
} wh_piece;

/** Callback of wh_space_visit. A result other than 0 stops the visit. */
typedef int (*wh_piece_fn)(void *context, const wh_piece *piece);

/**
 * Visits the pieces of storages at positions [begin, end), in order.
 * @return 0, or the result that stopped the visit.
 */
WH_SHARED int wh_space_visit(const wh_space *space, uint64_t begin, uint64_t end, wh_piece_fn visit, void *context);

/** Receives a copy whose `from` side is a position in the space. Returns false to stop. */
typedef bool (*wh_locate_fn)(void *context, const wh_copy *copy);

typedef enum wh_located {
    WH_LOCATED,
    WH_LOCATE_STOPPED,   /**< wh_locate_fn returned false. */
    WH_LOCATE_UNCOVERED, /**< The copy reads bytes that no extent covers. */
    WH_LOCATE_EXHAUSTED, /**< *work reached 0. */
} wh_located;

/**
 * Translates a copy that reads from a storage into copies that read from the space. The result is
 * nearly always one copy. It can be several copies, for example if the bytes are in several
 * extents.
 * @param copy  its `from` side is a byte offset in the storage.
 * @param work  the work budget. The function subtracts about one for each level of an extent that
 * it compares. The budget limits the time that a malicious manifest can cost.
 */
wh_located wh_space_locate(const wh_space *space, size_t storage, const wh_copy *copy, uint64_t *work,
                           wh_locate_fn found, void *context);

#endif
