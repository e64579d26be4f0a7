/* Rank 0 serves a state to every rank that asks, until it is withdrawn. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/point.h"
#include "conformance/transfer_suite.h"
#include "conformance/transfer_world.h"

enum { WAIT_MS = 10000 };

static wherry_error error;

/** A thread that serves, and the results that it was told. */
typedef struct server {
    wherry_transport *transport;
    wherry_value *state;
    wherry_cancel *withdraw;
    wherry_cancel *cancel;
    wherry_transfer_options options;
    wherry_status status;
    wherry_error error;
    atomic_int succeeded[FERRY_RANKS];
    atomic_int failed[FERRY_RANKS];
    pthread_t thread;
} server;

static void note_outcome(void *context, const wherry_outcome *outcome) {
    server *own = context;
    atomic_fetch_add((outcome->status == WHERRY_OK ? own->succeeded : own->failed) + outcome->rank, 1);
}

static void *run_server(void *context) {
    server *own = context;
    own->status = wherry_checkpoint_serve(own->transport, own->state, own->withdraw, &own->options, note_outcome, own,
                                          &own->error);
    ferry_note_end();
    return NULL;
}

/** @param timeout_ms  of each transfer. */
static void start_server(server *own, const ferry_world *world, int64_t timeout_ms) {
    *own = (server){.transport = world->transports[0], .state = ferry_large_state(3), .options = ferry_options()};
    must(wherry_cancel_create(&own->withdraw, &error));
    must(wherry_cancel_create(&own->cancel, &error));
    own->options.timeout_ms = timeout_ms;
    own->options.cancel = own->cancel;
    ferry_withdraw = own->cancel;
    ferry_note_begin();
    assert_int_equal(pthread_create(&own->thread, NULL, run_server, own), 0);
}

/** Waits until the call has ended. */
static void end_server(server *own) {
    pthread_join(own->thread, NULL);
    ferry_withdraw = NULL;
    wherry_cancel_destroy(own->withdraw);
    wherry_cancel_destroy(own->cancel);
    wherry_value_destroy(own->state);
}

static void expect_state(ferry_call *call, const server *own) {
    ferry_expect_ok(call);
    must(wherry_value_compare(own->state, call->received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(call->received);
}

/** Several ranks receive at once, and each of them receives again. */
static void test_every_rank_is_served(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    server own;
    start_server(&own, &world, -1);
    for (int again = 0; again < 3; again++) {
        ferry_call calls[] = {ferry_receive(&world, 1, 0), ferry_receive(&world, 2, 0)};
        ferry_run(calls, 2);
        expect_state(calls, &own);
        expect_state(calls + 1, &own);
    }
    wherry_cancel_request(own.withdraw);
    end_server(&own);
    must(own.status);
    for (int rank = 1; rank < FERRY_RANKS; rank++) {
        assert_int_equal(atomic_load(own.succeeded + rank), 3);
        assert_int_equal(atomic_load(own.failed + rank), 0);
    }
    ferry_close(&world);
}

/** A receiver that refuses the state does not end the call, and may ask again. */
static wherry_status refuse(void *context, const wherry_value *offered) {
    (void)context;
    (void)offered;
    return WHERRY_UNSUPPORTED;
}

static void test_a_receiver_that_fails_asks_again(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    server own;
    start_server(&own, &world, -1);
    ferry_call refuses = ferry_receive(&world, 1, 0);
    refuses.options.inspect = refuse;
    ferry_run(&refuses, 1);
    assert_int_equal(refuses.status, WHERRY_UNSUPPORTED);
    ferry_call asks = ferry_receive(&world, 1, 0);
    ferry_run(&asks, 1);
    expect_state(&asks, &own);
    wherry_cancel_request(own.withdraw);
    end_server(&own);
    must(own.status);
    assert_int_equal(atomic_load(own.succeeded + 1), 1);
    assert_int_equal(atomic_load(own.failed + 1), 1);
    ferry_close(&world);
}

/* ---- in the middle of a receive ---- */

static atomic_bool held;
static atomic_bool hold;

static void hold_receiver(const char *name) {
    if (strcmp(name, "receiver has the offer") == 0) {
        atomic_store(&held, true);
        while (atomic_load(&hold) && !ferry_is_over()) {
            sched_yield();
        }
    }
}

static void await(const atomic_bool *flag) {
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    while (!atomic_load(flag)) {
        assert_false(wh_deadline_passed(deadline));
        sched_yield();
    }
}

static void hold_the_receiver(void) {
    atomic_store(&held, false);
    atomic_store(&hold, true);
    wh_point_hook = hold_receiver;
}

/** Waits until the server takes no more questions. */
static void await_withdrawn(wherry_transport *transport) {
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    for (bool closed = false; !closed; sched_yield()) {
        assert_false(wh_deadline_passed(deadline));
        pthread_mutex_lock(&transport->lock);
        closed = !transport->sends || transport->sends->closed;
        pthread_mutex_unlock(&transport->lock);
    }
}

/** Rank 1 has the offer and is held when the server ends. @param cancels  at once. */
static void end_in_the_middle(bool cancels, wherry_status expected) {
    ferry_world world = ferry_open();
    server own;
    hold_the_receiver();
    start_server(&own, &world, -1);
    ferry_call call = ferry_receive(&world, 1, 0);
    ferry_start(&call);
    await(&held);
    wherry_cancel_request(own.withdraw);
    if (cancels) {
        wherry_cancel_request(own.cancel);
        pthread_join(own.thread, NULL);
        assert_int_equal(own.status, WHERRY_CANCELLED);
    }
    await_withdrawn(world.transports[0]);
    /* Later questions wait for another send. */
    ferry_call late = ferry_receive(&world, 2, 0);
    late.options.timeout_ms = 200;
    ferry_run(&late, 1);
    assert_int_equal(late.status, WHERRY_TIMED_OUT);
    atomic_store(&hold, false);
    ferry_join(&call);
    assert_int_equal(call.status, expected);
    if (!cancels) {
        pthread_join(own.thread, NULL);
        must(own.status);
        wherry_value_destroy(call.received);
    }
    wh_point_hook = NULL;
    assert_int_equal(atomic_load(own.succeeded + 1), !cancels);
    assert_int_equal(atomic_load(own.failed + 1), cancels);
    ferry_withdraw = NULL;
    wherry_cancel_destroy(own.withdraw);
    wherry_cancel_destroy(own.cancel);
    wherry_value_destroy(own.state);
    ferry_close(&world);
}

/** The time limit is for each transfer, and not for the call. */
static void test_a_transfer_takes_too_long(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    server own;
    hold_the_receiver();
    start_server(&own, &world, 300);
    ferry_call call = ferry_receive(&world, 1, 0);
    ferry_start(&call);
    await(&held);
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    while (!atomic_load(own.failed + 1)) {
        assert_false(wh_deadline_passed(deadline));
        sched_yield();
    }
    atomic_store(&hold, false);
    ferry_join(&call);
    assert_int_equal(call.status, WHERRY_REVOKED);
    wherry_cancel_request(own.withdraw);
    end_server(&own);
    wh_point_hook = NULL;
    must(own.status);
    assert_int_equal(atomic_load(own.succeeded + 1), 0);
    ferry_close(&world);
}

static void test_a_withdrawn_state_is_still_delivered(void **state) {
    (void)state;
    end_in_the_middle(false, WHERRY_OK);
}

static void test_a_cancelled_server_revokes(void **state) {
    (void)state;
    end_in_the_middle(true, WHERRY_REVOKED);
}

const struct CMUnitTest ferry_serve_cases[] = {
    cmocka_unit_test(test_every_rank_is_served),       cmocka_unit_test(test_a_receiver_that_fails_asks_again),
    cmocka_unit_test(test_a_transfer_takes_too_long),  cmocka_unit_test(test_a_withdrawn_state_is_still_delivered),
    cmocka_unit_test(test_a_cancelled_server_revokes),
};
const size_t ferry_serve_case_count = sizeof(ferry_serve_cases) / sizeof(*ferry_serve_cases);
