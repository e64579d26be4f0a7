/*
 * A hostile receiver sends malformed messages, sends them in the wrong order, or asks for bytes
 * that are not offered. The source fails promptly with the right error, and sends nothing but the
 * offered bytes. An honest receiver of the same send gets everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "support/descriptors.h"
#include "support/process_job.h"
#include "support/scripted_peer.h"

enum {
    HONEST = 1,
    HOSTILE = 2,
    STALE_MS = 800 * JOB_SLOW,
    LIMIT_MS = 10000 * JOB_SLOW,
    BODY = (9 << 20) + 5,
    SECRET = 64 << 10,
};

static wherry_error error;

static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
static const wh_group_kind sockets = {"unix", wh_open_unix_place, wh_join_place, wh_close_place};

/**
 * A tensor in the middle of a storage. The bytes around it, 0xA5, must not leave the source. No
 * byte of the tensor has this value.
 */
static wherry_value *guarded_state(void) {
    int64_t body = BODY;
    wherry_storage *storage;
    must(wherry_storage_allocate(BODY + 2 * SECRET, wherry_device_cpu(), &storage, &error));
    uint8_t *bytes = wherry_storage_data(storage);
    memset(bytes, 0xA5, BODY + 2 * SECRET);
    for (size_t i = 0; i < BODY; i++) {
        bytes[SECRET + i] = (uint8_t)(i * 7 % 0xA5);
    }
    return build_dict("w", build_tensor(storage, WHERRY_U8, SECRET, 1, &body, NULL), NULL);
}

/** A send to an honest receiver and a scripted one. */
typedef struct scene {
    ferry_world world;
    wherry_value *state;
    ferry_call send;
    ferry_call honest;
    scripted peer;
    uint64_t begun;
} scene;

static void scene_begin(scene *s, const wh_group_kind *kind, const char *lanes) {
    ferry_kind = kind;
    ferry_lane = lanes;
    s->world = ferry_open();
    s->state = guarded_state();
    s->send = ferry_send(&s->world, 0, HOSTILE, s->state);
    s->send.ranks[1] = HONEST;
    s->send.count = 2;
    s->send.options.no_progress_ms = STALE_MS;
    s->honest = ferry_receive(&s->world, HONEST, 0);
    s->begun = wh_clock_now();
    ferry_start(&s->send);
    ferry_start(&s->honest);
    script_begin(&s->peer, s->world.groups[HOSTILE], 0, s->world.transports[0]->tag);
}

/** Checks the source's status for the scripted receiver, and success for the honest one. */
static void scene_finish(scene *s, wherry_status expected) {
    ferry_join(&s->send);
    ferry_join(&s->honest);
    uint64_t took = (wh_clock_now() - s->begun) / 1000000;
    if (s->send.outcomes[0].status != expected) {
        print_error("%s: %s\n", wherry_status_name(s->send.outcomes[0].status), s->send.outcomes[0].error.message);
    }
    assert_int_equal(s->send.outcomes[0].status, expected);
    assert_int_equal(s->send.outcomes[1].status, WHERRY_OK);
    assert_int_equal(s->honest.status, WHERRY_OK);
    assert_true(took < LIMIT_MS);
    if (expected != WHERRY_OK) {
        assert_int_equal(s->send.outcomes[0].error.rank, HOSTILE);
        assert_true(s->send.outcomes[0].error.message[0]);
    }
    wherry_value *expect = guarded_state();
    must(wherry_value_compare(expect, s->honest.received, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(expect);
    wherry_value_destroy(s->honest.received);
    script_end(&s->peer);
    wherry_value_destroy(s->state);
    ferry_close(&s->world);
}

/* ---- questions ---- */

static void test_malformed_questions(void **state) {
    (void)state;
    scene s;
    uint64_t seed = 1;
    uint8_t bytes[200];
    scene_begin(&s, &local, NULL);
    for (int i = 0; i < 500; i++) {
        for (size_t k = 0; k < sizeof(bytes); k++) {
            bytes[k] = (uint8_t)next_random(&seed);
        }
        bytes[0] = (uint8_t)(i % 2 ? bytes[0] : i % 20);
        script_send(&s.peer, s.peer.want_tag, bytes, (size_t)i % sizeof(bytes));
    }
    script_ask(&s.peer);
    wh_note done = {.type = WH_DONE, .epoch = s.peer.offer.epoch};
    script_say(&s.peer, &done);
    script_expect(&s.peer, WH_RELEASED);
    scene_finish(&s, WHERRY_OK);
}

/**
 * The source keeps only the newest COMPARE messages. It answers the first one, and the receiver
 * ignores that answer.
 */
static void test_thousands_of_questions(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    script_ask(&s.peer);
    for (uint64_t i = 1; i < 5000; i++) {
        wh_note want = {.type = WH_WANT, .nonce = s.peer.own ^ i, .step = WHERRY_STEP_ANY};
        wh_string text = script_encode(&want);
        script_send(&s.peer, s.peer.want_tag, text.bytes, text.size);
        wh_free(text.bytes);
    }
    size_t kept = 0;
    const wherry_transport *transport = s.world.transports[0];
    for (size_t i = 0; i < transport->asking_count; i++) {
        kept += transport->asking[i].message.rank == HOSTILE;
    }
    assert_true(kept > 0 && kept <= 64);
    scene_finish(&s, WHERRY_TIMED_OUT);
}

static void test_a_long_question_is_not_kept(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    size_t size = 8 << 20;
    uint8_t *bytes = calloc(1, size);
    bytes[0] = WH_WANT;
    bytes[2] = WH_CONVERSATION_VERSION + 1; /* an unknown version of the protocol */
    wh_store_be64(bytes + 3, s.peer.own);
    script_send(&s.peer, s.peer.want_tag, bytes, size);
    assert_false(script_take(&s.peer, 50));
    script_send(&s.peer, s.peer.want_tag, bytes, 20);
    script_expect(&s.peer, WH_ABORT);
    assert_int_equal(s.peer.note.status, WHERRY_BAD_VERSION);
    free(bytes);
    scene_finish(&s, WHERRY_BAD_VERSION);
}

static void withdraw(scripted *peer, uint64_t nonce, wherry_status status) {
    wh_note note = {.type = WH_WITHDRAW, .nonce = nonce, .status = status};
    wh_string text = script_encode(&note);
    script_send(peer, peer->want_tag, text.bytes, text.size);
    wh_free(text.bytes);
}

/**
 * A question can be withdrawn repeatedly, and asked again. A withdrawal with another nonce has no
 * effect.
 */
static void test_repeated_withdrawals(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    for (int i = 0; i < 3; i++) {
        s.peer.there = 0;
        script_ask(&s.peer);
        withdraw(&s.peer, s.peer.own ^ 1, WHERRY_TIMED_OUT);
        withdraw(&s.peer, s.peer.own, WHERRY_TIMED_OUT);
        withdraw(&s.peer, s.peer.own, WHERRY_TIMED_OUT);
    }
    /* The source must not answer a withdrawal as if it were a question. */
    assert_false(script_take(&s.peer, 50));
    s.peer.there = 0;
    script_ask(&s.peer);
    script_say(&s.peer, &(wh_note){.type = WH_DONE, .epoch = s.peer.offer.epoch});
    script_expect(&s.peer, WH_RELEASED);
    scene_finish(&s, WHERRY_OK);
}

/** The receiver withdraws its question while the source's threads send bytes. */
static void test_a_withdrawal_while_bytes_move(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    script_ask(&s.peer);
    script_open_channel(&s.peer);
    script_plan(&s.peer, "stream", (wh_bytes){"\1\1", 2}, &(wherry_interval){0, 3}, 1);
    withdraw(&s.peer, s.peer.own, WHERRY_TIMED_OUT);
    script_expect(&s.peer, WH_ABORT);
    scene_finish(&s, WHERRY_MALFORMED);
}

/* ---- plans ---- */

static void test_plans_outside_the_offer(void **state) {
    (void)state;
    const uint64_t big = UINT64_C(1) << 60;
    const struct {
        wherry_interval intervals[2];
        size_t count;
        wherry_status status;
    } cases[] = {
        {{{3, 1}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{0, 4}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{0, big}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{big, 1}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{UINT64_MAX, 2}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{1, UINT64_MAX}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{0, 0}}, 1, WHERRY_OUT_OF_BOUNDS},
        {{{2, 1}, {0, 1}}, 2, WHERRY_OUT_OF_BOUNDS},
        {{{0, 2}, {1, 1}}, 2, WHERRY_OUT_OF_BOUNDS},
        {{{0, 1}, {0, 1}}, 2, WHERRY_OUT_OF_BOUNDS},
        {{{0, 1}}, 0, WHERRY_MALFORMED},
    };
    static const char *const lanes[] = {"stream", "ring", "cma"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        char byte;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        script_open_channel(&s.peer);
        script_plan(&s.peer, lanes[i % 3], (wh_bytes){"\1\1", 2}, cases[i].intervals, cases[i].count);
        script_expect(&s.peer, WH_ABORT);
        assert_int_equal(s.peer.note.status, cases[i].status);
        assert_true(recv(s.peer.channel.fd, &byte, 1, MSG_DONTWAIT) <= 0);
        scene_finish(&s, cases[i].status);
    }
}

/** A valid plan gets the tensor, and no byte around it. */
static void test_a_plan_gets_only_the_offered_bytes(void **state) {
    (void)state;
    scene s;
    wh_stop never;
    must(wh_stop_init(&never, &error));
    scene_begin(&s, &local, "stream");
    script_ask(&s.peer);
    /* The stream lane needs no addresses of memory. */
    assert_int_equal(s.peer.offer.addresses.size, 0);
    script_open_channel(&s.peer);
    script_plan(&s.peer, "stream", (wh_bytes){"\1\1", 2}, &(wherry_interval){0, 3}, 1);
    enum { ALL = BODY + 4 * 64 }; /* three headers and the end mark */
    uint8_t *bytes = malloc(ALL);
    for (size_t got = 0, more; got < ALL; got += more) {
        struct iovec rest = {bytes + got, ALL - got};
        must(wh_channel_read_some(&s.peer.channel, &rest, 1, &never, wh_deadline_in_ms(LIMIT_MS), &more, &error));
    }
    for (size_t i = 64; i < ALL; i++) {
        assert_false(bytes[i] == 0xA5 && bytes[i - 1] == 0xA5);
    }
    assert_true(recv(s.peer.channel.fd, bytes, 1, MSG_DONTWAIT) <= 0);
    free(bytes);
    wh_stop_destroy(&never);
    script_say(&s.peer, &(wh_note){.type = WH_DONE, .epoch = s.peer.offer.epoch});
    script_expect(&s.peer, WH_RELEASED);
    scene_finish(&s, WHERRY_OK);
}

static void test_plans_for_lanes_that_are_not_offered(void **state) {
    (void)state;
    static const char *const names[] = {"boat", "", "cma", "strea", "streams"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        scene s;
        scene_begin(&s, &local, "stream,ring");
        script_ask(&s.peer);
        assert_int_equal(*(const uint8_t *)s.peer.offer.lanes.bytes, 2);
        script_plan(&s.peer, names[i], (wh_bytes){"", 0}, &(wherry_interval){0, 1}, 1);
        script_expect(&s.peer, WH_ABORT);
        scene_finish(&s, WHERRY_MALFORMED);
    }
}

/**
 * If a lane cannot read a request, the source refuses the lane, not the receiver, which could then
 * choose another lane. Here it does not.
 */
static void test_malformed_requests_for_a_lane(void **state) {
    (void)state;
    uint8_t garbage[WH_LANE_OFFER_MAX];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof(garbage); i++) {
        garbage[i] = (uint8_t)next_random(&seed);
    }
    static const size_t sizes[] = {0, 1, 2, 9, 60, WH_LANE_OFFER_MAX};
    static const char *const lanes[] = {"stream", "ring"};
    scene s;
    scene_begin(&s, &local, NULL);
    script_ask(&s.peer);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (size_t k = 0; k < 2; k++) {
            script_plan(&s.peer, lanes[k], (wh_bytes){garbage, sizes[i]}, &(wherry_interval){0, 1}, 1);
            script_expect(&s.peer, WH_REFUSE_LANE);
            assert_true(s.peer.note.text.size > 0);
        }
    }
    scene_finish(&s, WHERRY_TIMED_OUT);
}

static void test_the_same_plan_twice(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    script_ask(&s.peer);
    /* The plan uses channels that the receiver never opens. */
    script_plan(&s.peer, "stream", (wh_bytes){"\1\2", 2}, &(wherry_interval){0, 1}, 1);
    script_plan(&s.peer, "stream", (wh_bytes){"\1\2", 2}, &(wherry_interval){1, 1}, 1);
    script_expect(&s.peer, WH_ABORT);
    scene_finish(&s, WHERRY_MALFORMED);
}

/* ---- messages after the plan ---- */

static void test_done_for_another_lease(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &local, NULL);
    script_ask(&s.peer);
    script_say(&s.peer, &(wh_note){.type = WH_DONE, .epoch = s.peer.offer.epoch ^ 1, .bytes = UINT64_MAX});
    script_say(&s.peer, &(wh_note){.type = WH_PROGRESS, .bytes = UINT64_MAX});
    script_expect(&s.peer, WH_REVOKED);
    assert_int_equal(s.peer.note.epoch, s.peer.offer.epoch);
    scene_finish(&s, WHERRY_TIMED_OUT);
}

static void test_a_request_without_a_lane(void **state) {
    (void)state;
    uint8_t one[16] = {0};
    one[15] = 1; /* one chunk, starting with chunk 0 */
    wh_note request = {.type = WH_REQUEST, .last = 1, .intervals = {one, sizeof(one)}};
    for (int planned = 0; planned < 2; planned++) {
        scene s;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        if (planned) { /* The plan uses channels that the receiver never opens. */
            script_plan(&s.peer, "stream", (wh_bytes){"\1\2", 2}, &(wherry_interval){0, 3}, 1);
        }
        script_say(&s.peer, &request);
        script_expect(&s.peer, WH_ABORT);
        scene_finish(&s, WHERRY_MALFORMED);
    }
}

/**
 * A receiver of several sources does not wait until its plan was taken. It may request more, close
 * the lane and plan again before the channels of the first plan have come. The source accepts that.
 */
static void test_requests_that_overtake_their_lane(void **state) {
    (void)state;
    uint8_t one[16] = {[15] = 1};
    wh_note plan = {.type = WH_PLAN, .session = 1, .lane = text_bytes("stream"), .request = {"\1\1", 2}, .bytes = 1};
    wh_note request = {.type = WH_REQUEST, .last = 1, .intervals = {one, sizeof(one)}};
    for (int closes = 0; closes < 4; closes++) {
        scene s;
        scene_begin(&s, &sockets, NULL);
        script_ask(&s.peer);
        plan.intervals = (wh_bytes){one, sizeof(one)};
        for (int i = 0; i <= closes; i++) {
            script_say(&s.peer, &plan);
            script_say(&s.peer, &request);
            if (i < closes) {
                script_say(&s.peer, &(wh_note){.type = WH_CLOSE});
            }
            plan.session++;
        }
        script_open_channel(&s.peer);
        script_say(&s.peer, &(wh_note){.type = WH_DONE, .epoch = s.peer.offer.epoch});
        script_expect(&s.peer, WH_RELEASED);
        scene_finish(&s, WHERRY_OK);
    }
    /* Here the source refuses the lane, and then gets a request for it. */
    scene s;
    scene_begin(&s, &sockets, NULL);
    script_ask(&s.peer);
    plan.request = (wh_bytes){"\7\7", 2};
    script_say(&s.peer, &plan);
    script_say(&s.peer, &request);
    script_expect(&s.peer, WH_REFUSE_LANE);
    script_say(&s.peer, &(wh_note){.type = WH_DONE, .epoch = s.peer.offer.epoch});
    script_expect(&s.peer, WH_RELEASED);
    scene_finish(&s, WHERRY_OK);
}

/** The source sends digests before and after a plan, but only of existing chunks. */
static void test_comparing(void **state) {
    (void)state;
    uint8_t one[16] = {0};
    one[15] = 1;
    wh_note compare = {.type = WH_COMPARE, .intervals = {one, sizeof(one)}};
    for (int planned = 0; planned < 2; planned++) {
        scene s;
        one[7] = 0;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        script_say(&s.peer, &compare);
        script_expect(&s.peer, WH_DIGESTS);
        assert_true(s.peer.note.first == 0 && s.peer.note.digests.size == WHERRY_DIGEST_BYTES);
        if (planned) {
            script_plan(&s.peer, "cma", (wh_bytes){"", 0}, &(wherry_interval){0, 1}, 1);
            script_say(&s.peer, &compare);
            script_expect(&s.peer, WH_DIGESTS);
        }
        one[7] = 3; /* The plan has only three chunks. */
        script_say(&s.peer, &compare);
        script_expect(&s.peer, WH_ABORT);
        scene_finish(&s, WHERRY_OUT_OF_BOUNDS);
    }
}

/** The plan says that no request follows. The source's worker still waits at the channel. */
static void test_a_request_after_the_last(void **state) {
    (void)state;
    uint8_t one[16] = {[15] = 1};
    scene s;
    wh_socket channel;
    scene_begin(&s, &sockets, NULL);
    script_ask(&s.peer);
    must(wh_group_connect(s.peer.group, 0, s.peer.there, wh_deadline_in_ms(SCRIPT_MS), NULL, &channel, &error));
    script_plan(&s.peer, "stream", (wh_bytes){"\1\1", 2}, &(wherry_interval){0, 3}, 1);
    script_say(&s.peer, &(wh_note){.type = WH_REQUEST, .intervals = {one, sizeof(one)}});
    script_expect(&s.peer, WH_ABORT);
    wh_socket_close(&channel);
    scene_finish(&s, WHERRY_MALFORMED);
}

static void test_assistance(void **state) {
    (void)state;
    static const char *const lanes[] = {"ring", "stream", "boat"};
    for (size_t i = 0; i < sizeof(lanes) / sizeof(*lanes); i++) {
        scene s;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        wh_note assist = {.type = WH_ASSIST, .lane = text_bytes("cma"), .request = text_bytes("nonsense")};
        script_say(&s.peer, &assist);
        script_expect(&s.peer, WH_ASSISTED);
        assert_int_not_equal(s.peer.note.status, WHERRY_OK);
        assist.lane = text_bytes(lanes[i]);
        script_say(&s.peer, &assist);
        script_expect(&s.peer, WH_ABORT);
        scene_finish(&s, WHERRY_MALFORMED);
    }
}

/** Without a limit, answers would accumulate for a receiver that does not read them. */
static void test_requests_without_end(void **state) {
    (void)state;
    for (int plans = 0; plans < 2; plans++) {
        scene s;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        for (int i = 0; i < 1000; i++) {
            if (plans) {
                script_plan(&s.peer, "ring", (wh_bytes){"?", 1}, &(wherry_interval){0, 1}, 1);
            } else {
                script_say(&s.peer, &(wh_note){.type = WH_ASSIST, .lane = text_bytes("cma")});
            }
        }
        int answers = 0;
        while (script_take(&s.peer, SCRIPT_MS) && s.peer.note.type != WH_ABORT) {
            answers++;
        }
        assert_int_equal(s.peer.note.type, WH_ABORT);
        assert_true(answers > 0 && answers <= 100);
        scene_finish(&s, WHERRY_MALFORMED);
    }
}

/** Messages with unknown types, and with types that only a source sends. */
static void test_types_that_no_receiver_sends(void **state) {
    (void)state;
    static const uint8_t types[] = {
        0, WH_WANT, WH_OFFER, WH_REFUSE_LANE, WH_ASSISTED, WH_DIGESTS, WH_RELEASED, WH_REVOKED, WH_CONFIRMED, 19, 255};
    for (size_t i = 0; i < sizeof(types); i++) {
        scene s;
        scene_begin(&s, &local, NULL);
        script_ask(&s.peer);
        wh_note note = {.type = (wh_message_type)types[i], .nonce = s.peer.own, .epoch = s.peer.offer.epoch};
        wh_string text = script_encode(&note);
        script_send(&s.peer, s.peer.there, text.bytes, text.size);
        wh_free(text.bytes);
        script_expect(&s.peer, WH_ABORT);
        scene_finish(&s, WHERRY_MALFORMED);
    }
}

/* ---- truncated and changed messages ---- */

/** A short conversation of a scripted receiver with its own send. It sends `text` after OFFER. */
static wherry_status converse(ferry_world *world, const wherry_value *small, const void *text, size_t size,
                              int64_t no_progress_ms) {
    ferry_call send = ferry_send(world, 0, HOSTILE, small);
    scripted peer;
    send.options.no_progress_ms = no_progress_ms;
    ferry_start(&send);
    script_begin(&peer, world->groups[HOSTILE], 0, world->transports[0]->tag);
    script_ask(&peer);
    script_send(&peer, peer.there, text, size);
    ferry_join(&send);
    script_end(&peer);
    return send.status;
}

static wh_string example(wh_message_type type, uint64_t epoch) {
    static uint8_t one[16] = {[15] = 1};
    wh_note note = {
        .type = type,
        .nonce = UINT64_MAX,
        .epoch = epoch,
        .bytes = 5,
        .status = WHERRY_MISMATCH,
        .path = text_bytes("layer.0"),
        .text = text_bytes("why"),
        .lane = text_bytes("cma"),
        .request = text_bytes("please"),
        .intervals = {one, sizeof(one)},
    };
    return script_encode(&note);
}

static const wh_message_type spoken[] = {WH_PLAN, WH_REQUEST, WH_COMPARE,  WH_ASSIST, WH_PROGRESS,
                                         WH_DONE, WH_ABORT,   WH_WITHDRAW, WH_CLOSE,  WH_CONFIRM};

static wherry_value *small_state(void) {
    int64_t bytes = 100;
    return build_dict("w", build_tensor(build_storage(100, 1), WHERRY_U8, 0, 1, &bytes, NULL), NULL);
}

static void test_messages_truncated_at_every_byte(void **state) {
    (void)state;
    ferry_kind = &local;
    ferry_lane = NULL;
    ferry_world world = ferry_open();
    wherry_value *small = small_state();
    for (size_t i = 0; i < sizeof(spoken) / sizeof(*spoken); i++) {
        wh_string text = example(spoken[i], 1);
        for (size_t size = 0; size < text.size; size++) {
            assert_int_equal(converse(&world, small, text.bytes, size, LIMIT_MS), WHERRY_MALFORMED);
        }
        wh_string_append(&text, "", 1);
        assert_int_equal(converse(&world, small, text.bytes, text.size, LIMIT_MS), WHERRY_MALFORMED);
        wh_free(text.bytes);
    }
    wherry_value_destroy(small);
    ferry_close(&world);
}

/**
 * A changed byte is an error, or makes another valid message. The next send works in either case.
 */
static void test_messages_with_each_byte_changed(void **state) {
    (void)state;
    ferry_kind = &local;
    ferry_lane = NULL;
    ferry_world world = ferry_open();
    wherry_value *small = small_state();
    for (size_t i = 0; i < sizeof(spoken) / sizeof(*spoken); i++) {
        wh_string text = example(spoken[i], 1);
        for (size_t at = 0; at < text.size; at++) {
            char before = text.bytes[at];
            text.bytes[at] = (char)(before ^ (at % 2 ? 0x81 : 0x01));
            wherry_status status = converse(&world, small, text.bytes, text.size, 20);
            assert_true(status == WHERRY_MALFORMED || status == WHERRY_OUT_OF_BOUNDS || status == WHERRY_ABORTED ||
                        status == WHERRY_BAD_VERSION || status == WHERRY_TIMED_OUT);
            text.bytes[at] = before;
        }
        wh_free(text.bytes);
    }
    ferry_call calls[] = {ferry_send(&world, 0, HONEST, small), ferry_receive(&world, HONEST, 0)};
    ferry_run(calls, 2);
    assert_int_equal(calls[0].status, WHERRY_OK);
    assert_int_equal(calls[1].status, WHERRY_OK);
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(small);
    ferry_close(&world);
}

/**
 * A question with a changed byte is another valid question or none. The source waits for a valid
 * one until its timeout.
 */
static void test_a_question_with_each_byte_changed(void **state) {
    (void)state;
    ferry_kind = &local;
    ferry_lane = NULL;
    ferry_world world = ferry_open();
    wherry_value *small = small_state();
    wh_note want = {.type = WH_WANT, .nonce = wh_random_tag(), .step = 5};
    wh_string text = script_encode(&want);
    for (size_t at = 0; at < text.size; at++) {
        ferry_call send = ferry_send(&world, 0, HOSTILE, small);
        scripted peer;
        bool version = at == 1 || at == 2;
        bool step = at >= 11 && at < 19;
        send.options.step = 5;
        /* The other cases wait for their whole timeout. */
        send.options.timeout_ms = version || step ? LIMIT_MS : 60;
        ferry_start(&send);
        script_begin(&peer, world.groups[HOSTILE], 0, world.transports[0]->tag);
        char before = text.bytes[at];
        text.bytes[at] = (char)(before ^ (at % 2 ? 0x01 : 0x80));
        script_send(&peer, peer.want_tag, text.bytes, text.size);
        text.bytes[at] = before;
        ferry_join(&send);
        assert_int_equal(send.status, version ? WHERRY_BAD_VERSION : step ? WHERRY_MISMATCH : WHERRY_TIMED_OUT);
        script_end(&peer);
    }
    wh_free(text.bytes);
    wherry_value_destroy(small);
    ferry_close(&world);
}

/* ---- channels ---- */

/**
 * The source closes channels that no lane uses, whichever lane is chosen, and however often the
 * question is withdrawn.
 */
static void test_unused_channels_are_closed(void **state) {
    (void)state;
    ferry_kind = &sockets;
    ferry_lane = NULL;
    ferry_world world = ferry_open();
    wherry_value *small = small_state();
    int before = 0;
    for (int round = 0; round < 6; round++) {
        ferry_call send = ferry_send(&world, 0, HOSTILE, small);
        scripted peer;
        wh_socket channels[5];
        send.options.no_progress_ms = STALE_MS / 2;
        ferry_start(&send);
        script_begin(&peer, world.groups[HOSTILE], 0, world.transports[0]->tag);
        script_ask(&peer);
        for (int i = 0; i < 5; i++) {
            must(wh_group_connect(peer.group, 0, peer.there, wh_deadline_in_ms(SCRIPT_MS), NULL, channels + i, &error));
        }
        if (round % 2) {
            withdraw(&peer, peer.own, WHERRY_CANCELLED);
            peer.there = 0;
            script_ask(&peer);
        }
        script_plan(&peer, round / 2 % 2 ? "cma" : "stream", (wh_bytes){"\1\1", 2}, &(wherry_interval){0, 1}, 1);
        ferry_join(&send);
        assert_int_equal(send.status, WHERRY_TIMED_OUT);
        for (int i = 0; i < 5; i++) {
            wh_socket_close(&channels[i]);
        }
        script_end(&peer);
        /* The ranks may connect twice at first. */
        before = round < 2 ? open_descriptors() : before;
        for (wh_deadline end = wh_deadline_in_ms(LIMIT_MS); open_descriptors() > before; usleep(1000)) {
            assert_false(wh_deadline_passed(end));
        }
    }
    wherry_value_destroy(small);
    ferry_close(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_questions),
        cmocka_unit_test(test_thousands_of_questions),
        cmocka_unit_test(test_a_long_question_is_not_kept),
        cmocka_unit_test(test_repeated_withdrawals),
        cmocka_unit_test(test_a_withdrawal_while_bytes_move),
        cmocka_unit_test(test_plans_outside_the_offer),
        cmocka_unit_test(test_a_plan_gets_only_the_offered_bytes),
        cmocka_unit_test(test_plans_for_lanes_that_are_not_offered),
        cmocka_unit_test(test_malformed_requests_for_a_lane),
        cmocka_unit_test(test_the_same_plan_twice),
        cmocka_unit_test(test_done_for_another_lease),
        cmocka_unit_test(test_requests_that_overtake_their_lane),
        cmocka_unit_test(test_a_request_without_a_lane),
        cmocka_unit_test(test_comparing),
        cmocka_unit_test(test_a_request_after_the_last),
        cmocka_unit_test(test_assistance),
        cmocka_unit_test(test_requests_without_end),
        cmocka_unit_test(test_types_that_no_receiver_sends),
        cmocka_unit_test(test_messages_truncated_at_every_byte),
        cmocka_unit_test(test_messages_with_each_byte_changed),
        cmocka_unit_test(test_a_question_with_each_byte_changed),
        cmocka_unit_test(test_unused_channels_are_closed),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("hostile_receiver", tests, NULL, NULL);
}
