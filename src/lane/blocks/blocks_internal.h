/**
 * @file blocks_internal.h  The types of the blocks lane. They are in a header so that tests can use
 * them.
 *
 * 1. From the plan, both sides know the chunks of a round, their order, their sizes, and which of
 *    them continue the previous chunk. So both sides form the same blocks: put number n matches get
 *    number n, and no headers are needed.
 * 2. A block is one chunk, or several chunks that each continue the previous one
 *    (wh_sink.continues). Large blocks are better, because each operation has a fixed cost.
 * 3. Each transfer has its own channel, so that operations left over from a failed transfer never
 *    match those of the next.
 */
#ifndef WH_LANE_BLOCKS_INTERNAL_H
#define WH_LANE_BLOCKS_INTERNAL_H

#include "lane/lane_common.h"

/**
 * Without parts (see below), a source has up to WH_BLOCKS_UNDER_WAY operations in flight: while it
 * packs one block, the others move. A receiver begins up to WH_BLOCKS_AHEAD gets before their bytes
 * arrive, so that no put has to wait for its get. It begins more gets only when half of them are
 * done, so that it does not call a busy group after each block.
 *
 * WH_BLOCKS_BYTES limits the memory for large blocks. Neither side begins a block while this much
 * scratch memory is in use. A source with two blocks in flight does not begin a third one while the
 * two have this many bytes together. With parts, this limit also holds for a receiver and for a
 * fourth block.
 */
enum { WH_BLOCKS_UNDER_WAY = 3, WH_BLOCKS_AHEAD = 32, WH_BLOCKS_BYTES = 12 << 20 };

/**
 * A block of several chunks has at most WH_BLOCKS_CHUNKS chunks. The sides agree on its maximum
 * size, which is WH_BLOCKS_LONG_MIB or less.
 *
 * A block of one chunk probably consists of small tensors and must be packed. If both sides have
 * set wherry_group_ops.part_bytes, such a chunk is split into parts, and each part is a block. The
 * bytes of a part stay in the CPU caches, and one side can pack a part while the other side unpacks
 * another. The sides agree on the size of a part, which is a multiple of WH_BLOCKS_PART_UNIT. With
 * parts, each side has up to WH_BLOCKS_PARTS blocks in flight.
 */
enum { WH_BLOCKS_CHUNKS = 64, WH_BLOCKS_LONG_MIB = 64, WH_BLOCKS_PART_UNIT = 64 << 10, WH_BLOCKS_PARTS = 4 };

/**
 * The limits of this process. They are variables so that tests can change them while no end is
 * open.
 */
typedef struct wh_blocks_limits {
    uint8_t longest_mib;  /**< At most WH_BLOCKS_LONG_MIB; 0: each block is a single chunk. */
    uint32_t patience_ms; /**< Normally WH_BLOCKS_PATIENCE_MS; see lane_timing.h. */
} wh_blocks_limits;

extern wh_blocks_limits wh_blocks_limit;

/** A block in flight. Its memory is reused for later blocks. */
typedef struct wh_block {
    void *operation;
    uint8_t *bytes; /**< The memory that the group reads or writes: tensors or scratch. */
    size_t size;
    uint64_t first; /**< Source: the first chunk of the block. */
    size_t chunks;  /**< Number of chunks. For a part: 1 if it is the last of its chunk, else 0. */
    bool is_part;
    /**
     * For a part, and for a chunk that a source packs: the position in the runs of the chunk at
     * which the block begins.
     */
    wh_run_cursor cursor;
    wh_landing *landing; /**< Receiver: the destination of the chunk that a part belongs to. */
    bool in_place;       /**< The group accesses the tensors directly, without scratch. */
    /** Bytes of scratch memory that the block needs, including the sink's scratch. */
    uint64_t held;
    uint8_t *scratch; /**< Allocated at first use. */
    size_t scratch_bytes;
    struct iovec *runs; /**< Source: the list for put_runs, allocated at first use. */
    size_t run_capacity;
    wh_landing landings[WH_BLOCKS_CHUNKS]; /**< Receiver: the destination of each chunk. */
} wh_block;

/** One end of the lane. Only one thread uses it. */
typedef struct wh_blocks_end {
    wh_lane_end base;
    const wh_lane_site *site;
    uint32_t channel;
    uint64_t longest; /**< Maximum size of a block of several chunks. */
    uint64_t part;    /**< Size of a part; 0: chunks are not split. */
    bool begun;       /**< A round is running. */
    bool given;       /**< All chunks of the round are in blocks that have begun. */
    bool has_ahead;   /**< `ahead` is valid. */
    /**
     * The next chunk. It could not be added to the previous block, so the next block begins with
     * it.
     */
    uint64_t ahead;
    /**
     * Number of bytes of the chunk being split that are not in a block yet. `cursor`, `cut` and
     * `landing` describe this chunk.
     */
    uint64_t left;
    wh_run_cursor cursor; /**< Position of the first byte that is not in a block. */
    uint64_t cut;         /**< Source: the number of the chunk. */
    wh_landing *landing;  /**< Receiver: the chunk's destination, one of `landings`. */
    /** Receiver: the destinations of split chunks, used in turn. */
    wh_landing landings[WH_BLOCKS_PARTS];
    size_t next_landing;
    bool hashing;          /**< The digest of a split chunk is begun but not complete. */
    wh_deadline patience;  /**< When to give up if the peer makes no progress. */
    wh_digester *digester; /**< Receiver: created at first use. */
    wh_segments segments;  /**< Source: the runs of the chunk that was added last. */

    /** Blocks in flight, oldest first; then free blocks, most recently used first; then NULL. */
    wh_block *order[WH_BLOCKS_AHEAD];
    size_t count;   /**< Number of blocks in flight. */
    uint64_t bytes; /**< Bytes of the blocks in flight. */
    uint64_t held;  /**< Scratch bytes of the blocks in flight. */
    bool stuck;     /**< The group may still use the memory of an abandoned operation. */
} wh_blocks_end;

#endif
