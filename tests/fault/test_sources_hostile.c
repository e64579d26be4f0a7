/*
 * Rank 2 receives from a hostile source, rank 0, and an honest one, rank 1. The hostile source is
 * dropped and named, and the honest one delivers everything. And a source that is only slow: its
 * digests come when they are not expected any more, and it never answers DONE.
 */
#include <stdlib.h>

#include "base/point.h"
#include "conformance/hub_place.h"
#include "lane/stream/stream_frame.h"
#include "range/digest.h"
#include "support/scripted_peer.h"

enum {
    HOSTILE = 0,
    HONEST = 1,
    RECEIVER = 2,
    STEP = 5,
    CHUNK = 4 << 20,
    CHUNKS = 8,
    BODY = (CHUNKS - 1) * CHUNK + 3,
    GUARD = 8192,
    LIMIT_MS = FERRY_MS / 2,
};

static wherry_error error;

static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};

/** A tensor between guard bytes, which are 0x5A. */
static wherry_value *guarded(int seed) {
    int64_t size = BODY;
    wherry_storage *storage;
    must(wherry_storage_allocate(BODY + 2 * GUARD, wherry_device_cpu(), &storage, &error));
    uint8_t *bytes = wherry_storage_data(storage);
    memset(bytes, 0x5A, BODY + 2 * GUARD);
    for (size_t i = 0; i < BODY; i++) {
        bytes[GUARD + i] = (uint8_t)((i * 7 + i / CHUNK + (size_t)seed) % 251);
    }
    return build_dict("w", build_tensor(storage, WHERRY_U8, GUARD, 1, &size, NULL), NULL);
}

static uint8_t *memory_of(const wherry_value *state) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, "w"))->storage);
}

/* ---- the honest source ---- */

/** The honest source has a plan, so the receiver can do without the other one. */
static atomic_bool planned;
static atomic_bool held; /**< The honest source must not send its chunks yet. */

/** The hook. Only the honest source passes points of a source. */
static void watch_honest(const char *name) {
    if (strcmp(name, "source has the plan") == 0) {
        atomic_store(&planned, true);
    }
    while (strcmp(name, "source gathers a chunk") == 0 && atomic_load(&held) && !ferry_is_over()) {
        usleep(1000);
    }
}

static void await_planned(void) {
    wh_deadline limit = wh_deadline_in_ms(LIMIT_MS);
    while (!atomic_load(&planned)) {
        assert_false(wh_deadline_passed(limit));
        usleep(1000);
    }
}

/* ---- a receive from both ---- */

typedef struct scene {
    ferry_world world;
    wherry_value *state;  /**< What both offer. */
    wherry_value *target; /**< Has other bytes. */
    wh_bytes manifest;
    wh_string addresses;
    wh_string lanes;
    ferry_call send;
    ferry_call receive;
    scripted peer;
    wh_note offer;
    bool asked[CHUNKS]; /**< The chunks that were requested from the hostile source. */
} scene;

/** Runs until the hostile source has offered. The honest one begins after that. */
static void scene_begin(scene *s, const wh_lane_ops *lane, wherry_verify verify) {
    ferry_lane = lane->name;
    *s = (scene){.world = ferry_open(), .state = guarded(1), .target = guarded(2)};
    atomic_store(&planned, false);
    atomic_store(&held, true);
    wh_point_hook = watch_honest;
    wherry_transport_destroy(s->world.transports[HOSTILE]);
    s->world.transports[HOSTILE] = NULL;
    script_begin(&s->peer, s->world.groups[HOSTILE], RECEIVER, s->world.transports[RECEIVER]->tag);
    s->manifest = script_manifest(s->state);
    wh_append_number(&s->addresses, (uintptr_t)memory_of(s->state), 8);
    wh_lane_site site = {.group = s->world.groups[HOSTILE], .peer = RECEIVER, .tag = s->peer.own, .threads = 1};
    wh_string text = {0};
    must(lane->offer(&site, &text, &error));
    wh_lanes_add(&s->lanes, lane->name, text.bytes, text.size);
    wh_free(text.bytes);
    s->offer = (wh_note){
        .type = WH_OFFER,
        .id = s->peer.own,
        .epoch = 77,
        .step = STEP,
        .manifest = s->manifest,
        .addresses = {s->addresses.bytes, s->addresses.size},
        .lanes = {s->lanes.bytes, s->lanes.size},
    };
    s->send = ferry_send(&s->world, HONEST, RECEIVER, s->state);
    s->send.options.step = STEP;
    s->receive = ferry_receive_from_two(&s->world);
    s->receive.options.verify = verify;
    s->receive.options.target = ferry_target;
    s->receive.options.target_context = s->target;
    s->receive.in_target = true;
    ferry_start(&s->receive);
    script_await_want(&s->peer);
    script_say(&s->peer, &s->offer);
    ferry_start(&s->send);
}

/** The receive and the honest send have succeeded. Every byte is right. */
static void scene_finish(scene *s) {
    atomic_store(&held, false);
    ferry_join(&s->receive);
    ferry_join(&s->send);
    wh_point_hook = NULL;
    ferry_expect_ok(&s->receive);
    ferry_expect_ok(&s->send);
    assert_memory_equal(memory_of(s->target), memory_of(s->state), BODY + 2 * GUARD);
    const wherry_source_stats *sources = s->receive.stats.sources;
    assert_true(sources[0].rank == HOSTILE && sources[1].rank == HONEST);
    assert_int_equal(sources[1].status, WHERRY_OK);
    script_end(&s->peer);
    wherry_free((void *)s->manifest.bytes);
    wh_free(s->addresses.bytes);
    wh_free(s->lanes.bytes);
    wherry_value_destroy(s->state);
    wherry_value_destroy(s->target);
    ferry_close(&s->world);
}

/** The chunks of the last PLAN, REQUEST or COMPARE. Free them with wh_free. */
static size_t read_chunks(scene *s, wherry_interval **intervals_p) {
    size_t count;
    must(wh_intervals_decode(s->peer.note.intervals, CHUNKS, intervals_p, &count, &error));
    return count;
}

/* ---- lies ---- */

typedef enum lie {
    WRONG_DIGESTS,
    NO_DIGESTS,
    NO_SUCH_CHUNK,
    ENORMOUS_NUMBER,
    CHUNK_OF_THE_OTHER,
    CHUNK_TWICE,
    TOO_LONG,
    TOO_SHORT,
    END_TOO_EARLY,
    HALF_A_CHUNK,
    GARBAGE_THEN_NO_SUCH_CHUNK,
    GARBAGE_THEN_REVOKED,
    DIGESTS_OUTSIDE,
    A_MESSAGE_OF_A_RECEIVER,
    A_SECOND_OFFER,
} lie;

typedef struct lie_case {
    lie lie;
    wherry_verify verify;
    wherry_status status;
} lie_case;

/** Sends a frame with garbage, of `bytes` bytes. `length` is what its header says. */
static void frame(scene *s, uint64_t chunk, uint64_t length, size_t bytes) {
    uint8_t *text = calloc(1, WH_STREAM_HEADER_BYTES + bytes);
    memset(text + WH_STREAM_HEADER_BYTES, 0xEE, bytes);
    wh_store_be64(text + WHERRY_DIGEST_BYTES, chunk);
    wh_store_be64(text + WHERRY_DIGEST_BYTES + 8, length);
    script_write(&s->peer, text, WH_STREAM_HEADER_BYTES + bytes);
    free(text);
}

static size_t length_of(uint64_t chunk) {
    return chunk == CHUNKS - 1 ? BODY - (CHUNKS - 1) * CHUNK : CHUNK;
}

/** Sends garbage for all chunks of the last message. The digests, if any, are zeros. */
static void send_garbage(scene *s, bool digests) {
    wherry_interval *intervals;
    size_t count = read_chunks(s, &intervals);
    for (size_t i = 0; i < count; i++) {
        for (uint64_t chunk = intervals[i].first; chunk < intervals[i].first + intervals[i].count; chunk++) {
            frame(s, chunk, length_of(chunk) | (digests ? WH_STREAM_DIGEST_FOLLOWS : 0), length_of(chunk));
        }
    }
    wh_free(intervals);
    if (digests) {
        frame(s, s->peer.note.last ? WH_STREAM_END : WH_STREAM_PAUSE, 0, 0);
    }
}

/** Remembers which chunks were requested. @return one of them. */
static uint64_t note_request(scene *s) {
    wherry_interval *intervals;
    size_t count = read_chunks(s, &intervals);
    uint64_t any = count ? intervals->first : 0;
    for (size_t i = 0; i < count; i++) {
        memset(s->asked + intervals[i].first, true, intervals[i].count);
    }
    wh_free(intervals);
    return any;
}

static uint64_t chunk_of_the_other(const scene *s) {
    uint64_t chunk = 0;
    while (s->asked[chunk]) {
        assert_true(++chunk < CHUNKS);
    }
    return chunk;
}

/** Lies in answer to a PLAN or a REQUEST. */
static void tell_lie(scene *s, lie what) {
    static uint8_t digests[2 * WHERRY_DIGEST_BYTES]; /* of two chunks */
    uint64_t any = note_request(s);
    switch (what) {
    case WRONG_DIGESTS:
        send_garbage(s, true);
        break;
    case NO_DIGESTS:
        frame(s, any, length_of(any), length_of(any));
        break;
    case GARBAGE_THEN_NO_SUCH_CHUNK:
        send_garbage(s, false);
        frame(s, CHUNKS, CHUNK, CHUNK);
        break;
    case NO_SUCH_CHUNK:
        frame(s, CHUNKS, CHUNK, CHUNK);
        break;
    case ENORMOUS_NUMBER:
        frame(s, UINT64_C(1) << 60, CHUNK, CHUNK);
        break;
    case CHUNK_OF_THE_OTHER:
        frame(s, chunk_of_the_other(s), CHUNK, CHUNK);
        break;
    case CHUNK_TWICE:
        frame(s, any, length_of(any), length_of(any));
        frame(s, any, length_of(any), length_of(any));
        break;
    case TOO_LONG:
        frame(s, any, length_of(any) + 1, length_of(any) + 1);
        break;
    case TOO_SHORT:
        frame(s, any, 1, 1);
        break;
    case END_TOO_EARLY:
        frame(s, WH_STREAM_END, 0, 0);
        break;
    case HALF_A_CHUNK:
        frame(s, any, length_of(any), 1);
        wh_socket_close(&s->peer.channel);
        break;
    case GARBAGE_THEN_REVOKED:
        send_garbage(s, false);
        script_say(&s->peer, &(wh_note){.type = WH_REVOKED, .epoch = 77, .status = WHERRY_CANCELLED});
        break;
    case DIGESTS_OUTSIDE:
        script_say(&s->peer,
                   &(wh_note){.type = WH_DIGESTS, .first = CHUNKS - 1, .digests = {digests, sizeof(digests)}});
        break;
    case A_MESSAGE_OF_A_RECEIVER:
        script_say(&s->peer, &(wh_note){.type = WH_DONE, .epoch = 77});
        break;
    case A_SECOND_OFFER:
        script_say(&s->peer, &s->offer);
        break;
    }
}

/**
 * Lies until the receiver breaks off the conversation. The honest source does not deliver before
 * that.
 */
static void lie_until_dropped(scene *s, const lie_case *one) {
    for (;;) {
        if (!script_take(&s->peer, LIMIT_MS)) {
            fail_msg("lie %d: the receiver did not drop the hostile source", (int)one->lie);
        }
        switch (s->peer.note.type) {
        case WH_PLAN:
            await_planned();
            tell_lie(s, one->lie);
            break;
        case WH_REQUEST:
            if (one->lie == WRONG_DIGESTS) {
                tell_lie(s, one->lie);
            }
            break;
        case WH_ABORT:
            if (s->peer.note.status != one->status) {
                fail_msg("lie %d: the hostile source was told %s: %.*s", (int)one->lie,
                         wherry_status_name(s->peer.note.status), (int)s->peer.note.text.size,
                         (const char *)s->peer.note.text.bytes);
            }
            return;
        case WH_CLOSE: /* The machine is busy, and this source was too slow. It is asked again. */
            break;
        default:
            fail_msg("lie %d: the receiver sent a message of type %d", (int)one->lie, (int)s->peer.note.type);
        }
    }
}

/**
 * No byte of the hostile source is left in the target, also none of the chunks that it had
 * delivered before its lie was found.
 */
static void test_a_source_that_lies_is_dropped(void **state) {
    (void)state;
    static const lie_case cases[] = {
        {WRONG_DIGESTS, WHERRY_VERIFY_ON, WHERRY_CORRUPT},
        {NO_DIGESTS, WHERRY_VERIFY_ON, WHERRY_MALFORMED},
        {NO_SUCH_CHUNK, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {ENORMOUS_NUMBER, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {CHUNK_OF_THE_OTHER, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {CHUNK_TWICE, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {TOO_LONG, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {TOO_SHORT, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {END_TOO_EARLY, WHERRY_VERIFY_OFF, WHERRY_TRUNCATED},
        {HALF_A_CHUNK, WHERRY_VERIFY_OFF, WHERRY_PEER_LOST},
        {GARBAGE_THEN_NO_SUCH_CHUNK, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {GARBAGE_THEN_REVOKED, WHERRY_VERIFY_OFF, WHERRY_REVOKED},
        {DIGESTS_OUTSIDE, WHERRY_VERIFY_ON, WHERRY_MALFORMED},
        {A_MESSAGE_OF_A_RECEIVER, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
        {A_SECOND_OFFER, WHERRY_VERIFY_OFF, WHERRY_MALFORMED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        scene s;
        scene_begin(&s, &wh_lane_stream, cases[i].verify);
        lie_until_dropped(&s, cases + i);
        scene_finish(&s);
        assert_int_equal(s.receive.stats.sources[0].status, cases[i].status);
        assert_true(s.receive.stats.sources[0].reason[0]);
    }
}

/* ---- digests that come late ---- */

/** Answers with the digests of these chunks, or with zeros. */
static void say_digests(scene *s, const wherry_interval *intervals, size_t count, bool strong, bool right) {
    wh_digester *digester = strong ? wh_digester_create_strong() : wh_digester_create();
    for (size_t i = 0; i < count; i++) {
        wherry_digest digests[CHUNKS] = {{{0}}};
        for (uint64_t k = 0; right && k < intervals[i].count; k++) {
            uint64_t chunk = intervals[i].first + k;
            struct iovec run = {memory_of(s->state) + GUARD + chunk * CHUNK, length_of(chunk)};
            digests[k] = wh_digest_of(digester, &run, 1);
        }
        script_say(&s->peer, &(wh_note){.type = WH_DIGESTS,
                                        .strong = strong,
                                        .first = intervals[i].first,
                                        .digests = {digests, intervals[i].count * WHERRY_DIGEST_BYTES}});
    }
    wh_digester_destroy(digester);
}

/**
 * Two kinds of DIGESTS may cross: weak ones of the chunks of a session, and strong ones that answer
 * a COMPARE. Here a source sends the wrong kind first, as if it was late, and zeros in it. That
 * does no harm. And the source never answers DONE: with several sources, nobody relies on it.
 */
static void test_late_digests_of_the_other_kind(void **state) {
    (void)state;
    scene s;
    bool compared = false;
    scene_begin(&s, &wh_lane_cma, WHERRY_VERIFY_ALL);
    for (bool done = false; !done;) {
        if (!script_take(&s.peer, LIMIT_MS)) {
            fail_msg("the receiver says nothing more");
        }
        wherry_interval *intervals;
        size_t count;
        switch (s.peer.note.type) {
        case WH_PLAN:
        case WH_REQUEST:
            await_planned();
            count = read_chunks(&s, &intervals);
            say_digests(&s, intervals, count, true, false);
            say_digests(&s, intervals, count, false, true);
            wh_free(intervals);
            break;
        case WH_COMPARE:
            assert_int_equal(s.peer.note.strong, 1);
            count = read_chunks(&s, &intervals);
            say_digests(&s, intervals, count, false, false);
            say_digests(&s, intervals, count, true, true);
            wh_free(intervals);
            compared = true;
            break;
        case WH_CONFIRM:
            script_say(&s.peer, &(wh_note){.type = WH_CONFIRMED, .epoch = 77});
            break;
        case WH_CLOSE:
            break;
        case WH_DONE:
            assert_int_equal(s.peer.note.last, 1);
            done = true;
            break;
        default:
            fail_msg("the receiver sent a message of type %d", (int)s.peer.note.type);
        }
    }
    const wherry_stats *stats = &s.receive.stats;
    scene_finish(&s);
    assert_true(compared);
    assert_int_equal(stats->retries, 0);
    assert_int_equal(stats->sources[0].status, WHERRY_OK);
    assert_true(stats->sources[0].chunks > 0 && stats->sources[1].chunks > 0);
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_that_lies_is_dropped),
        cmocka_unit_test(test_late_digests_of_the_other_kind),
    };
    ferry_kind = &local;
    wherry_log_set_level(WHERRY_LOG_OFF);
    return ferry_run_cases("sources_hostile", tests, sizeof(tests) / sizeof(*tests));
}
