/*
 * Moves chunks over a channel. The receiver does not trust the header of a frame. Its sink decides
 * whether a chunk is expected, and how long it is.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "group/channel.h"
#include "lane/stream/stream_internal.h"

enum {
    PLAIN_STEP = 4 << 20, /* maximum number of bytes per system call without digests */
    /* maximum number with digests; small enough to stay in the CPU cache */
    HASHED_STEP = 512 << 10,
};

/* ---- the channel ---- */

void wh_stream_worker_attach(wh_stream_worker *worker, wh_socket channel) {
    int fd = channel.fd;
    worker->channel = channel;
    /*
     * Use blocking calls with a short timeout, because they are faster than poll(). On Unix
     * sockets, they are twice as fast. The worker checks for a stop request after each timeout. If
     * the timeouts cannot be set, the channel stays non-blocking, which also works.
     */
    struct timeval slice = {0, WH_STREAM_SLICE_US};
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice)) == 0) {
        (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    }
    /*
     * The header that ends a round is short, and must be sent without waiting for an
     * acknowledgement. Unix sockets do not have this option, and do not need it.
     */
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void wh_stream_worker_destroy(wh_stream_worker *worker) {
    wh_socket_close(&worker->channel);
    wh_digester_destroy(worker->digester);
    wh_segments_destroy(&worker->segments);
    wh_landing_destroy(&worker->landing);
}

static uint64_t bytes_of(const struct iovec *segments, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += segments[i].iov_len;
    }
    return bytes;
}

/**
 * Writes all segments. Removes the bytes that it has written from the list. Times out if the peer
 * takes no byte for no_progress_ms, or at the site's deadline. If the peer is slow but makes
 * progress, only the deadline ends the call.
 */
static wherry_status write_all(const wh_stream_worker *worker, struct iovec *segments, size_t count,
                               wherry_error *error) {
    const wh_lane_site *site = worker->site;
    uint64_t left = bytes_of(segments, count);
    for (;;) {
        wherry_status status =
            wh_channel_write(&worker->channel, segments, count, site->stop, wh_site_patience(site), error);
        if (status != WHERRY_TIMED_OUT) {
            return wh_site_blame(site, status, error);
        }
        uint64_t before = left;
        left = bytes_of(segments, count);
        if (left == before || wh_deadline_passed(site->deadline)) {
            return wh_site_timed_out(site, error);
        }
    }
}

/** Waits for at least one byte. Reads the bytes that have arrived, as far as they fit. */
static wherry_status read_some(const wh_stream_worker *worker, const struct iovec *segments, size_t count,
                               size_t *got_p, wherry_error *error) {
    const wh_lane_site *site = worker->site;
    if (wh_deadline_passed(site->deadline)) {
        return wh_site_timed_out(site, error);
    }
    wherry_status status =
        wh_channel_read_some(&worker->channel, segments, count, site->stop, wh_site_patience(site), got_p, error);
    return status == WHERRY_TIMED_OUT ? wh_site_timed_out(site, error) : wh_site_blame(site, status, error);
}

/* ---- the source ---- */

/** Completes the header. It already has the digest of the previous chunk. */
static void complete_header(wh_stream_worker *worker, uint64_t chunk, uint64_t length) {
    wh_store_be64(worker->header + WHERRY_DIGEST_BYTES, chunk);
    wh_store_be64(worker->header + WHERRY_DIGEST_BYTES + 8, length);
    worker->header_bytes = WH_STREAM_HEADER_BYTES;
}

/**
 * Writes the header, if there is one to write, and the runs in worker->window. The runs begin at
 * the second entry of the window.
 */
static wherry_status write_window(wh_stream_worker *worker, size_t runs, wherry_error *error) {
    worker->window[0] = (struct iovec){worker->header, worker->header_bytes};
    wherry_status status = write_all(worker, worker->window, 1 + runs, error);
    memset(worker->header, 0, sizeof(worker->header));
    worker->header_bytes = 0;
    return status;
}

/** Sends a chunk. Its digest is sent with the next header. */
static wherry_status push_chunk(wh_stream_worker *worker, const wh_feed *feed, uint64_t chunk, wherry_error *error) {
    WH_TRY(feed->gather(feed->context, chunk, &worker->segments, error));
    complete_header(worker, chunk, worker->segments.bytes | (feed->verify ? WH_STREAM_DIGEST_FOLLOWS : 0));
    if (feed->verify) {
        wh_digester_begin(worker->digester);
    }
    wh_run_cursor cursor = wh_run_cursor_at(&worker->segments);
    size_t bytes;
    wherry_status status;
    do {
        size_t runs = wh_run_cursor_window(&cursor, NULL, worker->window + 1, WH_STREAM_RUNS - 1,
                                           feed->verify ? HASHED_STEP : PLAIN_STEP, &bytes);
        status = bytes || worker->header_bytes ? write_window(worker, runs, error) : WHERRY_OK;
        if (status == WHERRY_OK && bytes) {
            if (feed->verify) { /* The kernel's copy has brought the bytes into the CPU cache. */
                wh_run_cursor_digest(cursor, worker->digester, bytes);
            }
            wh_run_cursor_advance(&cursor, bytes);
            feed->moved(feed->context, bytes);
        }
    } while (status == WHERRY_OK && bytes);
    if (status == WHERRY_OK && feed->verify) {
        wherry_digest digest = wh_digester_end(worker->digester);
        memcpy(worker->header, digest.bytes, WHERRY_DIGEST_BYTES);
    }
    return status;
}

wherry_status wh_stream_push(wh_stream_worker *worker, const wh_feed *feed, wherry_error *error) {
    wherry_status status = wh_digester_need(feed->verify, &worker->digester, error);
    uint64_t chunk;
    memset(worker->header, 0, sizeof(worker->header));
    do {
        while (status == WHERRY_OK && feed->next(feed->context, &chunk)) {
            status = push_chunk(worker, feed, chunk, error);
            wh_feed_done(feed, chunk);
        }
        if (status == WHERRY_OK && feed->verify && feed->more && feed->more(feed->context, 0) == WH_MORE_LATER) {
            /* The receiver needs the last digest now. */
            complete_header(worker, WH_STREAM_PAUSE, 0);
            status = write_window(worker, 0, error);
        }
    } while (status == WHERRY_OK && wh_feed_more(feed));
    /* After a stop request, the feed returns no more chunks, but the round is not complete. */
    if (status == WHERRY_OK && wh_stop_requested(worker->site->stop)) {
        status = wh_site_cancelled(error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    complete_header(worker, WH_STREAM_END, 0);
    return write_window(worker, 0, error);
}

/* ---- the receiver ---- */

/** The contents of a header. */
typedef struct frame {
    uint64_t chunk;
    uint64_t length;
    bool digest_follows;
} frame;

/** Reads the missing bytes of the next header. */
static wherry_status read_header(wh_stream_worker *worker, wherry_error *error) {
    while (worker->header_bytes < WH_STREAM_HEADER_BYTES) {
        struct iovec rest = {worker->header + worker->header_bytes, WH_STREAM_HEADER_BYTES - worker->header_bytes};
        size_t got = 0;
        WH_TRY(read_some(worker, &rest, 1, &got, error));
        worker->header_bytes += got;
    }
    return WHERRY_OK;
}

static wherry_status malformed(const wh_stream_worker *worker, wherry_error *error, const char *what,
                               const frame *sent) {
    wherry_status status = wh_fail(
        error, WHERRY_MALFORMED, "rank %d sent %s (chunk %llu, %llu bytes); its software or the network has a fault",
        (int)worker->site->peer, what, (unsigned long long)sent->chunk, (unsigned long long)sent->length);
    return wh_site_blame(worker->site, status, error);
}

/** Reads a header completely and parses it. */
static wherry_status take_header(wh_stream_worker *worker, frame *frame_p, wherry_error *error) {
    static const uint8_t zeros[WH_STREAM_HEADER_BYTES - WH_STREAM_HEADER_USED];
    WH_TRY(read_header(worker, error));
    uint64_t length = wh_load_be64(worker->header + WHERRY_DIGEST_BYTES + 8);
    *frame_p = (frame){.chunk = wh_load_be64(worker->header + WHERRY_DIGEST_BYTES),
                       .length = length & ~WH_STREAM_DIGEST_FOLLOWS,
                       .digest_follows = (length & WH_STREAM_DIGEST_FOLLOWS) != 0};
    worker->header_bytes = 0;
    return memcmp(worker->header + WH_STREAM_HEADER_USED, zeros, sizeof(zeros)) == 0
               ? WHERRY_OK
               : malformed(worker, error, "a header that does not end with zeros", frame_p);
}

/** Hashes the first `bytes` bytes of the window, which have just arrived. */
static void digest_window(wh_stream_worker *worker, size_t bytes) {
    for (const struct iovec *run = worker->window; bytes; run++) {
        size_t part = wh_min(run->iov_len, bytes);
        wh_digester_add(worker->digester, run->iov_base, part);
        bytes -= part;
    }
}

/**
 * Reads the bytes of a chunk into their destinations. The last system call may also read the next
 * header, or a part of it.
 */
static wherry_status read_bytes(wh_stream_worker *worker, const wh_sink *sink, const frame *what, wherry_error *error) {
    wh_run_cursor cursor = wh_run_cursor_at(&worker->landing.segments);
    uint64_t left = what->length;
    while (left) {
        size_t bytes;
        size_t got = 0;
        size_t runs = wh_run_cursor_window(&cursor, &worker->landing, worker->window, WH_STREAM_RUNS - 1,
                                           sink->verify ? HASHED_STEP : PLAIN_STEP, &bytes);
        if (runs == 0) {
            return wh_fail(error, WHERRY_INTERNAL, "chunk %llu has no destination for its last %llu bytes",
                           (unsigned long long)what->chunk, (unsigned long long)left);
        }
        if (bytes == left) {
            worker->window[runs++] = (struct iovec){worker->header, WH_STREAM_HEADER_BYTES};
        }
        WH_TRY(read_some(worker, worker->window, runs, &got, error));
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
        return wh_site_blame(worker->site, status, error);
    }
    if (what->length != landing->segments.bytes) {
        return malformed(worker, error, "a chunk with the wrong length", what);
    }
    if (sink->verify && !what->digest_follows) {
        return malformed(worker, error, "a chunk without a digest", what);
    }
    if (sink->verify) {
        wh_digester_begin(worker->digester);
    }
    WH_TRY(read_bytes(worker, sink, what, error));
    WH_TRY(sink->verify ? read_header(worker, error) : WHERRY_OK);
    wherry_digest claimed;
    memcpy(claimed.bytes, worker->header, WHERRY_DIGEST_BYTES);
    return wh_sink_close(sink, landing, worker->digester, sink->verify ? &claimed : NULL, error);
}

wherry_status wh_stream_pull(wh_stream_worker *worker, const wh_sink *sink, wherry_error *error) {
    wherry_status status = wh_digester_need(sink->verify, &worker->digester, error);
    frame next;
    while (status == WHERRY_OK && (status = take_header(worker, &next, error)) == WHERRY_OK) {
        bool empty = next.chunk == WH_STREAM_END || next.chunk == WH_STREAM_PAUSE;
        if (empty && (next.length || next.digest_follows)) {
            return malformed(worker, error, "an end or pause header with a length or a digest", &next);
        }
        if (next.chunk == WH_STREAM_END) {
            return WHERRY_OK;
        }
        status = empty ? WHERRY_OK : pull_chunk(worker, sink, &next, error);
    }
    return status;
}
