/*
 * A table with a wake function: waking an inbox ends a wait inside the table's receive at once, not
 * only at its timeout.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "group/callback/callback.h"
#include "group/mailbox.h"
#include "support/build.h"

enum { FOR_EVER_MS = 60000 };

static wherry_error error;

/** A receive that returns only when it is woken, whatever its timeout. */
typedef struct sleeper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool inside;
    bool woken;
} sleeper;

static wherry_status send_nothing(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                                  wherry_error *why) {
    (void)context, (void)rank, (void)bytes, (void)size, (void)timeout_ms, (void)why;
    return WHERRY_TIMED_OUT;
}

static wherry_status sleep_on(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                              wherry_error *why) {
    sleeper *own = context;
    (void)timeout_ms, (void)deliver, (void)sink, (void)why;
    pthread_mutex_lock(&own->lock);
    atomic_store(&own->inside, true);
    while (!own->woken) {
        pthread_cond_wait(&own->changed, &own->lock);
    }
    pthread_mutex_unlock(&own->lock);
    return WHERRY_OK;
}

static void wake(void *context) {
    sleeper *own = context;
    pthread_mutex_lock(&own->lock);
    own->woken = true;
    pthread_cond_signal(&own->changed);
    pthread_mutex_unlock(&own->lock);
}

static void *wait_for_a_message(void *context) {
    wh_message message;
    assert_int_equal(wh_inbox_take(context, wh_deadline_in_ms(FOR_EVER_MS), &message, &error), WHERRY_TIMED_OUT);
    return NULL;
}

static void test_waking_an_inbox_ends_a_receive(void **state) {
    (void)state;
    sleeper own = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    wherry_group_ops ops;
    wh_group *group;
    wh_inbox *inbox;
    pthread_t thread;
    wherry_group_ops_init(&ops);
    ops.size = 2;
    ops.send = send_nothing;
    ops.receive = sleep_on;
    ops.wake = wake;
    must(wh_callback_create(&ops, &own, &group, &error));
    must(wh_inbox_open(group, wh_random_tag(), &inbox, &error));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_a_message, inbox), 0);
    while (!atomic_load(&own.inside)) {
        sched_yield();
    }
    wh_inbox_wake(inbox);
    pthread_join(thread, NULL); /* This hangs if the thread is not woken. */
    wh_inbox_close(inbox);
    wh_group_destroy(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waking_an_inbox_ends_a_receive)};
    wherry_log_set_level(WHERRY_LOG_OFF);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
