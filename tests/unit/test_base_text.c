/* Growing text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "base/text.h"

static void test_append_and_format(void **state) {
    (void)state;
    wh_string string = {0};
    wh_string_append(&string, "abc", 2);
    assert_string_equal(string.bytes, "ab");
    assert_int_equal(string.size, 2);
    wh_string_format(&string, "[%d]%s", 42, "x");
    assert_string_equal(string.bytes, "ab[42]x");
    assert_int_equal(string.size, 7);
    wh_string_append(&string, NULL, 0);
    wh_string_append(&string, "\0z", 2);
    assert_int_equal(string.size, 9);
    assert_memory_equal(string.bytes, "ab[42]x\0z", 10);
    assert_false(string.failed);
    char *text = wh_string_take(&string);
    assert_memory_equal(text, "ab[42]x\0z", 10);
    wh_free(text);
}

static void test_take_leaves_an_empty_one(void **state) {
    (void)state;
    wh_string string = {0};
    char *text = wh_string_take(&string);
    assert_non_null(text);
    assert_string_equal(text, "");
    wh_free(text);
    wh_string_format(&string, "%s", "");
    assert_string_equal(string.bytes, "");
    wh_string_append(&string, "one", 3);
    text = wh_string_take(&string);
    assert_string_equal(text, "one");
    assert_null(string.bytes);
    assert_int_equal(string.size, 0);
    assert_int_equal(string.capacity, 0);
    wh_string_append(&string, "two", 3);
    char *other = wh_string_take(&string);
    assert_string_equal(text, "one");
    assert_string_equal(other, "two");
    wh_free(text);
    wh_free(other);
}

static void test_growth(void **state) {
    (void)state;
    static char expected[60000];
    size_t size = 0;
    wh_string string = {0};
    for (int i = 0; size < 50000; i++) {
        char piece[64];
        int length = snprintf(piece, sizeof(piece), "%0*d.", i % 40 + 1, i);
        memcpy(expected + size, piece, (size_t)length + 1);
        size += (size_t)length;
        if (i % 2) {
            wh_string_append(&string, piece, (size_t)length);
        } else {
            wh_string_format(&string, "%s", piece);
        }
        assert_int_equal(string.size, size);
        assert_true(string.capacity > size);
        assert_int_equal(string.bytes[size], 0);
    }
    assert_string_equal(string.bytes, expected);
    wh_string_append(&string, expected, size);
    assert_int_equal(string.size, 2 * size);
    assert_memory_equal(string.bytes + size, expected, size + 1);
    wh_free(wh_string_take(&string));
}

static void test_no_memory(void **state) {
    (void)state;
    counting count;
    for (uint64_t fail = 1; fail < 8; fail++) {
        counting_begin(&count);
        count.fail = fail;
        wh_string string = {0};
        for (int i = 0; !string.failed; i++) {
            wh_string_append(&string, "0123456789", 10);
            wh_string_format(&string, "%d", i);
            assert_true(i < 1000);
        }
        size_t size = string.size;
        count.fail = 0;
        wh_string_append(&string, "x", 1);
        wh_string_format(&string, "%d", 1);
        assert_int_equal(string.size, size);
        assert_true(string.failed);
        assert_null(wh_string_take(&string));
        assert_int_equal(count.held, 0);
        assert_false(string.failed);
        wh_string_append(&string, "again", 5);
        char *text = wh_string_take(&string);
        assert_string_equal(text, "again");
        wh_free(text);
        assert_int_equal(count.held, 0);
    }
    wherry_allocator_set(NULL);
}

static void test_size_that_no_memory_has(void **state) {
    (void)state;
    wh_string string = {0};
    wh_string_append(&string, "abc", 3);
    wh_string_append(&string, "abc", SIZE_MAX - 3);
    assert_true(string.failed);
    assert_null(wh_string_take(&string));
    wh_string_append(&string, "abc", SIZE_MAX);
    assert_true(string.failed);
    assert_null(wh_string_take(&string));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_format),
        cmocka_unit_test(test_take_leaves_an_empty_one),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_size_that_no_memory_has),
    };
    return cmocka_run_group_tests_name("base_text", tests, NULL, NULL);
}
