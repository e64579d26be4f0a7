/* Boxes, compared with a loop over the elements of the whole tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/random_range.h"
#include "range/copy.h"

enum { CASES = 3000, SIDE = 7 };

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
        fail_msg("seed %llu: %llu bytes instead of %llu, or others", (unsigned long long)seed,
                 (unsigned long long)made.count, (unsigned long long)expected.count);
    }
}

static void test_random_boxes(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        check_case(seed, 1 + (uint32_t)(seed % 3));
    }
    for (uint64_t seed = 1; seed <= CASES / 30; seed++) {
        check_case(seed, 4);
        check_case(seed, 5);
    }
}

static void test_scalars(void **state) {
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

static void test_equal(void **state) {
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

static void test_within(void **state) {
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
        cmocka_unit_test(test_random_boxes),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_same_rows_are_one_run),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_within),
    };
    return cmocka_run_group_tests_name("range_box", tests, NULL, NULL);
}
