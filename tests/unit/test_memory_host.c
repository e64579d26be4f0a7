/* Host memory: zeroed, aligned to huge pages if it is large, and fully released. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "memory/memory.h"

#define HUGE_PAGE (UINT64_C(2) << 20)

static const wherry_device cpu = {WHERRY_DEVICE_CPU, -1};

/** The size of the process's address space, read without allocating. */
static uint64_t address_space(void) {
    char text[128];
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    ssize_t got = read(file, text, sizeof(text) - 1);
    close(file);
    assert_true(got > 0);
    text[got] = '\0';
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void check_zeroed_then_fill(uint8_t *data, uint64_t nbytes) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < nbytes; i++) {
        wrong += data[i] != 0;
    }
    assert_int_equal(wrong, 0);
    memset(data, 0xA5, nbytes);
}

static void test_only_host_memory_is_allocated(void **state) {
    (void)state;
    const wh_memory_ops *host = wh_memory_of(WHERRY_DEVICE_CPU);
    assert_non_null(host);
#define WHERRY_X(name, value, text)                                                                                    \
    assert_true((wh_memory_of(WHERRY_DEVICE_##name) == host) == (WHERRY_DEVICE_##name == WHERRY_DEVICE_CPU));          \
    assert_true((wh_memory_of(WHERRY_DEVICE_##name) == NULL) == (WHERRY_DEVICE_##name != WHERRY_DEVICE_CPU));
    WHERRY_DEVICE_LIST(WHERRY_X)
#undef WHERRY_X
}

static void test_small_blocks_are_zeroed(void **state) {
    (void)state;
    const wh_memory_ops *host = wh_memory_of(WHERRY_DEVICE_CPU);
    counting count;
    counting_begin(&count);
    const uint64_t sizes[] = {1, 7, 4096, 100000, HUGE_PAGE - 1};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
            void *data = NULL;
            assert_int_equal(host->allocate(sizes[i], cpu, &data, NULL), WHERRY_OK);
            assert_non_null(data);
            assert_int_equal((uintptr_t)data % 16, 0);
            assert_int_equal(count.held, 1);
            check_zeroed_then_fill(data, sizes[i]);
            host->release(data, sizes[i]);
            assert_int_equal(count.held, 0);
        }
    }
    wherry_allocator_set(NULL);
}

static void test_large_blocks_are_zeroed_and_aligned(void **state) {
    (void)state;
    const wh_memory_ops *host = wh_memory_of(WHERRY_DEVICE_CPU);
    const uint64_t sizes[] = {HUGE_PAGE, HUGE_PAGE + 1, 2 * HUGE_PAGE, 5 * HUGE_PAGE - 1};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
            uint64_t whole = (sizes[i] + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
            uint64_t before = address_space();
            void *data = NULL;
            assert_int_equal(host->allocate(sizes[i], cpu, &data, NULL), WHERRY_OK);
            assert_int_equal((uintptr_t)data % HUGE_PAGE, 0);
            assert_true(address_space() == before + whole);
            check_zeroed_then_fill(data, sizes[i]);
            host->release(data, sizes[i]);
            assert_true(address_space() == before);
            assert_int_equal(msync(data, whole, MS_ASYNC), -1);
            assert_int_equal(errno, ENOMEM);
        }
    }
}

/*
 * Pages are allocated when they are touched, so far more than the machine's memory can be mapped.
 */
static void test_untouched_pages_use_no_memory(void **state) {
    (void)state;
    const wh_memory_ops *host = wh_memory_of(WHERRY_DEVICE_CPU);
    const uint64_t nbytes = UINT64_C(1) << 36;
    uint8_t *data = NULL;
    assert_int_equal(host->allocate(nbytes, cpu, (void **)&data, NULL), WHERRY_OK);
    assert_int_equal(data[0], 0);
    assert_int_equal(data[nbytes - 1], 0);
    data[nbytes - 1] = 1;
    host->release(data, nbytes);
}

static void check_refused(uint64_t nbytes, int errnum) {
    const wh_memory_ops *host = wh_memory_of(WHERRY_DEVICE_CPU);
    wherry_error error;
    memset(&error, 0x5A, sizeof(error));
    char mark;
    void *data = &mark;
    assert_int_equal(host->allocate(nbytes, cpu, &data, &error), WHERRY_NO_MEMORY);
    assert_int_equal(error.status, WHERRY_NO_MEMORY);
    assert_int_equal(error.errnum, errnum);
    assert_true(error.message[0] != '\0');
    assert_ptr_equal(data, &mark);
    assert_int_equal(host->allocate(nbytes, cpu, &data, NULL), WHERRY_NO_MEMORY);
}

static void test_refuses_impossible_sizes(void **state) {
    (void)state;
    check_refused(UINT64_MAX, 0);
    check_refused(INT64_MAX, 0);
    check_refused((uint64_t)INT64_MAX - 2 * HUGE_PAGE + 1, 0);
    check_refused((uint64_t)INT64_MAX - 2 * HUGE_PAGE, ENOMEM);
}

/* *data_p is written only on success. */
static void test_failed_allocation_leaves_the_output(void **state) {
    (void)state;
    counting count;
    counting_begin(&count);
    count.fail = 1;
    check_refused(100, 0);
    wherry_allocator_set(NULL);
}

static int restore(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_host_memory_is_allocated),
        cmocka_unit_test_teardown(test_small_blocks_are_zeroed, restore),
        cmocka_unit_test(test_large_blocks_are_zeroed_and_aligned),
        cmocka_unit_test(test_untouched_pages_use_no_memory),
        cmocka_unit_test(test_refuses_impossible_sizes),
        cmocka_unit_test_teardown(test_failed_allocation_leaves_the_output, restore),
    };
    return cmocka_run_group_tests_name("memory_host", tests, NULL, NULL);
}
