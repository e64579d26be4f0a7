/* Lists of chunks against a plain array: places, chunks, and handing them out to several threads. */
#include "support/build.h"

#include <pthread.h>
#include <stdlib.h>

#include "support/counting_allocator.h"
#include "transfer/chunk_list.h"

enum { THREADS = 4, CHUNKS = 20000 };

static void test_an_empty_list(void **state) {
    (void)state;
    wh_chunk_list list = {0};
    uint64_t chunk;
    assert_true(wh_chunk_list_init(&list, NULL, 0));
    assert_int_equal(list.total, 0);
    assert_int_equal(wh_chunk_list_find(&list, 0), UINT64_MAX);
    assert_false(wh_chunk_list_next(&list, &chunk));
    assert_false(wh_chunk_list_next(&list, &chunk));
    wh_chunk_list_destroy(&list);
    wh_chunk_list_destroy(&list); /* it is empty again */
}

/** Random intervals: place and chunk are each other's inverse, and nothing else is found. */
static void test_places(void **state) {
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
        wh_chunk_list list = {0};
        assert_true(wh_chunk_list_init(&list, intervals, count));
        assert_int_equal(list.total, total);
        uint64_t place = 0;
        for (uint64_t chunk = 0; chunk < at + 3; chunk++) {
            bool in = place < total && expected[place] == chunk;
            assert_int_equal(wh_chunk_list_find(&list, chunk), in ? place : UINT64_MAX);
            if (in) {
                assert_int_equal(wh_chunk_list_at(&list, place), chunk);
                place++;
            }
        }
        wh_chunk_list_destroy(&list);
    }
}

static void test_large_numbers(void **state) {
    (void)state;
    static const wherry_interval intervals[] = {{0, UINT64_C(1) << 40}, {UINT64_C(1) << 62, 5}, {UINT64_MAX - 1, 1}};
    wh_chunk_list list = {0};
    assert_true(wh_chunk_list_init(&list, intervals, 3));
    assert_int_equal(list.total, (UINT64_C(1) << 40) + 6);
    assert_int_equal(wh_chunk_list_at(&list, list.total - 1), UINT64_MAX - 1);
    assert_int_equal(wh_chunk_list_find(&list, (UINT64_C(1) << 62) + 4), (UINT64_C(1) << 40) + 4);
    assert_int_equal(wh_chunk_list_find(&list, UINT64_MAX), UINT64_MAX);
    wh_chunk_list_destroy(&list);
}

static wh_chunk_list shared;
static atomic_uchar given[CHUNKS * 2];

static void *take_all(void *context) {
    uint64_t chunk;
    uint64_t last = 0;
    bool first = true;
    bool *ascending = context;
    while (wh_chunk_list_next(&shared, &chunk)) {
        *ascending = *ascending && (first || chunk > last);
        first = false;
        last = chunk;
        atomic_fetch_add(given + chunk, 1);
    }
    return NULL;
}

/** Each chunk goes to one thread, in ascending order for each. */
static void test_handing_out(void **state) {
    (void)state;
    static wherry_interval odd[CHUNKS];
    pthread_t threads[THREADS];
    bool ascending[THREADS] = {true, true, true, true};
    for (uint64_t i = 0; i < CHUNKS; i++) {
        odd[i] = (wherry_interval){2 * i + 1, 1};
    }
    assert_true(wh_chunk_list_init(&shared, odd, CHUNKS));
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
    wh_chunk_list_destroy(&shared);
}

static void test_no_memory(void **state) {
    (void)state;
    for (uint64_t fail = 1; fail <= 2; fail++) {
        counting count;
        wh_chunk_list list = {0};
        counting_begin(&count);
        count.fail = fail;
        assert_false(wh_chunk_list_init(&list, &(wherry_interval){0, 3}, 1));
        assert_int_equal(count.held, 0);
        wherry_allocator_set(NULL);
        assert_int_equal(list.total, 0);
        wh_chunk_list_destroy(&list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_list), cmocka_unit_test(test_places),    cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_handing_out),   cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("chunk_list", tests, NULL, NULL);
}
