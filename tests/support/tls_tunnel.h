/**
 * @file tls_tunnel.h  A socket whose bytes go over TLS to a member of a group, as if it had no TLS.
 * A thread carries them. So a peer that a test plays in clear text can be played over TLS too.
 */
#ifndef WH_TESTS_TLS_TUNNEL_H
#define WH_TESTS_TLS_TUNNEL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "group/key.h"
#include "group/tls.h"
#include "support/build.h"

enum { TUNNEL_MS = 20000 }; /**< No wait of a tunnel takes longer. */

typedef struct wh_test_tunnel {
    wh_tls *tls;
    int near; /**< The test has the other end. */
    int far;
} wh_test_tunnel;

static atomic_int wh_test_tunnels; /**< How many are open. */

/** Sends all bytes to the test, unless it has closed its end or does not read. */
static inline bool wh_test_tunnel_give(int fd, const uint8_t *bytes, size_t size) {
    struct timeval limit = {.tv_sec = TUNNEL_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    return send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

/** Carries what has come from the member. @return false at the end. */
static inline bool wh_test_tunnel_read(const wh_test_tunnel *t) {
    uint8_t bytes[16 << 10];
    ssize_t got;
    while ((got = wh_tls_read(t->tls, &(struct iovec){bytes, sizeof(bytes)}, 1)) > 0) {
        if (!wh_test_tunnel_give(t->near, bytes, (size_t)got)) {
            return false;
        }
    }
    return got < 0 && wh_is_for_later(errno);
}

/** Carries what the test has sent. @return false at the end. */
static inline bool wh_test_tunnel_write(const wh_test_tunnel *t) {
    uint8_t bytes[16 << 10];
    ssize_t got = recv(t->near, bytes, sizeof(bytes), MSG_DONTWAIT);
    bool good = got > 0 || (got < 0 && wh_is_for_later(errno));
    for (ssize_t done = 0; done < got && good;) {
        ssize_t sent = wh_tls_write(t->tls, &(struct iovec){bytes + done, (size_t)(got - done)}, 1);
        struct pollfd at = {t->far, POLLOUT, 0};
        good = sent >= 0 || (wh_is_for_later(errno) && poll(&at, 1, TUNNEL_MS) == 1);
        done += sent > 0 ? sent : 0;
    }
    return good;
}

static inline void *wh_test_tunnel_run(void *context) {
    wh_test_tunnel *t = context;
    bool good = true;
    while (good) {
        bool unsent = wh_tls_flush(t->tls) < 0;
        good = !unsent || wh_is_for_later(errno);
        struct pollfd ways[2] = {
            {t->far, (short)(POLLIN | (unsent ? POLLOUT : 0)), 0},
            {wh_tls_is_open(t->tls) && !unsent ? t->near : -1, POLLIN, 0},
        };
        good = good && poll(ways, 2, TUNNEL_MS) > 0 && wh_test_tunnel_read(t);
        good = good && (!ways[1].revents || wh_test_tunnel_write(t));
    }
    wh_tls_flush(t->tls);
    wh_tls_end(t->tls);
    wh_tls_destroy(t->tls);
    close(t->far);
    close(t->near);
    free(t);
    atomic_fetch_sub(&wh_test_tunnels, 1);
    return NULL;
}

/** Begins TLS over a connected socket, which it takes over. @return the end for the test. */
static inline int wh_test_tunnel_open(int fd, const wh_group_key *key) {
    wh_test_tunnel *t = malloc(sizeof(*t));
    wh_tls_context *context;
    pthread_t thread;
    int ends[2];
    assert_non_null(t);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    *t = (wh_test_tunnel){.near = ends[1], .far = fd};
    must(wh_tls_context_create(&(wh_tls_setup){.keys = key, .key_count = 1}, &context, NULL));
    must(wh_tls_create(context, fd, true, "127.0.0.1", &t->tls, NULL));
    wh_tls_context_unref(context);
    atomic_fetch_add(&wh_test_tunnels, 1);
    assert_int_equal(pthread_create(&thread, NULL, wh_test_tunnel_run, t), 0);
    pthread_detach(thread);
    return ends[0];
}

/** Waits until all tunnels have ended. The test has closed its ends. */
static inline void wh_test_tunnels_end(void) {
    for (int waited = 0; atomic_load(&wh_test_tunnels) > 0; waited++) {
        assert_true(waited < TUNNEL_MS);
        usleep(1000);
    }
}

#endif
