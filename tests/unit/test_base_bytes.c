/* Cursors over bytes from outside: they never read past the end, and a failure is permanent. */
#include "support/build.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"

static void test_numbers_of_every_width(void **state) {
    (void)state;
    static const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t width = 0; width <= 8; width++) {
        wh_cursor cursor = wh_cursor_over(bytes, sizeof(bytes));
        uint64_t expected = 0;
        for (size_t i = 0; i < width; i++) {
            expected = expected * 256 + bytes[i];
        }
        assert_int_equal(wh_cursor_number(&cursor, width), expected);
        assert_int_equal(cursor.left, 8 - width);
        wh_string text = {0};
        wh_string_append(&text, "", 0);
        wh_append_number(&text, expected, width);
        assert_int_equal(text.size, width);
        assert_memory_equal(text.bytes, bytes, width);
        wh_free(text.bytes);
    }
}

/** Storing a number that is too large for its width drops its upper bytes. */
static void test_large_numbers_lose_upper_bytes(void **state) {
    (void)state;
    wh_string text = {0};
    wh_append_number(&text, 0x123456, 2);
    assert_int_equal(text.size, 2);
    assert_memory_equal(text.bytes, "\x34\x56", 2);
    wh_free(text.bytes);
}

static void test_reading_past_the_end_fails(void **state) {
    (void)state;
    static const uint8_t bytes[] = {9, 9, 9};
    wh_cursor cursor = wh_cursor_over(bytes, sizeof(bytes));
    assert_int_equal(wh_cursor_number(&cursor, 4), 0);
    assert_true(cursor.failed);
    /* A failed cursor returns nothing, even if bytes are left. */
    assert_int_equal(wh_cursor_number(&cursor, 1), 0);
    assert_null(wh_cursor_bytes(&cursor, 0));
    assert_false(wh_cursor_ended(&cursor));
    cursor = wh_cursor_over(bytes, sizeof(bytes));
    assert_null(wh_cursor_bytes(&cursor, SIZE_MAX));
    assert_true(cursor.failed);
    cursor = wh_cursor_over(NULL, 0);
    assert_true(wh_cursor_ended(&cursor));
    assert_int_equal(wh_cursor_number(&cursor, 1), 0);
    assert_false(wh_cursor_ended(&cursor));
}

static void test_reads_sized_bytes(void **state) {
    (void)state;
    static const size_t widths[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof(widths) / sizeof(*widths); i++) {
        wh_string text = {0};
        wh_append_sized(&text, "abc", 3, widths[i]);
        wh_append_sized(&text, NULL, 0, widths[i]);
        wh_cursor cursor = wh_cursor_over(text.bytes, text.size);
        wh_bytes bytes = wh_cursor_sized(&cursor, widths[i]);
        assert_true(bytes.size == 3 && memcmp(bytes.bytes, "abc", 3) == 0);
        bytes = wh_cursor_sized(&cursor, widths[i]);
        assert_true(bytes.bytes && bytes.size == 0);
        assert_true(wh_cursor_ended(&cursor));
        wh_free(text.bytes);
    }
}

/** If the length exceeds the bytes that are left, the cursor returns nothing. */
static void test_refuses_lengths_past_the_end(void **state) {
    (void)state;
    static const uint8_t claims[][9] = {{0, 0, 0, 0, 0, 0, 0, 2, 'x'},
                                        {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 'x'},
                                        {0x80, 0, 0, 0, 0, 0, 0, 0, 'x'}};
    for (size_t i = 0; i < sizeof(claims) / sizeof(*claims); i++) {
        wh_cursor cursor = wh_cursor_over(claims[i], 9);
        wh_bytes bytes = wh_cursor_sized(&cursor, 8);
        assert_true(!bytes.bytes && bytes.size == 0);
        assert_true(cursor.failed);
        cursor = wh_cursor_over(claims[i], 5);
        bytes = wh_cursor_sized(&cursor, 8);
        assert_true(!bytes.bytes && bytes.size == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_every_width),       cmocka_unit_test(test_large_numbers_lose_upper_bytes),
        cmocka_unit_test(test_reading_past_the_end_fails),   cmocka_unit_test(test_reads_sized_bytes),
        cmocka_unit_test(test_refuses_lengths_past_the_end),
    };
    return cmocka_run_group_tests_name("cursor", tests, NULL, NULL);
}
