/*
 * The error record: what each function writes, and how it shortens long paths. The list of
 * statuses.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <wherry/base.h>

#include "base/error.h"
#include "base/text.h"

/* ---- the record ---- */

#define ELLIPSIS "\xE2\x80\xA6"

/** A record full of old data, which must be overwritten. */
static wherry_error used_record(void) {
    wherry_error error;
    memset(&error, 0x5A, sizeof(error));
    return error;
}

static void test_fill_without_details(void **state) {
    (void)state;
    wherry_error error = used_record();
    assert_int_equal(wh_fail(&error, WHERRY_MISMATCH, "%d of %s", 3, "them"), WHERRY_MISMATCH);
    assert_int_equal(error.status, WHERRY_MISMATCH);
    assert_int_equal(error.errnum, 0);
    assert_int_equal(error.rank, -1);
    assert_int_equal(error.reason, 0);
    assert_true(error.offset == UINT64_MAX);
    assert_string_equal(error.path, "");
    assert_string_equal(error.message, "3 of them");
}

static void test_fill_with_offset(void **state) {
    (void)state;
    wherry_error error = used_record();
    assert_int_equal(wh_fail_at(&error, WHERRY_MALFORMED, 0, "at %s", "once"), WHERRY_MALFORMED);
    assert_int_equal(error.status, WHERRY_MALFORMED);
    assert_true(error.offset == 0);
    assert_string_equal(error.message, "at once");
    wh_fail_at(&error, WHERRY_MALFORMED, UINT64_C(1) << 40, "far");
    assert_true(error.offset == UINT64_C(1) << 40);
    assert_int_equal(error.errnum, 0);
    assert_int_equal(error.rank, -1);
    assert_string_equal(error.path, "");
}

static void test_fill_with_errno(void **state) {
    (void)state;
    wherry_error error = used_record();
    char expected[256];
    snprintf(expected, sizeof(expected), "cannot open x: %s", strerror(ENOENT));
    errno = EINTR;
    assert_int_equal(wh_fail_errno(&error, WHERRY_SYSTEM, ENOENT, "cannot open %s", "x"), WHERRY_SYSTEM);
    assert_int_equal(error.status, WHERRY_SYSTEM);
    assert_int_equal(error.errnum, ENOENT);
    assert_true(error.offset == UINT64_MAX);
    assert_string_equal(error.message, expected);
}

static void test_fill_out_of_memory(void **state) {
    (void)state;
    wherry_error error = used_record();
    assert_int_equal(wh_fail_memory(&error, "a plan"), WHERRY_NO_MEMORY);
    assert_int_equal(error.status, WHERRY_NO_MEMORY);
    assert_non_null(strstr(error.message, "a plan"));
    assert_string_equal(error.path, "");
}

static void test_record_may_be_NULL(void **state) {
    (void)state;
    assert_int_equal(wh_fail(NULL, WHERRY_LIMIT, "%s", "x"), WHERRY_LIMIT);
    assert_int_equal(wh_fail_at(NULL, WHERRY_TRUNCATED, 7, "%s", "x"), WHERRY_TRUNCATED);
    assert_int_equal(wh_fail_errno(NULL, WHERRY_SYSTEM, ENOENT, "%s", "x"), WHERRY_SYSTEM);
    assert_int_equal(wh_fail_memory(NULL, "x"), WHERRY_NO_MEMORY);
    wh_fail_path(NULL, "x");
}

static void test_long_messages_are_truncated(void **state) {
    (void)state;
    for (size_t length = WHERRY_ERROR_MESSAGE_MAX - 40; length < WHERRY_ERROR_MESSAGE_MAX + 40; length++) {
        char text[WHERRY_ERROR_MESSAGE_MAX + 64];
        memset(text, 'm', length);
        text[length] = '\0';
        wherry_error error = used_record();
        wh_fail(&error, WHERRY_MISMATCH, "%s", text);
        size_t kept = length < WHERRY_ERROR_MESSAGE_MAX ? length : WHERRY_ERROR_MESSAGE_MAX - 1;
        assert_int_equal(strnlen(error.message, sizeof(error.message)), kept);
        wh_fail_errno(&error, WHERRY_SYSTEM, ENOENT, "%s", text);
        assert_true(strnlen(error.message, sizeof(error.message)) >= kept);
        assert_true(strnlen(error.message, sizeof(error.message)) < sizeof(error.message));
        assert_memory_equal(error.message, text, kept);
        assert_int_equal(error.errnum, ENOENT);
    }
}

/* wherry/base.h says that the message is UTF-8: truncating it must not split a character. */
static void test_long_messages_stay_utf8(void **state) {
    (void)state;
    static const char *const characters[] = {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x9B\xB6"};
    for (size_t c = 0; c < 3; c++) {
        for (size_t shift = 0; shift < 4; shift++) {
            char text[WHERRY_ERROR_MESSAGE_MAX + 64] = "xxxx";
            size_t length = shift;
            while (length < WHERRY_ERROR_MESSAGE_MAX + 8) {
                memcpy(text + length, characters[c], strlen(characters[c]) + 1);
                length += strlen(characters[c]);
            }
            wherry_error error = used_record();
            wh_fail(&error, WHERRY_MISMATCH, "%s", text);
            size_t kept = strlen(error.message);
            assert_true(kept > WHERRY_ERROR_MESSAGE_MAX - 8);
            assert_memory_equal(error.message, text, kept);
            assert_true(wh_utf8_valid(error.message, kept));
        }
    }
}

static void test_setting_the_path_keeps_other_fields(void **state) {
    (void)state;
    wherry_error error = used_record();
    wh_fail_at(&error, WHERRY_MISMATCH, 5, "why");
    wh_fail_path(&error, "a.b[3]");
    assert_string_equal(error.path, "a.b[3]");
    assert_string_equal(error.message, "why");
    assert_int_equal(error.status, WHERRY_MISMATCH);
    assert_true(error.offset == 5);
    wh_fail_path(&error, "");
    assert_string_equal(error.path, "");
}

static void check_cut(const char *path, size_t length) {
    wherry_error error = used_record();
    wh_fail(&error, WHERRY_MISMATCH, "why");
    wh_fail_path(&error, path);
    size_t size = strnlen(error.path, sizeof(error.path));
    assert_true(size < sizeof(error.path));
    if (length < sizeof(error.path)) {
        assert_string_equal(error.path, path);
        return;
    }
    assert_true(wh_utf8_valid(error.path, size));
    const char *middle = strstr(error.path, ELLIPSIS);
    assert_non_null(middle);
    size_t head = (size_t)(middle - error.path);
    size_t tail = size - head - strlen(ELLIPSIS);
    assert_memory_equal(error.path, path, head);
    assert_memory_equal(middle + strlen(ELLIPSIS), path + length - tail, tail);
    /* Each half is kept, except for up to three bytes of a character that would be split. */
    assert_true(size + 6 >= sizeof(error.path) - 1);
    assert_true(head >= 120 && tail >= 120);
    assert_string_equal(error.message, "why");
}

static void test_long_paths_keep_both_ends_and_whole_characters(void **state) {
    (void)state;
    static const char *const characters[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x9B\xB6"};
    for (size_t c = 0; c < 4; c++) {
        for (size_t shift = 0; shift < 4; shift++) {
            char path[1024] = "wxyz";
            size_t length = shift;
            path[length] = '\0';
            while (length < 900) {
                memcpy(path + length, characters[c], strlen(characters[c]) + 1);
                length += strlen(characters[c]);
                check_cut(path, length);
            }
        }
    }
}

/* Paths are UTF-8; other bytes must not overflow the record. */
static void test_paths_that_are_not_utf8_fit(void **state) {
    (void)state;
    char path[600];
    memset(path, 0x80, sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    wherry_error error = used_record();
    wh_fail_path(&error, path);
    assert_true(strnlen(error.path, sizeof(error.path)) < sizeof(error.path));
}

/* ---- the list of statuses ---- */

typedef struct row {
    wherry_status status;
    int value;
    wherry_status_class group;
    const char *name;
    const char *text;
} row;

static const row rows[] = {
#define WHERRY_X(name, value, group, text) {WHERRY_##name, value, WHERRY_STATUS_CLASS_##group, "WHERRY_" #name, text},
    WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
};

enum { ROW_COUNT = sizeof(rows) / sizeof(*rows) };

static void test_list_has_all_statuses(void **state) {
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++) {
        assert_int_equal((int)rows[i].status, rows[i].value);
        assert_string_equal(wherry_status_name(rows[i].status), rows[i].name);
        assert_string_equal(wherry_status_text(rows[i].status), rows[i].text);
        assert_int_equal(wherry_status_class_of(rows[i].status), rows[i].group);
    }
}

/* Compiled programs contain these values: a change of the list must not change them. */
static void test_status_values_never_change(void **state) {
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

static void test_unknown_statuses_have_a_name_and_a_text(void **state) {
    (void)state;
    const int unknown[] = {1, -1, -99, -106, -202, -399, -899, -901};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
        wherry_status status = (wherry_status)unknown[i];
        assert_string_equal(wherry_status_name(status), "WHERRY_?");
        assert_non_null(wherry_status_text(status));
        assert_true(strlen(wherry_status_text(status)) > 0);
        assert_int_equal(wherry_status_class_of(status), WHERRY_STATUS_CLASS_BUG);
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
        cmocka_unit_test(test_fill_without_details),
        cmocka_unit_test(test_fill_with_offset),
        cmocka_unit_test(test_fill_with_errno),
        cmocka_unit_test(test_fill_out_of_memory),
        cmocka_unit_test(test_record_may_be_NULL),
        cmocka_unit_test(test_long_messages_are_truncated),
        cmocka_unit_test(test_long_messages_stay_utf8),
        cmocka_unit_test(test_setting_the_path_keeps_other_fields),
        cmocka_unit_test(test_long_paths_keep_both_ends_and_whole_characters),
        cmocka_unit_test(test_paths_that_are_not_utf8_fit),
        cmocka_unit_test(test_list_has_all_statuses),
        cmocka_unit_test(test_status_values_never_change),
        cmocka_unit_test(test_values_are_unique_and_in_the_range_of_their_group),
        cmocka_unit_test(test_texts_are_a_few_words_without_a_full_stop),
        cmocka_unit_test(test_unknown_statuses_have_a_name_and_a_text),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests_name("base_error", tests, NULL, NULL);
}
