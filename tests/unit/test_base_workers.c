/*
 * Workers: each worker has its own number. The first error becomes their error and stops the
 * other workers. The end of the workers wakes an inbox.
 */
#include "support/build.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/workers.h"
#include "group/mailbox.h"
#include "support/local_group.h"

static wherry_error error;

typedef struct yard {
    atomic_uint seen[WH_WORKERS_MAX];
    uint32_t failing; /**< The worker that fails. */
    wh_stop stop;
    atomic_bool signals_open;
    atomic_bool go;
} yard;

static void yard_open(yard *y) {
    *y = (yard){.failing = UINT32_MAX};
    must(wh_stop_init(&y->stop, &error));
}

static wherry_status count_worker(void *context, uint32_t worker, wherry_error *e) {
    (void)e;
    yard *y = context;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    if (!sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGUSR1)) {
        atomic_store(&y->signals_open, true);
    }
    atomic_fetch_add(y->seen + worker, 1);
    return WHERRY_OK;
}

static void test_runs_each_worker_once(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 2, 7, WH_WORKERS_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        static yard y;
        wh_workers workers = {0};
        sigset_t before;
        sigset_t after;
        yard_open(&y);
        pthread_sigmask(SIG_BLOCK, NULL, &before);
        must(wh_workers_start(&workers, counts[i], count_worker, &y, &y.stop, NULL, NULL, &error));
        pthread_sigmask(SIG_BLOCK, NULL, &after);
        /* The signal mask of the starting thread is unchanged. */
        assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
        assert_true(wh_workers_exist(&workers));
        must(wh_workers_join(&workers, &error));
        assert_false(wh_workers_exist(&workers));
        for (uint32_t k = 0; k < WH_WORKERS_MAX; k++) {
            assert_int_equal(y.seen[k], k < counts[i]);
        }
        assert_false(y.signals_open);
        assert_false(wh_stop_requested(&y.stop));
        wh_stop_destroy(&y.stop);
    }
}

static wherry_status wait_for_stop(void *context, uint32_t worker, wherry_error *e) {
    yard *y = context;
    if (worker == y->failing) {
        return wh_fail(e, WHERRY_CORRUPT, "worker %u", (unsigned)worker);
    }
    while (!wh_stop_requested(&y->stop)) {
        usleep(1000);
    }
    return wh_fail(e, WHERRY_CANCELLED, "stopped");
}

/**
 * The other workers wait until they are stopped. Their later errors do not replace the first one.
 */
static void test_first_error_stops_the_other_workers(void **state) {
    (void)state;
    for (uint32_t failing = 0; failing < 4; failing++) {
        static yard y;
        wh_workers workers = {0};
        yard_open(&y);
        y.failing = failing;
        must(wh_workers_start(&workers, 4, wait_for_stop, &y, &y.stop, NULL, NULL, &error));
        must_fail(WHERRY_CORRUPT, error, wh_workers_join(&workers, &error));
        char expected[32];
        snprintf(expected, sizeof(expected), "worker %u", (unsigned)failing);
        assert_string_equal(error.message, expected);
        wh_stop_destroy(&y.stop);
    }
}

static wherry_status wait_for_go(void *context, uint32_t worker, wherry_error *e) {
    (void)e;
    yard *y = context;
    while (worker == 1 && !atomic_load(&y->go)) {
        usleep(1000);
    }
    return WHERRY_OK;
}

static void wake(void *inbox) {
    wh_inbox_wake(inbox);
}

/** The inbox is woken by the last worker, not by the first. */
static void test_last_worker_wakes_the_inbox(void **state) {
    (void)state;
    static yard y;
    wh_workers workers = {0};
    wh_inbox *inbox;
    wh_message message;
    wh_local_hub *hub = wh_local_hub_create(1);
    wh_group *group = wh_local_join(hub, 0);
    yard_open(&y);
    must(wh_inbox_open(group, WH_TAG_CONVERSATION | 5, &inbox, &error));
    must(wh_workers_start(&workers, 2, wait_for_go, &y, &y.stop, wake, inbox, &error));
    uint64_t begun = wh_clock_now();
    assert_int_equal(wh_inbox_take(inbox, wh_deadline_in_ms(50), &message, &error), WHERRY_TIMED_OUT);
    assert_true(wh_clock_now() - begun >= UINT64_C(49000000) && !wh_workers_have_ended(&workers));
    atomic_store(&y.go, true);
    assert_int_equal(wh_inbox_take(inbox, wh_deadline_in_ms(20000), &message, &error), WHERRY_TIMED_OUT);
    assert_true(wh_clock_now() - begun < UINT64_C(10000000000));
    assert_true(wh_workers_have_ended(&workers));
    must(wh_workers_join(&workers, &error));
    wh_inbox_close(inbox);
    wh_group_destroy(group);
    wh_local_hub_release(hub);
    wh_stop_destroy(&y.stop);
}

static void test_joining_workers_that_never_started_succeeds(void **state) {
    (void)state;
    wh_workers workers = {0};
    assert_false(wh_workers_exist(&workers));
    must(wh_workers_join(&workers, &error));
    must(wh_workers_join(&workers, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_each_worker_once),
        cmocka_unit_test(test_first_error_stops_the_other_workers),
        cmocka_unit_test(test_last_worker_wakes_the_inbox),
        cmocka_unit_test(test_joining_workers_that_never_started_succeeds),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
