#include "conformance/group_suite.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/build.h"

enum { RANKS = 3, SOON_MS = 10000, DEATH_MS = 1000 };

static const wh_group_kind *kind;
static wherry_error error;

/** A world with all ranks in it. */
typedef struct world {
    void *place;
    wh_group *groups[RANKS];
} world;

/** A thread that joins: ranks of some kinds wait for each other. */
typedef struct joiner {
    void *place;
    int32_t rank;
    wh_group *group;
} joiner;

static void *join_world(void *context) {
    joiner *j = context;
    j->group = kind->join(j->place, j->rank);
    return NULL;
}

static world open_world(void) {
    world w = {kind->open(RANKS), {NULL}};
    joiner joiners[RANKS];
    pthread_t threads[RANKS];
    for (int32_t i = 0; i < RANKS; i++) {
        joiners[i] = (joiner){w.place, i, NULL};
        assert_int_equal(pthread_create(threads + i, NULL, join_world, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        w.groups[i] = joiners[i].group;
        assert_non_null(w.groups[i]);
        assert_int_equal(w.groups[i]->rank, i);
        assert_int_equal(w.groups[i]->size, RANKS);
    }
    return w;
}

static void close_world(world *w) {
    for (int32_t i = 0; i < RANKS; i++) {
        wh_group_destroy(w->groups[i]);
    }
    kind->close(w->place);
}

static wh_deadline soon(void) {
    return wh_deadline_in_ms(SOON_MS);
}

static void send_text(wh_group *from, int32_t to, uint64_t tag, const char *text) {
    must(wh_group_send(from, to, tag, text, strlen(text), soon(), &error));
}

static void expect_text(wh_group *at, int32_t from, uint64_t tag, const char *text, int32_t sender) {
    wh_message message;
    must(wh_group_receive(at, from, tag, soon(), &message, &error));
    assert_int_equal(message.rank, sender);
    assert_true(message.tag == tag);
    assert_int_equal(message.size, strlen(text));
    assert_memory_equal(message.bytes, text, message.size);
    wh_message_clear(&message);
}

static void test_order_and_tags(void **state) {
    (void)state;
    world w = open_world();
    send_text(w.groups[0], 1, 7, "first");
    send_text(w.groups[0], 1, INT64_MAX, "other");
    send_text(w.groups[0], 1, 7, "second");
    send_text(w.groups[2], 1, 7, "from two");
    expect_text(w.groups[1], 2, 7, "from two", 2);
    expect_text(w.groups[1], 0, INT64_MAX, "other", 0);
    expect_text(w.groups[1], 0, 7, "first", 0);
    expect_text(w.groups[1], WH_ANY_RANK, 7, "second", 0);
    close_world(&w);
}

static void test_to_oneself(void **state) {
    (void)state;
    world w = open_world();
    send_text(w.groups[0], 0, 1, "note");
    expect_text(w.groups[0], 0, 1, "note", 0);
    close_world(&w);
}

static void test_sizes(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 65536, 65537, 1 << 20, (8 << 20) + 3};
    world w = open_world();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        unsigned char *bytes = malloc(sizes[i] + 1);
        wh_message message;
        for (size_t b = 0; b < sizes[i]; b++) {
            bytes[b] = (unsigned char)(b * 31 + i);
        }
        must(wh_group_send(w.groups[0], 2, i, bytes, sizes[i], soon(), &error));
        must(wh_group_receive(w.groups[2], 0, i, soon(), &message, &error));
        assert_int_equal(message.size, sizes[i]);
        assert_memory_equal(message.bytes, bytes, sizes[i]);
        wh_message_clear(&message);
        free(bytes);
    }
    close_world(&w);
}

static void test_deadline(void **state) {
    (void)state;
    world w = open_world();
    wh_message message;
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(w.groups[0], 1, 5, wh_deadline_in_ms(30), &message, &error));
    uint64_t waited = (wh_clock_now() - begin) / 1000000;
    assert_true(waited >= 30 && waited < SOON_MS);
    assert_non_null(strstr(error.message, "timed out"));
    assert_int_equal(error.rank, 1);
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_receive(w.groups[0], WH_ANY_RANK, 5, wh_deadline_in_ms(0), &message, &error));
    send_text(w.groups[1], 0, 5, "late");
    expect_text(w.groups[0], 1, 5, "late", 1);
    close_world(&w);
}

static void test_arguments(void **state) {
    (void)state;
    world w = open_world();
    wh_message message;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_send(w.groups[0], RANKS, 1, "x", 1, soon(), &error));
    assert_int_equal(error.rank, RANKS);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_send(w.groups[0], WH_ANY_RANK, 1, "x", 1, soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_send(w.groups[0], 1, 1, NULL, 1, soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_group_send(w.groups[0], 1, 1, "x", WH_MESSAGE_MAX + 1, soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_receive(w.groups[0], -2, 1, soon(), &message, &error));
    close_world(&w);
}

static void test_discard(void **state) {
    (void)state;
    world w = open_world();
    wh_message message;
    send_text(w.groups[0], 1, 3, "left over");
    send_text(w.groups[0], 1, 4, "kept");
    expect_text(w.groups[1], 0, 4, "kept", 0);
    wh_group_discard(w.groups[1], 3);
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(w.groups[1], 0, 3, wh_deadline_in_ms(20), &message, &error));
    close_world(&w);
}

/** A thread that waits for a message, and what came of it. */
typedef struct waiter {
    wh_group *group;
    int32_t rank;
    uint64_t tag;
    wherry_status status;
    wherry_error error;
    uint64_t ended;
} waiter;

static void *wait_for_message(void *context) {
    waiter *w = context;
    wh_message message;
    w->status = wh_group_receive(w->group, w->rank, w->tag, soon(), &message, &w->error);
    w->ended = wh_clock_now();
    if (w->status == WHERRY_OK) {
        wh_message_clear(&message);
    }
    return NULL;
}

static void test_death(void **state) {
    (void)state;
    world w = open_world();
    waiter waiting = {.group = w.groups[0], .rank = 1, .tag = 9};
    pthread_t thread;
    send_text(w.groups[1], 0, 8, "before");
    send_text(w.groups[0], 1, 8, "hello");
    expect_text(w.groups[1], 0, 8, "hello", 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_message, &waiting), 0);
    usleep(20000);
    uint64_t died = wh_clock_now();
    wh_group_destroy(w.groups[1]);
    w.groups[1] = NULL;
    pthread_join(thread, NULL);
    assert_int_equal(waiting.status, WHERRY_PEER_LOST);
    assert_int_equal(waiting.error.rank, 1);
    assert_true((waiting.ended - died) / 1000000 < DEATH_MS);
    expect_text(w.groups[0], 1, 8, "before", 1);
    wherry_status status = WHERRY_OK;
    for (int i = 0; i < 100 && status == WHERRY_OK; i++) {
        status = wh_group_send(w.groups[0], 1, 8, "x", 1, wh_deadline_in_ms(DEATH_MS), &error);
        usleep(10000);
    }
    assert_int_equal(status, WHERRY_PEER_LOST);
    send_text(w.groups[0], 2, 8, "the others go on");
    expect_text(w.groups[2], 0, 8, "the others go on", 0);
    close_world(&w);
}

/** A rank counts as lost until its new incarnation has been heard of; that must be soon. */
static void wait_until_back(wh_group *group, int32_t rank) {
    wherry_status status = WHERRY_PEER_LOST;
    for (wh_deadline end = soon(); status == WHERRY_PEER_LOST && !wh_deadline_passed(end);) {
        wh_message message;
        status = wh_group_receive(group, rank, UINT64_MAX, wh_deadline_in_ms(5), &message, &error);
        usleep(1000);
    }
    assert_int_equal(status, WHERRY_TIMED_OUT);
}

/** Every rank, 0 included, is replaced in turn; whoever waited on it is told, and messages of the former one are gone. */
static void test_rejoin(void **state) {
    (void)state;
    world w = open_world();
    for (int32_t rank = 0; rank < RANKS; rank++) {
        int32_t other = (rank + 1) % RANKS;
        waiter waiting = {.group = w.groups[other], .rank = rank, .tag = 77};
        pthread_t thread;
        wh_message message;
        send_text(w.groups[rank], other, 5, "of the former incarnation");
        send_text(w.groups[other], rank, 6, "hello");
        expect_text(w.groups[rank], other, 6, "hello", other);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_message, &waiting), 0);
        usleep(20000);
        wh_group *former = w.groups[rank];
        w.groups[rank] = kind->join(w.place, rank);
        pthread_join(thread, NULL);
        assert_int_equal(waiting.status, WHERRY_PEER_LOST);
        must_fail(WHERRY_CLOSED, error, wh_group_receive(former, other, 6, soon(), &message, &error));
        wh_group_destroy(former);
        send_text(w.groups[rank], other, 6, "new");
        wait_until_back(w.groups[other], rank);
        expect_text(w.groups[other], rank, 6, "new", rank);
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(w.groups[other], rank, 5, wh_deadline_in_ms(20), &message, &error));
    }
    close_world(&w);
}

enum { TALKERS = 4, WORDS = 500 };

/** One of several threads that talk on a tag of their own. */
typedef struct talker {
    wh_group *group;
    uint64_t tag;
    int32_t peer;
    int failures;
} talker;

static void *talk(void *context) {
    talker *t = context;
    for (uint64_t i = 0; i < WORDS; i++) {
        wh_message message;
        t->failures += wh_group_send(t->group, t->peer, t->tag, &i, sizeof(i), soon(), NULL) != WHERRY_OK;
        if (wh_group_receive(t->group, t->peer, t->tag, soon(), &message, NULL) != WHERRY_OK) {
            t->failures++;
            break;
        }
        t->failures += message.size != sizeof(i) || memcmp(message.bytes, &i, sizeof(i)) != 0;
        wh_message_clear(&message);
    }
    return NULL;
}

static void test_many_threads(void **state) {
    (void)state;
    world w = open_world();
    talker talkers[2 * TALKERS];
    pthread_t threads[2 * TALKERS];
    for (int i = 0; i < 2 * TALKERS; i++) {
        talkers[i] = (talker){w.groups[i % 2], (uint64_t)(i / 2), 1 - i % 2, 0};
        assert_int_equal(pthread_create(threads + i, NULL, talk, talkers + i), 0);
    }
    for (int i = 0; i < 2 * TALKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(talkers[i].failures, 0);
    }
    close_world(&w);
}

int wh_group_suite_run(const wh_group_kind *wanted) {
    kind = wanted;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_tags), cmocka_unit_test(test_to_oneself), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_deadline),       cmocka_unit_test(test_arguments),  cmocka_unit_test(test_discard),
        cmocka_unit_test(test_death),          cmocka_unit_test(test_rejoin),     cmocka_unit_test(test_many_threads),
    };
    return _cmocka_run_group_tests(wanted->name, tests, sizeof(tests) / sizeof(*tests), NULL, NULL);
}
