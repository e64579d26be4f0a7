/*
 * Edge cases of the conversation: a receiver asks while a send is ending, or after the send has
 * given up its rank; a lease ends before the first byte; progress is slow but steady; a damaged
 * chunk stays in the target; the end of a receive from several sources. Ranks are threads of one
 * process.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/point.h"
#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
#include "lane/stream/stream_frame.h"
#include "support/asleep.h"
#include "support/scripted_peer.h"
#include "transfer/transfer_timing.h"

static wherry_error error;

/** Limits of calls that time out, long enough for the other threads to get to their points. */
enum { TIMEOUT_MS = 3000, WAIT_MS = 20000 };

/**
 * test_slow_and_steady: a chunk takes far less than the limit, and all chunks take more than the
 * limit.
 */
enum { CHUNK_MS = 45, NO_PROGRESS_MS = 1000 };

static void pause_ms(unsigned ms) {
    usleep(ms * 1000);
}

/** The lanes of a rank that joins again. */
static const wh_lane_ops *const few_lanes[] = {&wh_lane_cma, &wh_lane_ring, &wh_lane_stream};

static wherry_value *one_tensor(int64_t bytes, uint8_t seed) {
    return build_dict("w", build_tensor(build_storage((uint64_t)bytes, seed), WHERRY_U8, 0, 1, &bytes, NULL), NULL);
}

static void expect_ok(const ferry_call *call) {
    if (call->status != WHERRY_OK) {
        print_error("%s: %s\n", wherry_status_name(call->status), call->error.message);
    }
    assert_int_equal(call->status, WHERRY_OK);
}

/* ---- holding a thread at a point ---- */

static const char *held_at;
static atomic_bool hold;
static atomic_bool armed; /**< No thread has reached the point yet. Only the first one is held. */

static void hold_there(const char *name) {
    if (strcmp(name, held_at) == 0 && atomic_exchange(&armed, false)) {
        while (atomic_load(&hold)) {
            pause_ms(2);
        }
    }
}

static void hold_at(const char *name) {
    held_at = name;
    atomic_store(&hold, true);
    atomic_store(&armed, true);
    wh_point_hook = hold_there;
}

/** Waits until a thread is held at the point. */
static void await_held(void) {
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    while (atomic_load(&armed)) {
        assert_false(wh_deadline_passed(deadline));
        pause_ms(2);
    }
}

static int let_go(void **state) {
    (void)state;
    atomic_store(&hold, false);
    wh_point_hook = NULL;
    return 0;
}

/* ---- questions ---- */

/** True if the oldest send of a transport is in this state. */
typedef bool (*send_condition)(const wh_waiting_send *oldest);

static bool is_waiting(const wh_waiting_send *oldest) {
    return oldest != NULL;
}

/** The send has ended, or is ending and takes no more questions. */
static bool is_ending(const wh_waiting_send *oldest) {
    return oldest == NULL;
}

/** The send has a question of its first rank, or has given up that rank. */
static bool is_settled(const wh_waiting_send *oldest) {
    return oldest && oldest->ranks[0].nonce != 0;
}

static void await_send(wherry_transport *transport, send_condition condition) {
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    for (bool reached = false; !reached;) {
        assert_false(wh_deadline_passed(deadline));
        pause_ms(2);
        pthread_mutex_lock(&transport->lock);
        reached = condition(transport->sends);
        pthread_mutex_unlock(&transport->lock);
    }
}

/** Waits until `rank` is the only one that waits for a send. */
static void await_question(wherry_transport *transport, int32_t rank) {
    int32_t waiting = -1;
    wh_deadline deadline = wh_deadline_in_ms(WAIT_MS);
    while (wherry_transport_waiting(transport, &waiting, 1) == 0 && !wh_deadline_passed(deadline)) {
        pause_ms(2);
    }
    assert_int_equal(waiting, rank);
}

/**
 * A rank is lost before it has asked, comes back and asks. The send that has given it up does not
 * answer; the next send does.
 */
static void test_a_rank_asks_after_it_was_given_up(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = one_tensor(1000, 1);
    wherry_cancel *cancel;
    must(wherry_cancel_create(&cancel, &error));
    ferry_call first = ferry_send(&world, 0, 1, source);
    first.ranks[1] = 2;
    first.count = 2;
    first.options.cancel = cancel;
    ferry_start(&first);
    await_send(world.transports[0], is_waiting);
    wherry_transport_destroy(world.transports[1]);
    wh_group *former = world.groups[1];
    world.groups[1] = ferry_kind->join(world.place, 1);
    wh_group_destroy(former);
    must(wh_transport_create(world.groups[1], 0, few_lanes, 3, world.transports + 1, &error));
    await_send(world.transports[0], is_settled);
    ferry_call asks = ferry_receive(&world, 1, 0);
    ferry_start(&asks);
    await_question(world.transports[0], 1);
    ferry_call second = ferry_send(&world, 0, 1, source);
    ferry_start(&second);
    ferry_join(&asks);
    ferry_join(&second);
    wherry_cancel_request(cancel);
    ferry_join(&first);
    expect_ok(&asks);
    expect_ok(&second);
    assert_int_equal(first.outcomes[0].status, WHERRY_PEER_LOST);
    assert_int_equal(first.outcomes[1].status, WHERRY_CANCELLED);
    wherry_cancel_destroy(cancel);
    wherry_value_destroy(asks.received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/**
 * A process asks and ends before it is served. The process that takes its rank asks too, and
 * wherry_transport_waiting lists it.
 */
static void test_a_successor_asks_after_its_predecessor(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    ferry_world former = world;
    wherry_value *source = one_tensor(1000, 1);
    ferry_call fenced = ferry_receive(&former, 1, 0);
    ferry_start(&fenced);
    await_question(world.transports[0], 1);
    world.groups[1] = ferry_kind->join(world.place, 1);
    ferry_join(&fenced);
    assert_int_equal(fenced.status, WHERRY_CLOSED);
    must(wh_transport_create(world.groups[1], 0, few_lanes, 3, world.transports + 1, &error));
    ferry_call asks = ferry_receive(&world, 1, 0);
    ferry_start(&asks);
    await_question(world.transports[0], 1);
    ferry_call sends = ferry_send(&world, 0, 1, source);
    ferry_run(&sends, 1);
    ferry_join(&asks);
    expect_ok(&asks);
    expect_ok(&sends);
    wherry_transport_destroy(former.transports[1]);
    wh_group_destroy(former.groups[1]);
    wherry_value_destroy(asks.received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/**
 * A send that timed out waits a moment for its receiver to notice. The next send answers a question
 * that arrives during this moment.
 */
static void test_a_question_while_a_send_ends(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = one_tensor(1000, 1);
    hold_at("receiver planned");
    ferry_call first = ferry_send(&world, 0, 1, source);
    first.ranks[1] = 2;
    first.count = 2;
    first.options.timeout_ms = TIMEOUT_MS;
    ferry_call stuck = ferry_receive(&world, 2, 0);
    ferry_start(&stuck);
    await_question(world.transports[0], 2);
    ferry_start(&first);
    await_held();
    await_send(world.transports[0], is_ending);
    ferry_call asks = ferry_receive(&world, 1, 0);
    ferry_start(&asks);
    ferry_join(&first);
    atomic_store(&hold, false);
    ferry_join(&stuck);
    ferry_call second = ferry_send(&world, 0, 1, source);
    ferry_start(&second);
    ferry_join(&asks);
    ferry_join(&second);
    expect_ok(&asks);
    expect_ok(&second);
    assert_int_equal(first.status, WHERRY_TIMED_OUT);
    assert_int_equal(stuck.status, WHERRY_REVOKED);
    wherry_value_destroy(asks.received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/**
 * A rank asks and withdraws its question before the send has read either message. Neither message
 * is left when the send ends.
 */
static void test_a_question_is_withdrawn_unread(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = one_tensor(1000, 1);
    hold_at("source was asked");
    ferry_call first = ferry_send(&world, 0, 1, source);
    first.ranks[1] = 2;
    first.count = 2;
    first.options.timeout_ms = TIMEOUT_MS;
    ferry_call other = ferry_receive(&world, 2, 0);
    ferry_start(&other);
    await_question(world.transports[0], 2);
    ferry_start(&first);
    await_held();
    wh_deadline first_over = wh_deadline_in_ms(TIMEOUT_MS);
    ferry_call brief = ferry_receive(&world, 1, 0);
    brief.options.timeout_ms = 100;
    ferry_run(&brief, 1);
    assert_int_equal(brief.status, WHERRY_TIMED_OUT);
    await_send(world.transports[0], is_settled); /* The question is in the inbox of the source. */
    while (!wh_deadline_passed(first_over)) {
        pause_ms(2);
    }
    atomic_store(&hold, false);
    ferry_join(&first);
    ferry_join(&other);
    int32_t waiting[FERRY_RANKS];
    assert_int_equal(wherry_transport_waiting(world.transports[0], waiting, FERRY_RANKS), 0);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    ferry_run(calls, 2);
    expect_ok(calls);
    expect_ok(calls + 1);
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/* ---- the lease, and progress ---- */

/**
 * The calling thread itself reads a small state. If the lease has ended, it too reports REVOKED,
 * not an error of reading the source's memory.
 */
static void test_revoked_before_the_first_byte(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    int64_t bytes = 65536;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    memset(memory, 7, (size_t)bytes);
    wherry_storage *storage;
    must(wherry_storage_wrap(memory, (uint64_t)bytes, wherry_device_cpu(), NULL, NULL, &storage, &error));
    wherry_value *source = build_dict("w", build_tensor(storage, WHERRY_U8, 0, 1, &bytes, NULL), NULL);
    hold_at("receiver sent the plan");
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[0].options.timeout_ms = TIMEOUT_MS;
    ferry_start(calls + 1);
    await_question(world.transports[0], 1);
    ferry_start(calls);
    await_held();
    ferry_join(calls);
    munmap(memory, (size_t)bytes);
    atomic_store(&hold, false);
    ferry_join(calls + 1);
    assert_int_equal(calls[0].status, WHERRY_TIMED_OUT);
    assert_int_equal(calls[1].status, WHERRY_REVOKED);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void be_slow(const char *name) {
    if (strcmp(name, "receiver closed a chunk") == 0) {
        pause_ms(CHUNK_MS);
    }
}

typedef struct seen {
    int calls;
    uint64_t first;
    uint64_t last;
    uint64_t bytes;
    uint64_t total;
} seen;

static void see(void *context, const wherry_progress *progress) {
    seen *s = context;
    s->last = wh_clock_now();
    s->first = s->calls++ ? s->first : s->last;
    s->bytes = progress->bytes;
    s->total = progress->total;
}

/**
 * A source does not give up a receiver that makes slow progress. It reports progress at most ten
 * times per second, and at the end.
 */
static void test_slow_and_steady(void **state) {
    (void)state;
    static const char *const lanes[] = {"cma", "ring", "stream"};
    ferry_world world = ferry_open();
    wherry_value *source = one_tensor(100 << 20, 1);
    wh_point_hook = be_slow;
    for (int i = 0; i < 3; i++) {
        for (int verify = 0; verify < 2; verify++) {
            seen at_source = {0};
            ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
            calls[0].options.lanes = calls[1].options.lanes = lanes[i];
            calls[0].options.threads = calls[1].options.threads = 1;
            calls[0].options.no_progress_ms = NO_PROGRESS_MS;
            calls[0].options.progress = see;
            calls[0].options.progress_context = &at_source;
            calls[1].options.verify = verify ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
            strcpy(calls[1].error.message, "as it was");
            uint64_t begin = wh_clock_now();
            ferry_run(calls, 2);
            assert_true(wh_clock_now() - begin > NO_PROGRESS_MS * UINT64_C(1000000));
            expect_ok(calls);
            expect_ok(calls + 1);
            assert_string_equal(calls[1].error.message, "as it was");
            assert_true(at_source.bytes == at_source.total && at_source.total >= 100 << 20);
            assert_true(at_source.calls >= 2);
            assert_true((uint64_t)(at_source.calls - 2) * 100000000 <= at_source.last - at_source.first);
            wherry_value_destroy(calls[1].received);
        }
    }
    wh_point_hook = NULL;
    wherry_value_destroy(source);
    ferry_close(&world);
}

/**
 * A damaged chunk was written into the target. If the source then gives up, the report counts its
 * tensor as half written.
 */
static void test_a_damaged_chunk_leaves_a_partial_tensor(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    int64_t bytes = 100;
    wherry_value *source = one_tensor(bytes, 1);
    wherry_value *target = one_tensor(bytes, 9);
    wherry_report *report = NULL;
    ferry_call call = ferry_receive(&world, 1, 0);
    call.options.lanes = "stream";
    call.options.target = ferry_target;
    call.options.target_context = target;
    call.options.report_p = &report;
    call.options.verify = WHERRY_VERIFY_ON;
    uint64_t wants = world.transports[0]->tag;
    wherry_transport_destroy(world.transports[0]);
    world.transports[0] = NULL;
    scripted peer;
    script_begin(&peer, world.groups[0], 1, wants);
    ferry_start(&call);
    script_await_want(&peer);
    wh_string lanes = {0};
    wh_lanes_add(&lanes, "stream", (const uint8_t[]){1, 1}, 2);
    wh_note offer = {
        .type = WH_OFFER,
        .id = peer.own,
        .epoch = 5,
        .step = -1,
        .manifest = script_manifest(source),
        .lanes = {lanes.bytes, lanes.size},
    };
    script_say(&peer, &offer);
    script_expect(&peer, WH_PLAN);
    uint8_t frames[WH_STREAM_HEADER_BYTES + 100 + WH_STREAM_HEADER_BYTES] = {0};
    memset(frames + WH_STREAM_HEADER_BYTES, 0xEE, 100);
    wh_store_be64(frames + WHERRY_DIGEST_BYTES + 8, 100 | WH_STREAM_DIGEST_FOLLOWS);
    wh_store_be64(frames + WH_STREAM_HEADER_BYTES + 100 + WHERRY_DIGEST_BYTES, WH_STREAM_END);
    script_write(&peer, frames, sizeof(frames));
    script_expect(&peer, WH_PLAN); /* The receiver asks for the damaged chunk again. */
    wh_note sorry = {.type = WH_ABORT, .status = WHERRY_SYSTEM, .path = text_bytes(""), .text = text_bytes("sorry")};
    script_say(&peer, &sorry);
    ferry_join(&call);
    assert_int_equal(call.status, WHERRY_ABORTED);
    assert_non_null(strstr(call.error.message, "1 half written (w)"));
    assert_int_equal(wherry_report_count(report, WHERRY_TENSOR_PARTIAL), 1);
    assert_int_equal(wherry_report_count(report, WHERRY_TENSOR_UNTOUCHED), 0);
    wherry_report_destroy(report);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    script_end(&peer);
    wherry_free((void *)offer.manifest.bytes);
    wh_free(lanes.bytes);
    ferry_close(&world);
}

static wherry_status find_no_target(void *context, const wherry_value **target_p) {
    (void)context, (void)target_p;
    return WHERRY_NO_MEMORY;
}

/** A receiver whose target callback fails tells the source, which does not wait for it. */
static void test_the_target_callback_fails(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = one_tensor(1000, 1);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.target = find_no_target;
    ferry_start(calls);
    await_send(world.transports[0], is_waiting);
    ferry_start(calls + 1);
    ferry_join(calls + 1);
    ferry_join(calls);
    assert_int_equal(calls[1].status, WHERRY_NO_MEMORY);
    assert_int_equal(calls[0].status, WHERRY_ABORTED);
    assert_non_null(strstr(calls[0].error.message, "the target callback failed"));
    wherry_value_destroy(source);
    ferry_close(&world);
}

/* ---- the end of a receive from several sources ---- */

/** Asks as a receiver does. */
static void ask_as(scripted *peer, const ferry_world *world, const ferry_call *send) {
    script_begin(peer, world->groups[1], 0, world->transports[0]->tag);
    assert_int_equal(send->ranks[0], 1);
    script_ask(peer);
}

/**
 * The receiver leaves after DONE, before it can read the answer. A receiver with several sources
 * does not need the answer, so its source has succeeded. A receiver with one source does.
 */
static void test_the_receiver_leaves_after_done(void **state) {
    (void)state;
    for (int last = 0; last < 2; last++) {
        ferry_world world = ferry_open();
        wherry_value *source = one_tensor(1000, 1);
        ferry_call call = ferry_send(&world, 0, 1, source);
        scripted peer;
        ferry_start(&call);
        ask_as(&peer, &world, &call);
        hold_at("source was told done");
        script_say(&peer, &(wh_note){.type = WH_DONE, .epoch = peer.offer.epoch, .last = (uint8_t)last});
        await_held();
        script_end(&peer);
        wherry_transport_destroy(world.transports[1]);
        wh_group_destroy(world.groups[1]);
        atomic_store(&hold, false);
        ferry_join(&call);
        wh_point_hook = NULL;
        assert_int_equal(call.outcomes[0].status, last ? WHERRY_OK : WHERRY_PEER_LOST);
        world.groups[1] = ferry_kind->join(world.place, 1);
        must(wh_transport_create(world.groups[1], 0, few_lanes, 3, world.transports + 1, &error));
        wherry_value_destroy(source);
        ferry_close(&world);
    }
}

/**
 * The receiver has all chunks and closes its end of the lane, which breaks the source's end. Then,
 * or before, it asks the source to confirm. The source does not take that for a failure, however
 * long the receiver waits for the other sources.
 */
static void test_the_lane_breaks_when_the_receiver_has_all(void **state) {
    (void)state;
    for (int confirm_first = 0; confirm_first < 2; confirm_first++) {
        ferry_world world = ferry_open();
        wherry_value *source = one_tensor(9 << 20, 1);
        ferry_call call = ferry_send(&world, 0, 1, source);
        call.options.lanes = "stream";
        scripted peer;
        ferry_start(&call);
        ask_as(&peer, &world, &call);
        script_open_channel(&peer);
        script_plan(&peer, "stream", (wh_bytes){"\1\1", 2}, &(wherry_interval){0, 3}, 1);
        wh_await_asleep(getpid()); /* The source waits, because nobody reads what it sends. */
        for (int step = 0; step < 2; step++) {
            if (step == confirm_first) {
                wh_socket_close(&peer.channel);
                wh_await_asleep(getpid()); /* The source has noticed. */
            } else {
                script_say(&peer, &(wh_note){.type = WH_CONFIRM, .epoch = peer.offer.epoch});
                script_expect(&peer, WH_CONFIRMED);
            }
        }
        assert_false(script_take(&peer, 2 * WH_READER_EXPLAIN_MS)); /* An ABORT would come. */
        script_say(&peer, &(wh_note){.type = WH_DONE, .epoch = peer.offer.epoch, .last = 1});
        script_expect(&peer, WH_RELEASED);
        ferry_join(&call);
        expect_ok(&call);
        script_end(&peer);
        wherry_value_destroy(source);
        ferry_close(&world);
    }
}

int main(void) {
    static const wh_group_kind kind = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_rank_asks_after_it_was_given_up, let_go),
        cmocka_unit_test(test_a_successor_asks_after_its_predecessor),
        cmocka_unit_test_teardown(test_a_question_while_a_send_ends, let_go),
        cmocka_unit_test_teardown(test_a_question_is_withdrawn_unread, let_go),
        cmocka_unit_test_teardown(test_revoked_before_the_first_byte, let_go),
        cmocka_unit_test(test_the_target_callback_fails),
        cmocka_unit_test(test_slow_and_steady),
        cmocka_unit_test(test_a_damaged_chunk_leaves_a_partial_tensor),
        cmocka_unit_test_teardown(test_the_receiver_leaves_after_done, let_go),
        cmocka_unit_test(test_the_lane_breaks_when_the_receiver_has_all),
    };
    ferry_kind = &kind;
    ferry_lane = "cma";
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("conversation_edges", tests, NULL, NULL);
}
