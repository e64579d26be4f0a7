/* A source's worker: chunks to frames. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/stream/stream_frame.h"

enum { PLAIN_BLOCK = 4 << 20 };

/** Completes the header, which has the digest of the chunk before already. */
static void complete_header(wh_stream_worker *worker, uint64_t chunk, uint64_t length) {
    wh_store_be64(worker->header + WH_DIGEST_BYTES, chunk);
    wh_store_be64(worker->header + WH_DIGEST_BYTES + 8, length);
    worker->header_bytes = WH_FRAME_HEADER;
}

/** Writes what is collected: the header, and the runs in the window behind its first place. */
static wherry_status write_window(wh_stream_worker *worker, size_t runs, wherry_error *error) {
    worker->window[0] = (struct iovec){worker->header, worker->header_bytes};
    wherry_status status = worker->pipe->ops->write(worker->pipe, worker->window, 1 + runs, error);
    memset(worker->header, 0, sizeof(worker->header));
    worker->header_bytes = 0;
    return status;
}

/** Hashes bytes that have just been written: the kernel's copy has brought them into the cache. */
static void digest_runs(wh_stream_worker *worker, wh_run_cursor cursor, size_t bytes) {
    while (bytes) {
        size_t part = wh_min(cursor.at->iov_len - cursor.skip, bytes);
        wh_digester_add(worker->digester, (const char *)cursor.at->iov_base + cursor.skip, part);
        wh_run_cursor_advance(&cursor, part);
        bytes -= part;
    }
}

/** The digest goes out in the next header. */
static wherry_status push_chunk(wh_stream_worker *worker, const wh_feed *feed, uint64_t chunk, wherry_error *error) {
    wherry_status status = feed->gather(feed->context, chunk, &worker->segments, error);
    if (status != WHERRY_OK) {
        return status;
    }
    complete_header(worker, chunk, worker->segments.bytes | (feed->verify ? WH_FRAME_DIGEST : 0));
    if (feed->verify) {
        wh_digester_begin(worker->digester);
    }
    wh_run_cursor cursor = wh_run_cursor_at(&worker->segments);
    size_t bytes;
    do {
        size_t runs = wh_run_cursor_window(&cursor, NULL, worker->window + 1, WH_FRAME_RUNS - 1,
                                           feed->verify ? WH_FRAME_BLOCK : PLAIN_BLOCK, &bytes);
        status = bytes || worker->header_bytes ? write_window(worker, runs, error) : WHERRY_OK;
        if (status == WHERRY_OK && bytes) {
            if (feed->verify) {
                digest_runs(worker, cursor, bytes);
            }
            wh_run_cursor_advance(&cursor, bytes);
            feed->moved(feed->context, bytes);
        }
    } while (status == WHERRY_OK && bytes);
    if (status == WHERRY_OK && feed->verify) {
        wh_digest digest = wh_digester_end(worker->digester);
        memcpy(worker->header, digest.bytes, WH_DIGEST_BYTES);
    }
    return status;
}

static wherry_status end_round(wh_stream_worker *worker, wherry_error *error) {
    const wh_pipe_ops *ops = worker->pipe->ops;
    complete_header(worker, WH_FRAME_END, 0);
    wherry_status status = write_window(worker, 0, error);
    return status == WHERRY_OK && ops->flush ? ops->flush(worker->pipe, error) : status;
}

wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error) {
    wherry_status status = feed->verify ? wh_stream_ready_digester(worker, error) : WHERRY_OK;
    uint64_t chunk;
    memset(worker->header, 0, sizeof(worker->header));
    while (status == WHERRY_OK && feed->next(feed->context, &chunk)) {
        status = push_chunk(worker, feed, chunk, error);
        wh_feed_done(feed, chunk);
    }
    /* A feed that was stopped has no more chunks either: that is no end of a round. */
    if (status == WHERRY_OK && wh_stop_requested(worker->pipe->site->stop)) {
        status = wh_site_cancelled(error);
    }
    return status == WHERRY_OK ? end_round(worker, error) : status;
}
