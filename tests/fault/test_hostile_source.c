/*
 * A hostile source lies about its manifest, its memory and its chunks, sends messages in the wrong
 * order, or is silent. The receiver fails with the right error before its deadline, and writes
 * nothing outside the planned destinations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "conformance/hub_place.h"
#include "support/scripted_peer.h"

enum {
    HEADER = 64,
    STALE_MS = 1500,
    LIMIT_MS = 8000,
    BODY = (5 << 20) + 3,
    GUARD = 8192,
    CHUNK = 4 << 20,
    RECEIVER = 1
};

static wherry_error error;
static bool into_new_memory; /* True if the next receive has no target. */

static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};

static wherry_value *view_of(uint64_t bytes, uint64_t guard, uint8_t fill) {
    int64_t size = (int64_t)bytes;
    wherry_storage *storage;
    must(wherry_storage_allocate(bytes + 2 * guard, wherry_device_cpu(), &storage, &error));
    memset(wherry_storage_data(storage), fill, bytes + 2 * guard);
    return build_dict("w", build_tensor(storage, WHERRY_U8, (int64_t)guard, 1, &size, NULL), NULL);
}

static uint8_t *memory_of(const wherry_value *state) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, "w"))->storage);
}

/** A receive from a scripted source into a target between guard bytes. */
typedef struct scene {
    ferry_world world;
    wherry_value *offered; /**< The state in the manifest. All its bytes are 7. */
    wherry_value *target;  /**< All its bytes are 0x5A. */
    wh_bytes manifest;
    wh_string addresses;
    wh_string lanes;
    ferry_call receive;
    scripted peer;
    wh_note offer;
    uint64_t begun;
} scene;

/** The offer of a lane of an honest source. */
static wh_string offer_of(const scene *s, const wh_lane_ops *lane) {
    wh_string text = {0};
    wh_lane_site site = {
        .group = s->world.groups[0], .peer = RECEIVER, .tag = s->peer.own, .threads = lane == &wh_lane_stream ? 1 : 2};
    must(lane->offer(&site, &text, &error));
    return text;
}

/** Runs until WANT has come. Sets `offer` to the offer of an honest source with one lane. */
static void scene_begin(scene *s, const wh_lane_ops *lane, wherry_verify verify) {
    ferry_kind = &local;
    ferry_lane = lane->name;
    *s = (scene){.world = ferry_open(), .offered = view_of(BODY, 0, 7), .target = view_of(BODY, GUARD, 0x5A)};
    wherry_transport_destroy(s->world.transports[0]);
    s->world.transports[0] = NULL;
    script_begin(&s->peer, s->world.groups[0], RECEIVER, s->world.transports[RECEIVER]->tag);
    s->manifest = script_manifest(s->offered);
    wh_append_number(&s->addresses, (uintptr_t)memory_of(s->offered), 8);
    wh_string lane_offer = offer_of(s, lane);
    wh_lanes_add(&s->lanes, lane->name, lane_offer.bytes, lane_offer.size);
    wh_free(lane_offer.bytes);
    s->offer = (wh_note){
        .type = WH_OFFER,
        .id = s->peer.own,
        .epoch = 77,
        .step = WHERRY_STEP_ANY,
        .manifest = s->manifest,
        .addresses = {s->addresses.bytes, s->addresses.size},
        .lanes = {s->lanes.bytes, s->lanes.size},
    };
    s->receive = ferry_receive(&s->world, RECEIVER, 0);
    s->receive.options.no_progress_ms = STALE_MS;
    s->receive.options.timeout_ms = 2 * LIMIT_MS;
    s->receive.options.verify = verify;
    s->receive.options.target = into_new_memory ? NULL : ferry_target;
    s->receive.options.target_context = s->target;
    s->begun = wh_clock_now();
    ferry_start(&s->receive);
    script_await_want(&s->peer);
}

static void expect_status(const ferry_call *call, wherry_status expected) {
    if (call->status != expected) {
        print_error("%s: %s\n", wherry_status_name(call->status), call->error.message);
    }
    assert_int_equal(call->status, expected);
    if (expected != WHERRY_OK) {
        assert_int_equal(call->error.status, expected);
        assert_true(call->error.message[0]);
    }
}

/** @param touched  true if bytes of the tensor itself may have been written. */
static void scene_finish(scene *s, wherry_status expected, bool touched) {
    ferry_join(&s->receive);
    assert_true((wh_clock_now() - s->begun) / 1000000 < LIMIT_MS);
    expect_status(&s->receive, expected);
    const uint8_t *bytes = memory_of(s->target);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(bytes[i], 0x5A);
        assert_int_equal(bytes[GUARD + BODY + i], 0x5A);
    }
    for (size_t i = 0; !touched && i < BODY; i++) {
        assert_int_equal(bytes[GUARD + i], 0x5A);
    }
    if (expected == WHERRY_OK) {
        assert_memory_equal(bytes + GUARD, memory_of(s->offered), BODY);
        wherry_value_destroy(s->receive.received);
    }
    script_end(&s->peer);
    wherry_free((void *)s->manifest.bytes);
    wh_free(s->addresses.bytes);
    wh_free(s->lanes.bytes);
    wherry_value_destroy(s->offered);
    wherry_value_destroy(s->target);
    ferry_close(&s->world);
}

static void say_offer(scene *s) {
    script_say(&s->peer, &s->offer);
}

/** Checks that the receiver gives up and tells the source this reason. */
static void expect_abort(scene *s, wherry_status reason) {
    script_expect(&s->peer, WH_ABORT);
    assert_int_equal(s->peer.note.status, reason);
}

/** Waits for DONE and confirms it. */
static void confirm(scene *s) {
    script_expect(&s->peer, WH_DONE);
    assert_int_equal(s->peer.note.epoch, s->offer.epoch);
    assert_int_equal(s->peer.note.last, 0); /* A receiver with one source relies on the answer. */
    script_say(&s->peer, &(wh_note){.type = WH_RELEASED, .epoch = s->offer.epoch});
}

/* ---- offers ---- */

/** 2^60 bytes exceed every limit. 2^45 bytes do not, but the target has another size. */
static void test_a_manifest_of_enormous_size(void **state) {
    (void)state;
    static const struct {
        int shift;
        bool in_place;
        wherry_status status;
    } cases[] = {{60, true, WHERRY_LIMIT}, {60, false, WHERRY_LIMIT}, {45, true, WHERRY_MISMATCH}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        int64_t size = INT64_C(1) << cases[i].shift;
        wherry_value *enormous =
            build_dict("w", build_tensor(build_bare((uint64_t)size), WHERRY_U8, 0, 1, &size, NULL), NULL);
        wh_bytes manifest = script_manifest(enormous);
        into_new_memory = !cases[i].in_place;
        scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
        into_new_memory = false;
        s.offer.manifest = manifest;
        say_offer(&s);
        expect_abort(&s, cases[i].status);
        wherry_free((void *)manifest.bytes);
        wherry_value_destroy(enormous);
        scene_finish(&s, cases[i].status, false);
    }
}

/** The source leaves out the manifest, although the receiver has said that it knows none. */
static void test_no_manifest(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
    s.offer.manifest = (wh_bytes){NULL, 0};
    say_offer(&s);
    expect_abort(&s, WHERRY_MALFORMED);
    scene_finish(&s, WHERRY_MALFORMED, false);
}

static bool is_about_bytes(wherry_status status) {
    return status <= WHERRY_TRUNCATED && status >= WHERRY_TRAILING_BYTES;
}

static void test_a_manifest_of_random_bytes(void **state) {
    (void)state;
    scene s;
    uint64_t seed = 5;
    uint8_t bytes[300];
    scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof(bytes); k++) {
            bytes[k] = (uint8_t)next_random(&seed);
        }
        if (i % 2) { /* Every second manifest begins with valid bytes. */
            memcpy(bytes, s.manifest.bytes, 16);
        }
        s.offer.manifest = (wh_bytes){bytes, (size_t)(i * 3) % sizeof(bytes)};
        say_offer(&s);
        ferry_join(&s.receive);
        assert_true(is_about_bytes(s.receive.status));
        ferry_start(&s.receive);
        script_await_want(&s.peer);
    }
    s.begun = wh_clock_now();
    s.offer.manifest = s.manifest;
    s.offer.lanes = (wh_bytes){0};
    say_offer(&s);
    /* The state has bytes, but the source offers no lane. */
    scene_finish(&s, WHERRY_UNSUPPORTED, false);
}

/** An honest offer in which each byte is changed in turn. Nothing is written outside the target. */
static void test_an_offer_with_each_byte_changed(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_OFF);
    wh_note abort_note = {.type = WH_ABORT, .status = WHERRY_NO_MEMORY};
    wh_string text = script_encode(&s.offer);
    for (size_t at = 0; at < text.size; at++) {
        char before = text.bytes[at];
        text.bytes[at] = (char)(before ^ (at % 2 ? 0x80 : 0x01));
        script_send(&s.peer, s.peer.there, text.bytes, text.size);
        text.bytes[at] = before;
        script_say(&s.peer, &abort_note);
        ferry_join(&s.receive);
        /* The source does not confirm the end. */
        assert_int_not_equal(s.receive.status, WHERRY_OK);
        ferry_start(&s.receive);
        script_await_want(&s.peer);
    }
    for (size_t size = 0; size < text.size; size++) {
        script_send(&s.peer, s.peer.there, text.bytes, size);
        ferry_join(&s.receive);
        expect_status(&s.receive, WHERRY_MALFORMED);
        ferry_start(&s.receive);
        script_await_want(&s.peer);
    }
    wh_free(text.bytes);
    while (script_take(&s.peer, 0)) { /* Drop the messages of the earlier receives. */
    }
    s.begun = wh_clock_now();
    say_offer(&s);
    script_expect(&s.peer, WH_PLAN);
    confirm(&s);
    scene_finish(&s, WHERRY_OK, true);
}

static void test_another_version(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
    wh_string text = script_encode(&s.offer);
    text.bytes[2] = 9;
    script_send(&s.peer, s.peer.there, text.bytes, text.size);
    wh_free(text.bytes);
    scene_finish(&s, WHERRY_BAD_VERSION, false);
}

static void test_the_same_offer_twice(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
    say_offer(&s);
    say_offer(&s);
    script_expect(&s.peer, WH_PLAN);
    expect_abort(&s, WHERRY_MALFORMED);
    scene_finish(&s, WHERRY_MALFORMED, false);
}

/**
 * Wrong addresses of the source's memory make the transfer fail or deliver wrong bytes, and do
 * nothing else.
 */
static void test_wrong_addresses(void **state) {
    (void)state;
    void *gone = mmap(NULL, BODY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const struct {
        uint64_t address;
        size_t size;
        wherry_status status;
    } cases[] = {
        {0, 0, WHERRY_UNSUPPORTED},
        {0, 7, WHERRY_UNSUPPORTED},
        {0, 16, WHERRY_UNSUPPORTED},
        {0, 8, WHERRY_OUT_OF_BOUNDS},
        {UINT64_MAX, 8, WHERRY_OUT_OF_BOUNDS},
        {UINT64_C(1) << 63, 8, WHERRY_OUT_OF_BOUNDS},
        {UINT64_C(0x0000800000000000), 8, WHERRY_OUT_OF_BOUNDS},
        {(uintptr_t)gone, 8, WHERRY_OUT_OF_BOUNDS},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        uint8_t bytes[16];
        wh_store_be64(bytes, cases[i].address);
        wh_store_be64(bytes + 8, cases[i].address);
        scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_OFF);
        s.offer.addresses = (wh_bytes){bytes, cases[i].size};
        say_offer(&s);
        scene_finish(&s, cases[i].status, false);
    }
    munmap(gone, BODY);
}

/** For each lane, an offer that its probe cannot read. */
static void test_malformed_offers_of_lanes(void **state) {
    (void)state;
    static const wh_lane_ops *const lanes[] = {&wh_lane_cma, &wh_lane_ring, &wh_lane_stream};
    uint8_t garbage[WH_LANE_OFFER_MAX];
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof(garbage); i++) {
        garbage[i] = (uint8_t)next_random(&seed);
    }
    for (size_t i = 0; i < 3; i++) {
        scene s;
        scene_begin(&s, lanes[i], WHERRY_VERIFY_OFF);
        s.lanes.size = 0;
        wh_lanes_add(&s.lanes, lanes[i]->name, garbage, i == 2 ? sizeof(garbage) : 64);
        s.offer.lanes = (wh_bytes){s.lanes.bytes, s.lanes.size};
        say_offer(&s);
        expect_abort(&s, WHERRY_UNSUPPORTED);
        scene_finish(&s, WHERRY_UNSUPPORTED, false);
    }
}

/* ---- bytes, over the stream lane ---- */

/** Makes an offer, reads the plan, and takes the channel that the receiver has opened. */
static void begin_frames(scene *s, wherry_verify verify) {
    scene_begin(s, &wh_lane_stream, verify);
    say_offer(s);
    script_expect(&s->peer, WH_PLAN);
    const uint8_t *request = s->peer.note.request.bytes;
    assert_int_equal(s->peer.note.request.size, 2);
    assert_true(request[0] == 1 && request[1] == 1 && s->peer.channel.fd >= 0);
}

/** Sends a frame of `bytes` bytes 7. `length` is the length in its header. */
static void frame(scene *s, uint64_t chunk, uint64_t length, size_t bytes) {
    uint8_t *text = calloc(1, HEADER + bytes);
    memset(text + HEADER, 7, bytes);
    wh_store_be64(text + 16, chunk);
    wh_store_be64(text + 24, length);
    script_write(&s->peer, text, HEADER + bytes);
    free(text);
}

static void test_frames(void **state) {
    (void)state;
    enum { LAST = BODY - CHUNK };
    static const uint64_t digest = UINT64_C(1) << 63;
    const struct {
        struct {
            uint64_t chunk, length;
            size_t bytes;
        } frames[4];
        wherry_status status;
        wherry_verify verify;
    } cases[] = {
        /* no such chunk */
        {{{2, CHUNK, CHUNK}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        /* no such chunk either */
        {{{UINT64_C(1) << 60, 8, 8}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        {{{0, CHUNK, CHUNK}, {0, CHUNK, CHUNK}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF}, /* twice */
        /* too long */
        {{{0, CHUNK + 1, CHUNK + 1}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        /* too short */
        {{{0, CHUNK - 1, CHUNK - 1}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        {{{0, 0, 0}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF}, /* empty */
        /* The header has a length of 2^63 - 1. */
        {{{1, digest - 1, 64}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        /* the end mark, without any chunk */
        {{{UINT64_MAX, 0, 0}}, WHERRY_TRUNCATED, WHERRY_VERIFY_OFF},
        /* the end mark, before the last chunk */
        {{{0, CHUNK, CHUNK}, {UINT64_MAX, 0, 0}}, WHERRY_TRUNCATED, WHERRY_VERIFY_OFF},
        /* an end mark with a length */
        {{{UINT64_MAX, 1, 1}}, WHERRY_MALFORMED, WHERRY_VERIFY_OFF},
        /* The source sends nothing more after a chunk. */
        {{{0, CHUNK, CHUNK}}, WHERRY_TIMED_OUT, WHERRY_VERIFY_OFF},
        /* The source sends nothing more in the middle of a chunk. */
        {{{0, CHUNK, 1000}}, WHERRY_TIMED_OUT, WHERRY_VERIFY_OFF},
        /* bytes after the end mark */
        {{{0, CHUNK, CHUNK}, {1, LAST, LAST}, {UINT64_MAX, 0, 5000}}, WHERRY_OK, WHERRY_VERIFY_OFF},
        {{{0, CHUNK, CHUNK}}, WHERRY_MALFORMED, WHERRY_VERIFY_ON}, /* The chunk has no digest. */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        begin_frames(&s, cases[i].verify);
        for (size_t k = 0; k < 4 && (cases[i].frames[k].chunk || cases[i].frames[k].length || k == 0); k++) {
            frame(&s, cases[i].frames[k].chunk, cases[i].frames[k].length, cases[i].frames[k].bytes);
        }
        if (cases[i].status == WHERRY_OK) {
            confirm(&s);
        } else {
            expect_abort(&s, cases[i].status);
        }
        scene_finish(&s, cases[i].status, true);
    }
}

/** Digests that never match: after three sessions, the error names the tensor. */
static void test_digests_never_match(void **state) {
    (void)state;
    scene s;
    begin_frames(&s, WHERRY_VERIFY_ON);
    for (int round = 0; round < 3; round++) {
        if (round) {
            script_expect(&s.peer, WH_PLAN);
            assert_int_equal(s.peer.note.intervals.size, 16);
        }
        frame(&s, 0, (UINT64_C(1) << 63) | CHUNK, CHUNK);
        frame(&s, 1, (UINT64_C(1) << 63) | (BODY - CHUNK), BODY - CHUNK);
        frame(&s, UINT64_MAX, 0, 0);
    }
    expect_abort(&s, WHERRY_CORRUPT);
    ferry_join(&s.receive);
    assert_string_equal(s.receive.error.path, "w");
    assert_int_equal(s.receive.stats.retries, 4);
    ferry_start(&s.receive);
    script_await_want(&s.peer);
    script_say(&s.peer, &(wh_note){.type = WH_ABORT, .status = WHERRY_NO_MEMORY, .text = text_bytes("\1\2")});
    scene_finish(&s, WHERRY_ABORTED, true);
}

/* ---- other messages ---- */

static void test_unexpected_digests(void **state) {
    (void)state;
    static uint8_t digests[2 * WHERRY_DIGEST_BYTES];
    const struct {
        wherry_verify verify;
        uint64_t first;
    } cases[] = {{WHERRY_VERIFY_OFF, 0},
                 {WHERRY_VERIFY_ON, 2},
                 {WHERRY_VERIFY_ON, 1},
                 {WHERRY_VERIFY_ON, UINT64_MAX},
                 {WHERRY_VERIFY_ON, UINT64_C(1) << 60}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        scene_begin(&s, &wh_lane_cma, cases[i].verify);
        say_offer(&s);
        script_expect(&s.peer, WH_PLAN);
        script_say(&s.peer, &(wh_note){.type = WH_DIGESTS, .first = cases[i].first, .digests = {digests, 32}});
        if (cases[i].verify == WHERRY_VERIFY_OFF) {
            /* The receiver may say DONE before it reads these messages. */
            script_take(&s.peer, SCRIPT_MS);
            assert_true(s.peer.note.type == WH_DONE || s.peer.note.type == WH_ABORT);
        } else {
            expect_abort(&s, WHERRY_MALFORMED);
        }
        scene_finish(&s, WHERRY_MALFORMED, true);
    }
}

/** Wrong digests come three times. The receiver does not ask a fourth time. */
static void test_wrong_digests_of_memory(void **state) {
    (void)state;
    static uint8_t digests[2 * WHERRY_DIGEST_BYTES];
    scene s;
    scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_ON);
    say_offer(&s);
    for (int round = 0; round < 3; round++) {
        script_expect(&s.peer, WH_PLAN);
        script_say(&s.peer, &(wh_note){.type = WH_DIGESTS, .first = 0, .digests = {digests, 32}});
    }
    expect_abort(&s, WHERRY_CORRUPT);
    scene_finish(&s, WHERRY_CORRUPT, true);
}

static void test_ends_of_the_lease(void **state) {
    (void)state;
    static const struct {
        wh_note note;
        wherry_status status;
    } cases[] = {
        {{.type = WH_RELEASED, .epoch = 78}, WHERRY_TIMED_OUT},
        {{.type = WH_REVOKED, .epoch = 77, .status = WHERRY_TIMED_OUT}, WHERRY_REVOKED},
        {{.type = WH_ABORT, .status = WHERRY_NO_MEMORY}, WHERRY_ABORTED},
        {{.type = WH_ABORT, .status = 12345}, WHERRY_ABORTED},
        {{.type = WH_REFUSE_LANE, .session = 1, .status = WHERRY_REFUSED}, WHERRY_MALFORMED},
        {{.type = WH_REFUSE_LANE, .session = 1, .status = WHERRY_OK}, WHERRY_MALFORMED},
        {{.type = WH_REFUSE_LANE, .session = 2, .status = WHERRY_REFUSED}, WHERRY_TIMED_OUT},
        {{.type = WH_PROGRESS, .bytes = UINT64_MAX}, WHERRY_TIMED_OUT},
        {{.type = WH_PLAN}, WHERRY_MALFORMED},
        {{.type = WH_DONE, .epoch = 77}, WHERRY_MALFORMED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_OFF);
        script_say(&s.peer, &(wh_note){.type = WH_PROGRESS});
        say_offer(&s);
        script_expect(&s.peer, WH_PLAN);
        script_expect(&s.peer, WH_DONE);
        script_say(&s.peer, &cases[i].note);
        scene_finish(&s, cases[i].status, true);
    }
}

/** Sends these bytes after PLAN, then ABORT, and starts another receive. */
static void say_and_give_up(scene *s, const void *bytes, size_t size) {
    say_offer(s);
    script_expect(&s->peer, WH_PLAN);
    script_send(&s->peer, s->peer.there, bytes, size);
    script_say(&s->peer, &(wh_note){.type = WH_ABORT, .status = WHERRY_NO_MEMORY});
    ferry_join(&s->receive);
}

static void begin_another(scene *s) {
    while (script_take(&s->peer, 0)) { /* Drop the messages of the last receive. */
    }
    ferry_start(&s->receive);
    script_await_want(&s->peer);
}

/**
 * Each message that a source sends after PLAN, truncated at every byte, or with each byte changed.
 * The source never confirms.
 */
static void test_messages_changed_and_truncated(void **state) {
    (void)state;
    static const wh_message_type types[] = {WH_REFUSE_LANE, WH_ASSISTED, WH_DIGESTS, WH_PROGRESS,
                                            WH_RELEASED,    WH_REVOKED,  WH_ABORT};
    static uint8_t digest[WHERRY_DIGEST_BYTES];
    scene s;
    scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_ON);
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        wh_note note = {.type = types[i], .epoch = 76, .digests = {digest, 16}, .text = text_bytes("why")};
        wh_string text = script_encode(&note);
        for (size_t at = 0; at < text.size; at++) {
            say_and_give_up(&s, text.bytes, at);
            expect_status(&s.receive, WHERRY_MALFORMED);
            begin_another(&s);
            text.bytes[at] ^= 0x41;
            say_and_give_up(&s, text.bytes, text.size);
            assert_int_not_equal(s.receive.status, WHERRY_OK);
            begin_another(&s);
            text.bytes[at] ^= 0x41;
        }
        wh_free(text.bytes);
    }
    s.begun = wh_clock_now();
    script_say(&s.peer, &(wh_note){.type = WH_ABORT, .status = WHERRY_NO_MEMORY});
    scene_finish(&s, WHERRY_ABORTED, true);
}

static void test_revoked_while_bytes_arrive(void **state) {
    (void)state;
    scene s;
    begin_frames(&s, WHERRY_VERIFY_OFF);
    frame(&s, 0, CHUNK, CHUNK);
    frame(&s, 1, BODY - CHUNK, 100);
    script_say(&s.peer, &(wh_note){.type = WH_REVOKED, .epoch = 77, .status = WHERRY_CANCELLED});
    expect_abort(&s, WHERRY_REVOKED); /* The ABORT acknowledges REVOKED. */
    scene_finish(&s, WHERRY_REVOKED, true);
}

/** The source refuses each lane in turn, until none is left. */
static void test_every_lane_refused(void **state) {
    (void)state;
    scene s;
    begin_frames(&s, WHERRY_VERIFY_OFF);
    script_say(&s.peer,
               &(wh_note){.type = WH_REFUSE_LANE, .session = 1, .status = WHERRY_REFUSED, .text = text_bytes("no")});
    expect_abort(&s, WHERRY_UNSUPPORTED);
    scene_finish(&s, WHERRY_UNSUPPORTED, false);
}

static void test_silence(void **state) {
    (void)state;
    scene s;
    scene_begin(&s, &wh_lane_stream, WHERRY_VERIFY_OFF);
    say_offer(&s);
    script_expect(&s.peer, WH_PLAN);
    expect_abort(&s, WHERRY_TIMED_OUT);
    scene_finish(&s, WHERRY_TIMED_OUT, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_manifest_of_enormous_size),
        cmocka_unit_test(test_no_manifest),
        cmocka_unit_test(test_a_manifest_of_random_bytes),
        cmocka_unit_test(test_an_offer_with_each_byte_changed),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_the_same_offer_twice),
        cmocka_unit_test(test_wrong_addresses),
        cmocka_unit_test(test_malformed_offers_of_lanes),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_digests_never_match),
        cmocka_unit_test(test_unexpected_digests),
        cmocka_unit_test(test_wrong_digests_of_memory),
        cmocka_unit_test(test_ends_of_the_lease),
        cmocka_unit_test(test_messages_changed_and_truncated),
        cmocka_unit_test(test_revoked_while_bytes_arrive),
        cmocka_unit_test(test_every_lane_refused),
        cmocka_unit_test(test_silence),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests_name("hostile_source", tests, NULL, NULL);
}
