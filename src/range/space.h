/**
 * @file space.h  The space: all extents of all storages end to end, cut into numbered chunks.
 *
 * A space is built storage by storage and does not change afterwards. Its chunks follow only from
 * the extents, the chunk size and the division (docs/wire-format.md).
 *
 * A space may be divided into two parts: host memory first, then device memory. They move over
 * different lanes, so each part is cut into chunks from its own beginning, and no chunk has bytes
 * of both.
 */
#ifndef WH_RANGE_SPACE_H
#define WH_RANGE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/shared.h"
#include "range/copy.h"
#include "range/extent.h"

/** Starts as {.chunk_bytes = ...}. */
typedef struct wh_space {
    uint64_t chunk_bytes;
    uint64_t bytes;         /**< Length of the space. */
    wherry_extent *extents; /**< By storage. Each owns its levels. */
    uint64_t *begins;       /**< Per extent: its position. */
    size_t *order;          /**< The extents by position. NULL if that is their own order. */
    uint64_t first_bytes;   /**< Length of the first part; 0 if the space is not divided. */
    uint64_t first_chunks;  /**< Chunks of the first part; 0 if the space is not divided. */
    size_t extent_count;
    size_t extent_capacity;
    size_t begin_capacity;
    size_t *firsts; /**< Per storage: the index of its first extent. */
    size_t storage_count;
    size_t first_capacity;
} wh_space;

/** Reserves room for `count` storages with one extent each. @return false if out of memory. */
bool wh_space_reserve(wh_space *space, size_t count);

/** Adds a storage without extents. @return false if out of memory. */
bool wh_space_add_storage(wh_space *space);

/**
 * Adds a normal extent to the storage added last. The caller has checked that the space still fits
 * 63 bits.
 * @param extent  copied; its levels are taken over on success.
 * @return false if out of memory.
 */
bool wh_space_add_extent(wh_space *space, const wherry_extent *extent);

/**
 * Divides the space into two parts. Call it at most once, after all extents were added.
 * @param second  per storage: true if its extents belong to the second part.
 * @return false if out of memory.
 */
bool wh_space_divide(wh_space *space, const bool *second);

/** Leaves {0}. */
void wh_space_destroy(wh_space *space);

/** Removes all storages and keeps the chunk size. */
void wh_space_clear(wh_space *space);

/** The extents of a storage. */
const wherry_extent *wh_space_extents(const wh_space *space, size_t storage, size_t *count_p);

uint64_t wh_space_chunk_count(const wh_space *space);

/** The maximum length of a chunk. */
uint64_t wh_space_chunk_max(const wh_space *space);

/** The position of a chunk; the length of the space if there is no such chunk. */
uint64_t wh_space_chunk_begin(const wh_space *space, uint64_t chunk);

/** The chunk that contains a position. */
uint64_t wh_space_chunk_of(const wh_space *space, uint64_t position);

/** A part of the space in a storage: `count` runs of `length` bytes, `stride` bytes apart. */
typedef struct wh_piece {
    size_t storage;
    uint64_t offset;
    uint64_t length;
    uint64_t count;
    uint64_t stride;
} wh_piece;

/** A result other than 0 stops the visit. */
typedef int (*wh_piece_fn)(void *context, const wh_piece *piece);

/**
 * Visits the pieces of positions [begin, end) in order. @return 0, or the result that stopped the
 * visit.
 */
WH_SHARED int wh_space_visit(const wh_space *space, uint64_t begin, uint64_t end, wh_piece_fn visit, void *context);

/** Receives a copy whose `from` side is positions of the space. Returns false to stop. */
typedef bool (*wh_locate_fn)(void *context, const wh_copy *copy);

typedef enum wh_located {
    WH_LOCATED,
    WH_LOCATE_STOPPED,   /**< wh_locate_fn returned false. */
    WH_LOCATE_UNCOVERED, /**< The copy reads bytes that no extent covers. */
    WH_LOCATE_EXHAUSTED, /**< The work budget is spent. */
} wh_located;

/**
 * Translates a copy out of a storage to positions of the space: nearly always one copy, or several
 * if it reads from several extents.
 * @param copy  its `from` side is bytes of the storage.
 * @param work  budget, counted down: how many levels of extents may still be compared. It bounds
 *              the time that a malicious manifest can take.
 */
wh_located wh_space_locate(const wh_space *space, size_t storage, const wh_copy *copy, uint64_t *work,
                           wh_locate_fn found, void *context);

#endif
