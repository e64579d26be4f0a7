/*
 * The mailbox alone: shares, incarnations, loss, closing, and waits that stay awake. The
 * conformance suite tests other waits, and threads.
 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/mailbox.h"
#include "support/build.h"

enum { SHARE = 16 + 2 * WH_MESSAGE_COST, ROUNDS = 200, LONG_MS = 10000 };

#define TALK (WH_TAG_CONVERSATION | 1)

static wherry_error error;

static wherry_status put(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag, const char *text) {
    return wh_mailbox_put_copy(mailbox, rank, incarnation, tag, text, strlen(text), &error);
}

static wherry_status take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, const char *text) {
    wh_message message;
    wherry_status status = wh_mailbox_take(mailbox, rank, tag, wh_deadline_in_ms(0), &message, &error);
    if (status == WHERRY_OK) {
        assert_int_equal(message.size, strlen(text));
        assert_memory_equal(message.bytes, text, message.size);
        wh_message_clear(&message);
    }
    return status;
}

static void test_shares_limit_messages_per_rank(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(2, SHARE);
    assert_true(wh_mailbox_admit(mailbox, 0, 1));
    assert_true(wh_mailbox_admit(mailbox, 1, 1));
    must(put(mailbox, 0, 1, 1, "0123456789"));
    must_fail(WHERRY_LIMIT, error, put(mailbox, 0, 1, 1, "0123456"));
    must(put(mailbox, 0, 1, 2, "012345"));
    must(put(mailbox, 1, 1, 1, "0123456789abcdef"));
    must(take(mailbox, 0, 1, "0123456789"));
    must(put(mailbox, 0, 1, 1, "0123456"));
    must(take(mailbox, 0, 1, "0123456"));
    must(take(mailbox, 1, 1, "0123456789abcdef"));
    must(put(mailbox, 1, 1, 3, "0123456789abcdef"));
    must_fail(WHERRY_TIMED_OUT, error, take(mailbox, 0, 1, ""));
    must(take(mailbox, 0, 2, "012345"));
    wh_mailbox_destroy(mailbox);
}

/** Empty messages take memory, too. */
static void test_shares_limit_empty_messages(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(1, SHARE);
    assert_true(wh_mailbox_admit(mailbox, 0, 1));
    must(put(mailbox, 0, 1, 1, ""));
    must(put(mailbox, 0, 1, 1, ""));
    must_fail(WHERRY_LIMIT, error, put(mailbox, 0, 1, 1, ""));
    must(take(mailbox, 0, 1, ""));
    must(put(mailbox, 0, 1, 1, ""));
    wh_mailbox_destroy(mailbox);
}

static void test_messages_of_other_incarnations_are_dropped(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(1, SHARE);
    assert_true(wh_mailbox_incarnation(mailbox, 0) == 0);
    must(put(mailbox, 0, 4, 1, "unknown"));
    must_fail(WHERRY_TIMED_OUT, error, take(mailbox, 0, 1, ""));
    assert_true(wh_mailbox_admit(mailbox, 0, 5));
    must(put(mailbox, 0, 5, 1, "five"));
    must(put(mailbox, 0, 4, 1, "stale"));
    assert_true(wh_mailbox_admit(mailbox, 0, 6));
    assert_false(wh_mailbox_admit(mailbox, 0, 5));
    must_fail(WHERRY_TIMED_OUT, error, take(mailbox, 0, 1, ""));
    must(put(mailbox, 0, 6, 1, "six"));
    must(put(mailbox, 0, 5, 1, "late"));
    must(take(mailbox, WHERRY_ANY_RANK, 1, "six"));
    assert_true(wh_mailbox_incarnation(mailbox, 0) == 6);
    wh_mailbox_destroy(mailbox);
}

static void test_loss_comes_after_messages(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(2, SHARE);
    assert_true(wh_mailbox_admit(mailbox, 1, 3));
    must(put(mailbox, 1, 3, 1, "last words"));
    wh_mailbox_lose(mailbox, 1, 2, "not the one that is here");
    assert_true(wh_mailbox_incarnation(mailbox, 1) == 3);
    wh_mailbox_lose(mailbox, 1, 3, "connection reset");
    wh_mailbox_lose(mailbox, 1, 3, "another reason");
    assert_true(wh_mailbox_incarnation(mailbox, 1) == 0);
    must(take(mailbox, 1, 1, "last words"));
    must_fail(WHERRY_PEER_LOST, error, take(mailbox, 1, 1, ""));
    assert_int_equal(error.rank, 1);
    assert_non_null(strstr(error.message, "connection reset"));
    must_fail(WHERRY_TIMED_OUT, error, take(mailbox, WHERRY_ANY_RANK, 1, ""));
    assert_true(wh_mailbox_admit(mailbox, 1, 3));
    must_fail(WHERRY_TIMED_OUT, error, take(mailbox, 1, 1, ""));
    must(put(mailbox, 1, 3, 1, "back"));
    must(take(mailbox, 1, 1, "back"));
    wh_mailbox_destroy(mailbox);
}

static void ignore(void *context, wh_message *message) {
    ++*(int *)context;
    wh_message_clear(message);
}

/**
 * Any process can send under any rank. Even then, messages that nobody asks for cannot fill the
 * memory.
 */
static void test_messages_of_strangers_that_nobody_takes(void **state) {
    (void)state;
    enum { LOOSE = WH_MESSAGE_COST + 8 };
    int served = 0;
    wh_inbox *inbox;
    wh_group group = {.size = 2, .mailbox = wh_mailbox_create(2, SHARE)};
    wh_mailbox_distrust(group.mailbox, LOOSE);
    assert_true(wh_mailbox_admit(group.mailbox, 1, 3));
    must_fail(WHERRY_LIMIT, error, put(group.mailbox, 1, 3, 9, "123456789"));
    must(put(group.mailbox, 1, 3, 9, "12345678"));
    must_fail(WHERRY_LIMIT, error, put(group.mailbox, 1, 3, 9, ""));
    must(wh_inbox_open(&group, TALK, &inbox, &error));
    must(put(group.mailbox, 1, 3, TALK, "talk"));
    wh_inbox_close(inbox);
    must(wh_service_open(&group, 7, ignore, &served, &error));
    for (int i = 0; i < ROUNDS; i++) {
        must(put(group.mailbox, 1, 3, 7, "not kept"));
    }
    wh_service_close(&group, 7);
    assert_int_equal(served, ROUNDS);
    must(take(group.mailbox, 1, 9, "12345678"));
    must(put(group.mailbox, 1, 3, 9, "1234567"));
    wh_mailbox_lose(group.mailbox, 1, 3, "gone");
    must_fail(WHERRY_TIMED_OUT, error, take(group.mailbox, WHERRY_ANY_RANK, 9, "1234567"));
    assert_true(wh_mailbox_admit(group.mailbox, 1, 4));
    must(put(group.mailbox, 1, 4, 9, "12345678"));
    wh_mailbox_destroy(group.mailbox);
}

typedef struct wait_for_rank {
    wh_mailbox *mailbox;
    wherry_status status;
    wherry_error error;
} wait_for_rank;

static void *wait_for_message(void *context) {
    wait_for_rank *wait = context;
    wh_message message;
    wait->status = wh_mailbox_take(wait->mailbox, 1, 1, wh_deadline_in_ms(LONG_MS), &message, &wait->error);
    return NULL;
}

/** A thread that is slow to wake reports the first loss since its wait began, not the last one. */
static void test_the_first_loss_of_a_wait_is_reported(void **state) {
    (void)state;
    wh_message lost;
    wh_inbox *inbox;
    wait_for_rank wait = {.mailbox = wh_mailbox_create(2, SHARE)};
    wh_group group = {.size = 2, .mailbox = wait.mailbox};
    pthread_t thread;
    assert_true(wh_mailbox_admit(wait.mailbox, 1, 3));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_message, &wait), 0);
    while (!wh_mailbox_needs(wait.mailbox, 1)) {
        sched_yield();
    }
    must(wh_inbox_open(&group, TALK, &inbox, &error));
    /* The thread may run in between. That does not matter. */
    wh_mailbox_lose(wait.mailbox, 1, 3, "bytes were altered");
    assert_true(wh_mailbox_admit(wait.mailbox, 1, 3));
    wh_mailbox_lose(wait.mailbox, 1, 3, "the process ended");
    assert_true(wh_mailbox_admit(wait.mailbox, 1, 3));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(wait.status, WHERRY_PEER_LOST);
    assert_non_null(strstr(wait.error.message, "bytes were altered"));
    must(wh_inbox_take(inbox, wh_deadline_in_ms(0), &lost, &error));
    assert_int_equal(lost.kind, WH_MESSAGE_LOST);
    assert_memory_equal(lost.bytes, "bytes were altered", lost.size);
    wh_message_clear(&lost);
    wh_mailbox_lose(wait.mailbox, 1, 3, "another reason");
    must(wh_inbox_take(inbox, wh_deadline_in_ms(0), &lost, &error));
    assert_memory_equal(lost.bytes, "another reason", lost.size);
    wh_message_clear(&lost);
    wh_inbox_close(inbox);
    wh_mailbox_destroy(wait.mailbox);
}

static void test_closed_mailbox_delivers_the_rest(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(1, SHARE);
    assert_true(wh_mailbox_admit(mailbox, 0, 1));
    must(put(mailbox, 0, 1, 1, "there"));
    wh_mailbox_close(mailbox);
    must(take(mailbox, 0, 1, "there"));
    must_fail(WHERRY_CLOSED, error, take(mailbox, 0, 1, ""));
    must(put(mailbox, 0, 1, 1, "left behind"));
    wh_mailbox_destroy(mailbox);
    wh_mailbox_destroy(NULL);
}

/**
 * A wait on an inbox gets the messages that had arrived, then WHERRY_CLOSED. It does not report
 * ranks as lost that were lost because of the close.
 */
static void test_closing_comes_before_losses(void **state) {
    (void)state;
    const uint64_t talk = WH_TAG_CONVERSATION | 1;
    wh_mailbox *mailbox = wh_mailbox_create(2, SHARE);
    wh_group group = {.size = 2, .mailbox = mailbox};
    wh_inbox *inbox;
    wh_message message;
    must(wh_inbox_open(&group, talk, &inbox, &error));
    assert_true(wh_mailbox_admit(mailbox, 1, 1));
    must(put(mailbox, 1, 1, talk, "there"));
    wh_mailbox_close(mailbox);
    wh_mailbox_lose(mailbox, 1, 1, "the connection was given up");
    must(wh_inbox_take(inbox, wh_deadline_in_ms(0), &message, &error));
    assert_int_equal(message.kind, WH_MESSAGE_BYTES);
    wh_message_clear(&message);
    assert_false(wh_inbox_poll(inbox, &message));
    must_fail(WHERRY_CLOSED, error, wh_inbox_take(inbox, wh_deadline_in_ms(0), &message, &error));
    wh_inbox_close(inbox);
    wh_mailbox_destroy(mailbox);
}

/** The events that end a wait. */
typedef enum waking { PUT, LOSE, CLOSE, WAKE, WAKINGS } waking;

typedef struct alarm_clock {
    wh_mailbox *mailbox;
    wh_inbox *inbox;
    waking how;
    useconds_t after;
} alarm_clock;

static void *ring_clock(void *context) {
    const alarm_clock *own = context;
    usleep(own->after);
    switch (own->how) {
    case PUT:
        must(put(own->mailbox, 1, 1, TALK, "there"));
        break;
    case LOSE:
        wh_mailbox_lose(own->mailbox, 1, 1, "gone");
        break;
    case CLOSE:
        wh_mailbox_close(own->mailbox);
        break;
    default:
        wh_inbox_wake(own->inbox);
    }
    return NULL;
}

/** Each event ends a wait that polls, and also one that has just begun to sleep. */
static void test_every_event_ends_an_awake_wait(void **state) {
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        alarm_clock clock = {.mailbox = wh_mailbox_create(2, SHARE), .how = (waking)(i % WAKINGS)};
        wh_group group = {.size = 2, .mailbox = clock.mailbox};
        wh_message message;
        pthread_t thread;
        clock.after = (useconds_t)(i * 20 % 400);
        must(wh_inbox_open(&group, TALK, &clock.inbox, &error));
        assert_true(wh_mailbox_admit(clock.mailbox, 1, 1));
        uint64_t begun = wh_clock_now();
        assert_int_equal(pthread_create(&thread, NULL, ring_clock, &clock), 0);
        wh_mailbox_stay_awake(clock.mailbox);
        wherry_status status = wh_inbox_take(clock.inbox, wh_deadline_in_ms(LONG_MS), &message, &error);
        assert_true(wh_clock_now() - begun < LONG_MS * UINT64_C(1000000) / 2);
        assert_int_equal(status, clock.how == CLOSE ? WHERRY_CLOSED : clock.how == WAKE ? WHERRY_TIMED_OUT : WHERRY_OK);
        if (status == WHERRY_OK) {
            assert_int_equal(message.kind, clock.how == PUT ? WH_MESSAGE_BYTES : WH_MESSAGE_LOST);
            wh_message_clear(&message);
        }
        pthread_join(thread, NULL);
        wh_inbox_close(clock.inbox);
        wh_mailbox_destroy(clock.mailbox);
    }
}

/** A wait with timeout 0 returns at once, even while staying awake. */
static void test_awake_wait_keeps_its_deadline(void **state) {
    (void)state;
    wh_mailbox *mailbox = wh_mailbox_create(1, SHARE);
    for (int i = 0; i < ROUNDS; i++) {
        wh_mailbox_stay_awake(mailbox);
        must_fail(WHERRY_TIMED_OUT, error, take(mailbox, 0, 1, ""));
    }
    wh_mailbox_destroy(mailbox);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_limit_messages_per_rank),
        cmocka_unit_test(test_shares_limit_empty_messages),
        cmocka_unit_test(test_messages_of_other_incarnations_are_dropped),
        cmocka_unit_test(test_loss_comes_after_messages),
        cmocka_unit_test(test_messages_of_strangers_that_nobody_takes),
        cmocka_unit_test(test_the_first_loss_of_a_wait_is_reported),
        cmocka_unit_test(test_closed_mailbox_delivers_the_rest),
        cmocka_unit_test(test_closing_comes_before_losses),
        cmocka_unit_test(test_every_event_ends_an_awake_wait),
        cmocka_unit_test(test_awake_wait_keeps_its_deadline),
    };
    return cmocka_run_group_tests_name("mailbox", tests, NULL, NULL);
}
