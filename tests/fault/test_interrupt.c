/*
 * Calls that are cancelled or interrupted while they wait for something other than a message: a
 * source that has not joined, a group that accepts no message, a lane whose probe hangs. They end
 * soon, their errors say why, and the transport works afterwards.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "group/callback/callback.h"
#include "support/asleep.h"
#include "support/callback_hub.h"

#define MS UINT64_C(1000000)

/** The timeout of a call that times out, and how soon after its end a call must return. */
enum { TIMEOUT_MS = 150, SOON_MS = 8000 };

/** The timeout of a receiver: longer than a source needs until it has the question. */
enum { RECEIVER_MS = 4000 };

static wherry_error error;

/** Ways to end a call. */
typedef enum ending { BY_CANCEL, BY_INTERRUPT, BY_TIMEOUT, WAYS } ending;

static bool is_set(void *context) {
    return atomic_load((atomic_bool *)context);
}

/** Waits until the oldest send of a transport has a question of its first rank. */
static void await_question(wherry_transport *transport) {
    wh_deadline limit = wh_deadline_in_ms(FERRY_MS);
    for (bool asked = false; !asked;) {
        assert_false(wh_deadline_passed(limit));
        usleep(1000);
        pthread_mutex_lock(&transport->lock);
        asked = transport->sends && transport->sends->ranks[0].nonce != 0;
        pthread_mutex_unlock(&transport->lock);
    }
}

/** Runs a call that cannot complete, and ends the call while it waits. */
static void end_by(ferry_call *call, ending way) {
    wherry_cancel *cancel;
    atomic_bool interrupted = false;
    uint64_t moment = wh_clock_now() + TIMEOUT_MS * MS;
    must(wherry_cancel_create(&cancel, &error));
    call->options.timeout_ms = way == BY_TIMEOUT ? TIMEOUT_MS : FERRY_MS;
    call->options.cancel = way == BY_CANCEL ? cancel : NULL;
    call->options.interrupt = way == BY_INTERRUPT ? is_set : NULL;
    call->options.interrupt_context = &interrupted;
    ferry_start(call);
    if (way != BY_TIMEOUT) {
        if (call->count) {
            await_question(call->transport);
        }
        wh_await_asleep(getpid());
        moment = wh_clock_now();
        atomic_store(&interrupted, true);
        wherry_cancel_request(cancel);
    }
    ferry_join(call);
    uint64_t now = wh_clock_now();
    static const wherry_status statuses[] = {WHERRY_CANCELLED, WHERRY_CANCELLED, WHERRY_TIMED_OUT};
    static const char *const words[] = {"cancelled", "interrupted", "timed out"};
    assert_int_equal(call->status, statuses[way]);
    if (!strstr(call->error.message, words[way])) {
        fail_msg("'%s' does not say '%s'", call->error.message, words[way]);
    }
    assert_int_equal(call->error.rank, call->ranks[0]);
    if (now < moment || now - moment >= SOON_MS * MS) {
        fail_msg("it returned %lld ms after it was told to end, by way %d", (long long)(now - moment) / 1000000,
                 (int)way);
    }
    wherry_cancel_destroy(cancel);
}

/** Sends a state to rank 1, which receives it. */
static void expect_transfer(wherry_transport *from, wherry_transport *to) {
    wherry_value *source = ferry_tensor(5000, 1);
    wherry_transfer_options options = ferry_options();
    ferry_call calls[] = {{.transport = from, .ranks = {1}, .count = 1, .state = source, .options = options},
                          {.transport = to, .ranks = {0}, .options = options}};
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(source);
}

static wherry_group *join_alone(const char *folder, int rank) {
    char address[128];
    wherry_group_options options;
    wherry_group *group;
    wherry_group_options_init(&options);
    options.timeout_ms = FERRY_MS;
    options.wait_for = 1;
    snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=2", folder, rank);
    must(wherry_group_join(address, &options, &group, &error));
    return group;
}

/**
 * The source has not joined. When it joins, a receive that waits for it succeeds, and so does the
 * next one.
 */
static void test_a_source_that_has_not_joined(void **state) {
    (void)state;
    char folder[] = "/tmp/wherry-test-XXXXXX";
    char socket[64];
    wherry_transport *transports[2];
    assert_non_null(mkdtemp(folder));
    wherry_group *receiver = join_alone(folder, 1);
    must(wherry_transport_create(receiver, NULL, transports + 1, &error));
    for (ending way = 0; way < WAYS; way++) {
        ferry_call call = {.transport = transports[1], .ranks = {0}, .options = ferry_options()};
        end_by(&call, way);
        assert_true(way != BY_TIMEOUT || strstr(call.error.message, "rank 0 has not joined"));
    }
    ferry_call waiting = {.transport = transports[1], .ranks = {0}, .options = ferry_options()};
    ferry_start(&waiting);
    wh_await_asleep(getpid());
    wherry_group *sender = join_alone(folder, 0);
    must(wherry_transport_create(sender, NULL, transports, &error));
    wherry_value *source = ferry_tensor(3000, 2);
    wherry_transfer_options options = ferry_options();
    must(wherry_checkpoint_send(transports[0], (int32_t[]){1}, 1, source, &options, NULL, &error));
    ferry_join(&waiting);
    ferry_expect_ok(&waiting);
    must(wherry_value_compare(source, waiting.received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(waiting.received);
    wherry_value_destroy(source);
    expect_transfer(transports[0], transports[1]);
    for (int i = 0; i < 2; i++) {
        wherry_transport_destroy(transports[i]);
    }
    wherry_group_leave(sender);
    wherry_group_leave(receiver);
    snprintf(socket, sizeof(socket), "%s/meet", folder);
    unlink(socket);
    assert_int_equal(rmdir(folder), 0);
}

/** Two ranks over callback tables that can be told to accept no block. */
typedef struct tables {
    callback_hub *hub;
    wh_group *groups[2];
    wherry_transport *transports[2];
} tables;

static tables open_tables(uint32_t flags) {
    static const wh_lane_ops *const lanes[] = {&wh_lane_blocks};
    callback_hub_options options = {.flags = flags};
    tables t = {.hub = callback_hub_open(2, &options)};
    ferry_lane = "blocks";
    for (int32_t rank = 0; rank < 2; rank++) {
        wherry_group_ops ops;
        void *context = callback_hub_member(t.hub, rank, &ops);
        must(wh_callback_create(&ops, context, t.groups + rank, &error));
        must(wh_transport_create(t.groups[rank], 0, lanes, 1, t.transports + rank, &error));
    }
    return t;
}

static void close_tables(tables *t) {
    for (int32_t rank = 0; rank < 2; rank++) {
        wherry_transport_destroy(t->transports[rank]);
        wh_group_destroy(t->groups[rank]);
    }
    callback_hub_close(t->hub);
    ferry_lane = "stream";
}

/** The group does not accept the receiver's question. */
static void test_a_question_is_not_accepted(void **state) {
    (void)state;
    for (uint32_t flags = 0; flags <= CALLBACK_HUB_ALL; flags += CALLBACK_HUB_ALL) {
        tables t = open_tables(flags);
        callback_hub_break(t.hub, 1, WHERRY_TIMED_OUT, WHERRY_OK);
        for (ending way = 0; way < WAYS; way++) {
            ferry_call call = {.transport = t.transports[1], .ranks = {0}, .options = ferry_options()};
            end_by(&call, way);
        }
        callback_hub_break(t.hub, 1, WHERRY_OK, WHERRY_OK);
        expect_transfer(t.transports[0], t.transports[1]);
        close_tables(&t);
    }
}

/**
 * The group does not accept the source's offer. The receiver cannot be told, so it waits until its
 * own timeout.
 */
static void test_an_offer_is_not_accepted(void **state) {
    (void)state;
    wherry_value *source = ferry_tensor(5000, 1);
    for (ending way = 0; way < WAYS; way++) {
        tables t = open_tables(0);
        callback_hub_break(t.hub, 0, WHERRY_TIMED_OUT, WHERRY_OK);
        ferry_call receives = {.transport = t.transports[1], .ranks = {0}, .options = ferry_options()};
        receives.options.timeout_ms = RECEIVER_MS;
        ferry_start(&receives);
        ferry_call sends = {
            .transport = t.transports[0], .ranks = {1}, .count = 1, .state = source, .options = ferry_options()};
        end_by(&sends, way);
        assert_int_equal(sends.outcomes[0].status, sends.status);
        /* its lease was revoked */
        assert_true(way == BY_TIMEOUT || strstr(sends.error.message, "rank 1 was not done"));
        ferry_join(&receives);
        assert_int_equal(receives.status, WHERRY_TIMED_OUT);
        callback_hub_break(t.hub, 0, WHERRY_OK, WHERRY_OK);
        expect_transfer(t.transports[0], t.transports[1]);
        close_tables(&t);
    }
    wherry_value_destroy(source);
}

/** A group that opens no channels until it is told to. */
typedef struct stuck {
    wh_group base;
    wh_group_backend ops;
    wh_group *real;
    atomic_bool free; /**< True if the group opens channels now. */
} stuck;

static wherry_status stuck_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                wh_deadline deadline, const wh_stop *stop, wherry_error *e) {
    wh_group *real = ((stuck *)group)->real;
    return real->ops->send(real, rank, tag, bytes, size, deadline, stop, e);
}

static wherry_status stuck_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline,
                                   const wh_stop *stop, wh_socket *channel_p, wherry_error *e) {
    stuck *own = (stuck *)group;
    while (!atomic_load(&own->free) && !wh_stop_requested(stop) && !wh_deadline_passed(deadline)) {
        usleep(1000);
    }
    return own->real->ops->connect(own->real, rank, tag, deadline, stop, channel_p, e);
}

static void test_a_probe_that_hangs(void **state) {
    (void)state;
    static const wh_group_kind kind = {"unix", wh_open_unix_place, wh_join_place, wh_close_place};
    static const wh_lane_ops *const lanes[] = {&wh_lane_stream};
    wherry_value *source = ferry_tensor(5000, 1);
    ferry_kind = &kind;
    ferry_world world = ferry_open();
    stuck group = {.real = world.groups[1]};
    group.ops = *group.real->ops;
    group.ops.send = stuck_send;
    group.ops.connect = stuck_connect;
    group.ops.describe = NULL; /* It is for the real group only. */
    group.ops.pump = NULL;     /* The progress thread reads the message. */
    group.base = (wh_group){.ops = &group.ops, .rank = 1, .size = FERRY_RANKS, .mailbox = group.real->mailbox};
    wherry_transport_destroy(world.transports[1]);
    must(wh_transport_create(&group.base, 0, lanes, 1, world.transports + 1, &error));
    for (ending way = 0; way < BY_TIMEOUT; way++) {
        ferry_call sends = ferry_send(&world, 0, 1, source);
        ferry_call receives = ferry_receive(&world, 1, 0);
        ferry_start(&sends);
        end_by(&receives, way);
        ferry_join(&sends);
        assert_int_equal(sends.status, WHERRY_ABORTED);
    }
    atomic_store(&group.free, true);
    expect_transfer(world.transports[0], world.transports[1]);
    ferry_close(&world);
    wherry_value_destroy(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_that_has_not_joined),
        cmocka_unit_test(test_a_question_is_not_accepted),
        cmocka_unit_test(test_an_offer_is_not_accepted),
        cmocka_unit_test(test_a_probe_that_hangs),
    };
    ferry_lane = "stream";
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("interrupt", tests, NULL, NULL);
}
