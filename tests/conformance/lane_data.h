/**
 * @file lane_data.h  The data that the lane suite moves: memory cut into chunks of scattered
 * pieces, a feed that provides them, and a sink that checks what the lane does.
 *
 * The layout depends only on a shape and a seed. Sink and feed run in threads, in which assertions
 * do not work. They record the first error in lane_data.wrong.
 */
#ifndef WH_TESTS_LANE_DATA_H
#define WH_TESTS_LANE_DATA_H

#include <stdatomic.h>

#include "lane/lane.h"

/** How memory is divided into chunks and pieces. */
typedef struct lane_shape {
    size_t chunks;
    size_t pieces;   /**< Pieces per chunk. */
    size_t shortest; /**< Least bytes per piece. */
    size_t longest;  /**< Most bytes per piece. */
    /** Longest gap between two pieces at the source, in bytes. Half of the pieces have no gap. */
    size_t source_gap;
    size_t target_gap; /**< Like source_gap, at the receiver. */
    bool strided;      /**< Every gap has exactly this length. */
    /** One in `nowhere` pieces has no place at the receiver; 0: none. Only without verify. */
    size_t nowhere;
    size_t staged; /**< Every staged-th chunk is staged; 0: none. */
    /** All chunks are the same memory at the source, and are dropped at the receiver. */
    bool repeated;
} lane_shape;

/**
 * The chunks of a round are the chunks with number % stride == phase. If stride is 0, there are
 * none.
 */
typedef struct lane_round {
    uint32_t stride;
    uint32_t phase;
} lane_round;

typedef struct lane_piece {
    size_t source; /**< Offset. */
    size_t target; /**< Offset; SIZE_MAX if the piece has no place. */
    size_t length;
} lane_piece;

typedef struct lane_data {
    lane_shape shape;
    bool verify;
    bool claims; /**< With verify, the lane must also deliver the source's digests. */
    const wh_stop *sink_stop;
    const wh_stop *feed_stop;
    void (*landed)(void *context,
                   /** Called by the sink for each chunk that has landed; may be NULL. */
                   size_t chunks);
    void *landed_context;

    uint8_t *source;
    uint8_t *image; /**< The expected bytes of the source, for comparison. */
    uint8_t *target;
    size_t source_bytes;
    size_t target_bytes;
    lane_piece *pieces;
    size_t *first; /**< Per chunk: number of its first piece; one more entry at the end. */
    wherry_digest *digests;

    atomic_int *states; /**< Per chunk, at the sink. */
    bool *received;     /**< Per chunk: true if it arrived in this or an earlier round. */
    lane_round sink_round;
    lane_round feed_round;
    atomic_size_t sink_next;
    atomic_size_t feed_next;
    atomic_size_t landed_chunks;
    atomic_size_t gathered_chunks; /**< Chunks that the feed has gathered in this round. */
    /** Chunks that the lane reported as read. */
    atomic_size_t done_chunks;
    atomic_uint_fast64_t sink_moved; /**< Bytes that the sink has got in this round. */
    atomic_uint_fast64_t feed_moved;
    _Atomic(const char *) wrong; /**< The first error of the lane; NULL: none. */
} lane_data;

/** Creates memory and layout; must succeed. The source's bytes depend only on the seed. */
lane_data *lane_data_create(const lane_shape *shape, uint64_t seed, bool verify);

void lane_data_destroy(lane_data *data);

/**
 * lane_data_fill changes the source's bytes. lane_data_expect tells a receiver in another process
 * which bytes to expect.
 */
void lane_data_fill(lane_data *data, uint64_t seed);
void lane_data_expect(lane_data *data, uint64_t seed);

/** Each side calls its function at the start of a round. */
void lane_data_begin_feed(lane_data *data, lane_round round);
void lane_data_begin_sink(lane_data *data, lane_round round);

/** Bytes of a round's chunks. With `placed`, counts only those with a place at the receiver. */
uint64_t lane_data_bytes(const lane_data *data, lane_round round, bool placed);

/**
 * Checks a round that succeeded: compares every byte of the target, including those that must not
 * change. @return the error, or NULL.
 */
const char *lane_data_check(const lane_data *data);

wh_sink lane_data_sink(lane_data *data);
wh_feed lane_data_feed(lane_data *data);

#endif
