/* Numbers: checked sizes, byte order, doubles as text. Option structs of other versions. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../support/random_range.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/text.h"

#define MOST ((uint64_t)INT64_MAX)

static const uint64_t borders[] = {0,
                                   1,
                                   2,
                                   3,
                                   UINT32_MAX,
                                   (uint64_t)UINT32_MAX + 1,
                                   (uint64_t)UINT32_MAX + 2,
                                   MOST / 3,
                                   MOST / 2,
                                   MOST / 2 + 1,
                                   MOST - 1,
                                   MOST,
                                   MOST + 1,
                                   UINT64_MAX - 1,
                                   UINT64_MAX};

enum { BORDERS = sizeof(borders) / sizeof(*borders) };

static void check_pair(uint64_t a, uint64_t b) {
    unsigned __int128 sum = (unsigned __int128)a + b;
    unsigned __int128 product = (unsigned __int128)a * b;
    uint64_t result = 77;
    assert_int_equal(wh_add(a, b, &result), sum <= MOST);
    assert_true(result == (sum <= MOST ? (uint64_t)sum : 77));
    result = 77;
    assert_int_equal(wh_mul(a, b, &result), product <= MOST);
    assert_true(result == (product <= MOST ? (uint64_t)product : 77));
    for (int i = 0; i < BORDERS; i++) {
        unsigned __int128 total = product + borders[i];
        bool fits = product <= MOST && total <= MOST;
        result = borders[i];
        assert_int_equal(wh_add_product(a, b, &result), fits);
        assert_true(result == (fits ? (uint64_t)total : borders[i]));
    }
    assert_true(wh_min(a, b) == (a < b ? a : b));
    assert_true(wh_max(a, b) == (a < b ? b : a));
}

static void test_checked_arithmetic_finds_overflow(void **state) {
    (void)state;
    for (int i = 0; i < BORDERS; i++) {
        for (int j = 0; j < BORDERS; j++) {
            check_pair(borders[i], borders[j]);
        }
    }
    dice d = {1};
    for (int i = 0; i < 3000; i++) {
        uint64_t a = roll(&d) >> below(&d, 64);
        check_pair(a, roll(&d) >> below(&d, 64));
    }
}

static void test_stores_and_loads_in_byte_order(void **state) {
    (void)state;
    uint8_t bytes[8];
    const uint8_t expected[8] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF};
    wh_store_be64(bytes, UINT64_C(0x0123456789ABCDEF));
    assert_memory_equal(bytes, expected, 8);
    assert_true(wh_load_be64(expected) == UINT64_C(0x0123456789ABCDEF));
    dice d = {2};
    for (int i = 0; i < 1000; i++) {
        uint64_t number = roll(&d);
        wh_store_be64(bytes, number);
        assert_true(wh_load_be64(bytes) == number);
        assert_true(wh_double_bits(wh_bits_double(number)) == number);
    }
    assert_true(wh_double_bits(1.0) == UINT64_C(0x3FF0000000000000));
    assert_true(wh_double_bits(-0.0) == UINT64_C(0x8000000000000000));
    assert_true(wh_double_bits(wh_bits_double(UINT64_C(0x7FF0000000000001))) == UINT64_C(0x7FF0000000000001));
}

static const struct {
    double number;
    const char *text;
} formats[] = {
    {0.0, "0.0"},
    {-0.0, "-0.0"},
    {1.0, "1.0"},
    {-17.0, "-17.0"},
    {0.5, "0.5"},
    {0.1, "0.1"},
    {1e300, "1e+300"},
    {1e17, "1e+17"},
    {12345678901234567.0, "12345678901234568.0"},
    {1.0 / 3, "0.3333333333333333"},
    {0.1 + 0.2, "0.30000000000000004"},
    {5e-324, "4.94065645841247e-324"},
};

static void test_formats_numbers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        char text[WH_DOUBLE_TEXT_MAX];
        assert_ptr_equal(wh_double_format(formats[i].number, text), text);
        assert_string_equal(text, formats[i].text);
    }
}

static void check_round_trip(uint64_t bits) {
    double number = wh_bits_double(bits);
    if (!isfinite(number)) {
        return;
    }
    char text[WH_DOUBLE_TEXT_MAX];
    memset(text, 'x', sizeof(text));
    wh_double_format(number, text);
    assert_true(strnlen(text, sizeof(text)) < sizeof(text));
    assert_non_null(strpbrk(text, ".e"));
    assert_null(strchr(text, ','));
    double again = 77.0;
    if (!wh_double_parse(text, &again) || wh_double_bits(again) != bits) {
        fail_msg("%016llx: wrong text %s", (unsigned long long)bits, text);
    }
}

static void test_formatted_numbers_parse_back(void **state) {
    (void)state;
    const double numbers[] = {0.0,    -0.0,    1.0,         DBL_MAX, -DBL_MAX, DBL_MIN,
                              5e-324, -5e-324, DBL_EPSILON, 0.1,     1.0 / 3,  -1.2345678901234567e-308};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        check_round_trip(wh_double_bits(numbers[i]));
    }
    dice d = {3};
    for (int i = 0; i < 20000; i++) {
        check_round_trip(roll(&d));
    }
}

static void test_parses_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double number;
    } good[] = {{"0", 0.0},      {"12", 12.0},      {"-1.5", -1.5}, {"+2.5", 2.5}, {"1e3", 1000.0},
                {"1e-3", 0.001}, {"1.5e+2", 150.0}, {".5", 0.5},    {"5.", 5.0},   {"1e-999", 0.0}};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        double number = 77.0;
        assert_true(wh_double_parse(good[i].text, &number));
        assert_true(number == good[i].number);
    }
}

static void test_refuses_text_that_is_not_a_number(void **state) {
    (void)state;
    static const char *const bad[] = {"",    " 1",   "1 ",    "1,5",    "x",   "1x",       "0x10",  "nan",
                                      "inf", "-inf", "1e999", "-1e999", "-",   ".",        "e",     "1e",
                                      "1e+", "--1",  "1-2",   "1.2.3",  "1E3", "infinity", "1_000", "1e1e1",
                                      "+-1", "\t1",  "1\n",   "e5",     ".e1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        double number = 77.0;
        if (wh_double_parse(bad[i], &number)) {
            fail_msg("\"%s\" was parsed as %f", bad[i], number);
        }
        assert_true(number == 77.0);
    }
}

/* This tests something only if a locale with a decimal comma is installed. */
static void test_locale_does_not_change_text(void **state) {
    (void)state;
    static const char *const names[] = {"C",           "C.UTF-8",     "de_DE.UTF-8", "de_DE.utf8",
                                        "de_DE",       "fr_FR.UTF-8", "fr_FR.utf8",  "nl_NL.UTF-8",
                                        "pl_PL.UTF-8", "ru_RU.UTF-8", "es_ES.UTF-8"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (!setlocale(LC_ALL, names[i])) {
            continue;
        }
        char before[16];
        char after[16];
        snprintf(before, sizeof(before), "%.1f", 1.5);
        test_formats_numbers(state);
        test_parses_numbers(state);
        test_refuses_text_that_is_not_a_number(state);
        check_round_trip(wh_double_bits(1234567.25));
        snprintf(after, sizeof(after), "%.1f", 1.5);
        assert_string_equal(before, after);
    }
    setlocale(LC_ALL, "C");
}

typedef struct options_now {
    uint32_t struct_size;
    uint32_t first;
    uint64_t second;
} options_now;

static void test_options_of_this_version_are_copied(void **state) {
    (void)state;
    const options_now defaults = {sizeof(options_now), 1, 2};
    options_now chosen = defaults;
    assert_true(wh_options_take(&chosen, sizeof(chosen), NULL));
    assert_memory_equal(&chosen, &defaults, sizeof(chosen));
    const options_now given = {sizeof(given), 10, 20};
    assert_true(wh_options_take(&chosen, sizeof(chosen), &given));
    assert_memory_equal(&chosen, &given, sizeof(chosen));
}

static void test_shorter_options_get_defaults(void **state) {
    (void)state;
    options_now chosen = {sizeof(chosen), 1, 2};
    const uint32_t older[2] = {sizeof(older), 10};
    assert_true(wh_options_take(&chosen, sizeof(chosen), older));
    assert_int_equal(chosen.first, 10);
    assert_int_equal(chosen.second, 2);
    chosen.first = 1;
    const uint32_t least = sizeof(least);
    assert_true(wh_options_take(&chosen, sizeof(chosen), &least));
    assert_int_equal(chosen.first, 1);
}

static void test_refuses_options_of_a_wrong_size(void **state) {
    (void)state;
    const uint32_t sizes[] = {0, 1, 3, sizeof(options_now) + 1, 1000, UINT32_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const options_now defaults = {sizeof(options_now), 1, 2};
        options_now chosen = defaults;
        const options_now given = {sizes[i], 10, 20};
        assert_false(wh_options_take(&chosen, sizeof(chosen), &given));
        assert_memory_equal(&chosen, &defaults, sizeof(chosen));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checked_arithmetic_finds_overflow),
        cmocka_unit_test(test_stores_and_loads_in_byte_order),
        cmocka_unit_test(test_formats_numbers),
        cmocka_unit_test(test_formatted_numbers_parse_back),
        cmocka_unit_test(test_parses_numbers),
        cmocka_unit_test(test_refuses_text_that_is_not_a_number),
        cmocka_unit_test(test_locale_does_not_change_text),
        cmocka_unit_test(test_options_of_this_version_are_copied),
        cmocka_unit_test(test_shorter_options_get_defaults),
        cmocka_unit_test(test_refuses_options_of_a_wrong_size),
    };
    return cmocka_run_group_tests_name("base_number", tests, NULL, NULL);
}
