/* Copying past the caches, and into them, is copying. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bulk.h"

enum { ROOM = 20000, EDGE = 80 };

typedef void copy_fn(void *restrict to, const void *restrict from, size_t size);

/** All alignments of both sides, and lengths around each bound; nothing beside the copy is written. */
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

static void test_past_cache(void **state) {
    (void)state;
    check_every_alignment(wh_copy_past_cache);
}

static void test_into_cache(void **state) {
    (void)state;
    check_every_alignment(wh_copy_into_cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_past_cache), cmocka_unit_test(test_into_cache)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
