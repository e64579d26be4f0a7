/* The allocator: replacing it, overflow checks, growing arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_fixture.h"
#include "base/alloc.h"

static void test_replaced_allocator_is_used(void **state) {
    (void)state;
    void *memory = wh_alloc(10);
    assert_non_null(memory);
    assert_int_equal(counted.held, 1);
    assert_int_equal(counted.last, 10);
    wh_free(memory);
    assert_int_equal(counted.held, 0);
    wherry_allocator_set(NULL);
    memory = wh_alloc(10);
    assert_non_null(memory);
    assert_int_equal(counted.calls, 1);
    wh_free(memory);
}

static void test_allocator_table_is_copied(void **state) {
    (void)state;
    counting other = {0};
    wherry_allocator table = {counting_allocate, counting_reallocate, counting_release, &other};
    wherry_allocator_set(&table);
    memset(&table, 0, sizeof(table));
    void *memory = wh_alloc(1);
    assert_non_null(memory);
    wherry_free(memory);
    assert_int_equal(other.calls, 1);
    assert_int_equal(other.held, 0);
}

static void test_empty_allocations_succeed(void **state) {
    (void)state;
    void *memory = wh_alloc(0);
    assert_non_null(memory);
    assert_int_equal(counted.last, 1);
    wh_free(memory);
    memory = wh_alloc_array(0, 8);
    assert_non_null(memory);
    wh_free(memory);
    memory = wh_alloc_zeroed(3, 0);
    assert_non_null(memory);
    wh_free(memory);
    wh_free(NULL);
    wherry_free(NULL);
    assert_int_equal(counted.wrong, 0);
}

static void test_failure_returns_NULL(void **state) {
    (void)state;
    counted.fail = 1;
    assert_null(wh_alloc(1));
    assert_null(wh_alloc_array(1, 1));
    assert_null(wh_alloc_zeroed(1, 1));
    assert_null(wh_text_copy("x", 1));
}

static void test_sizes_that_overflow_fail(void **state) {
    (void)state;
    assert_null(wh_alloc_array(SIZE_MAX / 2 + 1, 2));
    assert_null(wh_alloc_zeroed(SIZE_MAX / 8 + 1, 8));
    assert_null(wh_alloc_array(SIZE_MAX, SIZE_MAX));
    assert_null(wh_text_copy("x", SIZE_MAX));
    assert_int_equal(counted.calls, 0);
}

static void test_allocates_arrays(void **state) {
    (void)state;
    uint64_t *numbers = wh_alloc_array(7, sizeof(*numbers));
    assert_non_null(numbers);
    assert_int_equal(counted.last, 7 * sizeof(*numbers));
    memset(numbers, 0xFF, 7 * sizeof(*numbers));
    wh_free(numbers);
    for (size_t size = 1; size < 3000; size *= 3) {
        unsigned char *dirty = wh_alloc(size * 8);
        memset(dirty, 0xFF, size * 8);
        wh_free(dirty);
        unsigned char *zeroed = wh_alloc_zeroed(size, 8);
        assert_non_null(zeroed);
        for (size_t i = 0; i < size * 8; i++) {
            assert_int_equal(zeroed[i], 0);
        }
        wh_free(zeroed);
    }
}

static void test_copies_text(void **state) {
    (void)state;
    char *copy = wh_text_copy("a\0bcd", 4);
    assert_non_null(copy);
    assert_memory_equal(copy, "a\0bc", 5);
    assert_int_equal(counted.last, 5);
    wh_free(copy);
    copy = wh_text_copy(NULL, 0);
    assert_non_null(copy);
    assert_string_equal(copy, "");
    wh_free(copy);
}

static void test_grow_keeps_the_content(void **state) {
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0;
    size_t moves = 0;
    for (uint32_t n = 0; n < 10000; n++) {
        size_t before = capacity;
        assert_true(WH_GROW(items, capacity, n));
        assert_true(capacity > n);
        assert_true(capacity == before || capacity >= 2 * before);
        moves += capacity != before;
        items[n] = n * 7;
    }
    assert_true(moves <= 14);
    assert_int_equal(counted.calls, moves);
    assert_int_equal(counted.last, capacity * sizeof(*items));
    for (uint32_t n = 0; n < 10000; n++) {
        assert_int_equal(items[n], n * 7);
    }
    wh_free(items);
}

static void test_grows_by_many(void **state) {
    (void)state;
    char *items = NULL;
    size_t capacity = 0;
    assert_true(WH_GROW(items, capacity, 1000));
    assert_true(capacity > 1000);
    items[1000] = 'x';
    size_t before = capacity;
    assert_true(WH_GROW(items, capacity, 5));
    assert_int_equal(capacity, before);
    wh_free(items);
}

static void test_grow_that_fails_changes_nothing(void **state) {
    (void)state;
    uint64_t *items = NULL;
    size_t capacity = 0;
    assert_true(WH_GROW(items, capacity, 0));
    items[0] = 42;
    uint64_t *place = items;
    size_t before = capacity;
    assert_false(wh_grow((void **)&items, &capacity, SIZE_MAX, sizeof(*items)));
    assert_false(wh_grow((void **)&items, &capacity, SIZE_MAX / 2 + 1, sizeof(*items)));
    assert_false(wh_grow((void **)&items, &capacity, SIZE_MAX / 8, sizeof(*items)));
    assert_int_equal(counted.calls, 1);
    counted.fail = 1;
    assert_false(WH_GROW(items, capacity, before));
    assert_ptr_equal(items, place);
    assert_int_equal(capacity, before);
    assert_int_equal(items[0], 42);
    wh_free(items);
}

static void test_reserves_room(void **state) {
    (void)state;
    uint64_t *items = NULL;
    size_t capacity = 0;
    assert_true(WH_RESERVE(items, capacity, 0));
    assert_null(items);
    assert_true(WH_RESERVE(items, capacity, 5));
    assert_int_equal(capacity, 5);
    assert_int_equal(counted.last, 5 * sizeof(*items));
    items[4] = 42;
    assert_true(WH_RESERVE(items, capacity, 5));
    assert_true(WH_RESERVE(items, capacity, 3));
    assert_int_equal(counted.calls, 1);
    assert_false(WH_RESERVE(items, capacity, SIZE_MAX / 8 + 1));
    counted.fail = 1;
    assert_false(WH_RESERVE(items, capacity, 6));
    assert_int_equal(capacity, 5);
    assert_int_equal(items[4], 42);
    wh_free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        counted_test(test_replaced_allocator_is_used),
        counted_test(test_allocator_table_is_copied),
        counted_test(test_empty_allocations_succeed),
        counted_test(test_failure_returns_NULL),
        counted_test(test_sizes_that_overflow_fail),
        counted_test(test_allocates_arrays),
        counted_test(test_copies_text),
        counted_test(test_reserves_room),
        counted_test(test_grow_keeps_the_content),
        counted_test(test_grows_by_many),
        counted_test(test_grow_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests_name("base_alloc", tests, NULL, NULL);
}
