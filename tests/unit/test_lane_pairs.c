/* Workers in pairs: when they are kept, where, and by whom they are not. */
#include <sched.h>

#include "base/cpu.h"
#include "lane/pairs.h"
#include "support/build.h"

static cpu_set_t before;
static uint32_t numbers[WH_PAIRS_MAX];
static size_t count;

/** Leaves this thread so many of its processors. */
static void run_on(size_t processors) {
    cpu_set_t some;
    CPU_ZERO(&some);
    for (size_t i = 0; i < processors; i++) {
        CPU_SET(numbers[i], &some);
    }
    assert_int_equal(sched_setaffinity(0, sizeof(some), &some), 0);
}

static int set_up(void **state) {
    (void)state;
    count = wh_cpu_list(numbers, WH_PAIRS_MAX);
    return sched_getaffinity(0, sizeof(before), &before);
}

static int tear_down(void **state) {
    (void)state;
    return sched_setaffinity(0, sizeof(before), &before);
}

/* Only where there are fewer processors than workers of both sides, and more than one: else everybody may go anywhere. */
static void test_choose(void **state) {
    (void)state;
    wh_pairs pairs;
    run_on(1);
    for (uint32_t workers = 1; workers <= WH_PAIRS_MAX; workers++) {
        wh_pairs_choose(&pairs, workers);
        assert_false(wh_pairs_exist(&pairs));
    }
    for (size_t processors = 2; processors <= count && processors <= WH_PAIRS_MAX; processors++) {
        run_on(processors);
        for (uint32_t workers = 1; workers <= WH_PAIRS_MAX; workers++) {
            wh_pairs_choose(&pairs, workers);
            assert_int_equal(wh_pairs_exist(&pairs), processors < 2 * (size_t)workers);
            for (size_t i = 0; i < WH_PAIRS_MAX; i++) {
                bool kept = wh_pairs_exist(&pairs) && i < workers;
                assert_int_equal(pairs.processors[i], kept ? numbers[i % processors] : WH_ANYWHERE);
            }
        }
    }
}

/* All workers or none: half a pair would wait for a processor that the other half does not leave. */
static void test_take(void **state) {
    (void)state;
    wh_pairs pairs;
    wh_pairs_forget(&pairs);
    assert_false(wh_pairs_take(&pairs, 2));
    pairs.processors[0] = pairs.processors[1] = numbers[0];
    assert_true(wh_pairs_take(&pairs, 2));
    assert_int_equal(pairs.processors[1], numbers[0]);
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        pairs.processors[0] = pairs.processors[1] = numbers[0];
        pairs.processors[wrong] = 100000;
        assert_false(wh_pairs_take(&pairs, 2));
        assert_false(wh_pairs_exist(&pairs));
        assert_int_equal(pairs.processors[1 - wrong], WH_ANYWHERE);
    }
}

/* Each side has a processor of its own where there are two or three of them, by turns; where there are more, the system finds them. */
static void test_apart(void **state) {
    (void)state;
    for (size_t processors = 1; processors <= count && processors <= WH_PAIRS_MAX; processors++) {
        bool few = processors == 2 || processors == 3;
        run_on(processors);
        for (uint32_t number = 0; number < 5; number++) {
            uint32_t receiver;
            uint32_t source;
            wh_choose_apart(number, &receiver, &source);
            assert_int_equal(receiver, few ? numbers[number % processors] : WH_ANYWHERE);
            assert_int_equal(source, few ? numbers[(number + 1) % processors] : WH_ANYWHERE);
            assert_true(!few || receiver != source);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_choose, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_take, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_apart, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("lane_pairs", tests, NULL, NULL);
}
