/* The queue of requests of a session. */
#include "support/asleep.h"
#include "support/build.h"

#include <sys/resource.h>

#include "support/chunks_scene.h"

/** A scene whose sessions have no request yet. */
static void requests_open(scene *s) {
    scene_open(s, NO_CHECK);
    s->pulls[0].session.queue.last = false;
    s->pulls[1].session.queue.last = false;
}

static void expect_next(scene *s, uint64_t expected) {
    uint64_t chunk = UINT64_MAX;
    assert_true(s->sinks[0].next(s->sinks[0].context, &chunk));
    assert_int_equal(chunk, expected);
}

static void expect_none(scene *s) {
    uint64_t chunk;
    assert_false(s->sinks[0].next(s->sinks[0].context, &chunk));
}

static wh_more more(scene *s, uint32_t wait_ms) {
    return s->sinks[0].more(s->sinks[0].context, wait_ms);
}

/** `next` stays within a request, and `more` continues with the next one. */
static void test_hands_out_two_requests(void **state) {
    (void)state;
    scene s;
    requests_open(&s);
    wh_session *session = &s.pulls[0].session;
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_LATER);
    assert_true(wh_session_request(session, (wherry_interval[]){{0, 1}, {2, 1}}, 2, false));
    assert_int_equal(more(&s, 0), WH_MORE_NOW);
    expect_next(&s, 0);
    /* The request is not done, so the session continues with it. */
    assert_int_equal(more(&s, 0), WH_MORE_NOW);
    expect_next(&s, 2);
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_LATER);
    assert_int_equal(more(&s, 5), WH_MORE_LATER);
    assert_false(wh_session_is_finishing(session));
    assert_true(wh_session_request(session, (wherry_interval[]){{1, 1}, {3, 1}}, 2, true));
    expect_none(&s); /* Only `more` continues with the next request. */
    assert_false(wh_session_is_finishing(session));
    assert_int_equal(more(&s, LONG_MS), WH_MORE_NOW);
    expect_next(&s, 1);
    assert_false(wh_session_is_finishing(session));
    expect_next(&s, 3);
    expect_none(&s);
    assert_true(wh_session_is_finishing(session));
    assert_int_equal(more(&s, 0), WH_MORE_NEVER);
    assert_int_equal(more(&s, LONG_MS), WH_MORE_NEVER);
    expect_none(&s);
    uint64_t chunk;
    /* The other session has its own queue. */
    assert_false(wh_session_next(&s.pulls[1].session, &chunk));
    assert_int_equal(wh_session_more(&s.pulls[1].session, 0), WH_MORE_LATER);
    scene_close(&s);
}

/** Requests may wait for their turn. They stay in order, and may have the same chunk. */
static void test_requests_wait_for_their_turn(void **state) {
    (void)state;
    scene s;
    requests_open(&s);
    wh_session *session = &s.pulls[0].session;
    assert_true(wh_session_request(session, &(wherry_interval){3, 1}, 1, false));
    assert_true(wh_session_request(session, &(wherry_interval){0, 2}, 1, false));
    assert_true(wh_session_request(session, &(wherry_interval){3, 1}, 1, false));
    assert_false(wh_session_finish(session, 2));
    assert_false(wh_session_finish(session, UINT64_MAX));
    assert_false(wh_session_finish(session, 1));
    assert_false(wh_session_is_complete(session, 0));
    /* The chunk counts for the oldest request that has it. */
    assert_true(wh_session_finish(session, 3));
    assert_true(wh_session_is_complete(session, 0));
    assert_false(wh_session_is_complete(session, 1));
    assert_true(wh_session_finish(session, 0));
    assert_true(wh_session_is_complete(session, 1));
    assert_false(wh_session_is_complete(session, 2));
    assert_true(wh_session_finish(session, 3));
    assert_false(wh_session_finish(session, 3));
    assert_false(wh_session_is_complete(session, 3));
    expect_next(&s, 3);
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_NOW);
    expect_next(&s, 0);
    expect_next(&s, 1);
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_NOW);
    expect_next(&s, 3);
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_LATER);
    /* This call only says that no request follows. */
    assert_true(wh_session_request(session, NULL, 0, true));
    assert_int_equal(more(&s, LONG_MS), WH_MORE_NEVER);
    assert_true(wh_session_is_finishing(session));
    scene_close(&s);
}

static uint64_t elapsed_ms(uint64_t since) {
    return (wh_clock_now() - since) / 1000000;
}

/** `more` waits for the given time, except in a thread that must not wait. */
static void test_more_waits(void **state) {
    (void)state;
    scene s;
    requests_open(&s);
    bool waited = false;
    for (int tries = 0; tries < 5 && !waited; tries++) { /* A wait may end early, but not always. */
        uint64_t since = wh_clock_now();
        assert_int_equal(more(&s, 120), WH_MORE_LATER);
        waited = elapsed_ms(since) >= 100;
        assert_true(elapsed_ms(since) < SOON_MS);
    }
    assert_true(waited);
    s.pulls[0].session.in_caller = true;
    uint64_t since = wh_clock_now();
    assert_int_equal(more(&s, LONG_MS), WH_MORE_LATER);
    assert_true(elapsed_ms(since) < SOON_MS);
    scene_close(&s);
}

/** Number of times that this thread has slept. */
static long count_sleeps(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
}

/** After the last request, a thread that must not wait does not sleep either. */
static void test_no_pause_after_the_last_request(void **state) {
    (void)state;
    enum { CALLS = 50 };
    scene s;
    requests_open(&s);
    s.pulls[0].session.in_caller = true;
    long before = count_sleeps();
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(more(&s, LONG_MS), WH_MORE_LATER);
    }
    assert_true(count_sleeps() - before >= CALLS);
    assert_true(wh_session_request(&s.pulls[0].session, &(wherry_interval){1, 1}, 1, true));
    expect_next(&s, 1);
    before = count_sleeps();
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(more(&s, LONG_MS), WH_MORE_NEVER);
    }
    assert_true(count_sleeps() - before < CALLS);
    scene_close(&s);
}

typedef struct waiter {
    scene *scene;
    atomic_bool waits;
    wh_more result;
} waiter;

static void *wait_for_more(void *context) {
    waiter *w = context;
    w->result = WH_MORE_LATER;
    atomic_store(&w->waits, true);
    while (w->result == WH_MORE_LATER) {
        w->result = more(w->scene, LONG_MS);
    }
    return NULL;
}

/**
 * A waiting worker is woken by a request, by the call that says that none follows, and by a stop.
 */
static void test_more_is_woken(void **state) {
    (void)state;
    static const wh_more expected[] = {WH_MORE_NOW, WH_MORE_NEVER, WH_MORE_NEVER};
    for (int event = 0; event < 3; event++) {
        scene s;
        waiter w = {.scene = &s};
        pthread_t thread;
        requests_open(&s);
        wh_session *session = &s.pulls[0].session;
        assert_int_equal(pthread_create(&thread, NULL, wait_for_more, &w), 0);
        while (!atomic_load(&w.waits)) {
            usleep(100);
        }
        wh_await_asleep(getpid());
        uint64_t since = wh_clock_now();
        if (event == 0) {
            assert_true(wh_session_request(session, &(wherry_interval){2, 1}, 1, false));
        } else if (event == 1) {
            assert_true(wh_session_request(session, NULL, 0, true));
        } else {
            wh_session_stop(session);
        }
        pthread_join(thread, NULL);
        assert_true(elapsed_ms(since) < SOON_MS);
        assert_int_equal(w.result, expected[event]);
        if (event == 0) {
            expect_next(&s, 2);
        }
        scene_close(&s);
    }
}

/** After a stop, no chunks are handed out. */
static void test_stop_ends_handing_out(void **state) {
    (void)state;
    scene s;
    requests_open(&s);
    wh_session *session = &s.pulls[0].session;
    assert_true(wh_session_request(session, &(wherry_interval){0, 4}, 1, false));
    assert_true(wh_session_request(&s.pulls[1].session, &(wherry_interval){0, 4}, 1, false));
    expect_next(&s, 0);
    expect_next(&s, 1);
    wh_session_stop(session);
    expect_none(&s);
    assert_int_equal(more(&s, 0), WH_MORE_NEVER);
    assert_int_equal(more(&s, LONG_MS), WH_MORE_NEVER);
    uint64_t chunk;
    assert_true(wh_session_next(&s.pulls[1].session, &chunk)); /* The other session continues. */
    scene_close(&s);
}

static void test_closes_a_session_once(void **state) {
    (void)state;
    scene s;
    requests_open(&s);
    wh_session *session = &s.pulls[0].session;
    assert_true(wh_session_request(session, &(wherry_interval){0, 4}, 1, false));
    assert_true(wh_session_is_open(session));
    assert_ptr_equal(session->site.stop, &session->stop);
    int before = closes;
    wh_session_close(session);
    assert_false(wh_session_is_open(session));
    wh_session_stop(session);
    wh_session_close(session);
    assert_int_equal(closes, before + 1);
    scene_close(&s);
    assert_int_equal(closes, before + 2);
}

/** A request for which there is no memory does not change the queue. */
static void test_reports_failed_requests(void **state) {
    (void)state;
    scene s;
    bool ok = false;
    for (uint64_t fail = 1; !ok; fail++) {
        counting count;
        requests_open(&s);
        wh_session *session = &s.pulls[0].session;
        counting_begin(&count);
        count.fail = fail;
        ok = wh_session_request(session, &(wherry_interval){1, 1}, 1, true);
        assert_true(ok || count.held == 0);
        assert_int_equal(more(&s, 0), ok ? WH_MORE_NOW : WH_MORE_LATER);
        wh_session_close(session);
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
        scene_close(&s);
        /* The three allocations: the two arrays of the list, and the array of requests. */
        assert_true(ok == (fail > 3));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hands_out_two_requests),
        cmocka_unit_test(test_requests_wait_for_their_turn),
        cmocka_unit_test(test_more_waits),
        cmocka_unit_test(test_no_pause_after_the_last_request),
        cmocka_unit_test(test_more_is_woken),
        cmocka_unit_test(test_stop_ends_handing_out),
        cmocka_unit_test(test_closes_a_session_once),
        cmocka_unit_test(test_reports_failed_requests),
    };
    return cmocka_run_group_tests_name("session_requests", tests, NULL, NULL);
}
