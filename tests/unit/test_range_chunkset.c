/*
 * Chunk sets, compared with a plain array: positions, adding, and handing out chunks to several
 * threads.
 */
#include "support/build.h"

#include <pthread.h>
#include <stdlib.h>

#include "range/chunkset.h"
#include "support/counting_allocator.h"

enum { THREADS = 4, CHUNKS = 20000 };

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
    wh_chunk_set_destroy(&set); /* the set is empty after the first call */
}

/** Random intervals: position to chunk, chunk to position. No other chunk is found. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_set_has_no_chunks),       cmocka_unit_test(test_positions_and_chunks_match),
        cmocka_unit_test(test_added_intervals_are_merged),    cmocka_unit_test(test_large_chunk_numbers_work),
        cmocka_unit_test(test_each_chunk_is_handed_out_once), cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("range_chunkset", tests, NULL, NULL);
}
