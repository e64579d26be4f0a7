/*
 * Extents, compared with a loop over bytes: which bytes a view covers, normal form, splitting
 * offsets, touching and crossing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/random_range.h"
#include "range/extent.h"

enum { STORAGE = 1024, MARGIN = 64, CASES = 3000 };

/** A random view as a normal extent. Views without elements, or that interleave, are skipped. */
static void random_normal(dice *d, uint64_t max_gap, wh_extent *extent) {
    random_view view;
    do {
        random_view_make(d, STORAGE, &view);
    } while (!wh_extent_of_view(&view.view, extent) || wh_extent_normalize(extent, max_gap) != 0);
}

static void check_cover(uint64_t seed, const wh_extent *extent, uint32_t outer, const uint32_t *wanted,
                        uint64_t max_gap) {
    uint32_t marks[STORAGE] = {0};
    wherry_extent repeat = {extent->offset, 1, outer ? extent->levels : NULL, outer};
    wherry_extent inner = wh_extent_borrow(extent);
    inner.level_count -= outer;
    inner.levels = inner.level_count ? extent->levels + outer : NULL;
    if (!extent_is_normal(&inner)) {
        fail_msg("seed %llu: not normal", (unsigned long long)seed);
    }
    uint64_t repeats = slow_runs(&repeat);
    for (uint64_t i = 0; i < repeats; i++) {
        inner.offset = slow_run(&repeat, i);
        extent_mark(&inner, marks);
        if (longest_gap(&inner, wanted) > max_gap) {
            fail_msg("seed %llu: a gap of more than %llu", (unsigned long long)seed, (unsigned long long)max_gap);
        }
    }
    for (uint64_t at = 0; at < STORAGE; at++) {
        if ((wanted[at] && !marks[at]) || (max_gap == 0 && marks[at] && !wanted[at]) || (!outer && marks[at] > 1)) {
            fail_msg("seed %llu: byte %llu is in %u views, but covered %u times", (unsigned long long)seed,
                     (unsigned long long)at, wanted[at], marks[at]);
        }
    }
}

static void check_figures(uint64_t seed, const wherry_extent *extent) {
    uint32_t marks[STORAGE] = {0};
    extent_mark(extent, marks);
    uint64_t bytes = 0;
    uint64_t first = UINT64_MAX;
    uint64_t end = 0;
    for (uint64_t at = 0; at < STORAGE; at++) {
        if (marks[at]) {
            bytes++;
            first = first == UINT64_MAX ? at : first;
            end = at + 1;
        }
    }
    uint64_t runs = wh_extent_runs(extent);
    if (first != extent->offset || end - first != wh_extent_span(extent) || bytes != wh_extent_bytes(extent) ||
        runs != slow_runs(extent)) {
        fail_msg("seed %llu: span, bytes or runs are wrong", (unsigned long long)seed);
    }
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t at = wh_extent_run(extent, run);
        if (at != slow_run(extent, run) || (run && at < wh_extent_run(extent, run - 1) + extent->length)) {
            fail_msg("seed %llu: run %llu has a wrong start or order", (unsigned long long)seed,
                     (unsigned long long)run);
        }
    }
}

static void test_extents_cover_random_views(void **state) {
    (void)state;
    int interleaved = 0;
    int strided = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        random_view view;
        random_view_make(&d, STORAGE, &view);
        uint64_t max_gap = below(&d, 2) ? 0 : below(&d, 40);
        wh_extent extent;
        bool some = wh_extent_of_view(&view.view, &extent);
        assert_int_equal(some, view_elements(&view.view) > 0);
        if (!some) {
            continue;
        }
        uint32_t wanted[STORAGE] = {0};
        view_mark(&view.view, wanted);
        uint32_t outer = wh_extent_normalize(&extent, max_gap);
        check_cover(seed, &extent, outer, wanted, max_gap);
        if (outer == 0) {
            wherry_extent borrowed = wh_extent_borrow(&extent);
            check_figures(seed, &borrowed);
            strided += borrowed.level_count > 0;
        }
        interleaved += outer > 0;
    }
    assert_true(interleaved > CASES / 100);
    assert_true(strided > CASES / 10);
}

static void test_levels_are_sorted_and_counted(void **state) {
    (void)state;
    const int64_t shape[] = {3, 1, 4, 5, 2};
    const int64_t strides[] = {2, 100, 0, 50, 7};
    wh_extent extent;
    assert_true(wh_extent_of_view(&(wh_view){12, 4, 5, shape, strides}, &extent));
    assert_int_equal(extent.offset, 12);
    assert_int_equal(extent.length, 4);
    assert_int_equal(extent.level_count, 3);
    const wherry_level expected[] = {{5, 200}, {2, 28}, {3, 8}};
    assert_memory_equal(extent.levels, expected, sizeof(expected));
}

static void test_scalars_and_empty_views_work(void **state) {
    (void)state;
    wh_extent extent;
    assert_true(wh_extent_of_view(&(wh_view){8, 8, 0, NULL, NULL}, &extent));
    assert_int_equal(wh_extent_normalize(&extent, 0), 0);
    wherry_extent borrowed = wh_extent_borrow(&extent);
    assert_null(borrowed.levels);
    assert_int_equal(borrowed.offset, 8);
    assert_int_equal(borrowed.length, 8);
    const int64_t shape[] = {3, 0};
    const int64_t strides[] = {1, 1};
    assert_false(wh_extent_of_view(&(wh_view){8, 8, 2, shape, strides}, &extent));
}

/* A gap of exactly max_gap is merged. */
static void test_gap_of_max_gap_is_merged(void **state) {
    (void)state;
    const int64_t shape[] = {10, 4};
    const int64_t strides[] = {100, 1};
    const wh_view view = {0, 1, 2, shape, strides};
    wh_extent extent;
    assert_true(wh_extent_of_view(&view, &extent));
    assert_int_equal(wh_extent_normalize(&extent, 95), 0);
    assert_int_equal(extent.level_count, 1);
    assert_int_equal(extent.length, 4);
    assert_true(wh_extent_of_view(&view, &extent));
    assert_int_equal(wh_extent_normalize(&extent, 96), 0);
    assert_int_equal(extent.level_count, 0);
    assert_int_equal(extent.length, 904);
}

static void test_most_dimensions_work(void **state) {
    (void)state;
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    for (int i = 0; i < WHERRY_NDIM_MAX; i++) {
        shape[i] = i < 20 ? 2 : 1;
        strides[i] = i < 20 ? INT64_C(3) << (2 * i) : 1;
    }
    wh_extent extent;
    assert_true(wh_extent_of_view(&(wh_view){0, 1, WHERRY_NDIM_MAX, shape, strides}, &extent));
    assert_int_equal(wh_extent_normalize(&extent, 0), 0);
    assert_int_equal(extent.level_count, 20);
    wherry_extent borrowed = wh_extent_borrow(&extent);
    assert_true(extent_is_normal(&borrowed));
    assert_true(wh_extent_bytes(&borrowed) == UINT64_C(1) << 20);
    for (int i = 0; i < WHERRY_NDIM_MAX; i++) {
        shape[i] = 2;
        strides[i] = INT64_C(1) << (i < 40 ? i : 40);
    }
    assert_true(wh_extent_of_view(&(wh_view){0, 1, WHERRY_NDIM_MAX, shape, strides}, &extent));
    assert_int_equal(wh_extent_normalize(&extent, 0), 0);
    assert_int_equal(extent.level_count, 0);
    assert_true(extent.length == (UINT64_C(1) << 40) * 25);
}

static void test_splits_offsets(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES / 4; seed++) {
        dice d = {seed};
        wh_extent work;
        random_normal(&d, 0, &work);
        wherry_extent extent = wh_extent_borrow(&work);
        uint32_t marks[STORAGE + MARGIN] = {0};
        extent_mark(&extent, marks);
        for (uint64_t distance = 0; extent.offset + distance < STORAGE + MARGIN; distance++) {
            uint64_t indices[WHERRY_NDIM_MAX];
            uint64_t rest = UINT64_MAX;
            bool whole = wh_extent_split(&extent, distance, indices, &rest);
            uint64_t sum = rest;
            for (uint32_t i = 0; i < extent.level_count && whole; i++) {
                sum += indices[i] * extent.levels[i].stride;
                whole = indices[i] < extent.levels[i].count;
            }
            bool inside = whole && rest < extent.length;
            if (inside != (marks[extent.offset + distance] > 0) || (whole && sum != distance)) {
                fail_msg("seed %llu: distance %llu", (unsigned long long)seed, (unsigned long long)distance);
            }
        }
    }
}

static void test_finds_extents_that_touch(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES / 2; seed++) {
        dice d = {seed};
        wh_extent work;
        random_normal(&d, below(&d, 3), &work);
        wherry_extent extent = wh_extent_borrow(&work);
        uint32_t marks[STORAGE + MARGIN] = {0};
        extent_mark(&extent, marks);
        for (int i = 0; i < 40; i++) {
            uint64_t begin = below(&d, STORAGE + MARGIN);
            uint64_t end = begin + below(&d, i < 20 ? 8 : MARGIN);
            bool expected = false;
            for (uint64_t at = begin; at < end && at < STORAGE + MARGIN; at++) {
                expected = expected || marks[at];
            }
            if (wh_extent_touches(&extent, begin, end) != expected) {
                fail_msg("seed %llu: [%llu, %llu)", (unsigned long long)seed, (unsigned long long)begin,
                         (unsigned long long)end);
            }
        }
    }
}

static void test_finds_extents_that_cross(void **state) {
    (void)state;
    int crossing = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        wh_extent works[2];
        random_normal(&d, 0, works);
        random_normal(&d, 0, works + 1);
        wherry_extent a = wh_extent_borrow(works);
        wherry_extent b = wh_extent_borrow(works + 1);
        uint32_t marks[STORAGE] = {0};
        extent_mark(&a, marks);
        extent_mark(&b, marks);
        bool expected = false;
        for (uint64_t at = 0; at < STORAGE; at++) {
            expected = expected || marks[at] > 1;
        }
        int64_t work = 1 << 20;
        bool one = wh_extents_cross(&a, &b, &work);
        bool other = wh_extents_cross(&b, &a, &work);
        int64_t little = (int64_t)below(&d, 8);
        int64_t left = little;
        bool hasty = wh_extents_cross(&a, &b, &left);
        if (one != expected || other != expected || (hasty && !expected) || left < 0 || left > little ||
            (left > 0 && hasty != expected)) {
            fail_msg("seed %llu: wrong result of crossing: %d", (unsigned long long)seed, expected);
        }
        crossing += expected;
    }
    assert_in_range(crossing, CASES / 20, CASES - CASES / 20);
}

static void test_cross_gives_up_after_its_budget(void **state) {
    (void)state;
    const wherry_level even = {UINT64_C(1) << 40, 4};
    const wherry_level odd = {UINT64_C(1) << 40, 6};
    wherry_extent a = {0, 1, &even, 1};
    wherry_extent b = {1, 1, &odd, 1};
    int64_t work = 1000;
    assert_false(wh_extents_cross(&a, &b, &work));
    assert_int_equal(work, 0);
    assert_false(wh_extents_cross(&a, &a, &work));
    work = 1;
    assert_true(wh_extents_cross(&a, &a, &work));
}

/** Two columns of one matrix are found to be disjoint without visiting the rows. */
static void test_disjoint_columns_are_found_at_once(void **state) {
    (void)state;
    const wherry_level rows[] = {{UINT64_C(1) << 20, 102400}, {1024, 100}};
    wherry_extent a = {7, 10, rows, 2};
    wherry_extent b = {17, 90, rows, 2};
    int64_t work = 1;
    assert_false(wh_extents_cross(&a, &b, &work));
    assert_false(wh_extents_cross(&b, &a, &work));
    assert_int_equal(work, 1);
    b.length = 91;
    work = 1 << 20;
    assert_true(wh_extents_cross(&a, &b, &work));
}

/* The search visits the runs of the extent that has fewer. */
static void test_cross_visits_the_extent_with_fewer_runs(void **state) {
    (void)state;
    const wherry_level odd = {UINT64_C(1) << 40, 4};
    const wherry_extent many = {0, 1, &odd, 1};
    const wherry_extent one = {UINT64_C(1) << 41, 1, NULL, 0};
    const wherry_extent between_two = {(UINT64_C(1) << 41) + 1, 3, NULL, 0};
    int64_t work = 4;
    assert_true(wh_extents_cross(&many, &one, &work));
    assert_true(wh_extents_cross(&one, &many, &work));
    assert_false(wh_extents_cross(&many, &between_two, &work));
    assert_true(work > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_extents_cover_random_views),
        cmocka_unit_test(test_levels_are_sorted_and_counted),
        cmocka_unit_test(test_scalars_and_empty_views_work),
        cmocka_unit_test(test_gap_of_max_gap_is_merged),
        cmocka_unit_test(test_most_dimensions_work),
        cmocka_unit_test(test_splits_offsets),
        cmocka_unit_test(test_finds_extents_that_touch),
        cmocka_unit_test(test_finds_extents_that_cross),
        cmocka_unit_test(test_cross_gives_up_after_its_budget),
        cmocka_unit_test(test_disjoint_columns_are_found_at_once),
        cmocka_unit_test(test_cross_visits_the_extent_with_fewer_runs),
    };
    return cmocka_run_group_tests_name("range_extent", tests, NULL, NULL);
}
