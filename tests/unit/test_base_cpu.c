/* Where a thread may run, and keeping it there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cpu.h"

static void test_list(void **state) {
    (void)state;
    cpu_set_t set;
    uint32_t numbers[CPU_SETSIZE];
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    size_t count = wh_cpu_list(numbers, CPU_SETSIZE);
    assert_int_equal(count, CPU_COUNT(&set));
    assert_int_equal(wh_cpu_list(NULL, 0), count);
    for (size_t i = 0; i < count; i++) {
        assert_true(CPU_ISSET(numbers[i], &set) && wh_cpu_allows(numbers[i]));
        assert_true(i == 0 || numbers[i] > numbers[i - 1]);
    }
    assert_false(wh_cpu_allows(CPU_SETSIZE));
    assert_false(wh_cpu_allows(UINT32_MAX));
}

/* Kept on each in turn, nowhere else meanwhile, and free again afterwards. */
static void test_hold(void **state) {
    (void)state;
    cpu_set_t before;
    uint32_t numbers[CPU_SETSIZE];
    size_t count = wh_cpu_list(numbers, CPU_SETSIZE);
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    for (size_t i = 0; i < count; i++) {
        wh_cpu_hold hold;
        cpu_set_t now;
        uint32_t only = UINT32_MAX;
        wh_cpu_hold_begin(&hold, numbers[i]);
        assert_true(hold.held);
        assert_int_equal(wh_cpu_list(&only, 1), 1);
        assert_int_equal(only, numbers[i]);
        assert_int_equal(sched_getcpu(), (int)numbers[i]);
        wh_cpu_hold_end(&hold);
        assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
        assert_true(CPU_EQUAL(&now, &before));
    }
}

/* Where the caller has said that it is not to run, it does not. */
static void test_hold_elsewhere(void **state) {
    (void)state;
    uint32_t numbers[2];
    size_t count = wh_cpu_list(numbers, 2);
    wh_cpu_hold outer;
    wh_cpu_hold inner;
    wh_cpu_hold_begin(&outer, numbers[0]);
    wh_cpu_hold_begin(&inner, count > 1 ? numbers[1] : CPU_SETSIZE);
    assert_false(inner.held);
    assert_int_equal(sched_getcpu(), (int)numbers[0]);
    wh_cpu_hold_end(&inner);
    assert_int_equal(wh_cpu_list(NULL, 0), 1);
    wh_cpu_hold_end(&outer);
    wh_cpu_hold_begin(&inner, UINT32_MAX);
    assert_false(inner.held);
    assert_int_equal(wh_cpu_list(NULL, 0), count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_hold_elsewhere),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
