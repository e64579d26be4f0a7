/**
 * @file stream_frame.h  How chunks travel over a pipe, and what a worker needs for it.
 *
 * A frame is a header of 64 bytes and the bytes of a chunk. A round ends with a header of its own. Numbers are big endian:
 *
 *     header   the digest of the chunk before, 16 bytes, where its header said so; chunk u64; length u64; 32 bytes of zeros.
 *              The top bit of the length: the next header has this chunk's digest
 *     end      chunk 2^64 - 1, length 0
 *
 * So long, so that bytes which are aligned in memory are aligned in the stream as well: the kernel copies them faster.
 */
#ifndef WH_LANE_STREAM_FRAME_H
#define WH_LANE_STREAM_FRAME_H

#include "lane/run_cursor.h"
#include "lane/stream/stream_pipe.h"

#define WH_FRAME_END UINT64_MAX
#define WH_FRAME_DIGEST (UINT64_C(1) << 63)

enum {
    WH_FRAME_HEADER = 64,
    WH_FRAME_USED = WH_DIGEST_BYTES + 16, /**< Bytes of it that mean something. */
    WH_FRAME_BLOCK = 512 << 10, /**< Bytes are hashed so many at a time: they are in the cache still, or already. */
    WH_FRAME_RUNS = 1024,       /**< Runs of memory a system call: IOV_MAX. */
};

/** One worker at either side. */
typedef struct wh_stream_worker {
    wh_pipe *pipe;
    wh_digester *digester;           /**< Made when first needed. */
    wh_segments segments;            /**< The source's. */
    wh_landing landing;              /**< The receiver's. */
    uint8_t header[WH_FRAME_HEADER]; /**< The next: being made, or being read along with the end of a chunk. */
    size_t header_bytes;             /**< What of it is to be written, or was read already. */
    struct iovec window[WH_FRAME_RUNS];
} wh_stream_worker;

/** Readies the worker's digester. @return WHERRY_NO_MEMORY. */
wherry_status wh_stream_ready_digester(wh_stream_worker *worker, wherry_error *error);

/** One worker's share of a round; as the lane's operations. */
wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error);

/** Closes its pipe and releases what it has. */
void wh_stream_worker_destroy(wh_stream_worker *worker);

#endif
