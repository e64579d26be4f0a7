#include "lane/stream/stream_dial.h"

#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/stop.h"

/**
 * The calling thread opens the first channel, and a thread each the others. These have a stop of their own, since the question that the site's may have is
 * for the calling thread alone.
 */
typedef struct dialling {
    const wh_lane_site *site;
    wh_deadline deadline;
    wh_stop stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t working; /**< Threads that have not ended. */
    uint32_t opened;
    int *channels;
} dialling;

static void keep(dialling *d, int channel) {
    pthread_mutex_lock(&d->lock);
    d->channels[d->opened++] = channel;
    pthread_mutex_unlock(&d->lock);
}

static void *open_another(void *context) {
    dialling *d = context;
    const wh_lane_site *site = d->site;
    wherry_error error;
    int channel;
    if (wh_group_connect(site->group, site->peer, site->tag, d->deadline, &d->stop, &channel, &error) == WHERRY_OK) {
        keep(d, channel);
    } else {
        wh_log(WHERRY_LOG_DEBUG, "stream: one channel less to rank %d: %s", (int)site->peer, error.message);
    }
    pthread_mutex_lock(&d->lock);
    d->working--;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/** Waits for the threads, and stops them where the caller is to stop. */
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

/** @return how many threads were started: where there can be no more, fewer channels have to do. */
static uint32_t start_others(dialling *d, uint32_t wanted, pthread_t *threads) {
    uint32_t started = 0;
    d->working = wanted;
    while (started < wanted && wh_thread_start(threads + started, open_another, d) == 0) {
        started++;
    }
    pthread_mutex_lock(&d->lock);
    d->working -= wanted - started;
    pthread_mutex_unlock(&d->lock);
    return started;
}

/** Opens the first channel here, and the others meanwhile. */
static wherry_status dial_all(dialling *d, uint32_t wanted, wherry_error *error) {
    const wh_lane_site *site = d->site;
    pthread_t threads[WH_STREAM_CHANNELS_MAX];
    int channel;
    uint32_t started = start_others(d, wanted - 1, threads);
    wherry_status status =
        wh_group_connect(site->group, site->peer, site->tag, d->deadline, site->stop, &channel, error);
    if (status == WHERRY_OK) {
        keep(d, channel);
    }
    await_others(d);
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    return d->opened ? WHERRY_OK : status;
}

/** The address of one end of a channel, in numbers. */
static const char *describe(const struct sockaddr_storage *end, socklen_t size, char *text, size_t room) {
    int flags = NI_NUMERICHOST | NI_NUMERICSERV;
    bool near = end->ss_family != AF_INET && end->ss_family != AF_INET6;
    if (near || getnameinfo((const struct sockaddr *)end, size, text, (socklen_t)room, NULL, 0, flags) != 0) {
        snprintf(text, room, "%s", near ? "a Unix socket" : "an unknown address");
    }
    return text;
}

/** Says which way the bytes take: that of the wrong network is the usual reason for a slow transfer. */
static void tell_way(const dialling *d, uint32_t wanted) {
    char here[NI_MAXHOST];
    char there[NI_MAXHOST];
    struct sockaddr_storage ends[2] = {{0}, {0}};
    socklen_t sizes[2] = {sizeof(ends[0]), sizeof(ends[1])};
    (void)getsockname(d->channels[0], (struct sockaddr *)&ends[0], &sizes[0]);
    (void)getpeername(d->channels[0], (struct sockaddr *)&ends[1], &sizes[1]);
    wh_log(WHERRY_LOG_INFO, "stream: %u of %u channels to rank %d, from %s to %s", (unsigned)d->opened,
           (unsigned)wanted, (int)d->site->peer, describe(&ends[0], sizes[0], here, sizeof(here)),
           describe(&ends[1], sizes[1], there, sizeof(there)));
}

wherry_status wh_stream_dial(const wh_lane_site *site, uint32_t wanted, int *channels, uint32_t *opened_p,
                             wherry_error *error) {
    dialling d = {.site = site, .deadline = wh_site_patience(site), .channels = channels};
    *opened_p = 0;
    wherry_status status = wh_stop_init(&d.stop, error);
    if (status != WHERRY_OK) {
        return status;
    }
    pthread_mutex_init(&d.lock, NULL);
    wh_condition_init(&d.changed);
    status = dial_all(&d, wanted, error);
    if (status == WHERRY_OK && wh_stop_requested(site->stop)) {
        status = wh_site_cancelled(error);
    }
    while (status != WHERRY_OK && d.opened) {
        close(channels[--d.opened]);
    }
    if (d.opened) {
        tell_way(&d, wanted);
    }
    *opened_p = d.opened;
    pthread_cond_destroy(&d.changed);
    pthread_mutex_destroy(&d.lock);
    wh_stop_destroy(&d.stop);
    return status;
}
