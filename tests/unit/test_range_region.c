/* Regions, compared with a loop over bytes: the union of random views, and named cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "../support/random_range.h"
#include "range/region.h"

enum { STORAGE = 1024, CASES = 4000, VIEWS = 6 };

static uint64_t region_bytes(const wh_region *region) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < region->count; i++) {
        bytes += wh_extent_bytes(region->extents + i);
    }
    return bytes;
}

static void check_region(uint64_t seed, const wh_region *region, const uint32_t *wanted, uint64_t max_gap) {
    uint32_t marks[STORAGE] = {0};
    for (size_t i = 0; i < region->count; i++) {
        const wherry_extent *extent = region->extents + i;
        if (!extent_is_normal(extent) || (i && extent[-1].offset > extent->offset)) {
            fail_msg("seed %llu: extent %zu is not normal or out of order", (unsigned long long)seed, i);
        }
        extent_mark(extent, marks);
        if (longest_gap(extent, wanted) > max_gap) {
            fail_msg("seed %llu: extent %zu has a gap of more than %llu", (unsigned long long)seed, i,
                     (unsigned long long)max_gap);
        }
    }
    for (uint64_t at = 0; at < STORAGE; at++) {
        if ((wanted[at] && !marks[at]) || (max_gap == 0 && marks[at] && !wanted[at]) || marks[at] > 1) {
            fail_msg("seed %llu: byte %llu is in %u views, but covered %u times, max_gap %llu",
                     (unsigned long long)seed, (unsigned long long)at, wanted[at], marks[at],
                     (unsigned long long)max_gap);
        }
    }
}

/** The union of up to six random views. Many views of one shape are adjacent. */
static void check_random_union(uint64_t seed, uint64_t max_gap_below) {
    dice d = {seed};
    random_view view;
    wh_region region = {0};
    uint32_t wanted[STORAGE] = {0};
    uint64_t max_gap = max_gap_below ? below(&d, max_gap_below) : 0;
    random_view_make(&d, STORAGE, &view);
    for (uint64_t left = 1 + below(&d, VIEWS); left > 0; left--) {
        if (below(&d, 2)) {
            random_view_make(&d, STORAGE, &view);
        } else if (view_elements(&view.view)) {
            uint64_t room = STORAGE - view_span(&view.view);
            uint64_t moved = view.view.offset + below(&d, 3) * view.view.item;
            view.view.offset = moved < room ? moved : room;
        }
        assert_true(wh_region_add_view(&region, &view.view, max_gap));
        view_mark(&view.view, wanted);
    }
    assert_true(wh_region_finish(&region, max_gap));
    check_region(seed, &region, wanted, max_gap);
    wh_region_destroy(&region);
    assert_null(region.extents);
}

static void test_union_is_exact_without_gaps(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        check_random_union(seed, 0);
    }
}

static void test_union_has_no_large_gaps(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        check_random_union(seed, 30);
    }
}

static void add(wh_region *region, uint64_t offset, uint64_t max_gap, int64_t rows, int64_t columns, int64_t stride,
                int64_t step) {
    const int64_t shape[] = {rows, columns};
    const int64_t strides[] = {stride, step};
    assert_true(wh_region_add_view(region, &(wh_view){offset, 4, 2, shape, strides}, max_gap));
}

/* Eight views cover 2^28 floats, and the region contains each byte once. */
static void test_views_of_one_storage_count_once(void **state) {
    (void)state;
    const uint64_t gib = UINT64_C(1) << 30;
    for (uint64_t max_gap = 0; max_gap <= 4095; max_gap += 4095) {
        wh_region region = {0};
        add(&region, 0, max_gap, 16384, 16384, 16384, 1);
        add(&region, 0, max_gap, 16384, 16384, 1, 16384);
        add(&region, 0, max_gap, 1, 1 << 28, 0, 1);
        add(&region, gib / 2, max_gap, 8192, 16384, 16384, 1);
        add(&region, gib / 4, max_gap, 1, 1 << 20, 0, 1);
        add(&region, 400, max_gap, 16384, 64, 16384, 1);
        add(&region, 0, max_gap, 16384, 1, 16384, 1);
        add(&region, gib - 4, max_gap, 1, 1, 1, 1);
        assert_true(wh_region_finish(&region, max_gap));
        assert_int_equal(region.count, 1);
        assert_true(region_bytes(&region) == gib);
        assert_int_equal(region.extents[0].offset, 0);
        wh_region_destroy(&region);
    }
}

static void test_small_slice_stays_small(void **state) {
    (void)state;
    wh_region region = {0};
    add(&region, UINT64_C(1) << 29, 4095, 1, 1024, 0, 1);
    assert_true(wh_region_finish(&region, 4095));
    assert_int_equal(region.count, 1);
    assert_int_equal(region_bytes(&region), 4096);
    assert_true(region.extents[0].offset == UINT64_C(1) << 29);
    wh_region_destroy(&region);
}

static void test_columns_keep_only_their_elements(void **state) {
    (void)state;
    static const int64_t widths[] = {16384, 2048, 1089, 1088, 1024, 256, 65};
    for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
        wh_region region = {0};
        const uint64_t elements = UINT64_C(65536) * 64 * 4;
        add(&region, 400, 4095, 65536, 64, widths[i], 1);
        assert_true(wh_region_finish(&region, 4095));
        assert_int_equal(region.count, 1);
        assert_true(region_bytes(&region) >= elements);
        assert_true(region_bytes(&region) < elements + UINT64_C(65536) * 4096);
        if ((widths[i] - 64) * 4 > 4095) {
            assert_true(region_bytes(&region) == elements);
            assert_int_equal(region.extents[0].level_count, 1);
        } else {
            assert_int_equal(region.extents[0].level_count, 0);
        }
        wh_region_destroy(&region);
    }
}

static void test_adjacent_columns_merge(void **state) {
    (void)state;
    wh_region region = {0};
    add(&region, 256, 0, 1000, 64, 4096, 1);
    add(&region, 0, 0, 1000, 64, 4096, 1);
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 1);
    assert_int_equal(region.extents[0].offset, 0);
    assert_int_equal(region.extents[0].length, 512);
    assert_int_equal(region.extents[0].level_count, 1);
    assert_int_equal(region.extents[0].levels[0].count, 1000);
    assert_int_equal(region.extents[0].levels[0].stride, 16384);
    wh_region_destroy(&region);
}

static void test_columns_that_fill_the_rows_become_one_run(void **state) {
    (void)state;
    wh_region region = {0};
    for (uint64_t block = 8; block-- > 0;) {
        add(&region, block * 256, 0, 1000, 64, 512, 1);
    }
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 1);
    assert_int_equal(region.extents[0].level_count, 0);
    assert_int_equal(region_bytes(&region), 1000 * 2048);
    wh_region_destroy(&region);
}

static void test_equal_views_count_once(void **state) {
    (void)state;
    wh_region region = {0};
    for (int i = 0; i < 5; i++) {
        add(&region, 64, 0, 100, 3, 50, 1);
    }
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 1);
    assert_int_equal(region_bytes(&region), 1200);
    wh_region_destroy(&region);
}

static void test_contained_columns_are_dropped(void **state) {
    (void)state;
    wh_region region = {0};
    add(&region, 4096, 0, 1, 100000, 0, 1);
    add(&region, 8192, 0, 100, 3, 50, 1);
    add(&region, 0, 0, 1, 10, 0, 1);
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 2);
    assert_int_equal(region_bytes(&region), 400000 + 40);
    wh_region_destroy(&region);
}

/* Columns whose last byte is within a contiguous extent, directly after it, or farther away. */
static void test_columns_at_the_end_of_a_run_are_not_lost(void **state) {
    (void)state;
    const int64_t row = 100;
    const int64_t rows = 12;
    const int64_t steps[] = {1, 9};
    for (uint64_t behind = 0; behind < 4; behind++) {
        wh_region region = {0};
        assert_true(wh_region_add_view(&region, &(wh_view){0, 1, 1, &row, steps}, 0));
        assert_true(wh_region_add_view(&region, &(wh_view){behind, 1, 1, &rows, steps + 1}, 0));
        assert_true(wh_region_finish(&region, 0));
        assert_int_equal(region_bytes(&region), behind ? 101 : 100);
        wh_region_destroy(&region);
    }
}

static void test_empty_views_give_nothing(void **state) {
    (void)state;
    wh_region region = {0};
    assert_true(wh_region_finish(&region, 0));
    add(&region, 64, 0, 100, 0, 50, 1);
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 0);
    wh_region_destroy(&region);
    wh_region_destroy(&region);
}

/*
 * Rows and columns that cross in too many runs to expand. Common bytes stay in both, and no byte is
 * lost.
 */
static void test_too_many_crossings_lose_no_byte(void **state) {
    (void)state;
    wh_region region = {0};
    add(&region, 0, 0, 100000, 1, 1000, 1);
    add(&region, 400, 0, 100000, 2, 700, 1);
    assert_true(wh_region_finish(&region, 0));
    assert_int_equal(region.count, 2);
    assert_int_equal(region_bytes(&region), 100000 * 12);
    wh_region_destroy(&region);
    add(&region, 0, 0, 30000, 1, 1000, 1);
    add(&region, 400, 0, 30000, 2, 700, 1);
    assert_true(wh_region_finish(&region, 0));
    assert_true(region_bytes(&region) < 30000 * 12);
    wh_region_destroy(&region);
}

/* Expanded runs merge over a gap, and the bytes in that gap may be part of another extent. */
static void test_gaps_may_contain_other_columns(void **state) {
    (void)state;
    const int64_t three = 3;
    const int64_t steps[] = {3, 1, 40};
    const wh_view views[] = {{0, 4, 1, &three, steps}, {2, 2, 1, &three, steps + 1}, {9, 1, 1, &three, steps + 2}};
    wh_region region = {0};
    uint32_t wanted[STORAGE] = {0};
    for (int i = 0; i < 3; i++) {
        assert_true(wh_region_add_view(&region, views + i, 4));
        view_mark(views + i, wanted);
    }
    assert_true(wh_region_finish(&region, 4));
    check_region(0, &region, wanted, 4);
    wh_region_destroy(&region);
}

/** Blocks of columns that merge, and rows that cross them. */
static bool build_crossing(wh_region *region) {
    static const int64_t shapes[][2] = {{20, 3}, {20, 2}, {10, 5}, {1, 3}, {7, 4}, {4, 7}};
    static const int64_t strides[][2] = {{40, 1}, {40, 1}, {33, 1}, {0, 1}, {80, 1}, {3, 200}};
    static const uint64_t offsets[] = {0, 12, 400, 2000, 80, 0};
    for (int i = 0; i < 6; i++) {
        if (!wh_region_add_view(region, &(wh_view){offsets[i], 4, 2, shapes[i], strides[i]}, 0)) {
            return false;
        }
    }
    return wh_region_finish(region, 0);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    counting count;
    bool built = false;
    for (uint64_t fail = 1; !built; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_region region = {0};
        built = build_crossing(&region);
        assert_int_equal(built, count.calls < fail);
        wh_region_destroy(&region);
        assert_int_equal(count.held, 0);
        assert_int_equal(count.wrong, 0);
        assert_true(fail < 10000);
    }
    wherry_allocator_set(NULL);
    assert_in_range(count.calls, 15, 10000);
}

/*
 * Views that cross in too many runs to expand never give more bytes than the range from their first
 * byte to their last.
 */
static void test_never_more_than_the_storage(void **state) {
    (void)state;
    wh_region region = {0};
    for (int64_t step = 2; step <= 9; step++) {
        int64_t shape = (INT64_C(1) << 28) / step;
        wh_view view = {0, 4, 1, &shape, &step};
        assert_true(wh_region_add_view(&region, &view, 0));
    }
    assert_true(wh_region_finish(&region, 0));
    uint64_t bytes = 0;
    for (size_t i = 0; i < region.count; i++) {
        bytes += wh_extent_bytes(region.extents + i);
    }
    assert_true(bytes <= UINT64_C(1) << 30);
    wh_region_destroy(&region);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_union_is_exact_without_gaps),
        cmocka_unit_test(test_union_has_no_large_gaps),
        cmocka_unit_test(test_views_of_one_storage_count_once),
        cmocka_unit_test(test_small_slice_stays_small),
        cmocka_unit_test(test_columns_keep_only_their_elements),
        cmocka_unit_test(test_adjacent_columns_merge),
        cmocka_unit_test(test_columns_that_fill_the_rows_become_one_run),
        cmocka_unit_test(test_equal_views_count_once),
        cmocka_unit_test(test_contained_columns_are_dropped),
        cmocka_unit_test(test_columns_at_the_end_of_a_run_are_not_lost),
        cmocka_unit_test(test_empty_views_give_nothing),
        cmocka_unit_test(test_too_many_crossings_lose_no_byte),
        cmocka_unit_test(test_gaps_may_contain_other_columns),
        cmocka_unit_test(test_reports_failed_allocations),
        cmocka_unit_test(test_never_more_than_the_storage),
    };
    return cmocka_run_group_tests_name("range_region", tests, NULL, NULL);
}
