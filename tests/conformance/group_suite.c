#include "conformance/group_suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/group_world.h"
#include "group/mailbox.h"
#include "support/asleep.h"

static wherry_error error;

static void test_messages_with_one_tag_arrive_in_order(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_send_text(w.groups[0], 1, 7, "first");
    wh_send_text(w.groups[0], 1, INT64_MAX, "other");
    wh_send_text(w.groups[0], 1, 7, "second");
    wh_send_text(w.groups[2], 1, 7, "from two");
    wh_expect_text(w.groups[1], 2, 7, "from two", 2);
    wh_expect_text(w.groups[1], 0, INT64_MAX, "other", 0);
    wh_expect_text(w.groups[1], 0, 7, "first", 0);
    wh_expect_text(w.groups[1], WHERRY_ANY_RANK, 7, "second", 0);
    wh_world_close(&w);
}

static void test_a_rank_can_send_to_itself(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_send_text(w.groups[0], 0, 1, "note");
    wh_expect_text(w.groups[0], 0, 1, "note", 0);
    wh_world_close(&w);
}

/** A sending thread. Without WH_GROUP_BACKGROUND, a long message needs a concurrent reader. */
typedef struct sender {
    wh_group *group;
    int32_t to;
    uint64_t tag;
    const void *bytes;
    size_t size;
    wherry_status status;
} sender;

static void *send_bytes(void *context) {
    sender *s = context;
    s->status = wh_group_send(s->group, s->to, s->tag, s->bytes, s->size, wh_soon(), NULL);
    return NULL;
}

static void test_messages_of_any_size_arrive(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 65536, 65537, 1 << 20, (8 << 20) + 3};
    world w = wh_world_open();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        unsigned char *bytes = malloc(sizes[i] + 1);
        wh_message message;
        for (size_t b = 0; b < sizes[i]; b++) {
            bytes[b] = (unsigned char)(b * 31 + i);
        }
        sender sending = {w.groups[0], 2, i, bytes, sizes[i], WHERRY_INTERNAL};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, send_bytes, &sending), 0);
        must(wh_group_receive(w.groups[2], 0, i, wh_soon(), &message, &error));
        pthread_join(thread, NULL);
        assert_int_equal(sending.status, WHERRY_OK);
        assert_int_equal(message.size, sizes[i]);
        assert_memory_equal(message.bytes, bytes, sizes[i]);
        wh_message_clear(&message);
        free(bytes);
    }
    wh_world_close(&w);
}

static void test_receive_times_out(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_message message;
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_TIMED_OUT, error, wh_group_receive(w.groups[0], 1, 5, wh_deadline_in_ms(30), &message, &error));
    uint64_t waited = (wh_clock_now() - begin) / 1000000;
    assert_true(waited >= 30 && waited < SOON_MS);
    assert_non_null(strstr(error.message, "timed out"));
    assert_int_equal(error.rank, 1);
    must_fail(WHERRY_TIMED_OUT, error,
              wh_group_receive(w.groups[0], WHERRY_ANY_RANK, 5, wh_deadline_in_ms(0), &message, &error));
    wh_send_text(w.groups[1], 0, 5, "late");
    wh_expect_text(w.groups[0], 1, 5, "late", 1);
    wh_world_close(&w);
}

static void test_refuses_invalid_arguments(void **state) {
    (void)state;
    world w = wh_world_open();
    wh_message message;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_send(w.groups[0], RANKS, 1, "x", 1, wh_soon(), &error));
    assert_int_equal(error.rank, RANKS);
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_group_send(w.groups[0], WHERRY_ANY_RANK, 1, "x", 1, wh_soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_send(w.groups[0], 1, 1, NULL, 1, wh_soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_group_send(w.groups[0], 1, 1, "x", WH_MESSAGE_MAX + 1, wh_soon(), &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_group_receive(w.groups[0], -2, 1, wh_soon(), &message, &error));
    wh_world_close(&w);
}

static void count_message(void *context, wh_message *message) {
    atomic_fetch_add((atomic_int *)context, 1);
    wh_message_clear(message);
}

/** With WH_GROUP_BACKGROUND, messages arrive while no call runs; without it, only during a call. */
static void test_messages_arrive_in_the_background(void **state) {
    (void)state;
    world w = wh_world_open();
    bool background = wh_group_can(w.groups[1], WH_GROUP_BACKGROUND);
    atomic_int arrived = 0;
    wh_message message;
    assert_true(background || w.groups[1]->ops->pump);
    must(wh_service_open(w.groups[1], 9, count_message, &arrived, &error));
    wh_send_text(w.groups[0], 1, 9, "anybody there?");
    wh_deadline end = background ? wh_soon() : wh_deadline_in_ms(50);
    while (!atomic_load(&arrived) && !wh_deadline_passed(end)) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(&arrived), background);
    for (end = wh_soon(); !atomic_load(&arrived) && !wh_deadline_passed(end);) {
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(w.groups[1], 0, 3, wh_deadline_in_ms(20), &message, &error));
    }
    assert_int_equal(atomic_load(&arrived), 1);
    wh_service_close(w.groups[1], 9);
    wh_world_close(&w);
}

/** A thread that waits for a message, and the result of the wait. */
typedef struct waiter {
    wh_group *group;
    int32_t rank;
    uint64_t tag;
    wherry_status status;
    wherry_error error;
    uint64_t ended;
    atomic_bool begun;
} waiter;

static void *wait_for_message(void *context) {
    waiter *w = context;
    wh_message message;
    atomic_store(&w->begun, true);
    w->status = wh_group_receive(w->group, w->rank, w->tag, wh_soon(), &message, &w->error);
    w->ended = wh_clock_now();
    if (w->status == WHERRY_OK) {
        wh_message_clear(&message);
    }
    return NULL;
}

/** Returns once the thread is blocked in its call. */
static void await_blocked(waiter *w) {
    while (!atomic_load(&w->begun)) {
        usleep(1000);
    }
    wh_await_asleep(getpid());
}

static void test_death_ends_a_waiting_receive(void **state) {
    (void)state;
    world w = wh_world_open();
    waiter waiting = {.group = w.groups[0], .rank = 1, .tag = 9};
    pthread_t thread;
    wh_send_text(w.groups[1], 0, 8, "before");
    wh_send_text(w.groups[0], 1, 8, "hello");
    wh_expect_text(w.groups[1], 0, 8, "hello", 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_message, &waiting), 0);
    await_blocked(&waiting);
    uint64_t died = wh_clock_now();
    wh_group_destroy(w.groups[1]);
    w.groups[1] = NULL;
    pthread_join(thread, NULL);
    assert_int_equal(waiting.status, WHERRY_PEER_LOST);
    assert_int_equal(waiting.error.rank, 1);
    assert_true((waiting.ended - died) / 1000000 < DEATH_MS);
    wh_expect_text(w.groups[0], 1, 8, "before", 1);
    wherry_status status = WHERRY_OK;
    for (int i = 0; i < 100 && status == WHERRY_OK; i++) {
        status = wh_group_send(w.groups[0], 1, 8, "x", 1, wh_deadline_in_ms(DEATH_MS), &error);
        usleep(10000);
    }
    assert_int_equal(status, WHERRY_PEER_LOST);
    wh_send_text(w.groups[0], 2, 8, "still works");
    wh_expect_text(w.groups[2], 0, 8, "still works", 0);
    wh_world_close(&w);
}

/** A rank counts as lost until its new incarnation is known; that must be soon. */
static void wait_until_back(wh_group *group, int32_t rank) {
    wherry_status status = WHERRY_PEER_LOST;
    for (wh_deadline end = wh_soon(); status == WHERRY_PEER_LOST && !wh_deadline_passed(end);) {
        wh_message message;
        status = wh_group_receive(group, rank, UINT64_MAX, wh_deadline_in_ms(5), &message, &error);
        usleep(1000);
    }
    assert_int_equal(status, WHERRY_TIMED_OUT);
}

/** For groups without WH_GROUP_REJOIN: receive and send keep failing for a rank that has left. */
static void expect_to_stay_lost(world *w) {
    wh_message message;
    wh_send_text(w->groups[1], 0, 8, "before");
    wh_expect_text(w->groups[0], 1, 8, "before", 1);
    wh_group_destroy(w->groups[1]);
    w->groups[1] = NULL;
    for (int i = 0; i < 3; i++) {
        must_fail(WHERRY_PEER_LOST, error, wh_group_receive(w->groups[0], 1, 9, wh_soon(), &message, &error));
        assert_int_equal(error.rank, 1);
        must_fail(WHERRY_PEER_LOST, error, wh_group_send(w->groups[0], 1, 9, "x", 1, wh_soon(), &error));
        assert_int_equal(error.rank, 1);
    }
    wh_send_text(w->groups[0], 2, 8, "still works");
    wh_expect_text(w->groups[2], 0, 8, "still works", 0);
}

/**
 * Every rank, 0 included, is replaced in turn. A call that waits for it returns, and messages of
 * the old incarnation are dropped.
 */
static void test_any_rank_can_be_replaced(void **state) {
    (void)state;
    world w = wh_world_open();
    bool can = wh_group_can(w.groups[0], WH_GROUP_REJOIN);
    if (!can) {
        expect_to_stay_lost(&w);
    }
    for (int32_t rank = 0; can && rank < RANKS; rank++) {
        int32_t other = (rank + 1) % RANKS;
        waiter waiting = {.group = w.groups[other], .rank = rank, .tag = 77};
        pthread_t thread;
        wh_message message;
        wh_send_text(w.groups[rank], other, 5, "of the former incarnation");
        wh_send_text(w.groups[rank], other, 8, "it has come");
        wh_expect_text(w.groups[other], rank, 8, "it has come", rank);
        wh_send_text(w.groups[other], rank, 6, "hello");
        wh_expect_text(w.groups[rank], other, 6, "hello", other);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_message, &waiting), 0);
        await_blocked(&waiting);
        wh_group *former = w.groups[rank];
        w.groups[rank] = wh_kind->join(w.place, rank);
        pthread_join(thread, NULL);
        assert_int_equal(waiting.status, WHERRY_PEER_LOST);
        must_fail(WHERRY_CLOSED, error, wh_group_receive(former, other, 6, wh_soon(), &message, &error));
        wh_group_destroy(former);
        wh_send_text(w.groups[rank], other, 6, "new");
        wait_until_back(w.groups[other], rank);
        wh_expect_text(w.groups[other], rank, 6, "new", rank);
        must_fail(WHERRY_TIMED_OUT, error,
                  wh_group_receive(w.groups[other], rank, 5, wh_deadline_in_ms(20), &message, &error));
    }
    wh_world_close(&w);
}

enum { TALKERS = 4, WORDS = 500 };

/** One of several threads, each with its own tag. */
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
        t->failures += wh_group_send(t->group, t->peer, t->tag, &i, sizeof(i), wh_soon(), NULL) != WHERRY_OK;
        if (wh_group_receive(t->group, t->peer, t->tag, wh_soon(), &message, NULL) != WHERRY_OK) {
            t->failures++;
            break;
        }
        t->failures += message.size != sizeof(i) || memcmp(message.bytes, &i, sizeof(i)) != 0;
        wh_message_clear(&message);
    }
    return NULL;
}

static void test_many_threads_share_a_group(void **state) {
    (void)state;
    world w = wh_world_open();
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
    wh_world_close(&w);
}

int wh_group_suite_run(const wh_group_kind *wanted) {
    wh_kind = wanted;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_with_one_tag_arrive_in_order),
        cmocka_unit_test(test_a_rank_can_send_to_itself),
        cmocka_unit_test(test_messages_of_any_size_arrive),
        cmocka_unit_test(test_receive_times_out),
        cmocka_unit_test(test_refuses_invalid_arguments),
        cmocka_unit_test(test_death_ends_a_waiting_receive),
        cmocka_unit_test(test_any_rank_can_be_replaced),
        cmocka_unit_test(test_many_threads_share_a_group),
        cmocka_unit_test(test_messages_arrive_in_the_background),
    };
    size_t own = sizeof(tests) / sizeof(*tests);
    struct CMUnitTest *all = calloc(own + wh_inbox_case_count, sizeof(*all));
    memcpy(all, tests, sizeof(tests));
    memcpy(all + own, wh_inbox_cases, wh_inbox_case_count * sizeof(*all));
    int failed = _cmocka_run_group_tests(wanted->name, all, own + wh_inbox_case_count, NULL, NULL);
    free(all);
    return failed;
}
