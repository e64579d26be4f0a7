/**
 * @file space.h  The space: all extents of all storages end to end, cut into numbered chunks.
 *
 * It is built storage by storage, then only read. How it is cut follows from the extents and the size of a chunk alone
 * (docs/wire-format.md).
 *
 * It may have two parts, each cut from its own beginning, so that no chunk has bytes of both: host memory and that of devices, which
 * move by different ways.
 */
#ifndef WH_RANGE_SPACE_H
#define WH_RANGE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/shared.h"
#include "range/copy.h"
#include "range/extent.h"

/** A space starts as {.chunk_bytes = ...}. */
typedef struct wh_space {
    uint64_t chunk_bytes;
    uint64_t bytes;         /**< Length so far. */
    wherry_extent *extents; /**< Each owns its levels. */
    uint64_t *begins;       /**< Where each extent begins in the space. */
    size_t *order;          /**< The extents as the space has them; NULL: in their own order. */
    uint64_t first_bytes;   /**< Length of the first part, */
    uint64_t first_chunks;  /**< and its chunks; 0, with first_bytes, also where the space is not divided. */
    size_t extent_count;
    size_t extent_capacity;
    size_t begin_capacity;
    size_t *firsts; /**< The first extent of each storage. */
    size_t storage_count;
    size_t first_capacity;
} wh_space;

/** Makes room for count storages of an extent each. @return false where there is no memory. */
bool wh_space_reserve(wh_space *space, size_t count);

/** Begins the next storage. @return false where there is no memory. */
bool wh_space_add_storage(wh_space *space);

/**
 * Adds a normal extent to the storage begun last. The caller has checked that the space stays within 63 bits.
 * @param extent  copied; its levels are taken over on success.
 * @return false where there is no memory.
 */
bool wh_space_add_extent(wh_space *space, const wherry_extent *extent);

/**
 * Divides the space: the extents of some storages come behind those of all others, in a part of its own. Once, when all are there.
 * @param second  whether each storage belongs to the second part.
 * @return false where there is no memory.
 */
bool wh_space_divide(wh_space *space, const bool *second);

void wh_space_destroy(wh_space *space);

/** As it started. */
void wh_space_clear(wh_space *space);

/** The extents of a storage. */
const wherry_extent *wh_space_extents(const wh_space *space, size_t storage, size_t *count_p);

uint64_t wh_space_chunk_count(const wh_space *space);

/** No chunk has more bytes than this. */
uint64_t wh_space_chunk_max(const wh_space *space);

/** Where a chunk begins; the end of the space for the number behind the last one. */
uint64_t wh_space_chunk_begin(const wh_space *space, uint64_t chunk);

/** The number of the chunk that a position of the space lies in. */
uint64_t wh_space_chunk_of(const wh_space *space, uint64_t position);

/** A part of the space as it lies in a storage. */
typedef struct wh_piece {
    size_t storage;
    uint64_t offset;
    uint64_t length;
    uint64_t count;
    uint64_t stride;
} wh_piece;

/** A result other than 0 ends the visit. */
typedef int (*wh_piece_fn)(void *context, const wh_piece *piece);

/** Visits the pieces of [begin, end) in order. @return 0, or what the visitor returned. */
WH_SHARED int wh_space_visit(const wh_space *space, uint64_t begin, uint64_t end, wh_piece_fn visit, void *context);

/** Receives a copy whose `from` side is positions of the space; false ends it. */
typedef bool (*wh_locate_fn)(void *context, const wh_copy *copy);

/** What came of locating. */
typedef enum wh_located {
    WH_LOCATED,
    WH_LOCATE_STOPPED,   /**< The receiver said false. */
    WH_LOCATE_UNCOVERED, /**< The copy reads bytes that no extent covers. */
    WH_LOCATE_EXHAUSTED, /**< It would take more work than is allowed. */
} wh_located;

/**
 * Finds where in the space a copy out of a storage reads: as one copy nearly always, as several where it runs through several
 * extents.
 * @param copy  its `from` side is bytes of that storage.
 * @param work  how many levels of extents may still be looked at: made up views must not take for ever. Counted down.
 */
wh_located wh_space_locate(const wh_space *space, size_t storage, const wh_copy *copy, uint64_t *work,
                           wh_locate_fn found, void *context);

#endif
