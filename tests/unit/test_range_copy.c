/* Copies and boxes, compared with loops over elements. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/random_range.h"
#include "range/copy.h"

/* Copies, compared with a loop over elements, for several windows of the source. */

enum { STORAGE = 1024, CASES = 3000, WINDOWS = 6 };

/** A view of the same shape and element size with other strides. At most one side has stride 0. */
static void random_like(dice *d, const random_view *view, random_view *result) {
    result->view = view->view;
    memcpy(result->shape, view->shape, sizeof(result->shape));
    random_strides(d, view->view.ndim, result->shape, result->strides);
    for (uint32_t i = 0; i < view->view.ndim; i++) {
        if (view->strides[i] == 0 && result->strides[i] == 0) {
            result->strides[i] = between(d, 1, 9);
        }
    }
    result->view.shape = result->shape;
    result->view.strides = result->strides;
    result->view.offset = below(d, 100) * view->view.item;
}

static void check_window(uint64_t seed, const wh_copy *copy, pairs expected, uint64_t begin, uint64_t end) {
    pairs visited = {0, 0};
    assert_int_equal(wh_copy_visit(copy, begin, end, pairs_visit, &visited), 0);
    if (visited.count != expected.count || visited.sum != expected.sum) {
        fail_msg("seed %llu: [%llu, %llu) copies %llu bytes instead of %llu, or wrong bytes", (unsigned long long)seed,
                 (unsigned long long)begin, (unsigned long long)end, (unsigned long long)visited.count,
                 (unsigned long long)expected.count);
    }
}

static void check_windows(dice *d, uint64_t seed, const random_view *from, const random_view *to, const wh_copy *copy) {
    for (int i = 0; i < WINDOWS; i++) {
        uint64_t begin = i ? below(d, STORAGE) : 0;
        uint64_t end = i ? begin + below(d, i < WINDOWS / 2 ? 40 : STORAGE) : UINT64_MAX;
        check_window(seed, copy, pairs_of_views(&from->view, &to->view, begin, end), begin, end);
    }
}

static void check_figures(uint64_t seed, const wh_copy *copy, const random_view *from) {
    if (wh_copy_from_span(copy) != view_span(&from->view)) {
        fail_msg("seed %llu: the spans are wrong", (unsigned long long)seed);
    }
}

static void test_copies_of_random_views_are_right(void **state) {
    (void)state;
    int merged = 0;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        random_view from;
        random_view to;
        random_view_make(&d, STORAGE, &from);
        random_like(&d, &from, &to);
        wh_copy_work work;
        bool some = wh_copy_between_views(&from.view, &to.view, &work);
        assert_int_equal(some, view_elements(&from.view) > 0);
        if (some) {
            wh_copy copy = wh_copy_borrow(&work);
            check_windows(&d, seed, &from, &to, &copy);
            check_figures(seed, &copy, &from);
            merged += work.length > from.view.item;
        }
    }
    assert_true(merged > CASES / 20);
}

typedef struct memories {
    uint8_t source[STORAGE];
    uint8_t target[1 << 17];
    uint8_t expected[1 << 17];
} memories;

static int carry(void *context, const wh_copy_runs *runs) {
    memories *m = context;
    for (uint64_t i = 0; i < runs->count; i++) {
        memcpy(m->target + runs->to + i * runs->to_step, m->source + runs->from + i * runs->from_step, runs->length);
    }
    return 0;
}

/* Copies real bytes, window by window, into memory with gaps between the elements. */
static void test_bytes_arrive(void **state) {
    (void)state;
    static memories m;
    for (uint64_t seed = 1; seed <= CASES / 10; seed++) {
        dice d = {seed};
        random_view from;
        random_view to;
        random_view_make(&d, STORAGE, &from);
        random_like(&d, &from, &to);
        random_dense_strides(&d, to.view.ndim, to.shape, 1, to.strides);
        memset(m.expected, 0, sizeof(m.expected));
        memset(m.target, 0, sizeof(m.target));
        for (size_t i = 0; i < STORAGE; i++) {
            m.source[i] = (uint8_t)roll(&d);
        }
        uint64_t count = view_elements(&from.view);
        for (uint64_t i = 0; i < count; i++) {
            memcpy(m.expected + view_element(&to.view, i), m.source + view_element(&from.view, i), from.view.item);
        }
        wh_copy_work work;
        if (wh_copy_between_views(&from.view, &to.view, &work)) {
            wh_copy copy = wh_copy_borrow(&work);
            uint64_t size = 1 + below(&d, 100);
            for (uint64_t begin = 0; begin < STORAGE; begin += size) {
                assert_int_equal(wh_copy_visit(&copy, begin, begin + size, carry, &m), 0);
            }
        }
        if (memcmp(m.target, m.expected, sizeof(m.target)) != 0) {
            fail_msg("seed %llu: wrong bytes", (unsigned long long)seed);
        }
    }
}

/** A copy with random levels in random order: steps of 0, overlapping steps, equal steps. */
static void random_copy(dice *d, wh_copy_work *work) {
    *work = (wh_copy_work){.from = below(d, 50), .to = below(d, 50), .length = 1 + below(d, 9)};
    work->level_count = (uint32_t)below(d, 5);
    for (uint32_t i = 0; i < work->level_count; i++) {
        uint64_t step = below(d, 3) ? below(d, 40) : work->length << below(d, 3);
        work->levels[i] = (wh_copy_level){2 + below(d, 4), step, below(d, 2) ? step : below(d, 40)};
    }
}

static void test_order_of_levels_does_not_matter(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        wh_copy_work work;
        random_copy(&d, &work);
        wh_copy copy = wh_copy_borrow(&work);
        for (int i = 0; i < WINDOWS; i++) {
            uint64_t begin = below(&d, 200);
            uint64_t end = begin + below(&d, 200);
            check_window(seed, &copy, pairs_of_copy(&copy, begin, end), begin, end);
        }
        pairs all = pairs_of_copy(&copy, 0, UINT64_MAX);
        if (all.count != wh_copy_bytes(&copy)) {
            fail_msg("seed %llu: %llu bytes", (unsigned long long)seed, (unsigned long long)wh_copy_bytes(&copy));
        }
        uint32_t before = work.level_count;
        wh_copy_simplify(&work);
        copy = wh_copy_borrow(&work);
        pairs after = pairs_of_copy(&copy, 0, UINT64_MAX);
        if (after.count != all.count || after.sum != all.sum || work.level_count > before) {
            fail_msg("seed %llu: simplifying changed the copy", (unsigned long long)seed);
        }
    }
}

static void test_contiguous_is_one_run(void **state) {
    (void)state;
    const int64_t shape[] = {3, 4, 5, 6};
    const int64_t strides[] = {120, 30, 6, 1};
    const wh_view view = {32, 4, 4, shape, strides};
    wh_copy_work work;
    assert_true(wh_copy_between_views(&view, &(wh_view){0, 4, 4, shape, strides}, &work));
    assert_int_equal(work.level_count, 0);
    assert_int_equal(work.length, 360 * 4);
    assert_int_equal(work.from, 32);
    assert_int_equal(work.to, 0);
    const int64_t turned[] = {5, 4, 6, 3};
    const int64_t turned_strides[] = {6, 30, 1, 120};
    const wh_view transposed = {32, 4, 4, turned, turned_strides};
    assert_true(wh_copy_between_views(&transposed, &transposed, &work));
    assert_int_equal(work.level_count, 0);
    assert_int_equal(work.length, 360 * 4);
}

static void expect_one_level(const wh_copy_work *work, uint64_t length, wh_copy_level level) {
    assert_int_equal(work->level_count, 1);
    assert_int_equal(work->length, length);
    assert_memory_equal(work->levels, &level, sizeof(level));
}

static void test_rows_are_joined(void **state) {
    (void)state;
    const int64_t shape[] = {3, 4, 5, 6};
    const int64_t strides[] = {120, 30, 6, 1};
    const int64_t wide[] = {160, 40, 8, 1};
    wh_copy_work work;
    assert_true(wh_copy_between_views(&(wh_view){0, 4, 4, shape, strides}, &(wh_view){0, 4, 4, shape, wide}, &work));
    expect_one_level(&work, 24, (wh_copy_level){60, 24, 32});
}

/* A dimension that is expanded on both sides would copy the same bytes to the same place again. */
static void test_dimension_expanded_on_both_sides_is_copied_once(void **state) {
    (void)state;
    const int64_t shape[] = {3, INT64_C(1) << 40};
    const int64_t strides[] = {7, 0};
    wh_copy_work work;
    const wh_view view = {0, 4, 2, shape, strides};
    assert_true(wh_copy_between_views(&view, &view, &work));
    expect_one_level(&work, 4, (wh_copy_level){3, 28, 28});
}

static void test_extent_is_copied_onto_itself(void **state) {
    (void)state;
    const wherry_level levels[] = {{3, 100}, {4, 10}};
    const wherry_extent extent = {7, 3, levels, 2};
    wh_copy_work work;
    wh_copy_of_extent(&extent, &work);
    wh_copy copy = wh_copy_borrow(&work);
    pairs expected = {0, 0};
    for (uint64_t run = 0; run < 12; run++) {
        for (uint64_t b = 0; b < 3; b++) {
            pairs_add(&expected, slow_run(&extent, run) + b, slow_run(&extent, run) + b);
        }
    }
    check_window(0, &copy, expected, 0, UINT64_MAX);
    assert_int_equal(wh_copy_from_span(&copy), 233);
}

typedef struct stopping {
    int calls;
    int stop_at;
} stopping;

static int stop(void *context, const wh_copy_runs *runs) {
    stopping *s = context;
    assert_true(runs->length > 0 && runs->count > 0);
    return ++s->calls == s->stop_at ? -7 : 0;
}

static void test_visitor_ends_the_visit(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        dice d = {seed};
        wh_copy_work work;
        random_copy(&d, &work);
        wh_copy copy = wh_copy_borrow(&work);
        uint64_t begin = below(&d, 100);
        uint64_t end = begin + below(&d, 100);
        stopping all = {0, 0};
        assert_int_equal(wh_copy_visit(&copy, begin, end, stop, &all), 0);
        if (all.calls) {
            stopping some = {0, (int)between(&d, 1, all.calls)};
            int result = wh_copy_visit(&copy, begin, end, stop, &some);
            if (result != -7 || some.calls != some.stop_at) {
                fail_msg("seed %llu: got %d after %d of %d calls", (unsigned long long)seed, result, some.calls,
                         all.calls);
            }
        }
    }
}

/* A window of a huge copy is found without walking to it. */
static void test_window_of_a_huge_copy_is_found_at_once(void **state) {
    (void)state;
    const wh_copy_level levels[] = {{UINT64_C(1) << 30, UINT64_C(1) << 30, 8}, {UINT64_C(1) << 20, 1 << 9, 1}};
    const wh_copy copy = {5, 9, 8, levels, 2};
    const uint64_t begin = 5 + (UINT64_C(123456789) << 30) + (UINT64_C(7777) << 9) + 2;
    pairs expected = {0, 0};
    for (uint64_t b = 0; b < 6; b++) {
        pairs_add(&expected, begin + b, 9 + 123456789 * UINT64_C(8) + 7777 + 2 + b);
    }
    check_window(0, &copy, expected, begin, begin + 500);
}

/* Boxes, compared with a loop over the elements of the whole tensor. */

enum { BOX_CASES = 3000, SIDE = 7 };

static void random_box(dice *d, uint32_t ndim, wh_box *box) {
    memset(box, 0x5A, sizeof(*box));
    box->ndim = ndim;
    for (uint32_t i = 0; i < ndim; i++) {
        box->offsets[i] = between(d, 0, SIDE - 2);
        box->sizes[i] = between(d, below(d, 10) ? 1 : 0, SIDE - box->offsets[i]);
    }
}

/**
 * Element `number` of a tensor with SIDE elements per dimension. @return true if it is in the box;
 * `index` is its index there.
 */
static bool in_box(const wh_box *box, uint64_t number, int64_t *index) {
    bool inside = true;
    for (uint32_t i = 0; i < box->ndim; i++) {
        int64_t at = (int64_t)(number % SIDE);
        number /= SIDE;
        index[i] = at - box->offsets[i];
        inside = inside && index[i] >= 0 && index[i] < box->sizes[i];
    }
    return inside;
}

static uint64_t elements(uint32_t ndim) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        count *= SIDE;
    }
    return count;
}

static void make_view(dice *d, const wh_box *box, uint32_t item, random_view *result) {
    memcpy(result->shape, box->sizes, box->ndim * sizeof(*box->sizes));
    random_dense_strides(d, box->ndim, result->shape, 2, result->strides);
    result->view = (wh_view){below(d, 50) * item, item, box->ndim, result->shape, result->strides};
}

static uint64_t address(const wh_view *view, const int64_t *index) {
    uint64_t at = view->offset;
    for (uint32_t i = 0; i < view->ndim; i++) {
        at += (uint64_t)index[i] * (uint64_t)view->strides[i] * view->item;
    }
    return at;
}

static void check_case(uint64_t seed, uint32_t ndim) {
    dice d = {seed};
    wh_box from;
    wh_box to;
    wh_box common;
    random_view views[2];
    uint32_t item = UINT32_C(1) << below(&d, 5);
    random_box(&d, ndim, &from);
    random_box(&d, ndim, &to);
    make_view(&d, &from, item, views);
    make_view(&d, &to, item, views + 1);
    bool some = wh_box_intersect(&from, &to, &common);
    pairs expected = {0, 0};
    for (uint64_t number = 0; number < elements(ndim); number++) {
        int64_t here[RANDOM_NDIM_MAX];
        int64_t there[RANDOM_NDIM_MAX];
        int64_t index[RANDOM_NDIM_MAX];
        bool in_from = in_box(&from, number, here);
        bool in_to = in_box(&to, number, there);
        if ((in_from && in_to) != (some && in_box(&common, number, index))) {
            fail_msg("seed %llu: element %llu", (unsigned long long)seed, (unsigned long long)number);
        }
        for (uint32_t b = 0; in_from && in_to && b < item; b++) {
            pairs_add(&expected, address(&views[0].view, here) + b, address(&views[1].view, there) + b);
        }
    }
    wh_copy_work work;
    bool copies = wh_copy_between_boxes(&from, &views[0].view, &to, &views[1].view, &work);
    pairs made = {0, 0};
    if (copies) {
        wh_copy copy = wh_copy_borrow(&work);
        made = pairs_of_copy(&copy, 0, UINT64_MAX);
    }
    if (copies != some || some != (expected.count > 0) || made.count != expected.count || made.sum != expected.sum) {
        fail_msg("seed %llu: %llu bytes instead of %llu, or wrong bytes", (unsigned long long)seed,
                 (unsigned long long)made.count, (unsigned long long)expected.count);
    }
}

static void test_copies_of_random_boxes_are_right(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= BOX_CASES; seed++) {
        check_case(seed, 1 + (uint32_t)(seed % 3));
    }
    for (uint64_t seed = 1; seed <= BOX_CASES / 30; seed++) {
        check_case(seed, 4);
        check_case(seed, 5);
    }
}

static void test_copies_scalars(void **state) {
    (void)state;
    wh_box box = {.ndim = 0};
    wh_box common;
    wh_copy_work work;
    assert_true(wh_box_intersect(&box, &box, &common));
    assert_int_equal(common.ndim, 0);
    assert_true(
        wh_copy_between_boxes(&box, &(wh_view){8, 4, 0, NULL, NULL}, &box, &(wh_view){16, 4, 0, NULL, NULL}, &work));
    assert_int_equal(work.from, 8);
    assert_int_equal(work.to, 16);
    assert_int_equal(work.length, 4);
    assert_int_equal(work.level_count, 0);
}

static void test_same_rows_are_one_run(void **state) {
    (void)state;
    const wh_box from = {2, {4, 0}, {8, 100}};
    const wh_box to = {2, {6, 0}, {100, 100}};
    const int64_t strides[] = {100, 1};
    wh_copy_work work;
    assert_true(wh_copy_between_boxes(&from, &(wh_view){0, 4, 2, from.sizes, strides}, &to,
                                      &(wh_view){0, 4, 2, to.sizes, strides}, &work));
    assert_int_equal(work.level_count, 0);
    assert_int_equal(work.from, 800);
    assert_int_equal(work.to, 0);
    assert_int_equal(work.length, 2400);
}

static void test_equal_compares_boxes(void **state) {
    (void)state;
    const wh_box box = {2, {1, 2, 9}, {3, 4, 9}};
    wh_box other = {2, {1, 2, 7}, {3, 4, 7}};
    assert_true(wh_box_equal(&box, &other));
    other.offsets[1] = 1;
    assert_false(wh_box_equal(&box, &other));
    other.offsets[1] = 2;
    other.sizes[1] = 5;
    assert_false(wh_box_equal(&box, &other));
    other.sizes[1] = 4;
    other.ndim = 1;
    assert_false(wh_box_equal(&box, &other));
}

static void test_within_checks_the_bounds(void **state) {
    (void)state;
    const int64_t shape[] = {5, 7};
    static const struct {
        wh_box box;
        bool within;
    } rows[] = {
        {{2, {0, 0}, {5, 7}}, true},
        {{2, {5, 7}, {0, 0}}, true},
        {{2, {1, 2}, {4, 5}}, true},
        {{2, {1, 2}, {4, 6}}, false},
        {{2, {2, 2}, {4, 5}}, false},
        {{2, {-1, 0}, {1, 1}}, false},
        {{2, {0, 0}, {1, -1}}, false},
        {{2, {0, 0}, {6, 1}}, false},
        {{2, {6, 0}, {0, 1}}, false},
        {{2, {INT64_MAX, 0}, {1, 1}}, false},
        {{2, {1, 0}, {INT64_MAX, 1}}, false},
        {{2, {INT64_MAX, 0}, {INT64_MAX, 1}}, false},
        {{2, {INT64_MIN, 0}, {1, 1}}, false},
        {{2, {1, 0}, {INT64_MIN, 1}}, false},
        {{0, {0}, {0}}, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        assert_int_equal(wh_box_within(&rows[i].box, shape), rows[i].within);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_of_random_views_are_right),
        cmocka_unit_test(test_bytes_arrive),
        cmocka_unit_test(test_order_of_levels_does_not_matter),
        cmocka_unit_test(test_contiguous_is_one_run),
        cmocka_unit_test(test_rows_are_joined),
        cmocka_unit_test(test_dimension_expanded_on_both_sides_is_copied_once),
        cmocka_unit_test(test_extent_is_copied_onto_itself),
        cmocka_unit_test(test_visitor_ends_the_visit),
        cmocka_unit_test(test_window_of_a_huge_copy_is_found_at_once),
        cmocka_unit_test(test_copies_of_random_boxes_are_right),
        cmocka_unit_test(test_copies_scalars),
        cmocka_unit_test(test_same_rows_are_one_run),
        cmocka_unit_test(test_equal_compares_boxes),
        cmocka_unit_test(test_within_checks_the_bounds),
    };
    return cmocka_run_group_tests_name("range_copy", tests, NULL, NULL);
}
