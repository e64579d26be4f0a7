/* Stops: any number of threads see a request, between steps and inside waits, permanently. */
#include "support/asleep.h"
#include "support/build.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/stop.h"

static wherry_error error;

static void test_request_is_permanent(void **state) {
    (void)state;
    wh_stop stop;
    must(wh_stop_init(&stop, &error));
    assert_false(wh_stop_requested(&stop));
    for (int i = 0; i < 3; i++) {
        wh_stop_request(&stop);
        assert_true(wh_stop_requested(&stop));
        struct pollfd fd = {stop.event, POLLIN, 0};
        assert_int_equal(poll(&fd, 1, 0), 1);
    }
    assert_true(fcntl(stop.event, F_GETFD) & FD_CLOEXEC);
    wh_stop_destroy(&stop);
    wh_stop_destroy(&stop);
}

/** Destroying a stop that was never initialized. */
static void test_destroys_an_uninitialized_stop(void **state) {
    (void)state;
    wh_stop stop = {.event = -1};
    wh_stop_request(&stop);
    assert_true(wh_stop_requested(&stop));
    wh_stop_destroy(&stop);
}

static void test_wait_ends_if_the_descriptor_is_ready(void **state) {
    (void)state;
    wh_stop stop;
    int ends[2];
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pipe(ends), 0);
    uint64_t begun = wh_clock_now();
    assert_false(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_in_ms(30)));
    assert_true(wh_clock_now() - begun >= UINT64_C(29000000));
    assert_true(wh_stop_wait_fd(&stop, ends[1], POLLOUT, wh_deadline_in_ms(10000)));
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_true(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_never()));
    wh_stop_request(&stop); /* A stop takes precedence over a ready descriptor. */
    assert_false(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_never()));
    close(ends[0]);
    close(ends[1]);
    wh_stop_destroy(&stop);
}

/** A closed peer counts as ready: the next call on the descriptor reports it. */
static void test_wait_ends_if_the_peer_closed(void **state) {
    (void)state;
    wh_stop stop;
    int ends[2];
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pipe(ends), 0);
    close(ends[1]);
    assert_true(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_in_ms(10000)));
    close(ends[0]);
    wh_stop_destroy(&stop);
}

typedef struct waiter {
    wh_stop *stop;
    int fd;
    bool ready;
} waiter;

static void *wait_long(void *context) {
    waiter *w = context;
    w->ready = wh_stop_wait_fd(w->stop, w->fd, POLLIN, wh_deadline_in_ms(20000));
    return NULL;
}

static void test_request_ends_waits_of_several_threads(void **state) {
    (void)state;
    wh_stop stop;
    int ends[2];
    pthread_t threads[3];
    waiter waiters[3];
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < 3; i++) {
        waiters[i] = (waiter){&stop, ends[0], true};
        assert_int_equal(pthread_create(threads + i, NULL, wait_long, waiters + i), 0);
    }
    wh_await_asleep(getpid());
    uint64_t begun = wh_clock_now();
    wh_stop_request(&stop);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_false(waiters[i].ready);
    }
    assert_true(wh_clock_now() - begun < UINT64_C(5000000000));
    close(ends[0]);
    close(ends[1]);
    wh_stop_destroy(&stop);
}

typedef struct question {
    int asked;
    int yes_at; /**< The number of the call that returns true. */
} question;

static bool answer(void *context) {
    question *q = context;
    return ++q->asked >= q->yes_at;
}

/** Checking the stop calls the question. If it returns true, the stop is requested, permanently. */
static void test_question_can_request_a_stop(void **state) {
    (void)state;
    wh_stop stop;
    question q = {.yes_at = 3};
    must(wh_stop_init(&stop, &error));
    wh_stop_set_question(&stop, answer, &q);
    assert_false(wh_stop_requested(&stop));
    assert_false(wh_stop_requested(&stop));
    wh_stop_set_question(&stop, NULL, NULL);
    assert_false(wh_stop_requested(&stop));
    assert_int_equal(q.asked, 2);
    wh_stop_set_question(&stop, answer, &q);
    assert_true(wh_stop_requested(&stop));
    assert_true(wh_stop_requested(&stop));
    assert_int_equal(q.asked, 3);
    wh_stop_set_question(&stop, NULL, NULL);
    assert_true(wh_stop_requested(&stop));
    wh_stop_destroy(&stop);
}

/** A wait calls the question repeatedly. Only true ends the wait; false does not change it. */
static void test_question_can_end_a_wait(void **state) {
    (void)state;
    wh_stop stop;
    int ends[2];
    question q = {.yes_at = 1000};
    must(wh_stop_init(&stop, &error));
    assert_int_equal(pipe(ends), 0);
    wh_stop_set_question(&stop, answer, &q);
    uint64_t begun = wh_clock_now();
    assert_false(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_in_ms(120)));
    assert_true(wh_clock_now() - begun >= UINT64_C(119000000));
    assert_true(q.asked <= 2);
    q.yes_at = q.asked + 2;
    assert_false(wh_stop_wait_fd(&stop, ends[0], POLLIN, wh_deadline_in_ms(20000)));
    assert_true(wh_clock_now() - begun < UINT64_C(5000000000));
    assert_int_equal(q.asked, q.yes_at);
    assert_true(wh_stop_requested(&stop));
    close(ends[0]);
    close(ends[1]);
    wh_stop_destroy(&stop);
}

static void test_init_fails_without_descriptors(void **state) {
    (void)state;
    struct rlimit before;
    wh_stop stop;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    wherry_status status = wh_stop_init(&stop, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, WHERRY_SYSTEM);
    assert_int_equal(error.status, WHERRY_SYSTEM);
    wh_stop_destroy(&stop);
}

static void *get_mask(void *context) {
    pthread_sigmask(SIG_BLOCK, NULL, context);
    return NULL;
}

static void test_threads_receive_only_their_own_faults(void **state) {
    (void)state;
    sigset_t mask;
    pthread_t thread;
    assert_int_equal(wh_thread_start(&thread, get_mask, &mask), 0);
    pthread_join(thread, NULL);
    assert_true(sigismember(&mask, SIGINT) && sigismember(&mask, SIGCHLD) && sigismember(&mask, SIGUSR1));
    assert_false(sigismember(&mask, SIGBUS) || sigismember(&mask, SIGSEGV));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_is_permanent),
        cmocka_unit_test(test_destroys_an_uninitialized_stop),
        cmocka_unit_test(test_wait_ends_if_the_descriptor_is_ready),
        cmocka_unit_test(test_wait_ends_if_the_peer_closed),
        cmocka_unit_test(test_request_ends_waits_of_several_threads),
        cmocka_unit_test(test_question_can_request_a_stop),
        cmocka_unit_test(test_question_can_end_a_wait),
        cmocka_unit_test(test_init_fails_without_descriptors),
        cmocka_unit_test(test_threads_receive_only_their_own_faults),
    };
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
