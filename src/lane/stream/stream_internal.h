/**
 * @file stream_internal.h  Declarations for the two files of the stream lane: the frames, and the
 * worker that writes or reads them.
 *
 * A frame is a header of 64 bytes and the bytes of one chunk. Numbers are big-endian:
 *
 *     header   digest of the previous chunk (16 bytes; zeros if its header announced none); chunk
 *              (u64); length (u64); 32 zero bytes. If the top bit of the length is set, the next
 *              header has the digest of this chunk.
 *     end      a header with chunk 2^64 - 1 and length 0: no chunk follows
 *     pause    a header with chunk 2^64 - 2 and length 0: it brings the last digest, because the
 *              next request has not come yet
 *
 * The header has 64 bytes so that bytes that are aligned in memory are also aligned in the stream.
 * The kernel copies aligned bytes faster.
 */
#ifndef WH_LANE_STREAM_INTERNAL_H
#define WH_LANE_STREAM_INTERNAL_H

#include "lane/lane_common.h"

#define WH_STREAM_END UINT64_MAX
#define WH_STREAM_PAUSE (UINT64_MAX - 1)
#define WH_STREAM_DIGEST_FOLLOWS (UINT64_C(1) << 63)

enum {
    WH_STREAM_HEADER_BYTES = 64,
    WH_STREAM_HEADER_USED = WHERRY_DIGEST_BYTES + 16,
    WH_STREAM_RUNS = 1024, /**< Maximum number of runs per system call: IOV_MAX. */
};

/** A worker on either side, and its channel. Only one thread at a time may use it. */
typedef struct wh_stream_worker {
    const wh_lane_site *site;
    wh_socket channel; /**< None: not attached yet. */
    wh_digester *digester;
    wh_segments segments; /**< Source: the chunk being written. */
    wh_landing landing;   /**< Receiver: the chunk being read. */
    /** Source: the header to write next. Receiver: the next header, perhaps not complete yet. */
    uint8_t header[WH_STREAM_HEADER_BYTES];
    size_t header_bytes; /**< Bytes of `header` to write (source) or read so far (receiver). */
    struct iovec window[WH_STREAM_RUNS];
} wh_stream_worker;

/** Gives a worker its channel. The worker owns it from now on. Cannot fail. */
void wh_stream_worker_attach(wh_stream_worker *worker, wh_socket channel);

/** Closes the worker's channel and frees its memory. */
void wh_stream_worker_destroy(wh_stream_worker *worker);

/** These functions implement wh_lane_ops.push and wh_lane_ops.pull for one worker. */
wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error);

#endif
