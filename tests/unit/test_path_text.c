/* Invalid paths: each is refused, with the byte offset of the fault. */
#include "../support/build.h"

#include <stdlib.h>

#define BAD(text, offset)                                                                                              \
    { (text), sizeof(text) - 1, (offset) }

static const struct {
    const char *text;
    size_t size;
    uint64_t offset;
} bad[] = {
    BAD(".", 0),
    BAD(".a", 0),
    BAD("a.", 2),
    BAD("a..b", 2),
    BAD("a.1", 2),
    BAD("1", 0),
    BAD(" a", 0),
    BAD("a b", 1),
    BAD("a-b", 1),
    BAD("a]", 1),
    BAD("a}", 1),
    BAD("a\"b\"", 1),
    BAD("\xC3\xA9", 0),
    BAD("a\0", 1),
    BAD("\0", 0),
    BAD("[", 1),
    BAD("[]", 1),
    BAD("[1", 2),
    BAD("[a]", 1),
    BAD("[-1]", 1),
    BAD("[+1]", 1),
    BAD("[1.0]", 2),
    BAD("[1 ]", 2),
    BAD("[0x1]", 2),
    BAD("[1]a", 3),
    BAD("[1]]", 3),
    BAD("[18446744073709551616]", 1),
    BAD("[99999999999999999999999]", 1),
    BAD("[\"", 1),
    BAD("[\"a", 1),
    BAD("[\"a\"", 4),
    BAD("[\"a\"x]", 4),
    BAD("[\"\\q\"]", 1),
    BAD("[\"\\", 1),
    BAD("[\"\\x\"]", 1),
    BAD("[\"\\x4", 1),
    BAD("[\"\\x4g\"]", 1),
    BAD("[\"\\xff\"]", 1),
    BAD("[\"\xFF\"]", 1),
    BAD("[\"\\xed\\xa0\\x80\"]", 1),
    BAD("{", 1),
    BAD("{}", 1),
    BAD("{7", 2),
    BAD("{ 7}", 1),
    BAD("{7 }", 1),
    BAD("{+7}", 1),
    BAD("{--7}", 1),
    BAD("{-}", 1),
    BAD("{None}", 1),
    BAD("{True}", 1),
    BAD("{true }", 1),
    BAD("{\"a\"}", 1),
    BAD("{a}", 1),
    BAD("{9223372036854775808}", 1),
    BAD("{-9223372036854775809}", 1),
    BAD("{0x}", 1),
    BAD("{-0x}", 1),
    BAD("{0xgg}", 1),
    BAD("{0x 1}", 1),
    BAD("{0x-1}", 1),
    BAD("{0X12}", 1),
    BAD("{0x1.8}", 1),
    BAD("{.}", 1),
    BAD("{e}", 1),
    BAD("{1e}", 1),
    BAD("{1.0.0}", 1),
    BAD("{1e400}", 1),
    BAD("{1,5}", 1),
    BAD("{nan}", 1),
    BAD("{nan:}", 1),
    BAD("{nan:7ff8}", 1),
    BAD("{nan:7ff0000000000000}", 1),
    BAD("{nan:0000000000000000}", 1),
    BAD("{nan:3ff0000000000000}", 1),
    BAD("{nan:7ff80000000000001}", 1),
    BAD("{nan:7ff800000000000g}", 1),
    BAD("{nan:+ff8000000000001}", 1),
    BAD("{infinity}", 1),
    BAD("{+inf}", 1),
    BAD("{c(1.0,2.0}", 1),
    BAD("{c(1.0)}", 1),
    BAD("{c(1,2)}", 1),
    BAD("{c(,)}", 1),
    BAD("{c(}", 1),
    BAD("{c()}", 1),
    BAD("{c(1.0,2.0,3.0)}", 1),
    BAD("{c(1.0,2.0)x}", 1),
    BAD("{b}", 2),
    BAD("{b\"a}", 2),
    BAD("{b\"a\"", 5),
    BAD("{b\"a\"x}", 5),
    BAD("{b\"\\z\"}", 2),
    BAD("{1\0}", 1),
    BAD("a{7}b", 4),
};

/** A copy of exactly the right size, so that a sanitizer detects a read beyond its end. */
static wherry_status parse_exactly(const char *text, size_t size, wherry_path **path_p, wherry_error *error) {
    char *exact = malloc(size ? size : 1);
    memcpy(exact, text, size);
    wherry_status status = wherry_path_parse(exact, size, path_p, error);
    free(exact);
    return status;
}

static void test_bad(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_path *const untouched = (wherry_path *)&wrong;
        wherry_path *path = untouched;
        wherry_error error = {.offset = 0};
        wherry_status status = parse_exactly(bad[i].text, bad[i].size, &path, &error);
        if (status != WHERRY_BAD_PATH || error.status != status || error.offset != bad[i].offset || path != untouched) {
            print_error("'%s': %s at %llu, not at %llu\n", bad[i].text, wherry_status_name(status),
                        (unsigned long long)error.offset, (unsigned long long)bad[i].offset);
            wrong++;
        }
        if (path != untouched) {
            wherry_path_destroy(path);
        }
        assert_int_equal(parse_exactly(bad[i].text, bad[i].size, &path, NULL), WHERRY_BAD_PATH);
    }
    assert_int_equal(wrong, 0);
}

/** A truncated path is a shorter path or invalid, and is never read beyond its end. */
static void test_cut(void **state) {
    (void)state;
    static const char text[] = "a.b[12][\"x\\x41\"]{b\"y\"}{c(1.0,-0.0)}{nan:7ff8000000000001}{0xffffffffffffffff}.z";
    static const size_t whole[] = {0, 1, 3, 7, 16, 22, 35, 57, 77, 79};
    size_t steps = 0;
    for (size_t size = 0; size < sizeof(text); size++) {
        wherry_path *path = NULL;
        wherry_error error;
        if (steps < sizeof(whole) / sizeof(*whole) && whole[steps] == size) {
            must(parse_exactly(text, size, &path, &error));
            assert_int_equal(wherry_path_count(path), steps);
            wherry_path_destroy(path);
            steps++;
        } else {
            must_fail(WHERRY_BAD_PATH, error, parse_exactly(text, size, &path, &error));
            assert_true(error.offset <= size);
            assert_null(path);
        }
    }
    assert_int_equal(steps, sizeof(whole) / sizeof(*whole));
}

static void test_random_bytes(void **state) {
    (void)state;
    static const char letters[] = "ab.[]{}\"\\x019-enc(),:if\xC3\xA9";
    uint64_t seed = 3;
    for (int round = 0; round < 100000; round++) {
        char text[12];
        size_t size = next_random(&seed) % (sizeof(text) + 1);
        for (size_t i = 0; i < size; i++) {
            text[i] = letters[next_random(&seed) % (sizeof(letters) - 1)];
        }
        wherry_path *path;
        wherry_error error;
        wherry_status status = parse_exactly(text, size, &path, &error);
        if (status != WHERRY_OK) {
            assert_int_equal(status, WHERRY_BAD_PATH);
            assert_true(error.offset <= size);
            continue;
        }
        char *plain;
        wherry_path *again;
        must(wherry_path_format(path, &plain, NULL));
        must(parse_exactly(plain, strlen(plain), &again, NULL));
        assert_true(wherry_path_equal(path, again));
        wherry_free(plain);
        wherry_path_destroy(path);
        wherry_path_destroy(again);
    }
}

static void test_null(void **state) {
    (void)state;
    wherry_error error;
    wherry_path *path = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_path_parse(NULL, 1, &path, &error));
    assert_null(path);
    must(wherry_path_parse(NULL, 0, &path, NULL));
    assert_int_equal(wherry_path_count(path), 0);
    wherry_path_destroy(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_null),
    };
    return cmocka_run_group_tests_name("path_text", tests, NULL, NULL);
}
