/* Paths: created from steps, looked up in trees, formatted and parsed. */
#include "../support/build.h"

#include <stdio.h>
#include <stdlib.h>

static wherry_path *parse(const char *text) {
    wherry_path *path;
    wherry_error error;
    if (wherry_path_parse(text, strlen(text), &path, &error) != WHERRY_OK) {
        fail_msg("%s: %s", text, error.message);
    }
    return path;
}

/** The text gives a path with one step by key, and that path gives the text again. */
static void check_key(const char *text, wherry_value *key) {
    wherry_path *path = parse(text);
    wherry_step step = {key, 0};
    wherry_path *made;
    must(wherry_path_create(&step, 1, &made, NULL));
    assert_int_equal(wherry_path_count(path), 1);
    must(wherry_value_compare(wherry_path_at(path, 0)->key, key, WHERRY_COMPARE_ALL, NULL));
    assert_true(wherry_path_equal(path, made));
    char *formatted;
    must(wherry_path_format(made, &formatted, NULL));
    assert_string_equal(formatted, text);
    wherry_free(formatted);
    wherry_path_destroy(path);
    wherry_path_destroy(made);
    wherry_value_destroy(key);
}

static void test_header_examples(void **state) {
    (void)state;
    check_key("name", build_string("name"));
    check_key("[\"a \\\" \\\\ \\n \\r \\t \\x01\"]", build_string("a \" \\ \n \r \t \x01"));
    check_key("{7}", build_int(7));
    check_key("{none}", build_none());
    check_key("{true}", build_bool(true));
    check_key("{false}", build_bool(false));
    check_key("{-12}", build_int(-12));
    check_key("{1.5}", build_float(1.5));
    check_key("{-inf}", build_float(build_double(0xFFF0000000000000)));
    check_key("{inf}", build_float(build_double(0x7FF0000000000000)));
    check_key("{nan:7ff8000000000001}", build_float(build_double(0x7FF8000000000001)));
    check_key("{c(1.0,-0.0)}", build_complex(1.0, -0.0));
    check_key("{b\"bytes\"}", build_bytes("bytes", 5));
    const char *examples[] = {"layers[3].attn[\"q.weight\"]", "optimizer.state{0}.exp_avg", "", "[3]"};
    static const size_t counts[] = {4, 4, 0, 1};
    for (int i = 0; i < 4; i++) {
        wherry_path *path = parse(examples[i]);
        assert_int_equal(wherry_path_count(path), counts[i]);
        char *text;
        must(wherry_path_format(path, &text, NULL));
        assert_string_equal(text, examples[i]);
        wherry_free(text);
        wherry_path_destroy(path);
    }
}

/** The example of a big integer in the header. */
static void test_header_example_bigint(void **state) {
    (void)state;
    static const uint8_t magnitude[] = {1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    wherry_value *key;
    must(wherry_bigint_create(false, magnitude, sizeof(magnitude), &key, NULL));
    check_key("{0x1ffffffffffffffff}", key);
}

static void test_more_keys(void **state) {
    (void)state;
    check_key("_", build_string("_"));
    check_key("a1_B", build_string("a1_B"));
    check_key("none", build_string("none"));
    check_key("[\"\"]", build_string(""));
    check_key("[\"1a\"]", build_string("1a"));
    check_key("[\"a.b\"]", build_string("a.b"));
    check_key("[\"a b\"]", build_string("a b"));
    check_key("[\"\xC3\xA9\"]", build_string("\xC3\xA9"));
    check_key("[\"\\x7f\"]", build_string("\x7F"));
    check_key("[\"\\x1f\"]", build_string("\x1F"));
    check_key("[\"\\xc2\\x80\\xc2\\x9f\"]", build_string("\xC2\x80\xC2\x9F"));
    check_key("[\"\xC2\xA0\xC4\x9B\"]", build_string("\xC2\xA0\xC4\x9B"));
    check_key("[\" \"]", build_string(" "));
    check_key("[\"]\"]", build_string("]"));
    check_key("{9223372036854775807}", build_int(INT64_MAX));
    check_key("{-9223372036854775808}", build_int(INT64_MIN));
    check_key("{0.0}", build_float(0.0));
    check_key("{-0.0}", build_float(-0.0));
    check_key("{1.0}", build_float(1.0));
    check_key("{1e+300}", build_float(1e300));
    check_key("{0.1}", build_float(0.1));
    check_key("{0.30000000000000004}", build_float(0.1 + 0.2));
    check_key("{4.94065645841247e-324}", build_float(build_double(1)));
    check_key("{nan:fff8000000000000}", build_float(build_double(0xFFF8000000000000)));
    check_key("{nan:7ff0000000000001}", build_float(build_double(0x7FF0000000000001)));
    check_key("{c(inf,nan:7ff8000000000000)}",
              build_complex(build_double(0x7FF0000000000000), build_double(0x7FF8000000000000)));
    check_key("{0xffffffffffffffff}", build_bigint(false, 0xFF, 8));
    check_key("{-0xabababababababababab}", build_bigint(true, 0xAB, 10));
    check_key("{b\"\"}", build_bytes("", 0));
    check_key("{b\"}\\x00\\xff\\\"\"}", build_bytes("}\0\xFF\"", 4));
}

static void test_large_numbers_of_steps(void **state) {
    (void)state;
    wherry_path *path = parse("[18446744073709551615]");
    assert_true(wherry_path_at(path, 0)->index == UINT64_MAX && !wherry_path_at(path, 0)->key);
    assert_null(wherry_path_at(path, 1));
    wherry_path_destroy(path);
    wherry_step steps[WHERRY_PATH_STEPS_MAX + 1] = {{0}};
    wherry_error error;
    must(wherry_path_create(steps, WHERRY_PATH_STEPS_MAX, &path, NULL));
    char *text;
    must(wherry_path_format(path, &text, NULL));
    wherry_path *parsed = parse(text);
    assert_true(wherry_path_equal(path, parsed));
    wherry_path_destroy(parsed);
    wherry_path_destroy(path);
    path = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_path_create(steps, WHERRY_PATH_STEPS_MAX + 1, &path, &error));
    char *longer;
    assert_true(asprintf(&longer, "%s[0]", text) > 0);
    must_fail(WHERRY_BAD_PATH, error, wherry_path_parse(longer, strlen(longer), &path, &error));
    assert_null(path);
    free(longer);
    wherry_free(text);
}

static void test_create(void **state) {
    (void)state;
    wherry_value *key = build_string("a");
    wherry_value *list = build_list(NULL);
    wherry_step steps[] = {{key, 99}, {NULL, 5}};
    wherry_path *path;
    must(wherry_path_create(steps, 2, &path, NULL));
    wherry_value_destroy(key);
    assert_string_equal(wherry_string_get(wherry_path_at(path, 0)->key, NULL), "a");
    assert_int_equal(wherry_path_at(path, 1)->index, 5);
    wherry_path_destroy(path);
    wherry_error error;
    path = NULL;
    wherry_step bad[] = {{NULL, 1}, {list, 0}};
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_path_create(bad, 2, &path, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_path_create(NULL, 1, &path, &error));
    assert_null(path);
    must(wherry_path_create(NULL, 0, &path, NULL));
    assert_int_equal(wherry_path_count(path), 0);
    assert_null(wherry_path_at(path, 0));
    wherry_path_destroy(path);
    wherry_path_destroy(NULL);
    wherry_value_destroy(list);
}

static void test_equal(void **state) {
    (void)state;
    static const char *const texts[] = {"",    "a",     "b",      "a.b",     "a[0]",   "[0]",     "[1]",      "{0}",
                                        "{1}", "{0.0}", "{-0.0}", "{false}", "{none}", "[\"0\"]", "{b\"0\"}", "a[0].b"};
    enum { COUNT = sizeof(texts) / sizeof(*texts) };
    wherry_path *paths[COUNT];
    for (int i = 0; i < COUNT; i++) {
        paths[i] = parse(texts[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < COUNT; j++) {
            assert_int_equal(wherry_path_equal(paths[i], paths[j]), i == j);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        wherry_path_destroy(paths[i]);
    }
}

static wherry_value *random_string(uint64_t *seed, bool text) {
    static const char *const letters[] = {"a",
                                          "_",
                                          "Z",
                                          "9",
                                          ".",
                                          "\"",
                                          "\\",
                                          "\n",
                                          "\t",
                                          "\r",
                                          "]",
                                          "}",
                                          "\x01",
                                          "\x7F",
                                          " ",
                                          "\xC3\xA9",
                                          "\xF0\x9F\x9A\xA3",
                                          "x",
                                          "[",
                                          "{"};
    char content[64];
    size_t size = 0;
    for (uint64_t left = next_random(seed) % 8; left > 0; left--) {
        if (!text) {
            content[size++] = (char)next_random(seed);
        } else if (next_random(seed) % 20 == 0) {
            content[size++] = '\0';
        } else {
            const char *letter = letters[next_random(seed) % (sizeof(letters) / sizeof(*letters))];
            memcpy(content + size, letter, strlen(letter));
            size += strlen(letter);
        }
    }
    wherry_value *value;
    must(text ? wherry_string_create(content, size, &value, NULL) : wherry_bytes_create(content, size, &value, NULL));
    return value;
}

static double random_double(uint64_t *seed) {
    static const uint64_t special[] = {0,
                                       UINT64_C(1) << 63,
                                       0x7FF0000000000000,
                                       0xFFF0000000000000,
                                       0x7FF8000000000000,
                                       0x7FF0000000000001,
                                       0x3FB999999999999A};
    uint64_t which = next_random(seed) % 14;
    return build_double(which < 7 ? special[which] : next_random(seed));
}

static wherry_value *random_key(uint64_t *seed) {
    switch (next_random(seed) % 9) {
    case 0:
        return build_none();
    case 1:
        return build_bool(next_random(seed) % 2);
    case 2:
        return build_int((int64_t)(next_random(seed) >> next_random(seed) % 64));
    case 3:
        return build_bigint(next_random(seed) % 2, (uint8_t)next_random(seed), next_random(seed) % 20);
    case 4:
        return build_float(random_double(seed));
    case 5:
        return build_complex(random_double(seed), random_double(seed));
    case 6:
        return random_string(seed, false);
    default:
        return random_string(seed, true);
    }
}

static void test_random_round_trip(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 20000; round++) {
        wherry_step steps[6];
        size_t count = next_random(&seed) % 7;
        for (size_t i = 0; i < count; i++) {
            bool by_number = next_random(&seed) % 4 == 0;
            steps[i] = (wherry_step){by_number ? NULL : random_key(&seed), by_number ? next_random(&seed) : 0};
        }
        wherry_path *path;
        wherry_path *parsed;
        char *text;
        char *again;
        wherry_error error;
        must(wherry_path_create(steps, count, &path, NULL));
        must(wherry_path_format(path, &text, NULL));
        if (wherry_path_parse(text, strlen(text), &parsed, &error) != WHERRY_OK) {
            fail_msg("%s: %s", text, error.message);
        }
        assert_true(wherry_path_equal(path, parsed));
        must(wherry_path_format(parsed, &again, NULL));
        assert_string_equal(text, again);
        wherry_free(text);
        wherry_free(again);
        wherry_path_destroy(path);
        wherry_path_destroy(parsed);
        for (size_t i = 0; i < count; i++) {
            wherry_value_destroy((wherry_value *)steps[i].key);
        }
    }
}

static wherry_value *build_tree(void) {
    wherry_value *tree = build_dict(
        "list", build_list(build_int(1), build_tuple(build_int(2), NULL), NULL), "a.b", build_int(3), "object",
        build_object("Outer", build_object("Inner", build_dict("x", build_object("T", build_int(4)), NULL))), "empty",
        build_object("E", build_list(NULL)), NULL);
    must(wherry_dict_set(tree, build_int(0), build_int(5), NULL));
    must(wherry_dict_set(tree, build_float(0.0), build_int(6), NULL));
    return tree;
}

static void test_find(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
    static const struct {
        const char *path;
        int64_t number;
    } found[] = {{"list[0]", 1}, {"list[1][0]", 2}, {"[\"a.b\"]", 3}, {"object.x", 4}, {"{0}", 5}, {"{0.0}", 6}};
    wherry_value *value;
    for (size_t i = 0; i < sizeof(found) / sizeof(*found); i++) {
        must(wherry_value_find(tree, found[i].path, &value, NULL));
        assert_int_equal(wherry_int_get(value), found[i].number);
        wherry_path *path = parse(found[i].path);
        assert_ptr_equal(wherry_value_at(tree, path), value);
        wherry_path_destroy(path);
    }
    must(wherry_value_find(tree, "", &value, NULL));
    assert_ptr_equal(value, tree);
    must(wherry_value_find(tree, "empty", &value, NULL));
    assert_int_equal(wherry_value_kind(value), WHERRY_KIND_LIST);
    must(wherry_value_find(tree, "object", &value, NULL));
    assert_int_equal(wherry_value_kind(value), WHERRY_KIND_DICT);
    wherry_value_destroy(tree);
}

static void test_not_found(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
    static const char *const missing[] = {"x",          "list[2]",    "list[18446744073709551615]",
                                          "list.x",     "[0]",        "{-0.0}",
                                          "{1}",        "{false}",    "object[0]",
                                          "object.x.y", "list[0][0]", "empty[0]",
                                          "a.b"};
    wherry_error error;
    wherry_value *value = tree;
    for (size_t i = 0; i < sizeof(missing) / sizeof(*missing); i++) {
        must_fail(WHERRY_NOT_FOUND, error, wherry_value_find(tree, missing[i], &value, &error));
        assert_string_equal(error.path, missing[i]);
        wherry_path *path = parse(missing[i]);
        assert_null(wherry_value_at(tree, path));
        wherry_path_destroy(path);
    }
    must_fail(WHERRY_BAD_PATH, error, wherry_value_find(tree, "list[", &value, &error));
    assert_int_equal(error.offset, 5);
    assert_ptr_equal(value, tree);
    wherry_value_destroy(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_examples),
        cmocka_unit_test(test_header_example_bigint),
        cmocka_unit_test(test_more_keys),
        cmocka_unit_test(test_large_numbers_of_steps),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_random_round_trip),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_not_found),
    };
    return cmocka_run_group_tests_name("path", tests, NULL, NULL);
}
