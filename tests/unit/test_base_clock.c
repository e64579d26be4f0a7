/* The clock and deadlines. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"

#define MS UINT64_C(1000000)

static void test_clock_goes_forward(void **state) {
    (void)state;
    uint64_t last = wh_clock_now();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = wh_clock_now();
        assert_true(now >= last);
        last = now;
    }
    struct timespec before;
    struct timespec after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t now = wh_clock_now();
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(now >= (uint64_t)before.tv_sec * 1000 * MS + (uint64_t)before.tv_nsec);
    assert_true(now <= (uint64_t)after.tv_sec * 1000 * MS + (uint64_t)after.tv_nsec);
}

static void test_never_does_not_pass(void **state) {
    (void)state;
    assert_false(wh_deadline_passed(wh_deadline_never()));
    assert_int_equal(wh_deadline_poll_ms(wh_deadline_never()), -1);
    assert_true(wh_deadline_never().at == UINT64_MAX);
}

static void test_deadline_is_milliseconds_from_now(void **state) {
    (void)state;
    const int64_t waits[] = {0, 1, 1000, 3600000, INT64_C(1) << 40};
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        uint64_t before = wh_clock_now();
        wh_deadline deadline = wh_deadline_in_ms(waits[i]);
        uint64_t after = wh_clock_now();
        assert_true(deadline.at >= before + (uint64_t)waits[i] * MS);
        assert_true(deadline.at <= after + (uint64_t)waits[i] * MS);
    }
}

static void test_distant_deadlines_are_never(void **state) {
    (void)state;
    const int64_t waits[] = {-1,
                             INT64_MIN,
                             INT64_MAX,
                             INT64_MAX / 1000000 * 2 + 2,
                             (int64_t)(UINT64_MAX / MS),
                             (int64_t)(UINT64_MAX / MS) + 1};
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        wh_deadline deadline = wh_deadline_in_ms(waits[i]);
        assert_true(deadline.at == UINT64_MAX);
        assert_int_equal(wh_deadline_poll_ms(deadline), -1);
    }
}

static void test_deadline_passes(void **state) {
    (void)state;
    assert_true(wh_deadline_passed(wh_deadline_in_ms(0)));
    assert_true(wh_deadline_passed((wh_deadline){wh_clock_now()}));
    assert_true(wh_deadline_passed((wh_deadline){0}));
    assert_int_equal(wh_deadline_poll_ms(wh_deadline_in_ms(0)), 0);
    assert_int_equal(wh_deadline_poll_ms((wh_deadline){0}), 0);
    assert_false(wh_deadline_passed(wh_deadline_in_ms(60000)));
    wh_deadline soon = wh_deadline_in_ms(2);
    while (wh_clock_now() < soon.at) {
    }
    assert_true(wh_deadline_passed(soon));
    assert_int_equal(wh_deadline_poll_ms(soon), 0);
}

static uint64_t rounded_up(uint64_t from, uint64_t to) {
    return to > from ? (to - from + MS - 1) / MS : 0;
}

/* If the poll timeout were rounded down to 0, the caller would spin until the deadline. */
static void test_poll_rounds_up(void **state) {
    (void)state;
    for (uint64_t wait = 1; wait < 3000 * MS; wait += wait / 50 + 777) {
        uint64_t before = wh_clock_now();
        wh_deadline deadline = {before + wait};
        int poll = wh_deadline_poll_ms(deadline);
        uint64_t after = wh_clock_now();
        assert_true(poll >= 0);
        assert_true((uint64_t)poll >= rounded_up(after, deadline.at));
        assert_true((uint64_t)poll <= rounded_up(before, deadline.at));
    }
}

static void test_poll_of_a_distant_deadline_is_limited(void **state) {
    (void)state;
    assert_int_equal(wh_deadline_poll_ms((wh_deadline){UINT64_MAX - 1}), INT_MAX);
    assert_int_equal(wh_deadline_poll_ms(wh_deadline_in_ms((int64_t)INT_MAX + 100000)), INT_MAX);
    int poll = wh_deadline_poll_ms(wh_deadline_in_ms(INT_MAX));
    assert_true(poll > INT_MAX - 60000);
}

static void test_earlier_deadline_wins(void **state) {
    (void)state;
    wh_deadline one = {5};
    wh_deadline other = {6};
    assert_true(wh_deadline_earlier(one, other).at == 5);
    assert_true(wh_deadline_earlier(other, one).at == 5);
    assert_true(wh_deadline_earlier(one, one).at == 5);
    assert_true(wh_deadline_earlier(wh_deadline_never(), one).at == 5);
    assert_true(wh_deadline_earlier(one, wh_deadline_never()).at == 5);
    assert_true(wh_deadline_earlier(wh_deadline_never(), wh_deadline_never()).at == UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock_goes_forward),
        cmocka_unit_test(test_never_does_not_pass),
        cmocka_unit_test(test_deadline_is_milliseconds_from_now),
        cmocka_unit_test(test_distant_deadlines_are_never),
        cmocka_unit_test(test_deadline_passes),
        cmocka_unit_test(test_poll_rounds_up),
        cmocka_unit_test(test_poll_of_a_distant_deadline_is_limited),
        cmocka_unit_test(test_earlier_deadline_wins),
    };
    return cmocka_run_group_tests_name("base_clock", tests, NULL, NULL);
}
