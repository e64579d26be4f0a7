/*
 * The stream lane: chunks travel as frames over channels of the group, which are sockets.
 *
 * 1. The receiver opens all channels at the same time. Each channel has one worker on each side.
 * 2. The source takes over its channels only when nothing can fail any more. Until then, the caller
 *    owns them.
 * 3. The source does not take over channels that the receiver has closed again.
 * 4. The receiver does not trust the header of a frame. Its sink decides whether a chunk is
 *    expected, and how long it is.
 */
#include "lane/stream/stream_frame.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "group/channel.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"

/*
 * An offer has the version and the maximum number of channels of the source. A request has
 * BY_CHANNELS and the number of channels that the receiver has opened. Each of these fields has one
 * byte.
 */
enum { VERSION = 1, BY_CHANNELS = 1, OFFER_BYTES = 2, REQUEST_BYTES = 2, CHANNELS_MAX = 4 };

enum {
    RUNS = 1024,          /* maximum number of runs per system call: IOV_MAX */
    PLAIN_STEP = 4 << 20, /* maximum number of bytes per system call without digests */
    /* maximum number with digests; small enough to stay in the CPU cache */
    HASHED_STEP = 512 << 10,
};

/** A worker on either side, and its channel. Only one thread at a time may use it. */
typedef struct stream_worker {
    const wh_lane_site *site;
    wh_socket channel; /**< None: not attached yet. */
    wh_digester *digester;
    wh_segments segments; /**< Source: the chunk being written. */
    wh_landing landing;   /**< Receiver: the chunk being read. */
    /** Source: the header to write next. Receiver: the next header, perhaps not complete yet. */
    uint8_t header[WH_STREAM_HEADER_BYTES];
    size_t header_bytes; /**< Bytes of `header` to write (source) or read so far (receiver). */
    struct iovec window[RUNS];
} stream_worker;

typedef struct stream_end {
    wh_lane_end base;
    stream_worker workers[];
} stream_end;

/** Gives a worker its channel. The worker owns it from now on. Cannot fail. */
static void attach(stream_worker *worker, wh_socket channel) {
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

/** Closes the worker's channel and frees its memory. */
static void destroy_worker(stream_worker *worker) {
    wh_socket_close(&worker->channel);
    wh_digester_destroy(worker->digester);
    wh_segments_destroy(&worker->segments);
    wh_landing_destroy(&worker->landing);
}

static void stream_close(wh_lane_end *end) {
    stream_end *own = (void *)end;
    for (uint32_t i = 0; own && i < own->base.workers; i++) {
        destroy_worker(own->workers + i);
    }
    wh_free(own);
}

/** Returns an end whose workers have no channels yet; NULL if out of memory. */
static stream_end *new_end(const wh_lane_site *site, uint32_t workers, wherry_error *error) {
    stream_end *own = wh_alloc_zeroed(1, sizeof(*own) + workers * sizeof(*own->workers));
    if (!own) {
        wh_fail_memory(error, "a lane");
        return NULL;
    }
    own->base.workers = workers;
    for (uint32_t i = 0; i < workers; i++) {
        own->workers[i].site = site;
        own->workers[i].channel = WH_NO_SOCKET;
    }
    return own;
}

/** Gives the first workers their channels. */
static void attach_all(stream_end *own, wh_socket *channels, uint32_t count) {
    own->base.encrypted = count > 0;
    for (uint32_t i = 0; i < count; i++) {
        own->base.encrypted = own->base.encrypted && channels[i].tls;
        attach(own->workers + i, channels[i]);
        channels[i] = WH_NO_SOCKET;
    }
}

/** Gets the maximum number of channels of this side. */
static wherry_status count_channels(const wh_lane_site *site, uint8_t *count_p, wherry_error *error) {
    if (!site->group->ops->connect) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "a %s group has no sockets", site->group->ops->name);
    }
    *count_p = (uint8_t)wh_min(site->threads, CHANNELS_MAX);
    return WHERRY_OK;
}

static wherry_status stream_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    uint8_t bytes[OFFER_BYTES] = {VERSION};
    WH_TRY(count_channels(site, bytes + 1, error));
    wh_string_append(offer, (const char *)bytes, sizeof(bytes));
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : WHERRY_OK;
}

/* ---- the receiver opens the channels ---- */

/**
 * Opening a channel takes a few round trips, so all channels are opened at the same time. The
 * calling thread opens the first one, and each of the others has its own thread. These threads use
 * a separate stop, because only the calling thread may check site->stop: the check may call a
 * function of the user's program.
 */
typedef struct dialling {
    const wh_lane_site *site;
    wh_deadline deadline;
    wh_stop stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t working; /**< Number of threads that have not ended. */
    uint32_t opened;
    wh_socket channels[CHANNELS_MAX];
} dialling;

static wherry_status open_one(dialling *d, const wh_stop *stop, wherry_error *error) {
    const wh_lane_site *site = d->site;
    wh_socket channel;
    WH_TRY(wh_group_connect(site->group, site->peer, site->tag, d->deadline, stop, &channel, error));
    pthread_mutex_lock(&d->lock);
    d->channels[d->opened++] = channel;
    pthread_mutex_unlock(&d->lock);
    return WHERRY_OK;
}

static void *open_another(void *context) {
    dialling *d = context;
    wherry_error error;
    if (open_one(d, &d->stop, &error) != WHERRY_OK) {
        wh_log(WHERRY_LOG_DEBUG, "stream: cannot open another channel to rank %d: %s", (int)d->site->peer,
               error.message);
    }
    pthread_mutex_lock(&d->lock);
    d->working--;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/** Waits for the other threads. Passes a stop request of the caller on to them. */
static void await_others(dialling *d) {
    pthread_mutex_lock(&d->lock);
    while (d->working) {
        wh_wait(&d->changed, &d->lock, wh_deadline_in_ms(WH_STOP_LOOK_MS));
        pthread_mutex_unlock(&d->lock);
        if (wh_stop_requested(d->site->stop)) {
            wh_stop_request(&d->stop);
        }
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

/** Opens up to `wanted` channels. Succeeds if at least one channel is open. */
static wherry_status open_all(dialling *d, uint32_t wanted, wherry_error *error) {
    pthread_t threads[CHANNELS_MAX];
    uint32_t started = 0;
    d->working = wanted - 1;
    while (started < wanted - 1 && wh_thread_start(threads + started, open_another, d) == 0) {
        started++;
    }
    pthread_mutex_lock(&d->lock);
    d->working -= wanted - 1 - started;
    pthread_mutex_unlock(&d->lock);
    wherry_status status = open_one(d, d->site->stop, error);
    await_others(d);
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    return d->opened ? WHERRY_OK : status;
}

/**
 * Writes the numeric address of one end of a channel to `text`, or a description if it has no such
 * address. @return text.
 */
static const char *describe(const struct sockaddr_storage *end, socklen_t size, char *text, size_t room) {
    int flags = NI_NUMERICHOST | NI_NUMERICSERV;
    bool local = end->ss_family != AF_INET && end->ss_family != AF_INET6;
    if (local || getnameinfo((const struct sockaddr *)end, size, text, (socklen_t)room, NULL, 0, flags) != 0) {
        snprintf(text, room, "%s", local ? "a Unix socket" : "an unknown address");
    }
    return text;
}

/** Logs the addresses, because using the wrong network is a common reason for slow transfers. */
static void log_addresses(const dialling *d, uint32_t wanted) {
    char here[NI_MAXHOST];
    char there[NI_MAXHOST];
    struct sockaddr_storage ends[2] = {{0}, {0}};
    socklen_t sizes[2] = {sizeof(ends[0]), sizeof(ends[1])};
    (void)getsockname(d->channels[0].fd, (struct sockaddr *)&ends[0], &sizes[0]);
    (void)getpeername(d->channels[0].fd, (struct sockaddr *)&ends[1], &sizes[1]);
    wh_log(WHERRY_LOG_INFO, "stream: opened %u of %u channels to rank %d, %sfrom %s to %s", (unsigned)d->opened,
           (unsigned)wanted, (int)d->site->peer, d->channels[0].tls ? "encrypted, " : "",
           describe(&ends[0], sizes[0], here, sizeof(here)), describe(&ends[1], sizes[1], there, sizeof(there)));
}

/** Opens up to one channel per worker of the end. Removes the workers that have no channel. */
static wherry_status dial(const wh_lane_site *site, stream_end *own, wherry_error *error) {
    uint32_t wanted = own->base.workers;
    dialling d = {.site = site, .deadline = wh_site_patience(site)};
    WH_TRY(wh_stop_init(&d.stop, error));
    pthread_mutex_init(&d.lock, NULL);
    wh_condition_init(&d.changed);
    wherry_status status = open_all(&d, wanted, error);
    if (status == WHERRY_OK) {
        log_addresses(&d, wanted);
    }
    attach_all(own, d.channels, d.opened);
    if (status == WHERRY_OK && wh_stop_requested(site->stop)) {
        status = wh_site_cancelled(error);
    }
    if (status == WHERRY_OK) {
        own->base.workers = d.opened; /* The other workers own nothing, so they need no cleanup. */
    }
    pthread_cond_destroy(&d.changed);
    pthread_mutex_destroy(&d.lock);
    wh_stop_destroy(&d.stop);
    return status;
}

static wherry_status stream_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                  bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *offered = offer;
    uint8_t here = 0;
    *assist_p = false;
    if (size != OFFER_BYTES || offered[0] != VERSION || offered[1] == 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed stream offer", (int)site->peer);
    }
    WH_TRY(count_channels(site, &here, error));
    stream_end *own = new_end(site, (uint32_t)wh_min(offered[1], here), error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    wherry_status status = dial(site, own, error);
    if (status == WHERRY_OK) {
        uint8_t bytes[REQUEST_BYTES] = {BY_CHANNELS, (uint8_t)own->base.workers};
        wh_string_append(request, (const char *)bytes, sizeof(bytes));
        status = request->failed ? wh_fail_memory(error, "the request of a lane") : WHERRY_OK;
    }
    return wh_lane_deliver(&wh_lane_stream, &own->base, status, end_p);
}

/* ---- the source takes over the channels ---- */

/** Moves the channels that the receiver has not closed to the front. @return their number. */
static size_t find_open(const wh_lane_site *site) {
    size_t open = 0;
    for (size_t i = 0; i < site->channel_count; i++) {
        wh_socket channel = site->channels[i];
        struct pollfd closed = {channel.fd, POLLRDHUP, 0};
        if (poll(&closed, 1, 0) == 0) {
            site->channels[i] = site->channels[open];
            site->channels[open++] = channel;
        }
    }
    return open;
}

static wherry_status stream_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                   wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *bytes = request;
    if (size != REQUEST_BYTES || bytes[0] != BY_CHANNELS || bytes[1] < 1 || bytes[1] > CHANNELS_MAX) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a malformed stream request", (int)site->peer);
    }
    uint32_t wanted = bytes[1];
    if (site->channel_count < wanted || find_open(site) < wanted) {
        *ready_p = false;
        return WHERRY_OK;
    }
    stream_end *own = new_end(site, wanted, error);
    if (!own) {
        return WHERRY_NO_MEMORY;
    }
    attach_all(own, site->channels, wanted);
    *ready_p = true;
    *end_p = &own->base;
    return WHERRY_OK;
}

/* ---- a channel ---- */

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
static wherry_status write_all(const stream_worker *worker, struct iovec *segments, size_t count, wherry_error *error) {
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
static wherry_status read_some(const stream_worker *worker, const struct iovec *segments, size_t count, size_t *got_p,
                               wherry_error *error) {
    const wh_lane_site *site = worker->site;
    if (wh_deadline_passed(site->deadline)) {
        return wh_site_timed_out(site, error);
    }
    wherry_status status =
        wh_channel_read_some(&worker->channel, segments, count, site->stop, wh_site_patience(site), got_p, error);
    return status == WHERRY_TIMED_OUT ? wh_site_timed_out(site, error) : wh_site_blame(site, status, error);
}

/* ---- the source sends ---- */

/** Completes the header. It already has the digest of the previous chunk. */
static void complete_header(stream_worker *worker, uint64_t chunk, uint64_t length) {
    wh_store_be64(worker->header + WHERRY_DIGEST_BYTES, chunk);
    wh_store_be64(worker->header + WHERRY_DIGEST_BYTES + 8, length);
    worker->header_bytes = WH_STREAM_HEADER_BYTES;
}

/**
 * Writes the header, if there is one to write, and the runs in worker->window. The runs begin at
 * the second entry of the window.
 */
static wherry_status write_window(stream_worker *worker, size_t runs, wherry_error *error) {
    worker->window[0] = (struct iovec){worker->header, worker->header_bytes};
    wherry_status status = write_all(worker, worker->window, 1 + runs, error);
    memset(worker->header, 0, sizeof(worker->header));
    worker->header_bytes = 0;
    return status;
}

/** Sends a chunk. Its digest is sent with the next header. */
static wherry_status push_chunk(stream_worker *worker, const wh_feed *feed, uint64_t chunk, wherry_error *error) {
    WH_TRY(feed->gather(feed->context, chunk, &worker->segments, error));
    complete_header(worker, chunk, worker->segments.bytes | (feed->verify ? WH_STREAM_DIGEST_FOLLOWS : 0));
    if (feed->verify) {
        wh_digester_begin(worker->digester);
    }
    wh_run_cursor cursor = wh_run_cursor_at(&worker->segments);
    size_t bytes;
    wherry_status status;
    do {
        size_t runs = wh_run_cursor_window(&cursor, NULL, worker->window + 1, RUNS - 1,
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

static wherry_status stream_push(wh_lane_end *end, uint32_t number, const wh_feed *feed, wherry_error *error) {
    stream_worker *worker = ((stream_end *)(void *)end)->workers + number;
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

/* ---- the receiver reads ---- */

/** The contents of a header. */
typedef struct frame {
    uint64_t chunk;
    uint64_t length;
    bool digest_follows;
} frame;

/** Reads the missing bytes of the next header. */
static wherry_status read_header(stream_worker *worker, wherry_error *error) {
    while (worker->header_bytes < WH_STREAM_HEADER_BYTES) {
        struct iovec rest = {worker->header + worker->header_bytes, WH_STREAM_HEADER_BYTES - worker->header_bytes};
        size_t got = 0;
        WH_TRY(read_some(worker, &rest, 1, &got, error));
        worker->header_bytes += got;
    }
    return WHERRY_OK;
}

static wherry_status malformed(const stream_worker *worker, wherry_error *error, const char *what, const frame *sent) {
    wherry_status status = wh_fail(
        error, WHERRY_MALFORMED, "rank %d sent %s (chunk %llu, %llu bytes); its software or the network has a fault",
        (int)worker->site->peer, what, (unsigned long long)sent->chunk, (unsigned long long)sent->length);
    return wh_site_blame(worker->site, status, error);
}

/** Reads a header completely and parses it. */
static wherry_status take_header(stream_worker *worker, frame *frame_p, wherry_error *error) {
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
static void digest_window(stream_worker *worker, size_t bytes) {
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
static wherry_status read_bytes(stream_worker *worker, const wh_sink *sink, const frame *what, wherry_error *error) {
    wh_run_cursor cursor = wh_run_cursor_at(&worker->landing.segments);
    uint64_t left = what->length;
    while (left) {
        size_t bytes;
        size_t got = 0;
        size_t runs = wh_run_cursor_window(&cursor, &worker->landing, worker->window, RUNS - 1,
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

static wherry_status pull_chunk(stream_worker *worker, const wh_sink *sink, const frame *what, wherry_error *error) {
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

static wherry_status stream_pull(wh_lane_end *end, uint32_t number, const wh_sink *sink, wherry_error *error) {
    stream_worker *worker = ((stream_end *)(void *)end)->workers + number;
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

const wh_lane_ops wh_lane_stream = {
    .name = "stream",
    .traits = WH_LANE_NETWORK | WH_LANE_DIGESTS | WH_LANE_STAGES | WH_LANE_PRIVATE,
    .offer = stream_offer,
    .probe = stream_probe,
    .accept = stream_accept,
    .pull = stream_pull,
    .push = stream_push,
    .close = stream_close,
};
