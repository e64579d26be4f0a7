/*
 * A relay at the Unix socket of a member that has ended: members prove themselves only to the
 * process that they have dialled.
 */
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "group/hello.h"
#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/internal.h"
#include "support/build.h"
#include "support/meeting.h"

enum { SOON_MS = 10000, ASK = 1, NEVER_SENT = 3 };

#define TALK (WH_TAG_CONVERSATION | 5)

static wherry_error error;
static const char secret[] = "a secret of three ranks";

/** Reads until the other side closes. */
static void expect_end(int fd) {
    char bytes[4096];
    struct pollfd at = {fd, POLLIN, 0};
    do {
        assert_int_equal(poll(&at, 1, SOON_MS), 1);
    } while (recv(fd, bytes, sizeof(bytes), 0) > 0);
    close(fd);
}

/** A member of a TCP group of three ranks with a secret and shortcuts. */
typedef struct member {
    const wh_test_meeting *meeting;
    int32_t rank;
    wh_group *group;
    wherry_status status;
} member;

static void *join_member(void *context) {
    member *m = context;
    char address[128];
    wh_sockets_options options = {.secret = secret, .secret_size = sizeof(secret), .dial_only = m->rank > 0};
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=%d&size=3&job=test", m->meeting->port, (int)m->rank);
    m->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &m->group, NULL);
    return NULL;
}

/** The Unix socket of a member's shortcut. */
static socklen_t shortcut_of(wh_group *group, int32_t rank, struct sockaddr_un *at) {
    wh_sockets *sockets = (wh_sockets *)group;
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    pthread_mutex_lock(&sockets->lock);
    const char *name = strrchr(sockets->members[rank].place, ';');
    assert_non_null(name);
    int size = snprintf(at->sun_path + 1, sizeof(at->sun_path) - 1, "wherry-group-%s", name + 1);
    pthread_mutex_unlock(&sockets->lock);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
}

static void await_loss(wh_group *group, int32_t rank) {
    wh_sockets *sockets = (wh_sockets *)group;
    bool gone = false;
    for (wh_deadline end = wh_deadline_in_ms(SOON_MS); !gone; usleep(1000)) {
        assert_false(wh_deadline_passed(end));
        pthread_mutex_lock(&sockets->lock);
        gone = sockets->members[rank].gone;
        pthread_mutex_unlock(&sockets->lock);
    }
}

/** Reads a frame of a greeting. @return its size; 0 if the other side has closed the connection. */
static size_t read_frame(int fd, uint8_t frame[WH_HELLO_FRAME_MAX]) {
    if (recv(fd, frame, WH_FRAME_HEAD, MSG_WAITALL) != WH_FRAME_HEAD) {
        return 0;
    }
    size_t size = wh_load_be32(frame);
    assert_true(size <= WH_HELLO_FRAME_MAX - WH_FRAME_HEAD);
    assert_int_equal(size ? recv(fd, frame + WH_FRAME_HEAD, size, MSG_WAITALL) : 0, (ssize_t)size);
    return WH_FRAME_HEAD + size;
}

/** Passes a frame of a greeting on. @return its type; 0 if there is none. */
static uint8_t relay_frame(int from, int to) {
    uint8_t frame[WH_HELLO_FRAME_MAX];
    size_t size = read_frame(from, frame);
    assert_int_equal(size ? send(to, frame, size, MSG_NOSIGNAL) : 0, (ssize_t)size);
    return size ? frame[4] : 0;
}

static void *send_to_rank_1(void *context) {
    member *m = context;
    m->status = wh_group_send(m->group, 1, ASK, "x", 1, wh_deadline_in_ms(SOON_MS), NULL);
    return NULL;
}

/** Opens a channel to rank 1. */
static void *connect_to_rank_1(void *context) {
    member *m = context;
    wh_socket channel;
    m->status = wh_group_connect(m->group, 1, TALK, wh_deadline_in_ms(SOON_MS), NULL, &channel, NULL);
    return NULL;
}

/**
 * A relay listens at the socket of a member that has ended, and passes the greeting of another
 * member on to a third one. The relay gets no proof from it, so it cannot act as that member.
 */
static void test_relay(void **state) {
    enum { A, B, C, ACCEPT = 3, REFUSE = 4 };
    member members[] = {{.meeting = *state}, {.meeting = *state, .rank = 1}, {.meeting = *state, .rank = 2}};
    pthread_t threads[3];
    struct sockaddr_un at;
    wh_message message;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(threads + i, NULL, join_member, members + i), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        must(members[i].status);
    }
    socklen_t size = shortcut_of(members[A].group, B, &at);
    wh_group_destroy(members[B].group);
    await_loss(members[A].group, B);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, size) || listen(listener, 10), 0);
    size = shortcut_of(members[A].group, C, &at);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(threads, NULL, i ? connect_to_rank_1 : send_to_rank_1, members + A), 0);
        struct pollfd dialled = {listener, POLLIN, 0};
        assert_int_equal(poll(&dialled, 1, SOON_MS), 1);
        int near = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        int far = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(far, (struct sockaddr *)&at, size), 0);
        relay_frame(near, far); /* HELLO */
        relay_frame(far, near);
        uint8_t frame[WH_HELLO_FRAME_MAX];
        assert_true(read_frame(near, frame) > 0);
        assert_int_equal(frame[4], REFUSE);
        /* Nothing protects these frames. */
        uint8_t forged[2 * WH_FRAME_HEAD + 17] = {0};
        wh_frame_head(forged, ACCEPT, 0);
        wh_frame_head(forged + WH_FRAME_HEAD, WH_FRAME_MESSAGE, 17);
        wh_store_be64(forged + 2 * WH_FRAME_HEAD, NEVER_SENT);
        assert_int_equal(send(far, forged, sizeof(forged), MSG_NOSIGNAL), sizeof(forged));
        expect_end(far);
        close(near);
        pthread_join(threads[0], NULL);
        assert_int_equal(members[A].status, WHERRY_PEER_LOST);
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(members[C].group, WHERRY_ANY_RANK, NEVER_SENT, (wh_deadline){0}, &message, &error));
    }
    close(listener);
    wh_group_destroy(members[C].group);
    wh_group_destroy(members[A].group);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_relay, wh_test_open_near, wh_test_close)};
    return cmocka_run_group_tests_name("group_relay", tests, NULL, NULL);
}
