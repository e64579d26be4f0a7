/* Cancels: a request wakes every call that has it, now or later, and none that had it before. */
#include "support/asleep.h"
#include "support/build.h"

#include <pthread.h>
#include <unistd.h>

#include "support/counting_allocator.h"
#include "support/local_group.h"
#include "transfer/cancel.h"

enum { CALLS = 3, LONG_MS = 20000 };

static wherry_error error;

typedef struct place {
    wh_local_hub *hub;
    wh_group *group;
    wh_inbox *inboxes[CALLS];
    wh_cancellable calls[CALLS];
    wherry_cancel *cancel;
} place;

static void place_open(place *p) {
    *p = (place){.hub = wh_local_hub_create(1)};
    p->group = wh_local_join(p->hub, 0);
    must(wherry_cancel_create(&p->cancel, &error));
    for (uint64_t i = 0; i < CALLS; i++) {
        must(wh_inbox_open(p->group, WH_TAG_CONVERSATION | i, p->inboxes + i, &error));
    }
}

static void place_close(place *p) {
    for (int i = 0; i < CALLS; i++) {
        wh_inbox_close(p->inboxes[i]);
    }
    wherry_cancel_destroy(p->cancel);
    wh_group_destroy(p->group);
    wh_local_hub_release(p->hub);
}

/** Whether somebody who waits on an inbox was woken rather than out of patience. */
static bool was_woken(wh_inbox *inbox, int64_t ms) {
    wh_message message;
    uint64_t begun = wh_clock_now();
    assert_int_equal(wh_inbox_take(inbox, wh_deadline_in_ms(ms), &message, &error), WHERRY_TIMED_OUT);
    return wh_clock_now() - begun < (uint64_t)ms * 1000000;
}

static void test_a_request_wakes_all_that_are_attached(void **state) {
    (void)state;
    /* the first, the middle, the last of the list */
    for (int leaves = 0; leaves < CALLS; leaves++) {
        place p;
        place_open(&p);
        for (int i = 0; i < CALLS; i++) {
            wh_cancel_attach(p.cancel, p.calls + i, p.inboxes[i]);
        }
        wh_cancel_detach(p.cancel, p.calls + leaves);
        assert_false(wherry_cancel_requested(p.cancel));
        wherry_cancel_request(p.cancel);
        assert_true(wherry_cancel_requested(p.cancel));
        for (int i = 0; i < CALLS; i++) {
            assert_true(was_woken(p.inboxes[i], i == leaves ? 20 : LONG_MS) == (i != leaves));
        }
        for (int i = 0; i < CALLS; i++) {
            wh_cancel_detach(p.cancel, p.calls + i); /* one of them for the second time */
        }
        place_close(&p);
    }
}

static void *request(void *context) {
    wh_await_asleep(getpid());
    wherry_cancel_request(context);
    return NULL;
}

static void test_from_another_thread(void **state) {
    (void)state;
    place p;
    pthread_t thread;
    place_open(&p);
    wh_cancel_attach(p.cancel, p.calls, p.inboxes[0]);
    assert_int_equal(pthread_create(&thread, NULL, request, p.cancel), 0);
    assert_true(was_woken(p.inboxes[0], LONG_MS));
    assert_true(wherry_cancel_requested(p.cancel));
    pthread_join(thread, NULL);
    wh_cancel_detach(p.cancel, p.calls);
    place_close(&p);
}

/**
 * A call's stop is requested too, also one that it has only after the request; one that it has no
 * more is left alone.
 */
static void test_stops(void **state) {
    (void)state;
    for (int early = 0; early < 2; early++) {
        place p;
        wh_stop first = {.event = -1};
        wh_stop second = {.event = -1};
        place_open(&p);
        wh_cancel_attach(p.cancel, p.calls, p.inboxes[0]);
        wh_cancel_aim(p.cancel, p.calls, &first);
        wh_cancel_aim(p.cancel, p.calls, NULL);
        if (early) {
            wherry_cancel_request(p.cancel);
        }
        wh_cancel_aim(p.cancel, p.calls, &second);
        if (!early) {
            assert_false(wh_stop_requested(&second));
            wherry_cancel_request(p.cancel);
        }
        assert_true(wh_stop_requested(&second) && !wh_stop_requested(&first));
        wh_cancel_detach(p.cancel, p.calls);
        wh_cancel_aim(NULL, p.calls, &first);
        assert_false(wh_stop_requested(&first));
        place_close(&p);
    }
}

static void test_nothing_to_cancel(void **state) {
    (void)state;
    place p;
    place_open(&p);
    wh_cancel_attach(NULL, p.calls, p.inboxes[0]);
    wh_cancel_detach(NULL, p.calls);
    assert_false(wherry_cancel_requested(NULL));
    wherry_cancel_request(p.cancel);
    wherry_cancel_request(p.cancel);
    wh_cancel_detach(p.cancel, p.calls); /* that was never attached */
    assert_false(was_woken(p.inboxes[0], 20));
    wherry_cancel_destroy(NULL);
    place_close(&p);
}

static void test_arguments_and_memory(void **state) {
    (void)state;
    counting count;
    wherry_cancel *cancel = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_cancel_create(NULL, &error));
    counting_begin(&count);
    count.fail = 1;
    must_fail(WHERRY_NO_MEMORY, error, wherry_cancel_create(&cancel, &error));
    assert_null(cancel);
    wherry_allocator_set(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_wakes_all_that_are_attached),
        cmocka_unit_test(test_from_another_thread),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_nothing_to_cancel),
        cmocka_unit_test(test_arguments_and_memory),
    };
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
