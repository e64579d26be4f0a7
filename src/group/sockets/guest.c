/*
 * Reading by whoever waits: a message that the waiting thread reads itself costs one change of
 * threads less. The progress thread leaves the connections alone meanwhile, and takes them up again
 * when nobody has read for a moment, so that what nobody waits for is read as well.
 */
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

/**
 * How long a thread that has got its message may stay away: it often waits for the next at once.
 * One that has been there for long wakes the progress thread when it leaves, so that this need not
 * look so often. How long to wait for memory.
 */
enum { AWAY_MS = 1, LONG_MS = 10, MEMORY_MS = 5 };

bool wh_sockets_has_guest(const wh_sockets *sockets, uint64_t now) {
    return sockets->guest.inside || now < sockets->guest.until;
}

int wh_sockets_guest_ms(const wh_sockets *sockets, uint64_t now, int most) {
    bool settled = sockets->guest.inside && now - sockets->guest.since > LONG_MS * MS;
    return wh_sockets_has_guest(sockets, now) && !settled ? AWAY_MS : most;
}

void wh_sockets_nudge(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    uint64_t one = 1;
    if (write(sockets->guest.nudge, &one, sizeof(one)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the waiting thread is awake already");
    }
}

/** Takes the connections that messages come over. @return false where there is no memory. */
static bool enter(wh_sockets *sockets) {
    wh_guest *guest = &sockets->guest;
    guest->watch.count = 0;
    bool ok = wh_watch_add(&guest->watch, guest->nudge, POLLIN);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->guest_slot = 0;
        if (ok && wh_connection_is_up(one) && !one->doomed) {
            size_t slot = guest->watch.count;
            ok = wh_watch_add(&guest->watch, one->fd, POLLIN);
            one->guest_slot = ok ? slot : 0;
        }
    }
    guest->inside = ok;
    guest->since = wh_clock_now();
    return ok;
}

static void leave(wh_sockets *sockets) {
    wh_guest *guest = &sockets->guest;
    uint64_t now = wh_clock_now();
    guest->inside = false;
    guest->until = now + AWAY_MS * MS;
    if (now - guest->since > LONG_MS * MS) {
        wh_sockets_wake(sockets);
    }
}

static void serve(wh_sockets *sockets) {
    const wh_watch *watch = &sockets->guest.watch;
    uint64_t nudges;
    if (watch->fds[0].revents && read(sockets->guest.nudge, &nudges, sizeof(nudges)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the nudge was gone already");
    }
    for (wh_connection **at = &sockets->connections; *at;) {
        wh_connection *one = *at;
        if (one->guest_slot && watch->fds[one->guest_slot].revents) {
            wh_sockets_serve(sockets, at, watch->fds[one->guest_slot].revents);
        }
        at = *at == one ? &one->next : at;
    }
}

wherry_status wh_sockets_pump(wh_group *group, wh_deadline deadline, wherry_error *error) {
    (void)error;
    wh_sockets *sockets = (wh_sockets *)group;
    const wh_watch *watch = &sockets->guest.watch;
    pthread_mutex_lock(&sockets->lock);
    if (!enter(sockets)) {
        pthread_mutex_unlock(&sockets->lock);
        poll(NULL, 0, MEMORY_MS); /* the progress thread reads */
        return WHERRY_OK;
    }
    if (sockets->reading) {
        wh_sockets_wake(sockets);
    }
    pthread_mutex_unlock(&sockets->lock);
    poll(watch->fds, watch->count, wh_deadline_poll_ms(deadline));
    pthread_mutex_lock(&sockets->lock);
    serve(sockets);
    leave(sockets);
    pthread_mutex_unlock(&sockets->lock);
    return WHERRY_OK;
}
