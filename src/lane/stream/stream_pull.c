/* A receiver's worker: frames to chunks. Nothing in a frame is believed: the sink says whether a chunk is waited for, and how long it is. */
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "lane/stream/stream_frame.h"

enum { PLAIN_BLOCK = 4 << 20 };

/** What is being read. */
typedef struct frame {
    uint64_t chunk;
    uint64_t length;
    bool digest;
} frame;

/** Reads what is missing of the next header. */
static wherry_status read_header(wh_stream_worker *worker, wherry_error *error) {
    while (worker->header_bytes < WH_FRAME_HEADER) {
        struct iovec rest = {worker->header + worker->header_bytes, WH_FRAME_HEADER - worker->header_bytes};
        size_t got;
        wherry_status status = worker->pipe->ops->read_some(worker->pipe, &rest, 1, &got, error);
        if (status != WHERRY_OK) {
            return status;
        }
        worker->header_bytes += got;
    }
    return WHERRY_OK;
}

static wherry_status malformed(const wh_stream_worker *worker, wherry_error *error, const char *what,
                               const frame *sent) {
    const wh_lane_site *site = worker->pipe->site;
    wherry_status status = wh_fail(
        error, WHERRY_MALFORMED, "rank %d has sent %s (chunk %llu, %llu bytes); it is faulty, or the network is",
        (int)site->peer, what, (unsigned long long)sent->chunk, (unsigned long long)sent->length);
    return wh_site_blame(site, status, error);
}

/** Takes the header, so that the next can be read. */
static wherry_status take_header(wh_stream_worker *worker, frame *frame_p, wherry_error *error) {
    static const uint8_t zeros[WH_FRAME_HEADER - WH_FRAME_USED];
    wherry_status status = read_header(worker, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t length = wh_load_be64(worker->header + WH_DIGEST_BYTES + 8);
    *frame_p = (frame){wh_load_be64(worker->header + WH_DIGEST_BYTES), length & ~WH_FRAME_DIGEST,
                       (length & WH_FRAME_DIGEST) != 0};
    worker->header_bytes = 0;
    return memcmp(worker->header + WH_FRAME_USED, zeros, sizeof(zeros)) == 0
               ? WHERRY_OK
               : malformed(worker, error, "a header that does not end with zeros", frame_p);
}

/** Hashes what has come at the beginning of the window. */
static void digest_window(wh_stream_worker *worker, size_t bytes) {
    for (const struct iovec *run = worker->window; bytes; run++) {
        size_t part = wh_min(run->iov_len, bytes);
        wh_digester_add(worker->digester, run->iov_base, part);
        bytes -= part;
    }
}

/** Reads the bytes of a chunk to where they belong, and whatever comes along with the last of them of the next header. */
static wherry_status read_bytes(wh_stream_worker *worker, const wh_sink *sink, const frame *what, wherry_error *error) {
    wh_run_cursor cursor = wh_run_cursor_at(&worker->landing.segments);
    uint64_t left = what->length;
    while (left) {
        size_t bytes;
        size_t got;
        size_t runs = wh_run_cursor_window(&cursor, &worker->landing, worker->window, WH_FRAME_RUNS - 1,
                                           sink->verify ? WH_FRAME_BLOCK : PLAIN_BLOCK, &bytes);
        if (runs == 0) {
            return wh_fail(error, WHERRY_INTERNAL, "chunk %llu has no room for %llu of its bytes",
                           (unsigned long long)what->chunk, (unsigned long long)left);
        }
        if (bytes == left) {
            worker->window[runs++] = (struct iovec){worker->header, WH_FRAME_HEADER};
        }
        wherry_status status = worker->pipe->ops->read_some(worker->pipe, worker->window, runs, &got, error);
        if (status != WHERRY_OK) {
            return status;
        }
        worker->header_bytes = got > bytes ? got - bytes : 0;
        got -= worker->header_bytes;
        if (sink->verify) {
            digest_window(worker, got);
        }
        wh_run_cursor_advance(&cursor, got);
        left -= got;
        sink->moved(sink->context, got);
    }
    return WHERRY_OK;
}

static wherry_status pull_chunk(wh_stream_worker *worker, const wh_sink *sink, const frame *what, wherry_error *error) {
    wh_landing *landing = &worker->landing;
    wherry_status status = sink->open(sink->context, what->chunk, landing, error);
    if (status != WHERRY_OK) {
        return wh_site_blame(worker->pipe->site, status, error);
    }
    if (what->length != landing->segments.bytes) {
        return malformed(worker, error, "a chunk of another length than it has", what);
    }
    if (sink->verify && !what->digest) {
        return malformed(worker, error, "a chunk without its digest", what);
    }
    if (sink->verify) {
        wh_digester_begin(worker->digester);
    }
    status = read_bytes(worker, sink, what, error);
    if (status == WHERRY_OK && sink->verify) {
        status = read_header(worker, error);
    }
    if (status != WHERRY_OK || !sink->verify) {
        return status == WHERRY_OK ? sink->close(sink->context, landing, NULL, NULL, error) : status;
    }
    wh_digest claimed;
    memcpy(claimed.bytes, worker->header, WH_DIGEST_BYTES);
    wh_digest digest = wh_digester_end(worker->digester);
    return sink->close(sink->context, landing, &digest, &claimed, error);
}

wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error) {
    wherry_status status = sink->verify ? wh_stream_ready_digester(worker, error) : WHERRY_OK;
    frame next;
    while (status == WHERRY_OK && (status = take_header(worker, &next, error)) == WHERRY_OK) {
        if (next.chunk == WH_FRAME_END) {
            return next.length == 0 && !next.digest ? WHERRY_OK
                                                    : malformed(worker, error, "an end that has a length", &next);
        }
        status = pull_chunk(worker, sink, &next, error);
    }
    return status;
}
