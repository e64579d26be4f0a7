/*
 * A child that the program forks inherits every socket of the group. It would keep them open when
 * its parent dies, and so hide that death from the others: programs that load data do so. So the
 * child closes them at once, and the group that it has a copy of is closed.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"
#include "group/mailbox.h"
#include "group/sockets/internal.h"

/**
 * How long a fork waits for whoever is at work on a group; a group that is not free by then is left
 * as it is.
 */
enum { PATIENCE_S = 1 };

static wh_sockets *all;

static bool lock_for_a_while(pthread_mutex_t *lock) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

static void before_fork(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        one->held = lock_for_a_while(&one->lock);
        if (one->held && !wh_mailbox_hold(one->base.mailbox, PATIENCE_S)) {
            pthread_mutex_unlock(&one->lock);
            one->held = false;
        }
    }
}

static void release_all(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        if (one->held) {
            one->held = false;
            wh_mailbox_release(one->base.mailbox);
            pthread_mutex_unlock(&one->lock);
        }
    }
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/** The names in the file system and the thread are the parent's. */
static void abandon(wh_sockets *sockets) {
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        close_fd(&one->fd);
    }
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        close_fd(&sockets->meetings[i].listener);
        sockets->meetings[i].question = NULL;
    }
    close_fd(&sockets->listener);
    close_fd(&sockets->shortcut);
    close_fd(&sockets->wake);
    close_fd(&sockets->guest.nudge);
    sockets->running = false;
    sockets->fenced = true;
    wh_mailbox_close_in_child(sockets->base.mailbox);
}

static void in_child(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        if (one->held) {
            abandon(one);
        }
    }
}

static wh_fork_lock list_lock = WH_FORK_LOCK(.before = before_fork, .in_child = in_child, .after = release_all);

void wh_sockets_enlist(wh_sockets *sockets) {
    wh_fork_lock_take(&list_lock);
    sockets->next = all;
    all = sockets;
    wh_fork_lock_give(&list_lock);
}

void wh_sockets_delist(wh_sockets *sockets) {
    wh_fork_lock_take(&list_lock);
    wh_sockets **at = &all;
    while (*at && *at != sockets) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = sockets->next;
    }
    wh_fork_lock_give(&list_lock);
}
