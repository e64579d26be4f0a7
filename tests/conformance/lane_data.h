/**
 * @file lane_data.h  What the lanes' suite moves: memory cut into chunks of scattered pieces, a
 * feed that gives it and a sink that watches over it.
 *
 * The layout follows from a shape and a seed alone. Sink and feed never fail a test themselves,
 * since they run in threads: what they find wrong stands in lane_data.wrong.
 */
#ifndef WH_TESTS_LANE_DATA_H
#define WH_TESTS_LANE_DATA_H

#include <stdatomic.h>

#include "lane/lane.h"

/** How memory is cut. */
typedef struct lane_shape {
    size_t chunks;
    size_t pieces;   /**< A chunk. */
    size_t shortest; /**< Bytes of a piece. */
    size_t longest;  /**< As many: all are equally long. */
    /**
     * Up to so many bytes between two pieces at the source; half of the pieces lie side by
     * side.
     */
    size_t source_gap;
    size_t target_gap; /**< The same at the receiver. */
    bool strided;      /**< The gaps are always there, and always as long as said. */
    /** One of so many pieces has no place at the receiver; 0: none. Only without verify. */
    size_t nowhere;
    size_t staged; /**< One of so many chunks is staged; 0: none. */
    /** All chunks are the same memory at the source, and are dropped at the receiver. */
    bool repeated;
} lane_shape;

/** The chunks of a round: those with number % stride == phase; none where stride is 0. */
typedef struct lane_round {
    uint32_t stride;
    uint32_t phase;
} lane_round;

typedef struct lane_piece {
    size_t source; /**< Offset. */
    size_t target; /**< Offset, or SIZE_MAX: nowhere. */
    size_t length;
} lane_piece;

typedef struct lane_data {
    lane_shape shape;
    bool verify;
    bool claims; /**< With verify, the lane must carry the source's digests along. */
    const wh_stop *sink_stop;
    const wh_stop *feed_stop;
    void (*landed)(void *context,
                   /** Called by the sink for each chunk that has landed; may be NULL. */
                   size_t chunks);
    void *landed_context;

    uint8_t *source;
    uint8_t *image; /**< What the source holds, as the receiver knows it: for comparing. */
    uint8_t *target;
    size_t source_bytes;
    size_t target_bytes;
    lane_piece *pieces;
    size_t *first; /**< Number of the first piece of each chunk, and one more. */
    wh_digest *digests;

    atomic_int *states; /**< Of each chunk at the sink. */
    bool *received;     /**< In this or an earlier round. */
    lane_round sink_round;
    lane_round feed_round;
    atomic_size_t sink_next;
    atomic_size_t feed_next;
    atomic_size_t landed_chunks;
    atomic_size_t gathered_chunks; /**< By the feed, in this round, */
    /** and those of which the lane has said that it has read them. */
    atomic_size_t done_chunks;
    atomic_uint_fast64_t sink_moved; /**< In this round. */
    atomic_uint_fast64_t feed_moved;
    _Atomic(const char *) wrong; /**< What a lane did wrong. NULL: nothing. */
} lane_data;

/** Lays out memory; must succeed. The source's bytes follow from the seed. */
lane_data *lane_data_create(const lane_shape *shape, uint64_t seed, bool verify);

void lane_data_destroy(lane_data *data);

/**
 * The source's bytes become other ones, of which the receiver's side of this data in another
 * process knows by lane_data_expect.
 */
void lane_data_fill(lane_data *data, uint64_t seed);
void lane_data_expect(lane_data *data, uint64_t seed);

/** Each side of a round begins with it. */
void lane_data_begin_feed(lane_data *data, lane_round round);
void lane_data_begin_sink(lane_data *data, lane_round round);

/** Bytes of the chunks of a round; with `placed`, only those that have a place at the receiver. */
uint64_t lane_data_bytes(const lane_data *data, lane_round round, bool placed);

/**
 * What is wrong after a round that went well; NULL: nothing. Compares every byte of the target,
 * those that nobody may write too.
 */
const char *lane_data_check(const lane_data *data);

wh_sink lane_data_sink(lane_data *data);
wh_feed lane_data_feed(lane_data *data);

#endif
