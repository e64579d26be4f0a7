/**
 * @file stream_internal.h  What the two files of the lane `stream` share: a worker, and the frames
 * that it writes or reads.
 *
 * A frame is a header of 64 bytes and the bytes of one chunk. A round ends with a header that has
 * no bytes. Numbers are big endian:
 *
 *     header   digest of the previous chunk, 16 bytes, if its header announced one; chunk u64;
 *              length u64; 32 zero bytes. The top bit of the length announces that the next
 *              header has this chunk's digest.
 *     end      chunk 2^64 - 1, length 0
 *
 * The header is this long to keep bytes that are aligned in memory aligned in the stream: the
 * kernel copies them faster.
 */
#ifndef WH_LANE_STREAM_INTERNAL_H
#define WH_LANE_STREAM_INTERNAL_H

#include "lane/lane_common.h"

#define WH_STREAM_END UINT64_MAX
#define WH_STREAM_DIGEST_FOLLOWS (UINT64_C(1) << 63)

enum {
    WH_STREAM_HEADER_BYTES = 64,
    WH_STREAM_HEADER_USED = WH_DIGEST_BYTES + 16,
    WH_STREAM_RUNS = 1024, /**< Runs of memory per system call: IOV_MAX. */
};

/** One worker at either side, and its channel. One thread at a time. */
typedef struct wh_stream_worker {
    const wh_lane_site *site;
    int channel; /**< A socket; -1: none yet. */
    wh_digester *digester;
    wh_segments segments; /**< Source: the chunk being written. */
    wh_landing landing;   /**< Receiver: the chunk being read. */
    /** The next one: being built, or read along with the end of a chunk. */
    uint8_t header[WH_STREAM_HEADER_BYTES];
    size_t header_bytes; /**< Bytes of it to write, or already read. */
    struct iovec window[WH_STREAM_RUNS];
} wh_stream_worker;

/** Gives a worker its channel, which it closes from now on. Cannot fail. */
void wh_stream_worker_attach(wh_stream_worker *worker, int channel);

/** Closes its channel and frees what it holds. */
void wh_stream_worker_destroy(wh_stream_worker *worker);

/** One worker's share of a round, as the operations of the lane. */
wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error);

#endif
