/* The group suite's cases about inboxes, services and channels. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conformance/group_world.h"
#include "group/mailbox.h"
#include "support/asleep.h"

enum { CHANNELS = 20 };

#define TALK (WH_TAG_CONVERSATION | 5)
#define OTHER (WH_TAG_CONVERSATION | 6)

static wherry_error error;

static wh_inbox *open_inbox(wh_group *group, uint64_t tag) {
    wh_inbox *inbox;
    must(wh_inbox_open(group, tag, &inbox, &error));
    return inbox;
}

static wh_message take(wh_inbox *inbox, wh_message_kind expected, int32_t rank) {
    wh_message message;
    must(wh_inbox_take(inbox, wh_soon(), &message, &error));
    assert_int_equal(message.kind, expected);
    assert_int_equal(message.rank, rank);
    return message;
}

static void take_text(wh_inbox *inbox, int32_t rank, const char *text) {
    wh_message message = take(inbox, WH_MESSAGE_BYTES, rank);
    assert_int_equal(message.size, strlen(text));
    assert_memory_equal(message.bytes, text, message.size);
    assert_true(message.tag == wh_inbox_tag(inbox));
    assert_true(message.incarnation > 0);
    wh_message_clear(&message);
}

static void expect_nothing(wh_inbox *inbox) {
    wh_message message;
    must_fail(WHERRY_TIMED_OUT, error, wh_inbox_take(inbox, wh_deadline_in_ms(50), &message, &error));
}

/** Messages from all ranks arrive in order; two conversations never mix. */
static void test_inboxes_keep_order_and_do_not_mix(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_inbox *inbox = open_inbox(w.groups[1], TALK);
    wh_inbox *other = open_inbox(w.groups[1], OTHER);
    wh_inbox *again;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_inbox_open(w.groups[1], TALK, &again, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_inbox_open(w.groups[1], 5, &again, &error));
    wh_send_text(w.groups[0], 1, TALK, "one");
    wh_send_text(w.groups[0], 1, OTHER, "other");
    wh_send_text(w.groups[0], 1, TALK, "two");
    take_text(inbox, 0, "one");
    take_text(inbox, 0, "two");
    take_text(other, 0, "other");
    wh_send_text(w.groups[2], 1, TALK, "from two");
    wh_send_text(w.groups[1], 1, OTHER, "own");
    take_text(inbox, 2, "from two");
    take_text(other, 1, "own");
    wh_inbox_close(inbox);
    wh_inbox_close(other);
    wh_world_close(&w);
}

/**
 * Messages of a conversation are dropped before its inbox is open and after it is closed; a receive
 * with the tag does not get them.
 */
static void test_messages_without_an_open_inbox_are_dropped(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_message message;
    wh_send_text(w.groups[0], 1, TALK, "too early");
    wh_send_text(w.groups[0], 1, 3, "a marker behind it");
    wh_expect_text(w.groups[1], 0, 3, "a marker behind it", 0);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(w.groups[1], 0, TALK, wh_deadline_in_ms(20), &message, &error));
    wh_inbox *inbox = open_inbox(w.groups[1], TALK);
    wh_send_text(w.groups[0], 1, TALK, "in time");
    take_text(inbox, 0, "in time");
    wh_send_text(w.groups[0], 1, TALK, "not taken");
    wh_send_text(w.groups[0], 1, 3, "marker");
    wh_expect_text(w.groups[1], 0, 3, "marker", 0);
    wh_inbox_close(inbox);
    inbox = open_inbox(w.groups[1], TALK);
    expect_nothing(inbox);
    wh_inbox_close(inbox);
    wh_world_close(&w);
}

/** A loss arrives in every inbox once, after the messages of that rank. */
static void test_every_inbox_hears_of_a_loss_once(void **state) {
    (void)state;
    world w = wh_world_open();
    if (!wh_group_can(w.groups[0], WH_GROUP_DEATH)) {
        wh_world_close(&w);
        return;
    }
    wh_inbox *inboxes[2] = {open_inbox(w.groups[0], TALK), open_inbox(w.groups[0], OTHER)};
    wh_group_watch(w.groups[0], 1);
    wh_send_text(w.groups[1], 0, TALK, "last words");
    wh_send_text(w.groups[1], 0, 3, "marker");
    wh_expect_text(w.groups[0], 1, 3, "marker", 1);
    wh_group_destroy(w.groups[1]);
    w.groups[1] = NULL;
    wh_deadline early = wh_deadline_in_ms(DEATH_MS);
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            take_text(inboxes[i], 1, "last words");
        }
        wh_message message = take(inboxes[i], WH_MESSAGE_LOST, 1);
        assert_false(wh_deadline_passed(early));
        assert_true(message.size > 0);
        wh_message_clear(&message);
        expect_nothing(inboxes[i]);
    }
    wh_inbox *late = open_inbox(w.groups[0], WH_TAG_CONVERSATION | 7);
    expect_nothing(late);
    wh_inbox_close(late);
    wh_inbox_close(inboxes[0]);
    wh_inbox_close(inboxes[1]);
    wh_world_close(&w);
}

/** Watching a rank is enough to be told of its death, without any message. */
static void test_watch_reports_a_death_without_messages(void **state) {
    (void)state;
    world w = wh_world_open();
    if (!wh_group_can(w.groups[0], WH_GROUP_DEATH)) {
        wh_world_close(&w);
        return;
    }
    wh_inbox *inbox = open_inbox(w.groups[2], TALK);
    wh_group_watch(w.groups[2], 1);
    wh_group_watch(w.groups[2], 2);
    wh_await_asleep(getpid());
    wh_group_destroy(w.groups[1]);
    w.groups[1] = NULL;
    uint64_t begin = wh_clock_now();
    wh_message message = take(inbox, WH_MESSAGE_LOST, 1);
    assert_true((wh_clock_now() - begin) / 1000000 < DEATH_MS);
    wh_message_clear(&message);
    wh_inbox_close(inbox);
    wh_world_close(&w);
}

static void *wake_later(void *context) {
    wh_await_asleep(getpid());
    wh_inbox_wake(context);
    return NULL;
}

static void test_wake_ends_a_take_and_post_delivers(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_inbox *inbox = open_inbox(w.groups[0], TALK);
    wh_message message;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_later, inbox), 0);
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error, wh_inbox_take(inbox, wh_soon(), &message, &error));
    assert_true((wh_clock_now() - begin) / 1000000 < SOON_MS / 2);
    pthread_join(thread, NULL);
    wh_inbox_wake(inbox);
    must_fail(WHERRY_TIMED_OUT, error, wh_inbox_take(inbox, wh_soon(), &message, &error));
    expect_nothing(inbox);
    message = (wh_message){WH_MESSAGE_NOTE, 0, 0, 42, NULL, 0, WH_NO_SOCKET};
    assert_true(wh_inbox_post(inbox, &message));
    message = take(inbox, WH_MESSAGE_NOTE, 0);
    assert_true(message.tag == 42);
    wh_inbox_close(inbox);
    wh_world_close(&w);
}

/** The messages that a service received. */
typedef struct served {
    pthread_mutex_t lock;
    int count;
    char text[8][16];
} served;

static void serve(void *context, wh_message *message) {
    served *s = context;
    pthread_mutex_lock(&s->lock);
    if (s->count < 8 && message->size < sizeof(s->text[0])) {
        memcpy(s->text[s->count++], message->bytes, message->size);
    }
    pthread_mutex_unlock(&s->lock);
    wh_message_clear(message);
}

static void expect_served(served *s, int count, const char *last) {
    pthread_mutex_lock(&s->lock);
    assert_int_equal(s->count, count);
    assert_string_equal(s->text[count - 1], last);
    pthread_mutex_unlock(&s->lock);
}

static void send_and_pass(world *w, uint64_t tag, const char *text) {
    wh_send_text(w->groups[0], 1, tag, text);
    wh_send_text(w->groups[0], 1, 3, "marker");
    wh_expect_text(w->groups[1], 0, 3, "marker", 0);
}

/** A service gets waiting messages first, then new ones. After it ends, messages wait again. */
static void test_service_gets_waiting_and_new_messages(void **state) {
    (void)state;
    world w = wh_world_open();
    served s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    wh_send_text(w.groups[0], 1, 9, "old");
    send_and_pass(&w, 9, "older");
    must(wh_service_open(w.groups[1], 9, serve, &s, &error));
    assert_string_equal(s.text[0], "old");
    expect_served(&s, 2, "older");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_service_open(w.groups[1], 9, serve, &s, &error));
    send_and_pass(&w, 9, "new");
    expect_served(&s, 3, "new");
    wh_service_close(w.groups[1], 9);
    send_and_pass(&w, 9, "afterwards");
    expect_served(&s, 3, "new");
    wh_expect_text(w.groups[1], 0, 9, "afterwards", 0);
    wh_world_close(&w);
}

/** Moves bytes over a nonblocking channel. */
static void write_channel(const wh_socket *channel, const void *bytes, size_t size) {
    struct iovec all = {(void *)(uintptr_t)bytes, size};
    assert_int_equal(wh_socket_write(channel, &all, 1), (ssize_t)size);
    assert_int_equal(wh_socket_flush(channel), 0);
}

static ssize_t read_channel(const wh_socket *channel, void *bytes, size_t size) {
    struct pollfd at = {channel->fd, POLLIN, 0};
    struct iovec into = {bytes, size};
    assert_int_equal(poll(&at, 1, SOON_MS), 1);
    return wh_socket_read(channel, &into, 1);
}

/** Nothing has come over a channel. */
static void expect_silence(const wh_socket *channel) {
    char byte;
    struct iovec into = {&byte, 1};
    assert_int_equal(wh_socket_read(channel, &into, 1), -1);
    assert_true(errno == EAGAIN);
}

/** Opens a channel from one rank to another and returns both ends. */
static void open_channel(world *w, int32_t from, int32_t to, wh_inbox *inbox, wh_socket ends[2]) {
    must(wh_group_connect(w->groups[from], to, wh_inbox_tag(inbox), wh_soon(), NULL, &ends[0], &error));
    wh_message message = take(inbox, WH_MESSAGE_CHANNEL, from);
    assert_true(message.tag == wh_inbox_tag(inbox));
    assert_true(message.incarnation > 0);
    ends[1] = message.channel;
    message.channel = WH_NO_SOCKET;
    wh_message_clear(&message);
}

static bool has_channels(const world *w) {
    return w->groups[0]->ops->connect != NULL;
}

static void test_channel_carries_bytes_both_ways(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_inbox *inbox = open_inbox(w.groups[1], TALK);
    wh_socket ends[2];
    if (!has_channels(&w)) {
        must_fail(WHERRY_UNSUPPORTED, error, wh_group_connect(w.groups[0], 1, TALK, wh_soon(), NULL, ends, &error));
    }
    for (int32_t from = 0; from < RANKS && has_channels(&w); from++) {
        open_channel(&w, from, 1, inbox, ends);
        expect_silence(&ends[0]);
        expect_silence(&ends[1]);
        char text[8] = "";
        write_channel(&ends[1], "there", 6);
        assert_int_equal(read_channel(&ends[0], text, sizeof(text)), 6);
        assert_string_equal(text, "there");
        write_channel(&ends[0], "back", 5);
        assert_int_equal(read_channel(&ends[1], text, sizeof(text)), 5);
        assert_string_equal(text, "back");
        wh_socket_close(&ends[0]);
        assert_int_equal(read_channel(&ends[1], text, sizeof(text)), 0);
        wh_socket_close(&ends[1]);
        wh_send_text(w.groups[from], 1, TALK, "still here");
        take_text(inbox, from, "still here");
    }
    wh_inbox_close(inbox);
    wh_world_close(&w);
}

static void test_channel_needs_an_open_inbox(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_inbox *inbox = open_inbox(w.groups[1], TALK);
    wh_socket end;
    if (has_channels(&w)) {
        for (int32_t to = 0; to < RANKS; to++) {
            must_fail(WHERRY_ABORTED, error, wh_group_connect(w.groups[0], to, OTHER, wh_soon(), NULL, &end, &error));
            must_fail(WHERRY_ABORTED, error, wh_group_connect(w.groups[0], to, 3, wh_soon(), NULL, &end, &error));
        }
        wh_send_text(w.groups[0], 1, TALK, "goes on");
        take_text(inbox, 0, "goes on");
        wh_group_destroy(w.groups[2]);
        w.groups[2] = NULL;
        must_fail(WHERRY_PEER_LOST, error, wh_group_connect(w.groups[0], 2, OTHER, wh_soon(), NULL, &end, &error));
        assert_int_equal(error.rank, 2);
    }
    wh_inbox_close(inbox);
    wh_world_close(&w);
}

/** A thread that opens a channel and reads its number from it. */
typedef struct opener {
    wh_group *group;
    int32_t to;
    wherry_status status;
    char answer;
} opener;

static void *open_and_read(void *context) {
    opener *o = context;
    wh_socket end;
    struct pollfd at = {-1, POLLIN, 0};
    o->status = wh_group_connect(o->group, o->to, TALK, wh_soon(), NULL, &end, NULL);
    if (o->status == WHERRY_OK) {
        struct iovec into = {&o->answer, 1};
        at.fd = end.fd;
        if (poll(&at, 1, SOON_MS) != 1 || wh_socket_read(&end, &into, 1) != 1) {
            o->status = WHERRY_INTERNAL;
        }
        wh_socket_close(&end);
    }
    return NULL;
}

static void test_many_channels_open_at_once(void **state) {
    (void)state;
    world w = wh_world_open();
    if (has_channels(&w)) {
        wh_inbox *inbox = open_inbox(w.groups[1], TALK);
        opener openers[CHANNELS];
        pthread_t threads[CHANNELS];
        for (int i = 0; i < CHANNELS; i++) {
            openers[i] = (opener){w.groups[i % 2 * 2], 1, WHERRY_INTERNAL, 0};
            assert_int_equal(pthread_create(threads + i, NULL, open_and_read, openers + i), 0);
        }
        for (int i = 0; i < CHANNELS; i++) {
            wh_message message;
            must(wh_inbox_take(inbox, wh_soon(), &message, &error));
            assert_int_equal(message.kind, WH_MESSAGE_CHANNEL);
            write_channel(&message.channel, "+", 1);
            wh_message_clear(&message);
        }
        for (int i = 0; i < CHANNELS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(openers[i].status, WHERRY_OK);
            assert_int_equal(openers[i].answer, '+');
        }
        wh_inbox_close(inbox);
    }
    wh_world_close(&w);
}

/**
 * The caller owns its channels, so they outlive the group. A channel that nobody took is closed
 * together with its inbox.
 */
static void test_channels_outlive_the_group(void **state) {
    (void)state;
    world w = wh_world_open();
    if (has_channels(&w)) {
        wh_inbox *inbox = open_inbox(w.groups[1], TALK);
        wh_socket ends[2];
        wh_socket forgotten;
        char text[8];
        open_channel(&w, 0, 1, inbox, ends);
        must(wh_group_connect(w.groups[0], 1, TALK, wh_soon(), NULL, &forgotten, &error));
        wh_inbox_close(inbox);
        assert_int_equal(read_channel(&forgotten, text, sizeof(text)), 0);
        wh_socket_close(&forgotten);
        wh_group_destroy(w.groups[0]);
        w.groups[0] = NULL;
        write_channel(&ends[1], "yet", 4);
        assert_int_equal(read_channel(&ends[0], text, sizeof(text)), 4);
        wh_socket_close(&ends[0]);
        wh_socket_close(&ends[1]);
    }
    wh_world_close(&w);
}

const struct CMUnitTest wh_inbox_cases[] = {
    cmocka_unit_test(test_inboxes_keep_order_and_do_not_mix),
    cmocka_unit_test(test_messages_without_an_open_inbox_are_dropped),
    cmocka_unit_test(test_every_inbox_hears_of_a_loss_once),
    cmocka_unit_test(test_watch_reports_a_death_without_messages),
    cmocka_unit_test(test_wake_ends_a_take_and_post_delivers),
    cmocka_unit_test(test_service_gets_waiting_and_new_messages),
    cmocka_unit_test(test_channel_carries_bytes_both_ways),
    cmocka_unit_test(test_channel_needs_an_open_inbox),
    cmocka_unit_test(test_many_channels_open_at_once),
    cmocka_unit_test(test_channels_outlive_the_group),
};
const size_t wh_inbox_case_count = sizeof(wh_inbox_cases) / sizeof(*wh_inbox_cases);
