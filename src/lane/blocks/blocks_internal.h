/** @file blocks_internal.h  What the files of the lane `blocks` share. */
#ifndef WH_LANE_BLOCKS_INTERNAL_H
#define WH_LANE_BLOCKS_INTERNAL_H

#include "lane/lane_common.h"

/**
 * Operations that a source has under way at once: while one is being packed, the others move. WH_BLOCKS_BYTES bounds them where blocks are large: at either side
 * none is begun while so many bytes of scratch memory are in use, and a source begins no third one while so many bytes are under way at all.
 *
 * A receiver has more of them, which wait for what the source will send: what lies ready is never waited for, and a group that is busy with bytes is not asked
 * for another receive after each block. It begins the next ones when half of them are through.
 */
enum { WH_BLOCKS_UNDER_WAY = 3, WH_BLOCKS_AHEAD = 32, WH_BLOCKS_BYTES = 12 << 20 };

/**
 * A block is a chunk, or several of which each continues the one before (wh_sink.continues): an operation costs the same whatever its length. It has no more
 * chunks than this, and where it has several, no more bytes than the sides agreed on, WH_BLOCKS_LONG_MIB at most.
 *
 * A chunk that is a block by itself is of small tensors, most likely, and has to be packed. Where the group likes that (wherry_group_ops.part_bytes), it goes in
 * parts, each a block: what is packed, moved and unpacked stays in the caches, and the sides work at the same time. Their length, WH_BLOCKS_PART_UNIT times a
 * number, is agreed on too. Over such a group either side has WH_BLOCKS_PARTS blocks under way.
 */
enum { WH_BLOCKS_CHUNKS = 64, WH_BLOCKS_LONG_MIB = 64, WH_BLOCKS_PART_UNIT = 64 << 10, WH_BLOCKS_PARTS = 4 };

/** How long blocks may be that this process agrees to. Variables for tests, which lower them while no end is open. */
typedef struct wh_blocks_limits {
    uint8_t longest_mib; /**< At most WH_BLOCKS_LONG_MIB; 0: a block is a chunk. */

    /** Nothing is heard of a block before all of it has moved: where a silent peer is given up sooner than this, blocks are chunks. */
    uint32_t patience_ms;
} wh_blocks_limits;

extern wh_blocks_limits wh_blocks_limit;

/** A block that is under way, and what is kept from block to block. */
typedef struct wh_block {
    void *operation;
    uint8_t *bytes; /**< What moves: where it belongs, or scratch. */
    size_t size;
    uint64_t first; /**< The source's: its first chunk. */
    size_t chunks;  /**< How many it has; those that end with it, where it is a part. */
    bool is_part;
    wh_run_cursor
        cursor;          /**< Where it lies in the chunk, or where it lands: of one that is packed and has one chunk. */
    wh_landing *landing; /**< The receiver's: of the chunk that it is a part of. */
    bool in_place;       /**< Its bytes go from or to where they belong; else by way of scratch. */
    uint64_t held;    /**< Bytes of memory that it needs beside the tensors': scratch of its own, or of the sink's. */
    uint8_t *scratch; /**< Made when first needed. */
    size_t scratch_bytes;
    struct iovec *runs; /**< The source's, for a group that packs them itself: made when first needed. */
    size_t run_capacity;
    wh_landing landings[WH_BLOCKS_CHUNKS]; /**< The receiver's, one a chunk. */
} wh_block;

/** One end. Its only worker uses it, or whoever works in steps. */
typedef struct wh_blocks_end {
    wh_lane_end base;
    const wh_lane_site *site;
    uint32_t channel;
    uint64_t longest;                     /**< Bytes of a block of several chunks. */
    uint64_t part;                        /**< Bytes of a part; 0: there are none. */
    bool begun;                           /**< A round is at work. */
    bool given;                           /**< All of its chunks were begun. */
    bool has_ahead;                       /**< A chunk was taken from the round that did not belong to the block, */
    uint64_t ahead;                       /**< and this is it: the next one begins with it. */
    uint64_t left;                        /**< Bytes of the chunk that goes in parts now that were not begun, */
    wh_run_cursor cursor;                 /**< where they begin, */
    uint64_t cut;                         /**< the source's: its number, */
    wh_landing *landing;                  /**< and the receiver's: where it lands, one of the following. */
    wh_landing landings[WH_BLOCKS_PARTS]; /**< Taken in turn: each has several parts, so none is needed that long. */
    size_t next_landing;
    bool hashing;          /**< A part of a chunk was hashed, and not its last. */
    wh_deadline patience;  /**< When a peer that moves nothing is given up. */
    wh_digester *digester; /**< The receiver's, made when first needed. */
    wh_segments segments;  /**< The source's. */

    /** All blocks: those under way, the oldest first; then those that are free, the last used one first; then those that were never needed, NULL. */
    wh_block *order[WH_BLOCKS_AHEAD];
    size_t count;   /**< How many are under way, */
    uint64_t bytes; /**< the bytes in them, */
    uint64_t held;  /**< and what they need beside the tensors. */
    bool stuck;     /**< The group may still write to memory of one that was abandoned. */
} wh_blocks_end;

/** Operations of the lane: lane.h. */
wherry_status wh_blocks_pull_some(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error);
wherry_status wh_blocks_push_some(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error);

/** Abandons what is under way. */
void wh_blocks_abandon(wh_blocks_end *own);

#endif
