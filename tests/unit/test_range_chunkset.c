/*
 * Chunk sets, compared with a plain array: positions, adding, and handing out chunks to several
 * threads.
 */
#include "support/build.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "range/chunkset.h"
#include "support/counting_allocator.h"

enum { THREADS = 4, CHUNKS = 20000 };

static wherry_error error;

static void test_empty_set_has_no_chunks(void **state) {
    (void)state;
    wh_chunk_set set = {0};
    uint64_t chunk;
    assert_true(wh_chunk_set_init(&set, NULL, 0));
    assert_int_equal(set.total, 0);
    assert_int_equal(wh_chunk_set_find(&set, 0), UINT64_MAX);
    assert_false(wh_chunk_set_next(&set, &chunk));
    assert_false(wh_chunk_set_next(&set, &chunk));
    wh_chunk_set_destroy(&set);
    wh_chunk_set_destroy(&set); /* The set is empty after the first call. */
}

/**
 * Random intervals: converts positions to chunks and chunks to positions. No other chunk is found.
 */
static void test_positions_and_chunks_match(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int round = 0; round < 50; round++) {
        wherry_interval intervals[30];
        uint64_t expected[300];
        size_t count = next_random(&seed) % 30;
        uint64_t at = next_random(&seed) % 5;
        uint64_t total = 0;
        for (size_t i = 0; i < count; i++) {
            intervals[i] = (wherry_interval){at, 1 + next_random(&seed) % 9};
            for (uint64_t k = 0; k < intervals[i].count; k++) {
                expected[total++] = at + k;
            }
            at += intervals[i].count + 1 + next_random(&seed) % 4;
        }
        wh_chunk_set set = {0};
        assert_true(wh_chunk_set_init(&set, intervals, count));
        assert_int_equal(set.total, total);
        uint64_t place = 0;
        for (uint64_t chunk = 0; chunk < at + 3; chunk++) {
            bool in = place < total && expected[place] == chunk;
            assert_int_equal(wh_chunk_set_find(&set, chunk), in ? place : UINT64_MAX);
            if (in) {
                assert_int_equal(wh_chunk_set_at(&set, place), chunk);
                place++;
            }
        }
        wh_chunk_set_destroy(&set);
    }
}

static void test_large_chunk_numbers_work(void **state) {
    (void)state;
    static const wherry_interval intervals[] = {{0, UINT64_C(1) << 40}, {UINT64_C(1) << 62, 5}, {UINT64_MAX - 1, 1}};
    wh_chunk_set set = {0};
    assert_true(wh_chunk_set_init(&set, intervals, 3));
    assert_int_equal(set.total, (UINT64_C(1) << 40) + 6);
    assert_int_equal(wh_chunk_set_at(&set, set.total - 1), UINT64_MAX - 1);
    assert_int_equal(wh_chunk_set_find(&set, (UINT64_C(1) << 62) + 4), (UINT64_C(1) << 40) + 4);
    assert_int_equal(wh_chunk_set_find(&set, UINT64_MAX), UINT64_MAX);
    wh_chunk_set_destroy(&set);
}

/** Adds intervals, overlapping or not, and compares the set with an array of flags. */
static void test_added_intervals_are_merged(void **state) {
    (void)state;
    enum { MANY = 400 };
    uint64_t seed = 9;
    for (int round = 0; round < 50; round++) {
        bool expected[MANY] = {false};
        wh_chunk_set set = {0};
        uint64_t begin = 0;
        while (begin < MANY - 20) {
            uint64_t last = begin + next_random(&seed) % 10;
            assert_true(wh_chunk_set_add(&set, begin, last));
            for (uint64_t chunk = begin; chunk <= last; chunk++) {
                expected[chunk] = true;
            }
            begin += next_random(&seed) % 12;
            uint64_t least = set.intervals[set.count - 1].first;
            begin = begin > least ? begin : least;
        }
        uint64_t total = 0;
        for (uint64_t chunk = 0; chunk < MANY; chunk++) {
            assert_int_equal(wh_chunk_set_has(&set, chunk), expected[chunk]);
            assert_int_equal(wh_chunk_set_find(&set, chunk), expected[chunk] ? total : UINT64_MAX);
            total += expected[chunk];
        }
        assert_int_equal(set.total, total);
        for (size_t i = 1; i < set.count; i++) {
            assert_true(set.intervals[i - 1].first + set.intervals[i - 1].count < set.intervals[i].first);
        }
        wh_chunk_set_destroy(&set);
    }
}

static wh_chunk_set shared;
static atomic_uchar given[CHUNKS * 2];

static void *take_all(void *context) {
    uint64_t chunk;
    uint64_t last = 0;
    bool first = true;
    bool *ascending = context;
    while (wh_chunk_set_next(&shared, &chunk)) {
        *ascending = *ascending && (first || chunk > last);
        first = false;
        last = chunk;
        atomic_fetch_add(given + chunk, 1);
    }
    return NULL;
}

/** Each chunk goes to exactly one thread, and each thread gets its chunks in ascending order. */
static void test_each_chunk_is_handed_out_once(void **state) {
    (void)state;
    static wherry_interval odd[CHUNKS];
    pthread_t threads[THREADS];
    bool ascending[THREADS] = {true, true, true, true};
    for (uint64_t i = 0; i < CHUNKS; i++) {
        odd[i] = (wherry_interval){2 * i + 1, 1};
    }
    assert_true(wh_chunk_set_init(&shared, odd, CHUNKS));
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(threads + i, NULL, take_all, ascending + i), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(ascending[i]);
    }
    for (size_t i = 0; i < sizeof(given); i++) {
        assert_int_equal(given[i], i % 2);
    }
    wh_chunk_set_destroy(&shared);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    for (uint64_t fail = 1; fail <= 2; fail++) {
        counting count;
        wh_chunk_set set = {0};
        counting_begin(&count);
        count.fail = fail;
        assert_false(wh_chunk_set_init(&set, &(wherry_interval){0, 3}, 1));
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
        assert_int_equal(set.total, 0);
        wh_chunk_set_destroy(&set);
    }
}

static void test_clip_takes_what_is_inside(void **state) {
    (void)state;
    static const wherry_interval from[] = {{0, 3}, {5, 4}, {20, 10}};
    wh_chunk_set all = {0};
    wh_chunk_set some = {0};
    assert_true(wh_chunk_set_init(&all, from, 3));
    assert_true(wh_chunk_set_clip(&some, &all, 3, 5)); /* This position is in a gap. */
    assert_int_equal(some.total, 0);
    assert_true(wh_chunk_set_clip(&some, &all, 2, 7));
    /* This part is added to the first one. */
    assert_true(wh_chunk_set_clip(&some, &all, 7, UINT64_MAX));
    assert_int_equal(some.total, 15);
    assert_int_equal(some.count, 3);
    assert_false(wh_chunk_set_has(&some, 1));
    for (uint64_t chunk = 2; chunk < 40; chunk++) {
        assert_int_equal(wh_chunk_set_has(&some, chunk), wh_chunk_set_has(&all, chunk));
    }
    wh_chunk_set_destroy(&all);
    wh_chunk_set_destroy(&some);
}

static void test_intervals_are_encoded_and_decoded(void **state) {
    (void)state;
    static const wherry_interval good[] = {{0, 1}, {2, 3}, {9, 1}};
    wherry_interval *read;
    size_t count;
    wh_string text = {0};
    wh_intervals_encode(good, 3, &text);
    must(wh_intervals_decode((wh_bytes){text.bytes, text.size}, 10, &read, &count, &error));
    assert_int_equal(count, 3);
    assert_memory_equal(read, good, sizeof(good));
    wh_free(read);
    must_fail(WHERRY_OUT_OF_BOUNDS, error,
              wh_intervals_decode((wh_bytes){text.bytes, text.size}, 9, &read, &count, &error));
    must_fail(WHERRY_MALFORMED, error,
              wh_intervals_decode((wh_bytes){text.bytes, text.size - 1}, 10, &read, &count, &error));
    must(wh_intervals_decode((wh_bytes){"", 0}, 10, &read, &count, &error));
    assert_int_equal(count, 0);
    wh_free(read);
    wh_free(text.bytes);
}

static void test_refuses_bad_intervals(void **state) {
    (void)state;
    static const struct {
        wherry_interval intervals[2];
        size_t count;
    } bad[] = {
        {{{5, 0}}, 1},
        {{{0, 11}}, 1},
        {{{9, 2}}, 1},
        {{{10, 1}}, 1},
        {{{UINT64_MAX, 1}}, 1},
        {{{1, UINT64_MAX}}, 1},
        {{{UINT64_MAX, UINT64_MAX}}, 1},
        {{{0, 2}, {1, 1}}, 2}, /* overlap */
        {{{0, 2}, {2, 1}}, 2}, /* touch */
        {{{4, 1}, {0, 1}}, 2}, /* descend */
        {{{4, 1}, {4, 1}}, 2}, /* twice */
        {{{0, 1}, {9, 2}}, 2}, /* The second interval is outside the set. */
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_interval *read;
        size_t count;
        wh_string text = {0};
        wh_intervals_encode(bad[i].intervals, bad[i].count, &text);
        must_fail(WHERRY_OUT_OF_BOUNDS, error,
                  wh_intervals_decode((wh_bytes){text.bytes, text.size}, 10, &read, &count, &error));
        wh_free(text.bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_set_has_no_chunks),       cmocka_unit_test(test_positions_and_chunks_match),
        cmocka_unit_test(test_added_intervals_are_merged),    cmocka_unit_test(test_large_chunk_numbers_work),
        cmocka_unit_test(test_each_chunk_is_handed_out_once), cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_clip_takes_what_is_inside),     cmocka_unit_test(test_intervals_are_encoded_and_decoded),
        cmocka_unit_test(test_refuses_bad_intervals),
    };
    return cmocka_run_group_tests_name("range_chunkset", tests, NULL, NULL);
}
