/* The allocator: replacing it, overflow checks, growing arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "base/alloc.h"

static counting count;

static int begin(void **state) {
    (void)state;
    counting_begin(&count);
    return 0;
}

static int end(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return count.held != 0 || count.wrong != 0;
}

static void test_replaced(void **state) {
    (void)state;
    void *memory = wh_alloc(10);
    assert_non_null(memory);
    assert_int_equal(count.held, 1);
    assert_int_equal(count.last, 10);
    wh_free(memory);
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
    memory = wh_alloc(10);
    assert_non_null(memory);
    assert_int_equal(count.calls, 1);
    wh_free(memory);
}

static void test_copied_table(void **state) {
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

static void test_nothing(void **state) {
    (void)state;
    void *memory = wh_alloc(0);
    assert_non_null(memory);
    assert_int_equal(count.last, 1);
    wh_free(memory);
    memory = wh_alloc_array(0, 8);
    assert_non_null(memory);
    wh_free(memory);
    memory = wh_alloc_zeroed(3, 0);
    assert_non_null(memory);
    wh_free(memory);
    wh_free(NULL);
    wherry_free(NULL);
    assert_int_equal(count.wrong, 0);
}

static void test_no_memory(void **state) {
    (void)state;
    count.fail = 1;
    assert_null(wh_alloc(1));
    assert_null(wh_alloc_array(1, 1));
    assert_null(wh_alloc_zeroed(1, 1));
    assert_null(wh_copy_text("x", 1));
}

static void test_overflow(void **state) {
    (void)state;
    assert_null(wh_alloc_array(SIZE_MAX / 2 + 1, 2));
    assert_null(wh_alloc_zeroed(SIZE_MAX / 8 + 1, 8));
    assert_null(wh_alloc_array(SIZE_MAX, SIZE_MAX));
    assert_null(wh_copy_text("x", SIZE_MAX));
    assert_int_equal(count.calls, 0);
}

static void test_arrays(void **state) {
    (void)state;
    uint64_t *numbers = wh_alloc_array(7, sizeof(*numbers));
    assert_non_null(numbers);
    assert_int_equal(count.last, 7 * sizeof(*numbers));
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

static void test_copy_of_text(void **state) {
    (void)state;
    char *copy = wh_copy_text("a\0bcd", 4);
    assert_non_null(copy);
    assert_memory_equal(copy, "a\0bc", 5);
    assert_int_equal(count.last, 5);
    wh_free(copy);
    copy = wh_copy_text(NULL, 0);
    assert_non_null(copy);
    assert_string_equal(copy, "");
    wh_free(copy);
}

static void test_grow(void **state) {
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
    assert_int_equal(count.calls, moves);
    assert_int_equal(count.last, capacity * sizeof(*items));
    for (uint32_t n = 0; n < 10000; n++) {
        assert_int_equal(items[n], n * 7);
    }
    wh_free(items);
}

static void test_grow_by_many(void **state) {
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
    assert_int_equal(count.calls, 1);
    count.fail = 1;
    assert_false(WH_GROW(items, capacity, before));
    assert_ptr_equal(items, place);
    assert_int_equal(capacity, before);
    assert_int_equal(items[0], 42);
    wh_free(items);
}

static void test_reserve(void **state) {
    (void)state;
    uint64_t *items = NULL;
    size_t capacity = 0;
    assert_true(WH_RESERVE(items, capacity, 0));
    assert_null(items);
    assert_true(WH_RESERVE(items, capacity, 5));
    assert_int_equal(capacity, 5);
    assert_int_equal(count.last, 5 * sizeof(*items));
    items[4] = 42;
    assert_true(WH_RESERVE(items, capacity, 5));
    assert_true(WH_RESERVE(items, capacity, 3));
    assert_int_equal(count.calls, 1);
    assert_false(WH_RESERVE(items, capacity, SIZE_MAX / 8 + 1));
    count.fail = 1;
    assert_false(WH_RESERVE(items, capacity, 6));
    assert_int_equal(capacity, 5);
    assert_int_equal(items[4], 42);
    wh_free(items);
}

#define HELD_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        HELD_TEST(test_replaced),
        HELD_TEST(test_copied_table),
        HELD_TEST(test_nothing),
        HELD_TEST(test_no_memory),
        HELD_TEST(test_overflow),
        HELD_TEST(test_arrays),
        HELD_TEST(test_copy_of_text),
        HELD_TEST(test_reserve),
        HELD_TEST(test_grow),
        HELD_TEST(test_grow_by_many),
        HELD_TEST(test_grow_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests_name("base_alloc", tests, NULL, NULL);
}
