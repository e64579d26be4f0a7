/*
 * The receiver's side of the data: which chunks are let in, where their bytes go, and which come
 * again.
 */
#include "support/build.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/stop.h"
#include "support/counting_allocator.h"
#include "transfer/sink.h"

enum { CHUNK = 4 << 20, BODY = 3 * CHUNK + 100, GUARD = 4096 };

static wherry_error error;

/** A plan of a tensor "w" of four chunks into a target between guards, and a sink over it. */
typedef struct scene {
    wherry_value *source;
    wherry_value *target;
    wherry_plan *plan;
    wh_stop stop;
    wh_chunk_sink sink;
    wh_sink face;
    wh_landing landing;
} scene;

static wherry_value *tensor_of(uint64_t bytes, uint64_t guard, uint8_t seed) {
    int64_t size = (int64_t)bytes;
    return build_dict(
        "w", build_tensor(build_storage(bytes + 2 * guard, seed), WHERRY_U8, (int64_t)guard, 1, &size, NULL), NULL);
}

/** A sink whose first round is all of the plan. */
static bool begin(wh_chunk_sink *sink, const wherry_plan *plan, const wh_stop *stop, bool verify, bool in_band) {
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    wh_chunk_set wanted;
    bool ok = wh_chunk_set_init(&wanted, intervals, count) &&
              wh_chunk_sink_init(sink, plan, &wanted, stop, wh_deadline_never()) &&
              wh_chunk_sink_begin(sink, intervals, count, verify, in_band);
    wh_chunk_set_destroy(&wanted);
    return ok;
}

static void scene_open(scene *s, bool verify, bool in_band) {
    *s = (scene){.source = tensor_of(BODY, 0, 1), .target = tensor_of(BODY, GUARD, 9)};
    s->plan = build_plan(s->source, s->target);
    must(wh_stop_init(&s->stop, &error));
    s->sink = (wh_chunk_sink){0};
    assert_true(begin(&s->sink, s->plan, &s->stop, verify, in_band));
    s->face = wh_chunk_sink_face(&s->sink);
}

static void scene_close(scene *s) {
    wh_landing_destroy(&s->landing);
    wh_chunk_sink_destroy(&s->sink);
    wh_stop_destroy(&s->stop);
    wherry_plan_destroy(s->plan);
    wherry_value_destroy(s->target);
    wherry_value_destroy(s->source);
}

static uint8_t *memory_of(const wherry_value *state) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, "w"))->storage);
}

static wh_digest digest_of(uint8_t first) {
    return (wh_digest){{first}};
}

/** Opens a chunk, and closes it with these digests. */
static void land(scene *s, uint64_t chunk, const wh_digest *digest, const wh_digest *claimed) {
    must(s->face.open(&s->sink, chunk, &s->landing, &error));
    must(s->face.close(&s->sink, &s->landing, digest, claimed, &error));
}

/** A chunk is let in once, and only one that is wanted. */
static void test_what_is_let_in(void **state) {
    (void)state;
    scene s;
    wh_landing other = {0};
    scene_open(&s, false, false);
    static const uint64_t foreign[] = {4, 5, UINT64_C(1) << 60, UINT64_MAX};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++) {
        must_fail(WHERRY_MALFORMED, error, s.face.open(&s.sink, foreign[i], &s.landing, &error));
    }
    must(s.face.open(&s.sink, 1, &s.landing, &error));
    must_fail(WHERRY_MALFORMED, error, s.face.open(&s.sink, 1, &other, &error)); /* open */
    must(s.face.close(&s.sink, &s.landing, NULL, NULL, &error));
    must_fail(WHERRY_MALFORMED, error, s.face.open(&s.sink, 1, &other, &error)); /* landed */
    assert_int_equal(wh_chunk_sink_judge(&s.sink).missing, 3);
    wh_landing_destroy(&other);
    scene_close(&s);
}

/** Segments have the length of the chunk, and lie within the tensor. */
static void test_where_bytes_go(void **state) {
    (void)state;
    scene s;
    scene_open(&s, false, false);
    char *expected = (char *)memory_of(s.target) + GUARD;
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        must(s.face.open(&s.sink, chunk, &s.landing, &error));
        assert_int_equal(s.landing.segments.bytes, chunk < 3 ? CHUNK : 100);
        assert_int_equal(s.landing.segments.count, 1);
        assert_ptr_equal(s.landing.segments.items[0].iov_base, expected);
        expected += s.landing.segments.bytes;
        must(s.face.close(&s.sink, &s.landing, NULL, NULL, &error));
    }
    wh_round_result result = wh_chunk_sink_judge(&s.sink);
    assert_true(result.missing == 0 && result.bad == 0 && result.unclaimed == 0);
    scene_close(&s);
}

/**
 * In a partial plan, bytes between the tensors that are wanted have no place; with verify they are
 * read all the same.
 */
static void test_bytes_without_a_place(void **state) {
    (void)state;
    int64_t size = 1000;
    wherry_value *source = build_dict(NULL);
    wherry_value *target = build_dict(NULL);
    for (int i = 0; i < 3; i++) {
        char name[2] = {(char)('a' + i), 0};
        must(wherry_dict_put(source, name, build_tensor(build_storage(1000, 1), WHERRY_U8, 0, 1, &size, NULL), &error));
        if (i != 1) {
            must(wherry_dict_put(target, name, build_tensor(build_storage(1000, 1), WHERRY_U8, 0, 1, &size, NULL),
                                 &error));
        }
    }
    wherry_plan *plan;
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_PARTIAL;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    for (int verify = 0; verify < 2; verify++) {
        wh_stop stop = {.event = -1};
        wh_chunk_sink sink = {0};
        wh_landing landing = {0};
        assert_true(begin(&sink, plan, &stop, verify, false));
        wh_sink face = wh_chunk_sink_face(&sink);
        must(face.open(&sink, 0, &landing, &error));
        assert_int_equal(landing.segments.bytes, 3000);
        size_t without = 0;
        for (size_t i = 0; i < landing.segments.count && !landing.staged; i++) {
            without += landing.segments.items[i].iov_base ? 0 : landing.segments.items[i].iov_len;
        }
        assert_int_equal(without, verify || landing.staged ? 0 : 1000);
        assert_true(landing.staged || landing.scratch_bytes >= 1000);
        wh_landing_destroy(&landing);
        wh_chunk_sink_destroy(&sink);
    }
    wherry_plan_destroy(plan);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
}

/** A lane that carries digests: a chunk that is wrong, or has none, is bad at once. */
static void test_digests_in_band(void **state) {
    (void)state;
    scene s;
    wh_digest one = digest_of(1);
    wh_digest two = digest_of(2);
    scene_open(&s, true, true);
    land(&s, 0, &one, &one);
    land(&s, 1, &one, &two);
    land(&s, 2, &one, NULL);
    land(&s, 3, &two, &two);
    wh_round_result result = wh_chunk_sink_judge(&s.sink);
    assert_true(result.bad == 2 && result.first_bad == 1 && result.missing == 0 && result.unclaimed == 0);
    assert_true(wh_chunk_sink_retry(&s.sink));
    assert_int_equal(s.sink.round.total, 2);
    /* 1 and 2 lie side by side */
    assert_int_equal(s.sink.round.count, 1);
    /* that one was right */
    must_fail(WHERRY_MALFORMED, error, s.face.open(&s.sink, 0, &s.landing, &error));
    assert_int_equal(wh_chunk_sink_judge(&s.sink).missing, 2);
    land(&s, 1, &two, &two);
    land(&s, 2, &two, &two);
    result = wh_chunk_sink_judge(&s.sink);
    assert_true(result.bad == 0 && result.missing == 0);
    scene_close(&s);
}

/** Digests that come by message, before or after the bytes. */
static void test_digests_by_message(void **state) {
    (void)state;
    scene s;
    wh_digest ones[4] = {digest_of(1), digest_of(1), digest_of(1), digest_of(1)};
    wh_digest two = digest_of(2);
    scene_open(&s, true, false);
    assert_true(wh_chunk_sink_claim(&s.sink, 0, ones, 2));
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        land(&s, chunk, chunk == 3 ? &two : ones, NULL);
    }
    wh_round_result result = wh_chunk_sink_judge(&s.sink);
    assert_true(result.unclaimed == 2 && result.bad == 0);
    assert_true(wh_chunk_sink_claim(&s.sink, 2, ones, 2));
    result = wh_chunk_sink_judge(&s.sink);
    assert_true(result.unclaimed == 0 && result.bad == 1 && result.first_bad == 3);
    assert_true(wh_chunk_sink_retry(&s.sink));
    land(&s, 3, ones, NULL);
    /* the claim of the last round is void */
    assert_int_equal(wh_chunk_sink_judge(&s.sink).unclaimed, 1);
    assert_true(wh_chunk_sink_claim(&s.sink, 3, ones, 1));
    assert_int_equal(wh_chunk_sink_judge(&s.sink).bad, 0);
    scene_close(&s);
}

static void test_claims_that_are_refused(void **state) {
    (void)state;
    static wh_digest digests[8];
    scene s;
    scene_open(&s, true, false);
    assert_false(wh_chunk_sink_claim(&s.sink, 4, digests, 1));
    assert_false(wh_chunk_sink_claim(&s.sink, 3, digests, 2));
    assert_false(wh_chunk_sink_claim(&s.sink, UINT64_MAX, digests, 1));
    assert_false(wh_chunk_sink_claim(&s.sink, UINT64_MAX - 1, digests, 8));
    assert_true(wh_chunk_sink_claim(&s.sink, 99, digests, 0));
    scene_close(&s);
    scene_open(&s, false, false); /* nobody asked */
    assert_false(wh_chunk_sink_claim(&s.sink, 0, digests, 1));
    scene_close(&s);
}

/** The stop ends the handing out. */
static void test_stopping(void **state) {
    (void)state;
    scene s;
    uint64_t chunk;
    scene_open(&s, false, false);
    assert_true(s.face.next(&s.sink, &chunk));
    assert_int_equal(chunk, 0);
    assert_true(s.face.next(&s.sink, &chunk));
    wh_stop_request(&s.stop);
    assert_false(s.face.next(&s.sink, &chunk));
    s.face.moved(&s.sink, 5);
    s.face.moved(&s.sink, 6);
    assert_int_equal(s.sink.moved, 11);
    scene_close(&s);
}

static void test_no_memory(void **state) {
    (void)state;
    scene s;
    scene_open(&s, true, true);
    bool ok = false;
    for (uint64_t fail = 1; !ok; fail++) {
        counting count;
        wh_chunk_sink sink = {0};
        counting_begin(&count);
        count.fail = fail;
        ok = begin(&sink, s.plan, &s.stop, true, false);
        wh_chunk_sink_destroy(&sink);
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
        /* three lists of two arrays, one of them the caller's, and four arrays */
        assert_true(ok == (fail > 10));
    }
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_let_in),
        cmocka_unit_test(test_where_bytes_go),
        cmocka_unit_test(test_bytes_without_a_place),
        cmocka_unit_test(test_digests_in_band),
        cmocka_unit_test(test_digests_by_message),
        cmocka_unit_test(test_claims_that_are_refused),
        cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("sink", tests, NULL, NULL);
}
