/* Growing strings and UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../support/counting_allocator.h"
#include "../support/random_range.h"
#include "base/text.h"

/* ---- growing strings ---- */

static void test_appends_and_formats(void **state) {
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

static void test_growth_keeps_the_content(void **state) {
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

static void test_failed_growth_is_permanent(void **state) {
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

static void test_impossible_sizes_fail(void **state) {
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

/* ---- UTF-8 ---- */

/** Decodes each character and checks that it has no shorter encoding. */
static bool slow_valid(const uint8_t *bytes, size_t size) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t at = 0; at < size;) {
        size_t ones = 0;
        while (ones < 8 && bytes[at] & (0x80 >> ones)) {
            ones++;
        }
        if (ones == 1 || ones > 4) {
            return false;
        }
        size_t length = ones ? ones : 1;
        uint32_t number = bytes[at] & (0xFFU >> (ones + 1));
        for (size_t i = 1; i < length; i++) {
            if (at + i >= size || bytes[at + i] >> 6 != 2) {
                return false;
            }
            number = number << 6 | (bytes[at + i] & 0x3F);
        }
        if (number < least[length] || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) {
            return false;
        }
        at += length;
    }
    return true;
}

/** Uses a buffer of exactly that size, so that a sanitizer detects a read past the end. */
static bool valid(const void *bytes, size_t size) {
    char *exact = malloc(size ? size : 1);
    memcpy(exact, bytes, size);
    bool result = wh_utf8_valid(exact, size);
    free(exact);
    return result;
}

typedef struct text {
    const char *bytes;
    size_t size;
} text;

#define TEXT(literal)                                                                                                  \
    { literal, sizeof(literal) - 1 }

static void test_accepts_valid_utf8(void **state) {
    (void)state;
    static const text good[] = {
        TEXT(""),
        TEXT("plain"),
        TEXT("a\0b"),
        TEXT("\x7F"),
        TEXT("\xC2\x80"),
        TEXT("\xDF\xBF"),
        TEXT("\xE0\xA0\x80"),
        TEXT("\xED\x9F\xBF"),
        TEXT("\xEE\x80\x80"),
        TEXT("\xEF\xBF\xBF"),
        TEXT("\xF0\x90\x80\x80"),
        TEXT("\xF4\x8F\xBF\xBF"),
        TEXT("seven b\xC3\xA9 and then eight more"),
        TEXT("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x9B\xB6"),
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        if (!valid(good[i].bytes, good[i].size)) {
            fail_msg("valid text %zu is refused", i);
        }
    }
    assert_true(wh_utf8_valid(NULL, 0));
}

static void test_refuses_invalid_utf8(void **state) {
    (void)state;
    static const text bad[] = {
        TEXT("\x80"),
        TEXT("\xBF"),
        TEXT("\xC0\x80"),
        TEXT("\xC1\xBF"),
        TEXT("\xC2"),
        TEXT("\xC2\x7F"),
        TEXT("\xC2\xC0"),
        TEXT("\xE0\x80\x80"),
        TEXT("\xE0\x9F\xBF"),
        TEXT("\xE2\x82"),
        TEXT("\xED\xA0\x80"),
        TEXT("\xED\xBF\xBF"),
        TEXT("\xF0\x80\x80\x80"),
        TEXT("\xF0\x8F\xBF\xBF"),
        TEXT("\xF0\x9F\x9B"),
        TEXT("\xF4\x90\x80\x80"),
        TEXT("\xF5\x80\x80\x80"),
        TEXT("\xF8\x88\x80\x80\x80"),
        TEXT("\xFE"),
        TEXT("\xFF"),
        TEXT("12345678\x80"),
        TEXT("1234567\x80"),
        TEXT("12345678\xC3"),
        TEXT("1234567\xC3"),
        TEXT("\xC3\xA9\xA9 and eight more"),
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (valid(bad[i].bytes, bad[i].size)) {
            fail_msg("invalid text %zu is accepted", i);
        }
    }
}

static void test_all_sequences_of_up_to_three_bytes_are_judged_right(void **state) {
    (void)state;
    uint64_t wrong = 0;
    for (size_t size = 1; size <= 3; size++) {
        for (uint32_t number = 0; number < UINT32_C(1) << (8 * size); number++) {
            const uint8_t bytes[3] = {(uint8_t)number, (uint8_t)(number >> 8), (uint8_t)(number >> 16)};
            wrong += wh_utf8_valid((const char *)bytes, size) != slow_valid(bytes, size);
        }
    }
    assert_int_equal(wrong, 0);
}

/* Four bytes: tries all first and second bytes, with the other bytes at their limits. */
static void test_four_byte_sequences_are_judged_right(void **state) {
    (void)state;
    static const uint8_t others[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    for (uint32_t number = 0; number < 65536; number++) {
        for (size_t i = 0; i < sizeof(others); i++) {
            for (size_t j = 0; j < sizeof(others); j++) {
                const uint8_t bytes[4] = {(uint8_t)(number >> 8), (uint8_t)number, others[i], others[j]};
                if (wh_utf8_valid((const char *)bytes, 4) != slow_valid(bytes, 4)) {
                    fail_msg("%02x %02x %02x %02x", bytes[0], bytes[1], bytes[2], bytes[3]);
                }
            }
        }
    }
}

static void test_accepts_every_character(void **state) {
    (void)state;
    for (uint32_t number = 0x800; number <= 0x10FFFF; number++) {
        uint8_t bytes[4] = {(uint8_t)(0xF0 | number >> 18), (uint8_t)(0x80 | (number >> 12 & 0x3F)),
                            (uint8_t)(0x80 | (number >> 6 & 0x3F)), (uint8_t)(0x80 | (number & 0x3F))};
        size_t skipped = 0;
        if (number < 0x10000) {
            bytes[1] = (uint8_t)(0xE0 | number >> 12);
            skipped = 1;
        }
        bool surrogate = number >= 0xD800 && number < 0xE000;
        if (wh_utf8_valid((const char *)bytes + skipped, 4 - skipped) == surrogate) {
            fail_msg("U+%04X", number);
        }
    }
}

/*
 * Long texts with one changed byte, truncated anywhere. The check reads eight bytes at a time and
 * must not skip one.
 */
static void test_finds_a_bad_byte_in_long_texts(void **state) {
    (void)state;
    static const text parts[] = {TEXT("a"), TEXT("bcdefghijkl"), TEXT("\xC3\xA9"), TEXT("\xE2\x82\xAC"),
                                 TEXT("\xF0\x9F\x9B\xB6")};
    int good = 0;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        dice d = {seed};
        uint8_t bytes[64];
        size_t size = 0;
        while (size < 40) {
            text part = parts[below(&d, 5)];
            memcpy(bytes + size, part.bytes, part.size);
            size += part.size;
        }
        size -= below(&d, 3) ? 0 : below(&d, 12);
        if (below(&d, 2)) {
            bytes[below(&d, size)] = (uint8_t)roll(&d);
        }
        bool expected = slow_valid(bytes, size);
        if (valid(bytes, size) != expected) {
            fail_msg("seed %llu", (unsigned long long)seed);
        }
        good += expected;
    }
    assert_in_range(good, 1000, 19000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends_and_formats),
        cmocka_unit_test(test_take_leaves_an_empty_one),
        cmocka_unit_test(test_growth_keeps_the_content),
        cmocka_unit_test(test_failed_growth_is_permanent),
        cmocka_unit_test(test_impossible_sizes_fail),
        cmocka_unit_test(test_accepts_valid_utf8),
        cmocka_unit_test(test_refuses_invalid_utf8),
        cmocka_unit_test(test_all_sequences_of_up_to_three_bytes_are_judged_right),
        cmocka_unit_test(test_four_byte_sequences_are_judged_right),
        cmocka_unit_test(test_accepts_every_character),
        cmocka_unit_test(test_finds_a_bad_byte_in_long_texts),
    };
    return cmocka_run_group_tests_name("base_text", tests, NULL, NULL);
}
