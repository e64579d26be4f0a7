/* Status names, texts and groups for the whole list; the version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <wherry/base.h>
#include <cmocka.h>

typedef struct row {
    wherry_status status;
    int value;
    wherry_status_group group;
    const char *name;
    const char *text;
} row;

static const row rows[] = {
#define WHERRY_X(name, value, group, text) {WHERRY_##name, value, WHERRY_GROUP_##group, "WHERRY_" #name, text},
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
};

enum { ROW_COUNT = sizeof(rows) / sizeof(*rows) };

static void test_list(void **state) {
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++) {
        assert_int_equal((int)rows[i].status, rows[i].value);
        assert_string_equal(wherry_status_name(rows[i].status), rows[i].name);
        assert_string_equal(wherry_status_text(rows[i].status), rows[i].text);
        assert_int_equal(wherry_status_group_of(rows[i].status), rows[i].group);
    }
}

/* Compiled programs contain these values: a change of the list must not change them. */
static void test_pinned_values(void **state) {
    (void)state;
    assert_int_equal(WHERRY_OK, 0);
    assert_int_equal(WHERRY_INVALID_ARGUMENT, -100);
    assert_int_equal(WHERRY_MISMATCH, -105);
    assert_int_equal(WHERRY_NO_MEMORY, -200);
    assert_int_equal(WHERRY_SYSTEM, -201);
    assert_int_equal(WHERRY_TRUNCATED, -300);
    assert_int_equal(WHERRY_TRAILING_BYTES, -307);
    assert_int_equal(WHERRY_CORRUPT, -308);
    assert_int_equal(WHERRY_REVOKED, -403);
    assert_int_equal(WHERRY_ABORTED, -404);
    assert_int_equal(WHERRY_CANCELLED, -501);
    assert_int_equal(WHERRY_INTERNAL, -900);
}

static void test_values_are_unique_and_in_the_range_of_their_group(void **state) {
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++) {
        assert_int_equal(-rows[i].value / 100, (int)rows[i].group);
        assert_true(rows[i].value < 0 || rows[i].status == WHERRY_OK);
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(rows[i].value, rows[j].value);
            assert_string_not_equal(rows[i].text, rows[j].text);
        }
    }
}

static void test_texts_are_a_few_words_without_a_full_stop(void **state) {
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++) {
        size_t length = strlen(rows[i].text);
        assert_true(length > 0 && length < 80);
        assert_true(rows[i].text[length - 1] != '.');
    }
}

static void test_values_that_are_not_in_the_list(void **state) {
    (void)state;
    const int unknown[] = {1, -1, -99, -106, -202, -399, -899, -901};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
        wherry_status status = (wherry_status)unknown[i];
        assert_string_equal(wherry_status_name(status), "WHERRY_?");
        assert_non_null(wherry_status_text(status));
        assert_true(strlen(wherry_status_text(status)) > 0);
        assert_int_equal(wherry_status_group_of(status), WHERRY_GROUP_BUG);
    }
}

static void test_version(void **state) {
    (void)state;
    char expected[32];
    snprintf(expected, sizeof(expected), "%d.%d.%d", WHERRY_VERSION_MAJOR, WHERRY_VERSION_MINOR, WHERRY_VERSION_PATCH);
    assert_string_equal(wherry_version(), expected);
    assert_string_equal(wherry_version(), WHERRY_VERSION_STRING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_pinned_values),
        cmocka_unit_test(test_values_are_unique_and_in_the_range_of_their_group),
        cmocka_unit_test(test_texts_are_a_few_words_without_a_full_stop),
        cmocka_unit_test(test_values_that_are_not_in_the_list),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests_name("base_status", tests, NULL, NULL);
}
