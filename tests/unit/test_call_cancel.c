/* Cancels: a request wakes every call that is attached, now or later, but none that is detached. */
#include "support/asleep.h"
#include "support/build.h"

#include <pthread.h>
#include <unistd.h>

#include "support/counting_allocator.h"
#include "support/local_group.h"
#include "transfer/call.h"

enum { CALLS = 3, LONG_MS = 20000 };

static wherry_error error;

typedef struct place {
    wh_local_hub *hub;
    wh_group *group;
    wh_inbox *inboxes[CALLS];
    wh_call calls[CALLS];
    wherry_cancel *cancel;
} place;

static void place_open(place *p) {
    *p = (place){.hub = wh_local_hub_create(1)};
    p->group = wh_local_join(p->hub, 0);
    must(wherry_cancel_create(&p->cancel, &error));
    for (uint64_t i = 0; i < CALLS; i++) {
        p->calls[i].options.cancel = p->cancel;
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

/** True if a wait on the inbox ended because it was woken, not because of its deadline. */
static bool was_woken(wh_inbox *inbox, int64_t ms) {
    wh_message message;
    uint64_t begun = wh_clock_now();
    assert_int_equal(wh_inbox_take(inbox, wh_deadline_in_ms(ms), &message, &error), WHERRY_TIMED_OUT);
    return wh_clock_now() - begun < (uint64_t)ms * 1000000;
}

static void test_request_wakes_attached_calls(void **state) {
    (void)state;
    /* Detaches the first, the middle and the last of the list. */
    for (int leaves = 0; leaves < CALLS; leaves++) {
        place p;
        place_open(&p);
        for (int i = 0; i < CALLS; i++) {
            wh_call_attach(p.calls + i, p.inboxes[i]);
        }
        wh_call_detach(p.calls + leaves);
        assert_false(wherry_cancel_requested(p.cancel));
        wherry_cancel_request(p.cancel);
        assert_true(wherry_cancel_requested(p.cancel));
        for (int i = 0; i < CALLS; i++) {
            assert_true(was_woken(p.inboxes[i], i == leaves ? 20 : LONG_MS) == (i != leaves));
        }
        for (int i = 0; i < CALLS; i++) {
            wh_call_detach(p.calls + i); /* One of the calls was already detached. */
        }
        place_close(&p);
    }
}

static void *request(void *context) {
    wh_await_asleep(getpid());
    wherry_cancel_request(context);
    return NULL;
}

static void test_request_wakes_another_thread(void **state) {
    (void)state;
    place p;
    pthread_t thread;
    place_open(&p);
    wh_call_attach(p.calls, p.inboxes[0]);
    assert_int_equal(pthread_create(&thread, NULL, request, p.cancel), 0);
    assert_true(was_woken(p.inboxes[0], LONG_MS));
    assert_true(wherry_cancel_requested(p.cancel));
    pthread_join(thread, NULL);
    wh_call_detach(p.calls);
    place_close(&p);
}

/**
 * A cancel also requests the stop of a call, even if the stop is set after the request. It does not
 * touch a stop that was removed before.
 */
static void test_request_sets_the_stop_of_a_call(void **state) {
    (void)state;
    for (int early = 0; early < 2; early++) {
        place p;
        wh_stop first = {.event = -1};
        wh_stop second = {.event = -1};
        place_open(&p);
        wh_call_attach(p.calls, p.inboxes[0]);
        wh_call_set_stop(p.calls, &first);
        wh_call_set_stop(p.calls, NULL);
        if (early) {
            wherry_cancel_request(p.cancel);
        }
        wh_call_set_stop(p.calls, &second);
        if (!early) {
            assert_false(wh_stop_requested(&second));
            wherry_cancel_request(p.cancel);
        }
        assert_true(wh_stop_requested(&second) && !wh_stop_requested(&first));
        wh_call_detach(p.calls);
        p.calls[0].options.cancel = NULL;
        wh_call_set_stop(p.calls, &first);
        assert_false(wh_stop_requested(&first));
        place_close(&p);
    }
}

static void test_request_without_calls_is_harmless(void **state) {
    (void)state;
    place p;
    place_open(&p);
    p.calls[0].options.cancel = NULL;
    wh_call_attach(p.calls, p.inboxes[0]);
    wh_call_detach(p.calls);
    p.calls[0].options.cancel = p.cancel;
    assert_false(wherry_cancel_requested(NULL));
    wherry_cancel_request(p.cancel);
    wherry_cancel_request(p.cancel);
    wh_call_detach(p.calls); /* This call was never attached. */
    assert_false(was_woken(p.inboxes[0], 20));
    wherry_cancel_destroy(NULL);
    place_close(&p);
}

static void test_refuses_bad_arguments_and_reports_no_memory(void **state) {
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
        cmocka_unit_test(test_request_wakes_attached_calls),
        cmocka_unit_test(test_request_wakes_another_thread),
        cmocka_unit_test(test_request_sets_the_stop_of_a_call),
        cmocka_unit_test(test_request_without_calls_is_harmless),
        cmocka_unit_test(test_refuses_bad_arguments_and_reports_no_memory),
    };
    return cmocka_run_group_tests_name("call_cancel", tests, NULL, NULL);
}
