/* The tensors to which the bytes of a chunk belong, compared with a check of each tensor. */
#include "support/build.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "plan/tensor_table.h"
#include "support/counting_allocator.h"
#include "support/random_state.h"

enum { CHUNK = 4 << 20 };

static wherry_error error;

static void mark(void *context, wh_placed_tensor *tensor) {
    (void)context;
    tensor->landed = true;
}

/** A tensor, and whether a copy of the chunk writes to it. */
typedef struct touched {
    const wh_placed_tensor *tensor;
    bool by_copy;
} touched;

static int look(void *context, const wherry_copy *copy) {
    touched *t = context;
    uint64_t end = copy->storage_offset + (copy->count - 1) * copy->storage_stride + copy->length;
    t->by_copy = t->by_copy || (copy->storage == t->tensor->storage && copy->storage_offset < t->tensor->end &&
                                t->tensor->begin < end);
    return 0;
}

static uint64_t chunks_of(const wherry_plan *plan) {
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    return count ? intervals[count - 1].first + intervals[count - 1].count : 0;
}

static void compare_with_the_slow_way(const wherry_plan *plan) {
    wh_tensor_table table = {0};
    assert_true(wh_tensor_table_init(&table, plan));
    for (uint64_t chunk = 0; chunk < chunks_of(plan); chunk++) {
        for (size_t i = 0; i < table.count; i++) {
            table.items[i].landed = false;
        }
        wh_tensor_table_visit(&table, plan, chunk, mark, NULL);
        for (size_t i = 0; i < table.count; i++) {
            touched t = {table.items + i, false};
            wherry_plan_visit_chunk(plan, chunk, look, &t);
            assert_int_equal(table.items[i].landed, t.by_copy);
        }
    }
    wh_tensor_table_destroy(&table);
}

/** Random states with views, tied weights and shards, into new memory and in place. */
static void test_finds_all_tensors_of_random_states(void **state) {
    (void)state;
    wh_random random = {21};
    for (int i = 0; i < 60; i++) {
        wherry_value *source = wh_random_state(&random);
        wherry_value *target = wh_random_target(&random, source, i % 2);
        wherry_plan *plan = build_plan(source, NULL);
        compare_with_the_slow_way(plan);
        wherry_plan_destroy(plan);
        plan = build_plan(source, target);
        compare_with_the_slow_way(plan);
        wherry_plan_destroy(plan);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
    }
}

static void expect_path(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, const char *expected) {
    wh_string path = {0};
    wh_tensor_table_path(table, plan, chunk, &path);
    assert_string_equal(path.bytes, expected);
    wh_free(path.bytes);
}

static void test_finds_the_path_of_a_chunk(void **state) {
    (void)state;
    int64_t two = 2 * CHUNK;
    int64_t one = CHUNK;
    wherry_value *source = build_dict(
        "a", build_tensor(build_storage((uint64_t)two, 1), WHERRY_U8, 0, 1, &two, NULL), "b",
        build_list(build_int(1), build_tensor(build_storage((uint64_t)one, 2), WHERRY_U8, 0, 1, &one, NULL), NULL),
        NULL);
    wherry_plan *plan = build_plan(source, NULL);
    wh_tensor_table table = {0};
    assert_true(wh_tensor_table_init(&table, plan));
    assert_int_equal(table.count, 2);
    expect_path(&table, plan, 0, "a");
    expect_path(&table, plan, 1, "a");
    expect_path(&table, plan, 2, "b[1]");
    expect_path(&table, plan, 3, ""); /* There is no such chunk. */
    wh_tensor_table_destroy(&table);
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
}

/** A long tensor overlaps many short ones. The short ones before a byte must not hide it. */
static void test_finds_a_long_tensor_under_short_ones(void **state) {
    (void)state;
    int64_t all = 3 * CHUNK;
    int64_t few = 16;
    wherry_storage *storage = build_storage((uint64_t)all, 1);
    wherry_value *source = build_dict("long", build_view(storage, WHERRY_U8, 0, 1, &all, NULL), NULL);
    for (int64_t i = 0; i < 200; i++) {
        char name[16];
        snprintf(name, sizeof(name), "short%d", (int)i);
        must(wherry_dict_put(source, name, build_view(storage, WHERRY_U8, i * 100, 1, &few, NULL), &error));
    }
    wherry_storage_unref(storage);
    wherry_plan *plan = build_plan(source, NULL);
    wh_tensor_table table = {0};
    assert_true(wh_tensor_table_init(&table, plan));
    assert_int_equal(table.count, 201);
    expect_path(&table, plan, 2, "long");
    compare_with_the_slow_way(plan);
    wh_tensor_table_destroy(&table);
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
}

/** Tensors without elements are in no chunk. */
static void test_tensors_without_elements_are_in_no_chunk(void **state) {
    (void)state;
    int64_t none[] = {0, 5};
    wherry_value *source = build_list(build_tensor(build_storage(0, 0), WHERRY_F32, 0, 2, none, NULL), NULL);
    wherry_plan *plan = build_plan(source, NULL);
    wh_tensor_table table = {0};
    assert_true(wh_tensor_table_init(&table, plan));
    assert_int_equal(table.count, 0);
    expect_path(&table, plan, 0, "");
    wh_tensor_table_destroy(&table);
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    int64_t one = 8;
    wherry_value *source = build_list(build_tensor(build_storage(8, 1), WHERRY_U8, 0, 1, &one, NULL), NULL);
    wherry_plan *plan = build_plan(source, NULL);
    wh_tensor_table table = {0};
    counting count;
    counting_begin(&count);
    count.fail = 1;
    assert_false(wh_tensor_table_init(&table, plan));
    assert_int_equal(count.held, 0);
    wherry_allocator_set(NULL);
    assert_true(wh_tensor_table_init(&table, plan)); /* The table still works after a failure. */
    assert_int_equal(table.count, 1);
    wh_tensor_table_destroy(&table);
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_all_tensors_of_random_states),
        cmocka_unit_test(test_finds_the_path_of_a_chunk),
        cmocka_unit_test(test_tensors_without_elements_are_in_no_chunk),
        cmocka_unit_test(test_finds_a_long_tensor_under_short_ones),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("report_table", tests, NULL, NULL);
}
