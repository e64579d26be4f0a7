/* Copies that bypass or fill the caches copy the right bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <wherry/group_ops.h>

#include "base/cache_copy.h"

enum { ROOM = 20000, EDGE = 80 };

typedef void copy_fn(void *restrict to, const void *restrict from, size_t size);

/** Tries all alignments of both sides and lengths around each limit. No other byte is written. */
static void check_every_alignment(copy_fn *copy) {
    static const size_t sizes[] = {0, 1, 63, 64, 2047, 2048, 2049, 2111, 2112, 4095, 4096, 4097, 5000, 16384};
    uint8_t *from = malloc(ROOM);
    uint8_t *to = malloc(ROOM);
    uint8_t *expected = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (uint8_t)(i * 31 + i / 251);
    }
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        for (size_t a = 0; a < EDGE; a++) {
            size_t b = a * 7 % EDGE;
            memset(to, 0xEE, ROOM);
            memset(expected, 0xEE, ROOM);
            memcpy(expected + a, from + b, sizes[s]);
            copy(to + a, from + b, sizes[s]);
            assert_memory_equal(to, expected, ROOM);
        }
    }
    free(expected);
    free(to);
    free(from);
}

static void test_copy_past_the_cache_is_exact(void **state) {
    (void)state;
    check_every_alignment(wh_memcpy_nontemporal);
}

static void test_copy_into_the_cache_is_exact(void **state) {
    (void)state;
    check_every_alignment(wh_memcpy_into_cache);
}

/** Copies runs of many lengths, starting in the middle of the first, ending in the last. */
static void test_copy_of_runs_is_exact(void **state) {
    (void)state;
    enum { RUNS = 6, FIRST = 3000 };
    static uint8_t from[ROOM];
    static uint8_t to[ROOM];
    struct iovec runs[RUNS];
    uint8_t *at = from;
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (uint8_t)(i * 31 + i / 251);
    }
    for (size_t i = 0; i < RUNS; i++) {
        runs[i] = (struct iovec){at, i ? 1 + i * 900 : FIRST};
        at += runs[i].iov_len;
    }
    size_t all = (size_t)(at - from);
    for (size_t skip = 0; skip < FIRST; skip += 37) {
        for (size_t size = 0; skip + size <= all; size += 977) {
            memset(to, 0xEE, sizeof(to));
            wherry_group_copy_runs(to + 1, runs, skip, size);
            assert_memory_equal(to + 1, from + skip, size);
            assert_true(to[0] == 0xEE && to[size + 1] == 0xEE);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copy_past_the_cache_is_exact),
                                       cmocka_unit_test(test_copy_into_the_cache_is_exact),
                                       cmocka_unit_test(test_copy_of_runs_is_exact)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
