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
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <wherry/base.h>

#include "base/bytes.h"
#include "base/stop.h"
#include "group/hello.h"
#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/sockets.h"
#include "support/build.h"
#include "support/meeting.h"

enum { SOON_MS = 10000, DEAD_AFTER_MS = 2400, ASK = 1 };

#define TALK (WH_TAG_CONVERSATION | 5)

static wherry_error error;

/** Rank 0, the victim; the test acts as rank 1. */
typedef struct victim {
    const wh_test_meeting *meeting;
    wh_group *group;
    wherry_status status;
} victim;

static void *join_victim(void *context) {
    victim *v = context;
    char address[128];
    wh_sockets_options options = {.heartbeat_ms = 100, .dead_after_ms = DEAD_AFTER_MS};
    snprintf(address, sizeof(address), "unix://%s/meet?rank=0&size=2&job=test", v->meeting->folder);
    v->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &v->group, NULL);
    return NULL;
}

static int dial(const wh_test_meeting *meeting) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/meet", meeting->folder);
    for (wh_deadline end = wh_deadline_in_ms(SOON_MS); !wh_deadline_passed(end); usleep(1000)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0) {
            return fd;
        }
        close(fd);
    }
    fail_msg("nobody listens");
    return -1;
}

/** Sends a greeting. */
static void say(int fd, wh_hello *hello) {
    const uint8_t *out;
    size_t size;
    wh_hello_output(hello, &out, &size);
    if (size == 0) {
        return; /* the other side may have closed the connection */
    }
    assert_int_equal(send(fd, out, size, MSG_NOSIGNAL), (ssize_t)size);
    wh_hello_sent(hello, size);
}

/**
 * Connects and greets as an incarnation of rank 1, without the last frame, until both sides have
 * agreed or the other side refuses. @return the status of that.
 */
static wherry_status try_to_greet(const wh_test_meeting *meeting, uint64_t incarnation, wh_hello_purpose purpose,
                                  wh_hello **hello_p, int *fd_p) {
    wh_hello_config config = {.purpose = purpose,
                              .rank = 1,
                              .size = 2,
                              .incarnation = incarnation,
                              .job = "test",
                              .address = "unix:/nowhere"};
    wh_hello *hello;
    int fd = dial(meeting);
    wherry_status status = WHERRY_OK;
    must(wh_hello_create(&config, true, &hello, &error));
    while (status == WHERRY_OK && wh_hello_state_of(hello) != WH_HELLO_DONE) {
        uint8_t in[1];
        size_t used;
        if (!wh_hello_peer(hello)) { /* the next frame is the last one */
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
    {WH_HELLO_CONTROL, 16, WH_FRAME_MESSAGE, 1, 1, 16, 0},          /* empty, but not the last */
    {WH_HELLO_CONTROL, 16, WH_FRAME_MESSAGE, 1, UINT64_MAX, 16, 0}, /* of impossible length */
    {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, 1, UINT64_MAX, 16, 1},
    {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, 1, WH_MESSAGE_MAX + 1, 16, 1},
    {WH_HELLO_CONTROL, 13, WH_FRAME_TABLE, 1, 1, 13, 0}, /* half an entry */
    /* an impossible rank */
    {WH_HELLO_CONTROL, 14, WH_FRAME_TABLE, UINT64_MAX, UINT64_MAX, 14, 0},
    /* rank 1 with an incarnation in the far future, above which none can come */
    {WH_HELLO_CONTROL, 14, WH_FRAME_TABLE, UINT64_C(0x1FFFFFFFF), UINT64_C(0xFFFFFFFF00000000), 14, 0},
    /* a place that cannot be printed */
    {WH_HELLO_CONTROL, 15, WH_FRAME_TABLE, 0, UINT64_C(0x100010700), 15, 0},
    {WH_HELLO_CONTROL, 8, WH_FRAME_ATTACH, TALK, 0, 8, 0},
    {WH_HELLO_DATA, 8, WH_FRAME_ATTACH, TALK, 0, 8, 1}, /* bytes sent too early */
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
    pthread_t thread;
    uint64_t incarnation = 1;
    assert_int_equal(pthread_create(&thread, NULL, join_victim, &v), 0);
    int fd = greet(v.meeting, incarnation, WH_HELLO_CONTROL);
    pthread_join(thread, NULL);
    must(v.status);
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
            assert_true(wh_group_process(v.group, 1) == getpid());
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

/** A silent peer: before the greeting, after one for data, and after one for messages. */
static void test_silence(void **state) {
    victim v = {.meeting = *state};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_victim, &v), 0);
    int fd = greet(v.meeting, 1, WH_HELLO_CONTROL);
    pthread_join(thread, NULL);
    must(v.status);
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
    int fd; /**< Of the old incarnation; read last. */
} succession;

static void begin_succession(succession *s, const wh_test_meeting *meeting) {
    const nonsense busy = {WH_HELLO_CONTROL, 17, WH_FRAME_MESSAGE, ASK, 0, 16, 1};
    pthread_t thread;
    s->v = (victim){.meeting = meeting};
    assert_int_equal(sem_init(s->blocked, 0, 0) + sem_init(s->blocked + 1, 0, 0), 0);
    assert_int_equal(pthread_create(&thread, NULL, join_victim, &s->v), 0);
    s->fd = greet(meeting, 1, WH_HELLO_CONTROL);
    pthread_join(thread, NULL);
    must(s->v.status);
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

/** Messages that a process sent before it ended arrive, even if its successor is noticed first. */
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

static atomic_bool scarce; /* large allocations fail */

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

enum { LARGE = 4 << 20 };

/** A large message in flight does not delay a call that was told to stop, and arrives complete. */
static void test_stop_in_the_middle_of_a_message(void **state) {
    victim v = {.meeting = *state};
    wh_stop stop;
    pthread_t joining;
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pthread_create(&joining, NULL, join_victim, &v), 0);
    int fd = greet(v.meeting, 1, WH_HELLO_CONTROL);
    pthread_join(joining, NULL);
    must(v.status);
    void *bytes = calloc(1, LARGE);
    assert_non_null(bytes);
    wh_stop_request(&stop);
    must_fail(WHERRY_CANCELLED, error,
              wh_group_send_until(v.group, 1, ASK, bytes, LARGE, wh_deadline_in_ms(SOON_MS), &stop, &error));
    assert_int_equal(error.rank, 1);
    free(bytes); /* the memory belongs to the caller again */
    const nonsense alive = {WH_HELLO_CONTROL, 0, WH_FRAME_PING, 0, 0, 0, 0};
    static char part[64 << 10];
    for (size_t all = 0; all <= LARGE;) { /* the rest are headers of frames */
        speak(fd, &alive);
        ssize_t got = recv(fd, part, sizeof(part), 0);
        assert_true(got > 0);
        all += (size_t)got;
    }
    close(fd);
    wh_group_destroy(v.group);
    wh_stop_destroy(&stop);
}

int main(void) {
    const wherry_allocator scarce_memory = {take_scarce, resize_scarce, give_scarce, NULL};
    wherry_allocator_set(&scarce_memory);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nonsense, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_silence, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_last_words, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_last_words_without_memory, wh_test_open_unix, wh_test_close),
        cmocka_unit_test_setup_teardown(test_stop_in_the_middle_of_a_message, wh_test_open_unix, wh_test_close),
    };
    return cmocka_run_group_tests_name("group_hostile", tests, NULL, NULL);
}
