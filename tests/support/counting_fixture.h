/** @file counting_fixture.h  Runs tests with the counting allocator and finds leaks. */
#ifndef TEST_COUNTING_FIXTURE_H
#define TEST_COUNTING_FIXTURE_H

#include "counting_allocator.h"

static counting counted;

static inline int count_begin(void **state) {
    (void)state;
    counting_begin(&counted);
    return 0;
}

/** Fails the test if it kept a block or broke the interface of the allocator. */
static inline int count_end(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return counted.held != 0 || counted.wrong != 0;
}

#define counted_test(name) cmocka_unit_test_setup_teardown(name, count_begin, count_end)

#endif
