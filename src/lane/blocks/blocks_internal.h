/** @file blocks_internal.h  What the files of the lane `blocks` share. */
#ifndef WH_LANE_BLOCKS_INTERNAL_H
#define WH_LANE_BLOCKS_INTERNAL_H

#include "lane/lane.h"

/**
 * Operations that are under way at once: while one is being packed or hashed, the others move. No further one is begun while so many bytes are under way,
 * which matters where a source has cut its state into large chunks.
 */
enum { WH_BLOCKS_UNDER_WAY = 3, WH_BLOCKS_BYTES = 12 << 20 };

/** A chunk that is under way, and what is kept from chunk to chunk. */
typedef struct wh_block {
    void *operation;
    size_t size;
    bool in_place;    /**< Its bytes go from or to where they belong; else by way of scratch. */
    uint8_t *scratch; /**< Made when first needed. */
    size_t scratch_bytes;
    wh_landing landing; /**< The receiver's. */
} wh_block;

/** One end. Its only worker uses it, or whoever works in steps. */
typedef struct wh_blocks_end {
    wh_lane_end base;
    const wh_lane_site *site;
    uint32_t channel;
    bool begun;            /**< A round is at work. */
    bool given;            /**< All of its chunks were begun. */
    wh_deadline patience;  /**< When a peer that moves nothing is given up. */
    wh_digester *digester; /**< The receiver's, made when first needed. */
    wh_segments segments;  /**< The source's. */
    wh_block blocks[WH_BLOCKS_UNDER_WAY];
    size_t oldest;  /**< Which of them was begun first, */
    size_t count;   /**< and how many are under way from there on. */
    uint64_t bytes; /**< In them. */
} wh_blocks_end;

/** Operations of the lane: lane.h. */
wherry_status wh_blocks_pull_some(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error);
wherry_status wh_blocks_push_some(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error);

/** Abandons what is under way. */
void wh_blocks_abandon(wh_blocks_end *own);

#endif
