/**
 * @file blocks_internal.h  The types of the lane `blocks`, for its tests.
 *
 * 1. Both sides know the chunks of a round, their order, their sizes, and which of them continue
 *    the previous one, from the plan. So they form the same blocks, the n-th put meets the n-th
 *    get, and only bytes travel.
 * 2. A block is one chunk, or several of which each continues the previous one (wh_sink.continues):
 *    an operation costs the same whatever its length.
 * 3. Each transfer has a channel of its own, so that what is left of a failed one never meets the
 *    next.
 */
#ifndef WH_LANE_BLOCKS_INTERNAL_H
#define WH_LANE_BLOCKS_INTERNAL_H

#include "lane/lane_common.h"

/**
 * A source has WH_BLOCKS_UNDER_WAY operations under way: while one is being packed, the others
 * move. A receiver begins WH_BLOCKS_AHEAD of them before their bytes come, so that bytes never wait
 * for a get, and begins the next ones when half of them are done, so that a busy group is not asked
 * for a new get after each block.
 *
 * WH_BLOCKS_BYTES limits large blocks: neither side begins a block while so much scratch memory is
 * in use, and a source begins no third one while so many bytes are under way.
 */
enum { WH_BLOCKS_UNDER_WAY = 3, WH_BLOCKS_AHEAD = 32, WH_BLOCKS_BYTES = 12 << 20 };

/**
 * A block of several chunks has at most WH_BLOCKS_CHUNKS of them, and at most as many bytes as the
 * sides agreed on, WH_BLOCKS_LONG_MIB or less.
 *
 * A block of one chunk probably has small tensors, and must be packed. If the group wants it
 * (wherry_group_ops.part_bytes), it is split into parts, each a block: packing, moving and
 * unpacking stay in the caches, and both sides work at the same time. The agreed length of a part
 * is a multiple of WH_BLOCKS_PART_UNIT. Either side then has WH_BLOCKS_PARTS blocks under way.
 */
enum { WH_BLOCKS_CHUNKS = 64, WH_BLOCKS_LONG_MIB = 64, WH_BLOCKS_PART_UNIT = 64 << 10, WH_BLOCKS_PARTS = 4 };

/**
 * Limits that this process agrees to. Variables, because tests change them while no end is open.
 */
typedef struct wh_blocks_limits {
    uint8_t longest_mib; /**< At most WH_BLOCKS_LONG_MIB; 0: blocks are single chunks. */

    uint32_t patience_ms; /**< WH_BLOCKS_PATIENCE_MS, see there. */
} wh_blocks_limits;

extern wh_blocks_limits wh_blocks_limit;

/** A block under way, and memory that is reused from block to block. */
typedef struct wh_block {
    void *operation;
    uint8_t *bytes; /**< What moves: in place, or scratch. */
    size_t size;
    uint64_t first; /**< Source: its first chunk. */
    size_t chunks;  /**< Number of chunks; of a part, those that end with it. */
    bool is_part;
    wh_run_cursor cursor; /**< If it is packed and has one chunk: its position there. */
    wh_landing *landing;  /**< Receiver: of the chunk that it is a part of. */
    bool in_place;        /**< Its bytes move without scratch. */
    uint64_t held;        /**< Bytes of scratch that it needs, its own or the sink's. */
    uint8_t *scratch;     /**< Allocated at first use. */
    size_t scratch_bytes;
    struct iovec *runs; /**< Source, for put_runs: allocated at first use. */
    size_t run_capacity;
    wh_landing landings[WH_BLOCKS_CHUNKS]; /**< Receiver: one per chunk. */
} wh_block;

/** One end. Only one thread uses it. */
typedef struct wh_blocks_end {
    wh_lane_end base;
    const wh_lane_site *site;
    uint32_t channel;
    uint64_t longest; /**< Most bytes of a block of several chunks. */
    uint64_t part;    /**< Bytes of a part; 0: no parts. */
    bool begun;       /**< A round is running. */
    bool given;       /**< All chunks of the round were begun. */
    /** `ahead` is a chunk that did not fit the previous block: */
    bool has_ahead;
    uint64_t ahead; /**< the next block begins with it. */
    /** Of the chunk that is being split: bytes not begun yet, */
    uint64_t left;
    wh_run_cursor cursor;                 /**< their position, */
    uint64_t cut;                         /**< source: its number, */
    wh_landing *landing;                  /**< receiver: where it lands, one of `landings`. */
    wh_landing landings[WH_BLOCKS_PARTS]; /**< Used in turn. */
    size_t next_landing;
    bool hashing;          /**< A part of a chunk was hashed, but not its last one. */
    wh_deadline patience;  /**< When to give up on a peer that moves nothing. */
    wh_digester *digester; /**< Receiver: created at first use. */
    wh_segments segments;  /**< Source. */

    /** All blocks: those under way, oldest first; then free ones, last used first; then NULL. */
    wh_block *order[WH_BLOCKS_AHEAD];
    size_t count;   /**< Blocks under way, */
    uint64_t bytes; /**< their bytes, */
    uint64_t held;  /**< and their scratch. */
    bool stuck;     /**< The group may still write to the memory of an abandoned get. */
} wh_blocks_end;

#endif
