/*
 * A peer that greets correctly and then sends nonsense or nothing: the connection ends, calls that
 * wait for that rank return, and the group continues.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <wherry/base.h>

#include "base/bytes.h"
#include "base/stop.h"
#include "group/hello.h"
#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/internal.h"
#include "group/sockets/sockets.h"
#include "support/build.h"
#include "support/descriptors.h"
#include "support/meeting.h"
#include "support/tls_tunnel.h"

enum { SOON_MS = 10000, DEAD_AFTER_MS = 2400, ASK = 1 };

#define TALK (WH_TAG_CONVERSATION | 5)

static wherry_error error;

/** The hostile rank, and the size of the group. */
static int32_t hostile = 1;
static int32_t ranks = 2;

static uint32_t dead_after_ms = DEAD_AFTER_MS;

/** If the group meets over TCP: its secret, and what follows from it. */
static const char secret[] = "a secret that the hostile rank knows";
static wh_group_key key;

/** The options of a rank, and its address. */
static wh_sockets_options describe(const wh_test_meeting *meeting, int rank, char address[128]) {
    bool tls = meeting->port;
    if (tls) {
        snprintf(address, 128, "tcp://127.0.0.1:%d?rank=%d&size=%d&job=test&shortcut=0", meeting->port, rank,
                 (int)ranks);
    } else {
        snprintf(address, 128, "unix://%s/meet?rank=%d&size=%d&job=test", meeting->folder, rank, (int)ranks);
    }
    return (wh_sockets_options){.allow_insecure = !tls,
                                .secret = tls ? secret : NULL,
                                .secret_size = tls ? strlen(secret) : 0,
                                .heartbeat_ms = 100,
                                .dead_after_ms = dead_after_ms};
}

/** Rank 0, the victim; the test acts as the hostile rank. */
typedef struct victim {
    const wh_test_meeting *meeting;
    wh_group *group;
    wherry_status status;
} victim;

static void *join_victim(void *context) {
    victim *v = context;
    char address[128];
    wh_sockets_options options = describe(v->meeting, 0, address);
    options.wait_for = (uint32_t)ranks;
    v->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &v->group, NULL);
    return NULL;
}

/** Connects without TLS. */
static int dial_clear(const wh_test_meeting *meeting) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/meet", meeting->folder);
    port.sin_port = htons((uint16_t)meeting->port);
    const struct sockaddr *at = meeting->port ? (struct sockaddr *)&port : (struct sockaddr *)&name;
    for (wh_deadline end = wh_deadline_in_ms(SOON_MS); !wh_deadline_passed(end); usleep(1000)) {
        int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, at, meeting->port ? sizeof(port) : sizeof(name)) == 0) {
            return fd;
        }
        close(fd);
    }
    fail_msg("nobody listens");
    return -1;
}

/** Connects; over TCP, through TLS. */
static int dial(const wh_test_meeting *meeting) {
    int fd = dial_clear(meeting);
    return meeting->port ? wh_test_tunnel_open(fd, &key) : fd;
}

/** Sends a greeting. */
static void say(int fd, wh_hello *hello) {
    const uint8_t *out;
    size_t size;
    wh_hello_output(hello, &out, &size);
    if (size == 0) {
        return; /* The other side may have closed the connection. */
    }
    assert_int_equal(send(fd, out, size, MSG_NOSIGNAL), (ssize_t)size);
    wh_hello_sent(hello, size);
}

/** If its id is not 0, connections for data use it, in clear text. */
static wh_group_key ticket;

/**
 * Connects and greets as an incarnation of rank 1, without the last frame, until both sides have
 * agreed or the other side refuses. @return the status of that.
 */
static wherry_status try_to_greet(const wh_test_meeting *meeting, uint64_t incarnation, wh_hello_purpose purpose,
                                  wh_hello **hello_p, int *fd_p) {
    wh_hello_config config = {.purpose = purpose,
                              .rank = (uint32_t)hostile,
                              .size = (uint32_t)ranks,
                              .incarnation = incarnation,
                              .job = "test",
                              .address = meeting->port ? "127.0.0.1:1" : "unix:/nowhere",
                              .method = meeting->port ? WH_HELLO_METHOD_TLS : WH_HELLO_METHOD_NONE};
    wh_hello *hello;
    bool by_ticket = purpose == WH_HELLO_DATA && ticket.id;
    if (by_ticket) {
        config.method = WH_HELLO_METHOD_TICKET;
        config.keys = &ticket;
        config.key_count = 1;
    }
    int fd = by_ticket ? dial_clear(meeting) : dial(meeting);
    wherry_status status = WHERRY_OK;
    must(wh_hello_create(&config, true, &hello, &error));
    while (status == WHERRY_OK && wh_hello_state_of(hello) != WH_HELLO_DONE) {
        uint8_t in[1];
        size_t used;
        if (!wh_hello_peer(hello)) { /* The next frame would be the last one. */
            say(fd, hello);
        }
        assert_int_equal(recv(fd, in, 1, 0), 1);
        status = wh_hello_input(hello, in, 1, &used, &error);
    }
    *hello_p = hello;
    *fd_p = fd;
    return status;
}

static int begin_to_greet(const wh_test_meeting *meeting, uint64_t incarnation, wh_hello_purpose purpose,
                          wh_hello **hello_p) {
    int fd;
    must(try_to_greet(meeting, incarnation, purpose, hello_p, &fd));
    return fd;
}

static void expect_refusal(const wh_test_meeting *meeting, uint64_t incarnation, wh_refusal refusal) {
    wh_hello *hello;
    int fd;
    must_fail(WHERRY_REFUSED, error, try_to_greet(meeting, incarnation, WH_HELLO_CONTROL, &hello, &fd));
    assert_int_equal(wh_hello_refusal(hello), refusal);
    wh_hello_destroy(hello);
    close(fd);
}

static int greet(const wh_test_meeting *meeting, uint64_t incarnation, wh_hello_purpose purpose) {
    wh_hello *hello;
    int fd = begin_to_greet(meeting, incarnation, purpose, &hello);
    say(fd, hello);
    wh_hello_destroy(hello);
    return fd;
}

/** Rank 0 joins, and the hostile rank greets it as incarnation 1. @return its connection. */
static int meet_victim(victim *v) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_victim, v), 0);
    int fd = greet(v->meeting, 1, WH_HELLO_CONTROL);
    pthread_join(thread, NULL);
    must(v->status);
    return fd;
}

/** Reads until the other side closes. @return the milliseconds it took. */
static uint64_t read_to_end(int fd) {
    uint64_t begin = wh_clock_now();
    char bytes[4096];
    struct pollfd at = {fd, POLLIN, 0};
    ssize_t got = 1;
    while (got > 0) {
        assert_int_equal(poll(&at, 1, SOON_MS), 1);
        got = recv(fd, bytes, sizeof(bytes), 0);
    }
    close(fd);
    return (wh_clock_now() - begin) / 1000000;
}

typedef struct nonsense {
    wh_hello_purpose purpose;
    uint32_t size; /**< The header of the frame. */
    uint8_t type;
    uint64_t first; /**< The body: two numbers, */
    uint64_t second;
    size_t sent; /**< Number of bytes sent, followed by zeros. */
    size_t more;
} nonsense;

static const nonsense all_nonsense[] = {
    {WH_HELLO_CONTROL, 0, 0, 0, 0, 0, 0},
    {WH_HELLO_CONTROL, 0, 99, 0, 0, 0, 0},
    {WH_HELLO_CONTROL, UINT32_MAX, WH_FRAME_MESSAGE, 0, 0, 0, 0},
    {WH_HELLO_CONTROL, WH_FRAME_MAX + 1, WH_FRAME_TABLE, 0, 0, 0, 0},
    {WH_HELLO_CONTROL, 15, WH_FRAME_MESSAGE, 1, 0, 15, 0},
    /* an empty part that is not the last one */
    {WH_HELLO_CONTROL, 16, WH_FRAME_MESSAGE, 1, 1, 16, 0},
    /* a message of impossible length */
    {WH_HELLO_CONTROL, 16, WH_FRAME_MESSAGE, 1, UINT64_MAX, 16, 0},
    {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, 1, UINT64_MAX, 16, 1},
    {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, 1, WH_MESSAGE_MAX + 1, 16, 1},
    {WH_HELLO_CONTROL, 13, WH_FRAME_TABLE, 1, 1, 13, 0}, /* half of a table entry */
    /* an entry with an impossible rank */
    {WH_HELLO_CONTROL, 15, WH_FRAME_TABLE, UINT64_MAX, UINT64_C(0xFFFFFFFF00000000), 15, 0},
    /* an entry that gives rank 1 an incarnation in the far future, above which none can come */
    {WH_HELLO_CONTROL, 15, WH_FRAME_TABLE, UINT64_C(0x1FFFFFFFF), UINT64_C(0xFFFFFFFF00000000), 15, 0},
    /* a place that cannot be printed, and a place of no known form */
    {WH_HELLO_CONTROL, 16, WH_FRAME_TABLE, 0, UINT64_C(0x100000107), 16, 0},
    {WH_HELLO_CONTROL, 16, WH_FRAME_TABLE, 0, UINT64_C(0x103000000), 16, 0},
    {WH_HELLO_CONTROL, 0, WH_FRAME_PING, 0, 0, 0, 0},
    {WH_HELLO_CONTROL, 9, WH_FRAME_PONG, 0, 0, 9, 0},
    {WH_HELLO_CONTROL, 1, WH_FRAME_IDLE, 0, 0, 1, 0},
    {WH_HELLO_CONTROL, 15, WH_FRAME_ARRIVED, 1, 1, 15, 0},
    {WH_HELLO_CONTROL, 16, WH_FRAME_ARRIVED, 0, 1, 16, 0}, /* a frame that names no rank */
    {WH_HELLO_CONTROL, 16, WH_FRAME_ARRIVED, 3, 1, 16, 0}, /* a frame that names too many ranks */
    /* a frame that names impossible ranks */
    {WH_HELLO_CONTROL, 16, WH_FRAME_ARRIVED, UINT64_MAX, UINT64_MAX, 16, 0},
    {WH_HELLO_CONTROL, 19, WH_FRAME_MISSING, 1, 0, 19, 0},
    {WH_HELLO_CONTROL, 20, WH_FRAME_MISSING, 1, UINT64_MAX, 20, 0},
    {WH_HELLO_CONTROL, 8, WH_FRAME_ATTACH, TALK, 0, 8, 0},
    {WH_HELLO_DATA, 8, WH_FRAME_ATTACH, TALK, 0, 8, 1}, /* bytes sent before the answer */
    {WH_HELLO_DATA, 9, WH_FRAME_ATTACH, TALK, 0, 9, 0},
    {WH_HELLO_DATA, 0, WH_FRAME_ATTACH, 0, 0, 0, 0},
    {WH_HELLO_DATA, 0, WH_FRAME_PING, 0, 0, 0, 0},
    {WH_HELLO_DATA, 17, WH_FRAME_MESSAGE, ASK, 0, 16, 1},
    {WH_HELLO_DATA, UINT32_MAX, WH_FRAME_ATTACH, 0, 0, 0, 0},
};

static void speak(int fd, const nonsense *n) {
    uint8_t bytes[WH_FRAME_HEAD + 32] = {0};
    wh_frame_head(bytes, n->type, n->size);
    wh_store_be64(bytes + WH_FRAME_HEAD, n->first);
    wh_store_be64(bytes + WH_FRAME_HEAD + 8, n->second);
    size_t size = WH_FRAME_HEAD + n->sent + n->more;
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
}

/** A message whose parts do not match. */
static void speak_unfit_parts(int fd, uint64_t tag, uint64_t rest) {
    nonsense first = {WH_HELLO_CONTROL, 20, WH_FRAME_MESSAGE, 7, 100, 16, 4};
    nonsense second = {WH_HELLO_CONTROL, 20, WH_FRAME_MESSAGE, tag, rest, 16, 4};
    speak(fd, &first);
    speak(fd, &second);
}

static void expect_lost(wh_group *group) {
    wh_message message;
    must_fail(WHERRY_PEER_LOST, error, wh_group_receive(group, 1, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
}

/** A good message still arrives. */
static int talk(const wh_test_meeting *meeting, wh_group *group, uint64_t incarnation) {
    wh_message message;
    nonsense good = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, ASK, 0, 16, 1};
    int fd = greet(meeting, incarnation, WH_HELLO_CONTROL);
    speak(fd, &good);
    must(wh_group_receive(group, WHERRY_ANY_RANK, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_int_equal(message.rank, 1);
    assert_true(message.incarnation == incarnation);
    assert_int_equal(message.size, 1);
    wh_message_clear(&message);
    return fd;
}

static void test_nonsense(void **state) {
    victim v = {.meeting = *state};
    uint64_t incarnation = 1;
    int fd = meet_victim(&v);
    close(fd);
    wh_inbox *inbox;
    must(wh_inbox_open(v.group, TALK, &inbox, &error));
    for (size_t i = 0; i < sizeof(all_nonsense) / sizeof(*all_nonsense); i++) {
        const nonsense *n = all_nonsense + i;
        fd = talk(v.meeting, v.group, ++incarnation);
        int other = n->purpose == WH_HELLO_DATA ? greet(v.meeting, incarnation, WH_HELLO_DATA) : fd;
        speak(other, n);
        assert_true(read_to_end(other) < DEAD_AFTER_MS / 2);
        if (n->purpose == WH_HELLO_DATA) {
            assert_true(wh_group_process(v.group, 1) == (v.meeting->port ? 0 : getpid()));
            close(fd);
        }
        expect_lost(v.group);
    }
    static const uint64_t unfit[][2] = {{8, 96}, {7, 97}, {7, 100}, {7, 0}, {7, UINT64_MAX}};
    for (size_t i = 0; i < sizeof(unfit) / sizeof(*unfit); i++) {
        fd = talk(v.meeting, v.group, ++incarnation);
        speak_unfit_parts(fd, unfit[i][0], unfit[i][1]);
        assert_true(read_to_end(fd) < DEAD_AFTER_MS / 2);
        expect_lost(v.group);
    }
    /* An incarnation in the far future is refused, so that it does not keep others out. */
    expect_refusal(v.meeting, UINT64_MAX, WH_REFUSAL_AHEAD);
    close(talk(v.meeting, v.group, ++incarnation));
    wh_inbox_close(inbox);
    wh_group_destroy(v.group);
}

/* ---- every type in every state, beside a good peer ---- */

/** How far a connection of the hostile rank has come. */
typedef enum stage {
    STAGE_DIALLED,
    STAGE_HELLO,    /**< The PROOF of the hostile rank is sent, but no ACCEPT. */
    STAGE_PROOF,    /**< Its PROOF is sent, but no ACCEPT. */
    STAGE_CONTROL,  /**< Greeted. */
    STAGE_MESSAGE,  /**< The hostile rank has sent a part of a message. */
    STAGE_IDLE,     /**< The hostile rank wants to close the connection. */
    STAGE_DATA,     /**< Greeted, for data. */
    STAGE_ATTACHED, /**< The hostile rank has asked for an inbox. */
    STAGES_UNIX,
    STAGE_TICKET = STAGES_UNIX, /**< Greeted, for data in clear text. */
    STAGE_TICKET_ATTACHED,
    STAGES_TLS,
} stage;

static int reach_stage(const wh_test_meeting *meeting, uint64_t incarnation, stage at) {
    const nonsense part = {WH_HELLO_CONTROL, 20, WH_FRAME_MESSAGE, 7, 100, 16, 4};
    const nonsense idle = {WH_HELLO_CONTROL, 0, WH_FRAME_IDLE, 0, 0, 0, 0};
    const nonsense attach = {WH_HELLO_DATA, 8, WH_FRAME_ATTACH, TALK, 0, 8, 0};
    wh_hello_config config = {.rank = (uint32_t)hostile, .size = (uint32_t)ranks, .incarnation = incarnation};
    wh_hello *hello = NULL;
    int fd;
    if (at == STAGE_DIALLED || at == STAGE_HELLO) {
        fd = dial(meeting);
        config.job = "test";
        must(wh_hello_create(&config, true, &hello, &error));
        if (at == STAGE_HELLO) {
            say(fd, hello);
        }
    } else if (at == STAGE_PROOF) {
        fd = begin_to_greet(meeting, incarnation, WH_HELLO_CONTROL, &hello);
    } else if (at >= STAGE_TICKET) {
        close(begin_to_greet(meeting, incarnation, WH_HELLO_CONTROL, &hello));
        memcpy(ticket.proof, wh_hello_ticket_key_of(hello), WH_KEY_BYTES);
        ticket.id = 1;
        fd = greet(meeting, incarnation, WH_HELLO_DATA);
        ticket.id = 0;
    } else {
        fd = greet(meeting, incarnation, at < STAGE_DATA ? WH_HELLO_CONTROL : WH_HELLO_DATA);
    }
    wh_hello_destroy(hello);
    if (at == STAGE_MESSAGE || at == STAGE_IDLE || at == STAGE_ATTACHED || at == STAGE_TICKET_ATTACHED) {
        speak(fd, at == STAGE_MESSAGE ? &part : at == STAGE_IDLE ? &idle : &attach);
    }
    return fd;
}

/** Sends many frames of a type. The victim may have closed the connection already. */
static void shout(int fd, uint8_t type, int form) {
    enum { TIMES = 50, BODY = 64 };
    static const size_t claimed[] = {0, 1, 8, 16, 20, BODY, BODY, WH_FRAME_MAX, UINT32_MAX};
    uint8_t bytes[WH_FRAME_HEAD + BODY];
    size_t size = claimed[form];
    memset(bytes, form == 5 ? 0xFF : 0, sizeof(bytes));
    wh_frame_head(bytes, type, size);
    /* 6: truncated */
    size_t sent = WH_FRAME_HEAD + (size < BODY ? size : form == 6 ? BODY / 2 : BODY);
    for (int i = 0; i < TIMES && send(fd, bytes, sent, MSG_NOSIGNAL | MSG_DONTWAIT) > 0; i++) {
    }
}

enum { FORMS = 9 };

/** The good peer and the victim exchange messages. */
static void expect_service(wh_group *asked, wh_group *good) {
    wh_message message;
    wh_deadline soon = wh_deadline_in_ms(SOON_MS);
    must(wh_group_send(good, 0, ASK, "ask", 3, soon, &error));
    must(wh_group_receive(asked, 1, ASK, soon, &message, &error));
    wh_message_clear(&message);
    must(wh_group_send(asked, 1, ASK, "answer", 6, soon, &error));
    must(wh_group_receive(good, 0, ASK, soon, &message, &error));
    assert_int_equal(message.size, 6);
    wh_message_clear(&message);
}

static void *join_good(void *context) {
    victim *v = context;
    char address[128];
    wh_sockets_options options = describe(v->meeting, 1, address);
    v->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &v->group, NULL);
    return NULL;
}

/** Whatever one member sends, and whenever, another member is served all the time. */
static void test_every_type_in_every_state(void **state) {
    static const uint8_t types[] = {0, 1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23, 255};
    victim v = {.meeting = *state};
    victim good = {.meeting = *state};
    pthread_t threads[2];
    uint64_t incarnation = 1;
    hostile = 2;
    ranks = 3;
    assert_int_equal(pthread_create(threads, NULL, join_victim, &v), 0);
    close(dial(v.meeting)); /* Waits until the victim listens. */
    assert_int_equal(pthread_create(threads + 1, NULL, join_good, &good), 0);
    int fd = greet(v.meeting, incarnation, WH_HELLO_CONTROL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    must(v.status);
    must(good.status);
    close(fd);
    wh_inbox *inbox;
    must(wh_inbox_open(v.group, TALK, &inbox, &error));
    for (stage at = 0; at < (v.meeting->port ? STAGES_TLS : STAGES_UNIX); at++) {
        for (size_t i = 0; i < sizeof(types); i++) {
            for (int form = 0; form < FORMS; form++) {
                fd = reach_stage(v.meeting, ++incarnation, at);
                shout(fd, types[i], form);
                close(fd);
            }
            expect_service(v.group, good.group);
        }
    }
    hostile = 1;
    ranks = 2;
    wh_inbox_close(inbox);
    wh_group_destroy(good.group);
    wh_group_destroy(v.group);
}

/**
 * A peer that is silent: before the greeting, after a greeting for data, and after a greeting for
 * messages.
 */
static void test_silence(void **state) {
    victim v = {.meeting = *state};
    int fd = meet_victim(&v);
    int stranger = dial(v.meeting);
    int silent = greet(v.meeting, 1, WH_HELLO_DATA);
    uint64_t begin = wh_clock_now();
    read_to_end(stranger);
    read_to_end(silent);
    uint64_t ms = (wh_clock_now() - begin) / 1000000;
    assert_true(ms >= DEAD_AFTER_MS / 2 && ms < 2 * DEAD_AFTER_MS);
    expect_lost(v.group);
    read_to_end(fd);
    assert_true((wh_clock_now() - begin) / 1000000 < 2 * DEAD_AFTER_MS);
    close(talk(v.meeting, v.group, 2));
    wh_group_destroy(v.group);
}

/** A peer that asks again and again to close a connection, and reads no answer, is given up. */
static void test_many_idles(void **state) {
    enum { FRAMES = 2000, TIMES = 20 };
    static uint8_t idles[FRAMES * WH_FRAME_HEAD];
    victim v = {.meeting = *state};
    int fd = meet_victim(&v);
    for (size_t i = 0; i < FRAMES; i++) {
        wh_frame_head(idles + i * WH_FRAME_HEAD, WH_FRAME_IDLE, 0);
    }
    for (int i = 0; i < TIMES && send(fd, idles, sizeof(idles), MSG_NOSIGNAL) > 0; i++) {
    }
    assert_true(read_to_end(fd) < DEAD_AFTER_MS / 2);
    expect_lost(v.group);
    close(talk(v.meeting, v.group, 2));
    wh_group_destroy(v.group);
}

/** Connections that never greet do not use up the descriptors, and do not keep others out. */
static void test_many_strangers(void **state) {
    enum { STRANGERS = 200, ALLOWED = 64 + 16 };
    victim v = {.meeting = *state};
    pthread_t thread;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int strangers[STRANGERS];
    assert_int_equal(pthread_create(&thread, NULL, join_victim, &v), 0);
    close(dial(v.meeting)); /* Waits until the victim listens. */
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/meet", v.meeting->folder);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], (struct sockaddr *)&name, sizeof(name)), 0);
    }
    int fd = greet(v.meeting, 1, WH_HELLO_CONTROL);
    pthread_join(thread, NULL);
    must(v.status);
    int open_now = open_descriptors() - STRANGERS;
    for (int i = 0; i < STRANGERS; i++) {
        close(strangers[i]);
    }
    assert_true(open_now < ALLOWED + 32);
    close(fd);
    close(talk(v.meeting, v.group, 2));
    wh_group_destroy(v.group);
}

enum { DRIPPING = 100 };

/** Connections that each send one byte of an endless greeting from time to time. */
typedef struct dripping {
    int sockets[DRIPPING];
    atomic_bool over;
} dripping;

static void *drip(void *context) {
    enum { PAUSE_US = 200000 };
    static const uint8_t hello[WH_FRAME_HEAD] = {0, 0, 0x0F, 0, 1};
    dripping *d = context;
    for (size_t at = 0; !atomic_load(&d->over); usleep(PAUSE_US), at++) {
        for (int i = 0; i < DRIPPING; i++) {
            send(d->sockets[i], at < sizeof(hello) ? hello + at : hello, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
    return NULL;
}

/** Connections that greet without end do not keep others out either. */
static void test_dripping_strangers(void **state) {
    victim v = {.meeting = *state};
    dripping d = {.over = false};
    pthread_t threads[2];
    dead_after_ms = 10 * SOON_MS;
    assert_int_equal(pthread_create(threads, NULL, join_victim, &v), 0);
    for (int i = 0; i < DRIPPING; i++) {
        d.sockets[i] = dial(v.meeting);
    }
    assert_int_equal(pthread_create(threads + 1, NULL, drip, &d), 0);
    int fd = greet(v.meeting, 1, WH_HELLO_CONTROL);
    pthread_join(threads[0], NULL);
    must(v.status);
    atomic_store(&d.over, true);
    pthread_join(threads[1], NULL);
    for (int i = 0; i < DRIPPING; i++) {
        close(d.sockets[i]);
    }
    close(fd);
    dead_after_ms = DEAD_AFTER_MS;
    wh_group_destroy(v.group);
}

/** A member cannot use up the descriptors by connections that it greets over. */
static void test_many_greetings(void **state) {
    enum { MANY = 40, CHANNELS = WH_MAILBOX_CHANNELS + 20 };
    const nonsense attach = {WH_HELLO_DATA, 8, WH_FRAME_ATTACH, TALK, 0, 8, 0};
    const nonsense good = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, ASK, 0, 16, 1};
    victim v = {.meeting = *state};
    int control[MANY];
    int data[CHANNELS];
    wh_inbox *inbox;
    wh_message message;
    dead_after_ms = 10 * SOON_MS; /* The connections send nothing in the meantime. */
    control[0] = meet_victim(&v);
    for (int i = 1; i < MANY; i++) {
        control[i] = greet(v.meeting, 1, WH_HELLO_CONTROL);
    }
    read_to_end(control[MANY - 1]);
    must(wh_inbox_open(v.group, TALK, &inbox, &error));
    for (int i = 0; i < CHANNELS; i++) {
        char answer;
        data[i] = greet(v.meeting, 1, WH_HELLO_DATA);
        speak(data[i], &attach);
        assert_int_equal(recv(data[i], &answer, 1, 0), 1);
    }
    read_to_end(data[CHANNELS - 1]);
    for (int i = 0; i < WH_MAILBOX_CHANNELS; i++) {
        assert_true(wh_inbox_poll(inbox, &message));
        wh_message_clear(&message);
    }
    assert_false(wh_inbox_poll(inbox, &message));
    speak(control[0], &good);
    must(wh_group_receive(v.group, 1, ASK, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    for (int i = 0; i < MANY - 1; i++) {
        close(control[i]);
    }
    for (int i = 0; i < CHANNELS - 1; i++) {
        close(data[i]);
    }
    dead_after_ms = DEAD_AFTER_MS;
    wh_inbox_close(inbox);
    wh_group_destroy(v.group);
}

/** Keeps the thread that reads from the peers busy. */
static void block(void *context, wh_message *message) {
    sem_t *at = context;
    wh_message_clear(message);
    sem_post(at);
    sem_wait(at + 1);
}

/**
 * Rank 1 ends while the victim does not read. Its successor's connection, made later, is read
 * first.
 */
typedef struct succession {
    victim v;
    sem_t blocked[2];
    wh_inbox *inbox;
    wh_hello *hello;
    int successor;
    int fd; /**< From the old incarnation; read last. */
} succession;

static void begin_succession(succession *s, const wh_test_meeting *meeting) {
    const nonsense busy = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, ASK, 0, 16, 1};
    s->v = (victim){.meeting = meeting};
    assert_int_equal(sem_init(s->blocked, 0, 0) + sem_init(s->blocked + 1, 0, 0), 0);
    s->fd = meet_victim(&s->v);
    must(wh_inbox_open(s->v.group, TALK, &s->inbox, &error));
    must(wh_service_open(s->v.group, ASK, block, s->blocked, &error));
    s->successor = begin_to_greet(meeting, 2, WH_HELLO_CONTROL, &s->hello);
    speak(s->fd, &busy);
    sem_wait(s->blocked);
}

/** The old incarnation is gone, and the victim reads again. */
static void succeed(succession *s) {
    close(s->fd);
    say(s->successor, s->hello);
    sem_post(s->blocked + 1);
    wh_service_close(s->v.group, ASK);
    while (wh_mailbox_incarnation(s->v.group->mailbox, 1) != 2) {
        usleep(1000);
    }
}

static void end_succession(succession *s) {
    wh_hello_destroy(s->hello);
    close(s->successor);
    wh_inbox_close(s->inbox);
    wh_group_destroy(s->v.group);
}

/**
 * Messages that a process sent before it ended arrive, even if the victim notices its successor
 * first.
 */
static void test_last_words(void **state) {
    const nonsense last = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, TALK, 0, 16, 1};
    succession s;
    begin_succession(&s, *state);
    wh_inbox *inbox = s.inbox;
    speak(s.fd, &last);
    succeed(&s);
    wh_message message;
    must(wh_inbox_take(inbox, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_int_equal(message.kind, WH_MESSAGE_BYTES);
    assert_true(message.incarnation == 1);
    wh_message_clear(&message);
    must(wh_inbox_take(inbox, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_int_equal(message.kind, WH_MESSAGE_LOST);
    assert_true(message.incarnation == 1);
    wh_message_clear(&message);
    end_succession(&s);
}

static atomic_bool scarce; /* Large allocations fail. */

static void *take_scarce(void *context, size_t size) {
    (void)context;
    return size >= 2 << 20 && atomic_load(&scarce) ? NULL : malloc(size ? size : 1);
}

static void *resize_scarce(void *context, void *memory, size_t size) {
    (void)context;
    return size >= 2 << 20 && atomic_load(&scarce) ? NULL : realloc(memory, size);
}

static void give_scarce(void *context, void *memory) {
    (void)context;
    free(memory);
}

/** If there is no memory for the last messages, the connection is not read again. */
static void test_last_words_without_memory(void **state) {
    enum { PART = 200000, ALL = 390000, WHOLE = 5 << 20 };
    static uint8_t words[ALL];
    succession s;
    begin_succession(&s, *state);
    int room = 1 << 20;
    setsockopt(s.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    wh_frame_head(words, WH_FRAME_MESSAGE, 16 + PART);
    wh_store_be64(words + WH_FRAME_HEAD, TALK);
    wh_store_be64(words + WH_FRAME_HEAD + 8, WHOLE);
    assert_int_equal(send(s.fd, words, ALL, MSG_NOSIGNAL | MSG_DONTWAIT), ALL);
    atomic_store(&scarce, true);
    succeed(&s);
    wh_message message;
    must(wh_inbox_take(s.inbox, wh_deadline_in_ms(SOON_MS), &message, &error));
    atomic_store(&scarce, false);
    assert_int_equal(message.kind, WH_MESSAGE_LOST);
    wh_message_clear(&message);
    close(talk(*state, s.v.group, 3));
    end_succession(&s);
}

/* ---- two connections to one rank ---- */

static wh_message_kind take_kind(wh_inbox *inbox, int64_t ms) {
    wh_message message;
    must(wh_inbox_take(inbox, wh_deadline_in_ms(ms), &message, &error));
    wh_message_kind kind = message.kind;
    wh_message_clear(&message);
    return kind;
}

static const nonsense word = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, TALK, 0, 16, 1};

/**
 * Two ranks that dial each other at once make two connections. If one of them then has no processor
 * for some heartbeats, the second greeting ends late. Nothing is lost.
 */
static void test_a_late_greeting_is_no_loss(void **state) {
    enum { BEATS_MS = 500 };
    victim v = {.meeting = *state};
    wh_hello *hello;
    wh_inbox *inbox;
    wh_message message;
    dead_after_ms = 10 * DEAD_AFTER_MS;
    int first = meet_victim(&v);
    int late = begin_to_greet(v.meeting, 1, WH_HELLO_CONTROL, &hello);
    must(wh_inbox_open(v.group, TALK, &inbox, &error));
    usleep(BEATS_MS * 1000);
    say(late, hello);
    speak(late, &word);
    assert_int_equal(take_kind(inbox, SOON_MS), WH_MESSAGE_BYTES);
    must_fail(WHERRY_TIMED_OUT, error, wh_inbox_take(inbox, (wh_deadline){0}, &message, &error));
    dead_after_ms = DEAD_AFTER_MS;
    wh_hello_destroy(hello);
    wh_inbox_close(inbox);
    close(first);
    close(late);
    wh_group_destroy(v.group);
}

/**
 * A rank that connects again after a long silence has given up the former connection. That loss is
 * recorded at once, so that it does not end what begins over the new connection.
 */
static void test_a_rank_connects_again_after_silence(void **state) {
    victim v = {.meeting = *state};
    wh_inbox *inbox;
    dead_after_ms = 2 * DEAD_AFTER_MS;
    int silent = meet_victim(&v);
    must(wh_inbox_open(v.group, TALK, &inbox, &error));
    usleep((DEAD_AFTER_MS + DEAD_AFTER_MS / 4) * 1000);
    int again = greet(v.meeting, 1, WH_HELLO_CONTROL);
    speak(again, &word); /* If the silence was much longer, the loss comes first. */
    bool lost = take_kind(inbox, SOON_MS) == WH_MESSAGE_LOST;
    assert_int_equal(take_kind(inbox, lost ? SOON_MS : 0), lost ? WH_MESSAGE_BYTES : WH_MESSAGE_LOST);
    read_to_end(silent);
    dead_after_ms = DEAD_AFTER_MS;
    wh_inbox_close(inbox);
    close(again);
    wh_group_destroy(v.group);
}

enum { LARGE = 4 << 20 };

/** A large message in flight does not delay a call that was told to stop, and arrives complete. */
static void test_stop_in_the_middle_of_a_message(void **state) {
    victim v = {.meeting = *state};
    wh_stop stop;
    must(wh_stop_init(&stop, &error));
    int fd = meet_victim(&v);
    void *bytes = calloc(1, LARGE);
    assert_non_null(bytes);
    wh_stop_request(&stop);
    must_fail(WHERRY_CANCELLED, error,
              wh_group_send_until(v.group, 1, ASK, bytes, LARGE, wh_deadline_in_ms(SOON_MS), &stop, &error));
    assert_int_equal(error.rank, 1);
    free(bytes); /* The memory belongs to the caller again. */
    const nonsense alive = {WH_HELLO_CONTROL, 8, WH_FRAME_PING, 0, 0, 8, 0};
    static char part[64 << 10];
    for (size_t all = 0; all <= LARGE;) { /* The rest of the bytes are headers of frames. */
        speak(fd, &alive);
        ssize_t got = recv(fd, part, sizeof(part), 0);
        assert_true(got > 0);
        all += (size_t)got;
    }
    close(fd);
    wh_group_destroy(v.group);
    wh_stop_destroy(&stop);
}

/** The victim and the hostile rank have a secret, so their connections are TLS. */
static int open_tls(void **state) {
    must(wh_group_key_derive(secret, strlen(secret), &key, &error));
    return wh_test_open_tcp(state);
}

static int close_tls(void **state) {
    wh_test_tunnels_end();
    return wh_test_close(state);
}

int main(void) {
    const wherry_allocator scarce_memory = {take_scarce, resize_scarce, give_scarce, NULL};
    wherry_allocator_set(&scarce_memory);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nonsense, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_every_type_in_every_state, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_silence, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_many_idles, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_many_strangers, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_dripping_strangers, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_many_greetings, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_last_words, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_last_words_without_memory, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_a_late_greeting_is_no_loss, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_a_rank_connects_again_after_silence, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_stop_in_the_middle_of_a_message, wh_test_open_unix, wh_test_close),
        {"test_nonsense_over_tls", test_nonsense, open_tls, close_tls, NULL},
        {"test_every_type_in_every_state_over_tls", test_every_type_in_every_state, open_tls, close_tls, NULL},
        {"test_silence_over_tls", test_silence, open_tls, close_tls, NULL},
        {"test_many_idles_over_tls", test_many_idles, open_tls, close_tls, NULL},
        {"test_many_greetings_over_tls", test_many_greetings, open_tls, close_tls, NULL},
    };
    return cmocka_run_group_tests_name("group_hostile", tests, NULL, NULL);
}
