/*
 * Members of a TCP group on one host use Unix sockets. These tests check the format of places,
 * including hostile ones. No message is lost or reordered when the connection changes or a Unix
 * socket cannot be used.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "group/mailbox.h"
#include "group/sockets/internal.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/meeting.h"
#include "support/process_job.h"

enum { RANKS = 2, SOON_MS = 10000 * JOB_SLOW, DEAD_MS = 1000 * JOB_SLOW, MANY = 2000, TAG = 1 };

#define TALK (WH_TAG_CONVERSATION | 5)
#define HERE "0123456789abcdef0123456789abcdef"
#define ELSEWHERE "0123456789abcdef0123456789abcdee"
#define NAME "00112233445566778899aabbccddeeff"

static wherry_error error;

/** A member with only the fields that places need. */
static wh_sockets *fake(void) {
    wh_sockets *sockets = calloc(1, sizeof(*sockets));
    sockets->address.kind = WH_ADDRESS_TCP;
    snprintf(sockets->host, sizeof(sockets->host), "%s", HERE);
    return sockets;
}

static void test_only_local_places_have_a_shortcut(void **state) {
    (void)state;
    static const char *const far[] = {
        "",
        ";",
        "127.0.0.1:1",
        "127.0.0.1:1;",
        "127.0.0.1:1;" HERE,
        "127.0.0.1:1;" HERE ";",
        "127.0.0.1:1;" ELSEWHERE ";" NAME,
        "127.0.0.1:1;" HERE ":" NAME,
        "127.0.0.1:1;" HERE ";" NAME "0",
        "127.0.0.1:1;" HERE ";0011223344556677889aabbccddeeff",
        "127.0.0.1:1;" HERE ";/0112233445566778899aabbccddeeff",
        "127.0.0.1:1;" HERE ";00112233445566778899AABBCCDDEEFF",
        "127.0.0.1:1;" HERE ";" NAME ";" NAME,
        "127.0.0.1:1;;" HERE ";" NAME,
    };
    wh_sockets *sockets = fake();
    assert_true(wh_shortcut_leads_to(sockets, "127.0.0.1:1;" HERE ";" NAME));
    for (size_t i = 0; i < sizeof(far) / sizeof(*far); i++) {
        assert_false(wh_shortcut_leads_to(sockets, far[i]));
    }
    *sockets->host = '\0'; /* From now on this member uses no Unix sockets. */
    assert_false(wh_shortcut_leads_to(sockets, "127.0.0.1:1;" HERE ";" NAME));
    free(sockets);
}

/** @return a listener at an abstract name, or at a port on loopback. */
static int listen_here(const char *name, int *port_p) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(in);
    int length = name ? snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "%s", name) : 0;
    socklen_t un_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    int fd = socket(name ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, name ? (struct sockaddr *)&un : (struct sockaddr *)&in, name ? un_size : size), 0);
    assert_int_equal(listen(fd, 4), 0);
    if (!name) {
        assert_int_equal(getsockname(fd, (struct sockaddr *)&in, &size), 0);
        *port_p = ntohs(in.sin_port);
    }
    return fd;
}

/** True if dialling a place connects to the listener. */
static bool reaches(const wh_sockets *sockets, const char *place, int listener) {
    struct pollfd at = {listener, POLLIN, 0};
    int fd = wh_sockets_dial(sockets, place);
    bool knocked = fd >= 0 && poll(&at, 1, SOON_MS) == 1;
    if (fd >= 0) {
        close(fd);
        close(accept(listener, NULL, NULL));
    }
    return knocked;
}

/**
 * Dials the Unix socket if the place has one, else the port. Ignores names that no group creates.
 */
static void test_dials_the_unix_socket_or_the_port(void **state) {
    (void)state;
    wh_sockets *sockets = fake();
    char place[WH_PLACE_MAX];
    int port = 0;
    int tcp = listen_here(NULL, &port);
    snprintf(place, sizeof(place), "127.0.0.1:%d;%s;%s", port, HERE, NAME);
    assert_true(reaches(sockets, place, tcp));
    int near = listen_here("wherry-group-" NAME, NULL);
    assert_true(reaches(sockets, place, near));
    snprintf(place, sizeof(place), "127.0.0.1:%d;%s;%s", port, ELSEWHERE, NAME);
    assert_true(reaches(sockets, place, tcp));
    snprintf(place, sizeof(place), "127.0.0.1:%d;what a later version says", port);
    assert_true(reaches(sockets, place, tcp));
    assert_int_equal(wh_sockets_dial(sockets, "unix:/run/some.sock"), -1);
    assert_int_equal(errno, EHOSTUNREACH);
    assert_int_equal(wh_sockets_dial(sockets, ";" HERE ";" ELSEWHERE), -1);
    assert_int_equal(wh_sockets_dial(sockets, ""), -1);
    sockets->address.kind = WH_ADDRESS_UNIX;
    assert_int_equal(wh_sockets_dial(sockets, place), -1);
    assert_int_equal(errno, EHOSTUNREACH);
    close(tcp);
    close(near);
    free(sockets);
}

typedef struct joiner {
    const wh_test_meeting *meeting;
    int32_t rank;
    wh_group *group;
    wherry_status status;
    pthread_t thread;
} joiner;

static void *join(void *context) {
    joiner *j = context;
    j->status = wh_test_join(j->meeting, j->rank, RANKS, SOON_MS, &j->group, NULL);
    return NULL;
}

static void open_world(const wh_test_meeting *meeting, wh_group *groups[RANKS]) {
    joiner joiners[RANKS];
    for (int32_t i = 0; i < RANKS; i++) {
        joiners[i] = (joiner){.meeting = meeting, .rank = i};
        assert_int_equal(pthread_create(&joiners[i].thread, NULL, join, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(joiners[i].thread, NULL);
        must(joiners[i].status);
        groups[i] = joiners[i].group;
    }
}

static void close_world(wh_group *groups[RANKS]) {
    for (int32_t i = 0; i < RANKS; i++) {
        wh_group_destroy(groups[i]);
    }
}

static void *send_many(void *context) {
    wh_group *group = context;
    wherry_status status = WHERRY_OK;
    for (uint32_t i = 0; i < MANY && status == WHERRY_OK; i++) {
        status = wh_group_send(group, 1 - group->rank, TAG, &i, sizeof(i), wh_deadline_in_ms(SOON_MS), NULL);
    }
    return (void *)(intptr_t)status;
}

/** Both ranks send at once. Each message arrives exactly once and in order. */
static void talk(wh_group *groups[RANKS]) {
    pthread_t threads[RANKS];
    for (int32_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(threads + i, NULL, send_many, groups[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS * MANY; i++) {
        wh_message message;
        uint32_t number;
        must(wh_group_receive(groups[i % RANKS], 1 - (int32_t)(i % RANKS), TAG, wh_deadline_in_ms(SOON_MS), &message,
                              &error));
        assert_int_equal(message.size, sizeof(number));
        memcpy(&number, message.bytes, sizeof(number));
        assert_int_equal(number, i / RANKS);
        wh_message_clear(&message);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        void *status;
        pthread_join(threads[i], &status);
        must((wherry_status)(intptr_t)status);
    }
}

static void test_messages_stay_in_order(void **state) {
    for (int i = 0; i < 10; i++) {
        wh_group *groups[RANKS];
        open_world(*state, groups);
        talk(groups);
        assert_int_equal(wh_group_process(groups[0], 1), getpid());
        assert_int_equal(wh_group_process(groups[1], 0), getpid());
        close_world(groups);
    }
}

static void close_shortcut(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    pthread_mutex_lock(&sockets->lock);
    assert_true(sockets->shortcut >= 0);
    close(sockets->shortcut);
    sockets->shortcut = -1;
    pthread_mutex_unlock(&sockets->lock);
}

/** Number of established connections between the two ranks. */
static size_t count_up(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    size_t count = 0;
    pthread_mutex_lock(&sockets->lock);
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        count += wh_connection_is_up(one);
    }
    pthread_mutex_unlock(&sockets->lock);
    return count;
}

/** A channel uses the same kind of socket, and closing it is not the loss of a rank. */
static void open_channel(wh_group *groups[RANKS], int family) {
    wh_inbox *inbox;
    wh_message message;
    wh_socket channel = WH_NO_SOCKET;
    int found = 0;
    socklen_t size = sizeof(found);
    must(wh_inbox_open(groups[1], TALK, &inbox, &error));
    must(wh_group_connect(groups[0], 1, TALK, wh_deadline_in_ms(SOON_MS), NULL, &channel, &error));
    assert_int_equal(getsockopt(channel.fd, SOL_SOCKET, SO_DOMAIN, &found, &size), 0);
    assert_int_equal(found, family);
    must(wh_inbox_take(inbox, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_int_equal(message.kind, WH_MESSAGE_CHANNEL);
    wh_socket_close(&channel);
    wh_message_clear(&message);
    wh_inbox_close(inbox);
}

/** If the Unix socket of one or both sides cannot be reached, they use TCP. */
static void test_uses_tcp_if_the_unix_socket_fails(void **state) {
    for (int closed = 0; closed < 4; closed++) {
        wh_group *groups[RANKS];
        open_world(*state, groups);
        for (int32_t i = 0; i < RANKS; i++) {
            if (closed & 1 << i) {
                close_shortcut(groups[i]);
            }
        }
        talk(groups);
        open_channel(groups, closed & 2 ? AF_INET : AF_UNIX);
        if (closed == 3) {
            assert_int_equal(wh_group_process(groups[0], 1), 0);
        }
        talk(groups);
        assert_true(count_up(groups[0]) >= 1 && count_up(groups[0]) <= 3);
        close_world(groups);
    }
}

/**
 * A rank is lost at once when it leaves, and not before. This does not depend on its connections.
 */
static void test_leaving_is_noticed_at_once(void **state) {
    wh_group *groups[RANKS];
    wh_message message;
    open_world(*state, groups);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(groups[0], 1, TAG, wh_deadline_in_ms(50), &message, &error));
    talk(groups);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(groups[0], 1, TAG, wh_deadline_in_ms(50), &message, &error));
    wh_group_destroy(groups[1]);
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_PEER_LOST, error,
              wh_group_receive(groups[0], 1, TAG, wh_deadline_in_ms(SOON_MS), &message, &error));
    assert_true((wh_clock_now() - begin) / 1000000 < 4000);
    joiner again = {.meeting = *state, .rank = 1};
    join(&again);
    must(again.status);
    groups[1] = again.group;
    for (wh_deadline end = wh_deadline_in_ms(SOON_MS); !wh_mailbox_incarnation(groups[0]->mailbox, 1); usleep(1000)) {
        assert_false(wh_deadline_passed(end));
    }
    talk(groups);
    assert_int_equal(wh_group_process(groups[0], 1), getpid());
    close_world(groups);
}

/**
 * Two ranks have met at two meeting points and sent nothing yet. The end of one of these
 * connections is not the loss of a rank.
 */
static void *join_twice(void *context) {
    joiner *j = context;
    char address[128];
    wh_sockets_options options = {0};
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d,127.0.0.1:%d?rank=%d&size=2", j->meeting[0].port,
             j->meeting[1].port, (int)j->rank);
    j->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &j->group, NULL);
    return NULL;
}

/** Ends one connection while the other thread waits. */
static void *doom_one(void *context) {
    wh_sockets *sockets = context;
    wh_await_asleep(getpid());
    pthread_mutex_lock(&sockets->lock);
    sockets->connections->doomed = true;
    pthread_mutex_unlock(&sockets->lock);
    wh_sockets_wake(sockets);
    return NULL;
}

static void wait_for_two(wh_group *group) {
    wh_deadline end = wh_deadline_in_ms(SOON_MS);
    while (count_up(group) < 2) {
        assert_false(wh_deadline_passed(end));
        usleep(1000);
    }
}

static void test_one_of_two_connections_may_end(void **state) {
    void *other;
    assert_int_equal(wh_test_open_near(&other), 0);
    wh_test_meeting meetings[2] = {*(wh_test_meeting *)*state, *(wh_test_meeting *)other};
    joiner joiners[RANKS] = {{.meeting = meetings, .rank = 0}, {.meeting = meetings, .rank = 1}};
    for (int32_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(&joiners[i].thread, NULL, join_twice, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(joiners[i].thread, NULL);
        must(joiners[i].status);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        wh_message message;
        pthread_t thread;
        wait_for_two(joiners[0].group);
        wait_for_two(joiners[1].group);
        assert_null(((wh_sockets *)joiners[i].group)->members[1 - i].connection);
        assert_int_equal(pthread_create(&thread, NULL, doom_one, joiners[1].group), 0);
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(joiners[i].group, 1 - i, TAG, wh_deadline_in_ms(300), &message, &error));
        pthread_join(thread, NULL);
    }
    wh_group *groups[RANKS] = {joiners[0].group, joiners[1].group};
    talk(groups);
    close_world(groups);
    assert_int_equal(wh_test_close(&other), 0);
}

static void *join_wary(void *context) {
    joiner *j = context;
    char address[128];
    wh_sockets_options options = {.heartbeat_ms = 50, .dead_after_ms = DEAD_MS};
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=%d&size=2", j->meeting->port, (int)j->rank);
    j->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &j->group, NULL);
    return NULL;
}

static void *join_open(void *context) {
    joiner *j = context;
    char address[128];
    wh_sockets_options options = {.heartbeat_ms = 50, .dead_after_ms = DEAD_MS, .wait_for = RANKS};
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=%d&size=3", j->meeting->port, (int)j->rank);
    j->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &j->group, NULL);
    return NULL;
}

/** News that was lost arrives after all, because a PING has the hash of the table. */
static void test_lost_news_is_found(void **state) {
    joiner joiners[RANKS] = {{.meeting = *state, .rank = 0}, {.meeting = *state, .rank = 1}};
    for (int32_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(&joiners[i].thread, NULL, join_open, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(joiners[i].thread, NULL);
        must(joiners[i].status);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        wh_sockets *from = (wh_sockets *)joiners[i].group;
        wh_sockets *to = (wh_sockets *)joiners[1 - i].group;
        uint64_t incarnation = wh_clock_wall();
        uint64_t found = 0;
        pthread_mutex_lock(&from->lock);
        assert_true(wh_sockets_learn(from, 2, incarnation, "127.0.0.1:1", 0));
        for (wh_connection *one = from->connections; one; one = one->next) {
            one->told = from->news;
        }
        pthread_mutex_unlock(&from->lock);
        for (wh_deadline end = wh_deadline_in_ms(SOON_MS); found != incarnation; usleep(1000)) {
            assert_false(wh_deadline_passed(end));
            pthread_mutex_lock(&to->lock);
            found = to->members[2].incarnation;
            assert_true(found != incarnation || strcmp(to->members[2].place, "127.0.0.1:1") == 0);
            pthread_mutex_unlock(&to->lock);
        }
    }
    wh_group_destroy(joiners[0].group);
    wh_group_destroy(joiners[1].group);
}

/** A connection that is not used is closed, which is no loss, and made again when it is needed. */
static void test_idle_connections_are_closed(void **state) {
    joiner joiners[RANKS] = {{.meeting = *state, .rank = 0}, {.meeting = *state, .rank = 1}};
    wh_group *groups[RANKS];
    wh_message message;
    for (int32_t i = 0; i < RANKS; i++) {
        assert_int_equal(pthread_create(&joiners[i].thread, NULL, join_wary, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(joiners[i].thread, NULL);
        must(joiners[i].status);
        groups[i] = joiners[i].group;
    }
    for (int round = 0; round < 2; round++) {
        talk(groups);
        assert_true(count_up(groups[0]) >= 2);
        /*
         * The connection is idle after twice DEAD_MS, but a thread waits for the rank, so its death
         * must be noticed.
         */
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(groups[0], 1, TAG, wh_deadline_in_ms(5 * DEAD_MS / 2), &message, &error));
        assert_true(count_up(groups[0]) >= 2);
        wh_deadline end = wh_deadline_in_ms(SOON_MS);
        while (count_up(groups[0]) > 1 || count_up(groups[1]) > 1) {
            assert_false(wh_deadline_passed(end));
            usleep(1000);
        }
        assert_true(wh_mailbox_incarnation(groups[0]->mailbox, 1) && wh_mailbox_incarnation(groups[1]->mailbox, 0));
    }
    talk(groups);
    close_world(groups);
}

/** Makes all connections look as if no message had used them for long. */
static void age_connections(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    pthread_mutex_lock(&sockets->lock);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->used = 0;
    }
    pthread_mutex_unlock(&sockets->lock);
    wh_sockets_wake(sockets);
}

static void *await_message(void *context) {
    wh_message message;
    wherry_status status = wh_group_receive(context, 1, TAG, wh_deadline_in_ms(SOON_MS), &message, NULL);
    return (void *)(intptr_t)status;
}

/** Waits until rank 0 has this kind of connection for messages to rank 1. @return its number. */
static uint64_t await_connection(wh_sockets *sockets, bool parting, uint64_t after) {
    uint64_t number = 0;
    for (wh_deadline end = wh_deadline_in_ms(SOON_MS); !number; usleep(1000)) {
        assert_false(wh_deadline_passed(end));
        pthread_mutex_lock(&sockets->lock);
        const wh_connection *one = sockets->members[1].connection;
        bool found = one && one->dialled && one->parting == parting && one->number > after;
        number = found ? one->number : 0;
        pthread_mutex_unlock(&sockets->lock);
    }
    return number;
}

/**
 * A wait for a rank begins when this side has asked to close the connection, and the other side has
 * not answered yet. The connection is made again, so that the death of the rank is noticed.
 */
static void test_a_wait_begins_while_an_idle_connection_ends(void **state) {
    wh_group *groups[RANKS];
    wh_message message;
    pthread_t thread;
    void *status;
    open_world(*state, groups);
    wh_sockets *asks = (wh_sockets *)groups[0];
    wh_sockets *agrees = (wh_sockets *)groups[1];
    must(wh_group_send(groups[0], 1, TAG, "x", 1, wh_deadline_in_ms(SOON_MS), &error));
    must(wh_group_receive(groups[1], 0, TAG, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    uint64_t first = await_connection(asks, false, 0);
    age_connections(groups[1]);
    pthread_mutex_lock(&agrees->lock); /* It does not answer yet. */
    age_connections(groups[0]);
    await_connection(asks, true, 0);
    assert_int_equal(pthread_create(&thread, NULL, await_message, groups[0]), 0);
    wh_await_asleep(getpid());
    pthread_mutex_unlock(&agrees->lock);
    await_connection(asks, false, first);
    wh_group_destroy(groups[1]);
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, WHERRY_PEER_LOST);
    wh_group_destroy(groups[0]);
}

/** A rank that sends and receives while its connections are closed because they are not used. */
typedef struct chatter {
    wh_group *group;
    pthread_barrier_t *turn;
    pthread_t thread;
    uint64_t seed;
    wherry_status status;
    wherry_error error;
} chatter;

enum { ROUNDS = 800, PAUSE_US = 400 };

static void *chat(void *context) {
    chatter *own = context;
    int32_t other = 1 - own->group->rank;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        wh_message message = {.channel = WH_NO_SOCKET};
        pthread_barrier_wait(own->turn);
        age_connections(own->group);
        usleep((useconds_t)(next_random(&own->seed) % PAUSE_US));
        if (own->status == WHERRY_OK) {
            own->status = wh_group_send(own->group, other, TAG, &i, sizeof(i), wh_deadline_in_ms(SOON_MS), &own->error);
        }
        if (own->status == WHERRY_OK) {
            own->status = wh_group_receive(own->group, other, TAG, wh_deadline_in_ms(SOON_MS), &message, &own->error);
            if (own->status == WHERRY_OK && memcmp(message.bytes, &i, sizeof(i)) != 0) {
                own->status = wh_fail(&own->error, WHERRY_INTERNAL, "another message than the one of this round");
            }
            wh_message_clear(&message);
        }
    }
    return NULL;
}

/**
 * Both ranks send at the moment at which the connection is closed as idle, from one side or both.
 * No message and no rank is lost, and no call waits for a connection that nobody makes.
 */
static void test_messages_meet_the_end_of_an_idle_connection(void **state) {
    wh_group *groups[RANKS];
    chatter both[RANKS];
    pthread_barrier_t turn;
    size_t failed = 0;
    open_world(*state, groups);
    uint64_t before = ((wh_sockets *)groups[0])->numbers;
    assert_int_equal(pthread_barrier_init(&turn, NULL, RANKS), 0);
    for (int32_t i = 0; i < RANKS; i++) {
        both[i] = (chatter){.group = groups[i], .turn = &turn, .seed = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&both[i].thread, NULL, chat, both + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(both[i].thread, NULL);
        if (both[i].status != WHERRY_OK) {
            print_error("rank %d: %s\n", (int)i, both[i].error.message);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
    /* Connections were closed and made again. */
    assert_true(((wh_sockets *)groups[0])->numbers > before);
    pthread_barrier_destroy(&turn);
    close_world(groups);
}

/** Without a free descriptor for the Unix socket, the existing connection is used. */
static void test_works_without_free_descriptors(void **state) {
    wh_group *groups[RANKS];
    int held[256];
    int count = 0;
    struct rlimit before;
    uint32_t sent = 5;
    wh_message message;
    open_world(*state, groups);
    for (int i = 0; i < SOON_MS && !(count_up(groups[0]) && count_up(groups[1])); i++) {
        usleep(1000);
    }
    getrlimit(RLIMIT_NOFILE, &before);
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct rlimit few = {(rlim_t)next + 8, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    while (count < 256 && (held[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        count++;
    }
    wherry_status status = wh_group_send(groups[0], 1, TAG, &sent, sizeof(sent), wh_deadline_in_ms(SOON_MS), &error);
    bool known = wh_mailbox_incarnation(groups[0]->mailbox, 1) != 0;
    setrlimit(RLIMIT_NOFILE, &before);
    while (count) {
        close(held[--count]);
    }
    close(next);
    assert_int_equal(status, WHERRY_OK);
    assert_true(known);
    must(wh_group_receive(groups[1], 0, TAG, wh_deadline_in_ms(SOON_MS), &message, &error));
    wh_message_clear(&message);
    close_world(groups);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_local_places_have_a_shortcut),
        cmocka_unit_test(test_dials_the_unix_socket_or_the_port),
        cmocka_unit_test_setup_teardown(test_messages_stay_in_order, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_uses_tcp_if_the_unix_socket_fails, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_leaving_is_noticed_at_once, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_one_of_two_connections_may_end, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_lost_news_is_found, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_idle_connections_are_closed, wh_test_open_near, wh_test_close),
        cmocka_unit_test_setup_teardown(test_a_wait_begins_while_an_idle_connection_ends, wh_test_open_near,
                                        wh_test_close),
        cmocka_unit_test_setup_teardown(test_messages_meet_the_end_of_an_idle_connection, wh_test_open_near,
                                        wh_test_close),
        cmocka_unit_test_setup_teardown(test_works_without_free_descriptors, wh_test_open_near, wh_test_close),
    };
    return cmocka_run_group_tests_name("group_shortcut", tests, NULL, NULL);
}
