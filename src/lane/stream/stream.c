/*
 * The stream lane: chunks travel as frames over channels of the group, which are sockets. This
 * file opens the channels. stream_move.c moves the bytes.
 *
 * 1. The receiver opens all channels at the same time. Each channel has one worker on each side.
 * 2. The source takes over its channels only when nothing can fail any more. Until then, the caller
 *    owns them.
 * 3. The source does not take over channels that the receiver has closed again.
 */
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "lane/lanes.h"
#include "lane/stream/stream_internal.h"

/*
 * An offer has the version and the maximum number of channels of the source. A request has
 * BY_CHANNELS and the number of channels that the receiver has opened. Each of these fields has one
 * byte.
 */
enum { VERSION = 1, BY_CHANNELS = 1, OFFER_BYTES = 2, REQUEST_BYTES = 2, CHANNELS_MAX = 4 };

typedef struct stream_end {
    wh_lane_end base;
    wh_stream_worker workers[];
} stream_end;

static void stream_close(wh_lane_end *end) {
    stream_end *own = (void *)end;
    for (uint32_t i = 0; own && i < own->base.workers; i++) {
        wh_stream_worker_destroy(own->workers + i);
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
        wh_stream_worker_attach(own->workers + i, channels[i]);
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

/* ---- the operations ---- */

static wherry_status stream_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    return wh_stream_pull(((stream_end *)(void *)end)->workers + worker, sink, error);
}

static wherry_status stream_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    return wh_stream_push(((stream_end *)(void *)end)->workers + worker, feed, error);
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
