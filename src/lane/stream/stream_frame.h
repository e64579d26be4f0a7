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

#include "lane/stream/stream_pipe.h"

#define WH_FRAME_END UINT64_MAX
#define WH_FRAME_DIGEST (UINT64_C(1) << 63)

enum {
    WH_FRAME_HEADER = 64,
    WH_FRAME_USED = WH_DIGEST_BYTES + 16, /**< Bytes of it that mean something. */
    WH_FRAME_BLOCK = 512 << 10, /**< Bytes are hashed so many at a time: they are in the cache still, or already. */
    WH_FRAME_RUNS = 1024,       /**< Runs of memory a system call: IOV_MAX. */
};

/** A place among the runs of a chunk. */
typedef struct wh_run_cursor {
    const struct iovec *at;
    const struct iovec *end;
    size_t skip; /**< Bytes of `at` that are behind it. */
} wh_run_cursor;

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

/** From the beginning of the segments. */
wh_run_cursor wh_run_cursor_at(const wh_segments *segments);

/**
 * Collects runs from the cursor on, without moving it.
 * @param landing  where runs without a place go to: its scratch; NULL where there are none.
 * @param room     of the window.
 * @param most     bytes that are wanted.
 * @param bytes_p  how many there are; 0 at the end only.
 * @return the number of runs.
 */
size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p);

/** Moves it on. */
void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes);

/** Readies the worker's digester. @return WHERRY_NO_MEMORY. */
wherry_status wh_stream_ready_digester(wh_stream_worker *worker, wherry_error *error);

/** One worker's share of a round; as the lane's operations. */
wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error);
wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error);

/** Closes its pipe and releases what it has. */
void wh_stream_worker_destroy(wh_stream_worker *worker);

#endif
