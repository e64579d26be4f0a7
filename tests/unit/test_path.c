/* Paths: created, looked up, formatted and parsed; invalid texts; flatten and unflatten. */
#include "../support/build.h"

#include <stdio.h>
#include <stdlib.h>

/* Paths: created from steps, looked up in trees, formatted and parsed. */

static wherry_path *parse(const char *text) {
    wherry_path *path;
    wherry_error error;
    if (wherry_path_parse(text, strlen(text), &path, &error) != WHERRY_OK) {
        fail_msg("%s: %s", text, error.message);
    }
    return path;
}

/** The text is parsed to a path of one key, and that path is formatted to the same text. */
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

static void test_examples_of_the_header_work(void **state) {
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
static void test_bigint_example_of_the_header_works(void **state) {
    (void)state;
    static const uint8_t magnitude[] = {1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    wherry_value *key;
    must(wherry_bigint_create(false, magnitude, sizeof(magnitude), &key, NULL));
    check_key("{0x1ffffffffffffffff}", key);
}

static void test_every_kind_of_key_works(void **state) {
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

static void test_number_of_steps_is_limited(void **state) {
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

static void test_creates_paths_from_steps(void **state) {
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

static void test_equal_compares_steps(void **state) {
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

static void test_random_paths_are_formatted_and_parsed(void **state) {
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

static void test_finds_values(void **state) {
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

static void test_missing_values_are_not_found(void **state) {
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

/* Invalid paths: each is refused, with the byte offset of the fault. */

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

/** Parses a copy of exactly this size, so that a sanitizer detects a read past the end. */
static wherry_status parse_exactly(const char *text, size_t size, wherry_path **path_p, wherry_error *error) {
    char *exact = malloc(size ? size : 1);
    memcpy(exact, text, size);
    wherry_status status = wherry_path_parse(exact, size, path_p, error);
    free(exact);
    return status;
}

static void test_refuses_bad_paths(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_path *const untouched = (wherry_path *)&wrong;
        wherry_path *path = untouched;
        wherry_error error = {.offset = 0};
        wherry_status status = parse_exactly(bad[i].text, bad[i].size, &path, &error);
        if (status != WHERRY_BAD_PATH || error.status != status || error.offset != bad[i].offset || path != untouched) {
            print_error("'%s': %s at byte %llu, expected at byte %llu\n", bad[i].text, wherry_status_name(status),
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

/** A truncated path is invalid or a shorter path. It is never read past its end. */
static void test_truncated_paths_are_not_read_past_the_end(void **state) {
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

static void test_random_bytes_are_refused_or_parsed(void **state) {
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

static void test_refuses_NULL(void **state) {
    (void)state;
    wherry_error error;
    wherry_path *path = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_path_parse(NULL, 1, &path, &error));
    assert_null(path);
    must(wherry_path_parse(NULL, 0, &path, NULL));
    assert_int_equal(wherry_path_count(path), 0);
    wherry_path_destroy(path);
}

/* Flatten and unflatten: the leaves of a tree in a stable order, and the tree with other leaves. */

static const int64_t shape[] = {3};

static wherry_value *build_leaves(void) {
    wherry_value *tree = build_dict(
        "z", build_int(1), "a", build_list(build_int(2), build_tuple(NULL), build_dict(NULL, NULL), NULL), "o",
        build_object(
            "T", build_dict("x", build_object("U", build_string("s")), "y", build_object("V", build_list(NULL)), NULL)),
        "t", build_tensor(build_storage(3, 0), WHERRY_U8, 0, 1, shape, NULL), "", build_none(), NULL);
    must(wherry_dict_set(tree, build_int(7), build_list(build_list(build_bool(true), NULL), NULL), NULL));
    return tree;
}

static const char *const paths[] = {"z", "a[0]", "a[1]", "a[2]", "o.x", "o.y", "t", "[\"\"]", "{7}[0][0]"};
static const wherry_kind kinds[] = {WHERRY_KIND_INT,    WHERRY_KIND_INT,    WHERRY_KIND_TUPLE,
                                    WHERRY_KIND_DICT,   WHERRY_KIND_STRING, WHERRY_KIND_LIST,
                                    WHERRY_KIND_TENSOR, WHERRY_KIND_NONE,   WHERRY_KIND_BOOL};
enum { LEAVES = sizeof(paths) / sizeof(*paths) };

static void test_flatten_lists_the_leaves(void **state) {
    (void)state;
    wherry_value *tree = build_leaves();
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    assert_int_equal(wherry_flat_count(flat), LEAVES);
    for (size_t i = 0; i < LEAVES; i++) {
        char *text;
        must(wherry_path_format(wherry_flat_path(flat, i), &text, NULL));
        assert_string_equal(text, paths[i]);
        assert_int_equal(wherry_value_kind(wherry_flat_leaf(flat, i)), kinds[i]);
        assert_ptr_equal(wherry_value_at(tree, wherry_flat_path(flat, i)), wherry_flat_leaf(flat, i));
        wherry_free(text);
    }
    assert_null(wherry_flat_path(flat, LEAVES));
    assert_null(wherry_flat_leaf(flat, LEAVES));
    wherry_flat_destroy(flat);
    wherry_flat_destroy(NULL);
    wherry_value_destroy(tree);
}

static void test_flattens_a_single_leaf(void **state) {
    (void)state;
    wherry_value *values[] = {build_int(1),
                              build_list(NULL),
                              build_tuple(NULL),
                              build_dict(NULL, NULL),
                              build_object("T", build_dict(NULL, NULL)),
                              build_object("T", build_none())};
    for (size_t i = 0; i < 6; i++) {
        wherry_flat *flat;
        must(wherry_flatten(values[i], &flat, NULL));
        assert_int_equal(wherry_flat_count(flat), 1);
        assert_int_equal(wherry_path_count(wherry_flat_path(flat, 0)), 0);
        wherry_value *leaf;
        wherry_value *again;
        must(wherry_value_copy(wherry_flat_leaf(flat, 0), &leaf, NULL));
        must(wherry_unflatten(flat, &leaf, 1, &again, NULL));
        must(wherry_value_compare(values[i], again, WHERRY_COMPARE_ALL, NULL));
        wherry_value_destroy(again);
        wherry_flat_destroy(flat);
        wherry_value_destroy(values[i]);
    }
}

static void copy_leaves(const wherry_flat *flat, wherry_value **leaves) {
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        must(wherry_value_copy(wherry_flat_leaf(flat, i), leaves + i, NULL));
    }
}

static void destroy_leaves(wherry_value **leaves, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wherry_value_destroy(leaves[i]);
    }
}

static void test_unflatten_restores_the_tree(void **state) {
    (void)state;
    wherry_value *tree = build_leaves();
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    wherry_value *leaves[LEAVES];
    copy_leaves(flat, leaves);
    wherry_value *again;
    must(wherry_unflatten(flat, leaves, LEAVES, &again, NULL));
    wherry_flat_destroy(flat);
    must(wherry_value_compare(tree, again, WHERRY_COMPARE_ALL, NULL));
    wherry_value_destroy(tree);
    assert_string_equal(wherry_object_type(wherry_dict_get(again, "o")), "T");
    wherry_error error;
    wherry_value *list = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(list, leaves[4], &error));
    wherry_value_destroy(list);
    wherry_value_destroy(again);
}

/** New leaves may have any kind. They may even be containers that are not empty. */
static void test_unflatten_takes_other_leaves(void **state) {
    (void)state;
    wherry_value *tree = build_leaves();
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    wherry_value *leaves[LEAVES];
    for (int i = 0; i < LEAVES; i++) {
        leaves[i] = i % 2 ? build_int(100 + i) : build_object("L", build_list(build_int(100 + i), NULL));
    }
    wherry_value *again;
    must(wherry_unflatten(flat, leaves, LEAVES, &again, NULL));
    for (int i = 0; i < LEAVES; i++) {
        wherry_value *value = wherry_value_at(again, wherry_flat_path(flat, (size_t)i));
        assert_int_equal(wherry_int_get(i % 2 ? value : wherry_sequence_at(value, 0)), 100 + i);
    }
    assert_int_equal(wherry_dict_count(again), 6);
    must(wherry_dict_put(again, "more", build_int(1), NULL));
    wherry_value_destroy(again);
    wherry_flat_destroy(flat);
    wherry_value_destroy(tree);
}

/** unflatten must fail, and the caller still owns every leaf. */
static void refuse(const wherry_flat *flat, wherry_value **leaves, size_t count) {
    wherry_error error;
    wherry_value *again = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_unflatten(flat, leaves, count, &again, &error));
    assert_null(again);
}

static void test_refuses_bad_leaves(void **state) {
    (void)state;
    wherry_value *tree = build_leaves();
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    wherry_value *leaves[LEAVES + 1];
    copy_leaves(flat, leaves);
    leaves[LEAVES] = build_int(1);
    refuse(flat, leaves, LEAVES - 1);
    refuse(flat, leaves, LEAVES + 1);
    refuse(flat, leaves, 0);
    refuse(flat, NULL, LEAVES);
    refuse(NULL, leaves, LEAVES);
    for (int i = 0; i < LEAVES; i++) {
        wherry_value *kept = leaves[i];
        leaves[i] = NULL;
        refuse(flat, leaves, LEAVES);
        leaves[i] = leaves[(i + 1) % LEAVES];
        refuse(flat, leaves, LEAVES);
        leaves[i] = wherry_dict_get(tree, "z");
        refuse(flat, leaves, LEAVES);
        leaves[i] = kept;
    }
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < LEAVES; i++) {
        must(wherry_sequence_append(list, leaves[i], NULL));
    }
    wherry_value_destroy(list);
    wherry_value_destroy(leaves[LEAVES]);
    wherry_flat_destroy(flat);
    wherry_value_destroy(tree);
    wherry_error error;
    flat = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_flatten(NULL, &flat, &error));
    assert_null(flat);
}

static void test_unflatten_keeps_the_depth_limit(void **state) {
    (void)state;
    wherry_value *tree = build_nest(WHERRY_DEPTH_MAX, build_int(1));
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    assert_int_equal(wherry_path_count(wherry_flat_path(flat, 0)), WHERRY_DEPTH_MAX);
    wherry_value *leaf = build_list(NULL);
    refuse(flat, &leaf, 1);
    wherry_value_destroy(leaf);
    leaf = build_int(2);
    wherry_value *again;
    must(wherry_unflatten(flat, &leaf, 1, &again, NULL));
    wherry_value_destroy(again);
    wherry_flat_destroy(flat);
    wherry_value_destroy(tree);
}

/** A tree of maximum depth whose leaf is an empty list can be rebuilt from its own leaves. */
static void test_deepest_tree_can_be_rebuilt(void **state) {
    (void)state;
    wherry_value *tree = build_nest(WHERRY_DEPTH_MAX, NULL);
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    wherry_value *leaf = build_list(NULL);
    wherry_value *again = NULL;
    wherry_status status = wherry_unflatten(flat, &leaf, 1, &again, NULL);
    if (status != WHERRY_OK) {
        destroy_leaves(&leaf, 1);
    }
    wherry_value_destroy(again);
    wherry_flat_destroy(flat);
    wherry_value_destroy(tree);
    assert_int_equal(status, WHERRY_OK);
}

static void test_flattens_large_trees(void **state) {
    (void)state;
    enum { COUNT = 12000 };
    wherry_value *tree = build_dict(NULL, NULL);
    for (int i = 0; i < COUNT; i++) {
        must(wherry_dict_set(tree, build_int(i), build_list(build_int(i), NULL), NULL));
    }
    wherry_flat *flat;
    must(wherry_flatten(tree, &flat, NULL));
    assert_int_equal(wherry_flat_count(flat), COUNT);
    wherry_value **leaves = calloc(COUNT, sizeof(*leaves));
    copy_leaves(flat, leaves);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(wherry_int_get(leaves[i]), i);
    }
    wherry_value *again;
    must(wherry_unflatten(flat, leaves, COUNT, &again, NULL));
    must(wherry_value_compare(tree, again, WHERRY_COMPARE_ALL, NULL));
    free(leaves);
    wherry_value_destroy(again);
    wherry_flat_destroy(flat);
    wherry_value_destroy(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_the_header_work),
        cmocka_unit_test(test_bigint_example_of_the_header_works),
        cmocka_unit_test(test_every_kind_of_key_works),
        cmocka_unit_test(test_number_of_steps_is_limited),
        cmocka_unit_test(test_creates_paths_from_steps),
        cmocka_unit_test(test_equal_compares_steps),
        cmocka_unit_test(test_random_paths_are_formatted_and_parsed),
        cmocka_unit_test(test_finds_values),
        cmocka_unit_test(test_missing_values_are_not_found),
        cmocka_unit_test(test_refuses_bad_paths),
        cmocka_unit_test(test_truncated_paths_are_not_read_past_the_end),
        cmocka_unit_test(test_random_bytes_are_refused_or_parsed),
        cmocka_unit_test(test_refuses_NULL),
        cmocka_unit_test(test_flatten_lists_the_leaves),
        cmocka_unit_test(test_flattens_a_single_leaf),
        cmocka_unit_test(test_unflatten_restores_the_tree),
        cmocka_unit_test(test_unflatten_takes_other_leaves),
        cmocka_unit_test(test_refuses_bad_leaves),
        cmocka_unit_test(test_unflatten_keeps_the_depth_limit),
        cmocka_unit_test(test_deepest_tree_can_be_rebuilt),
        cmocka_unit_test(test_flattens_large_trees),
    };
    return cmocka_run_group_tests_name("path", tests, NULL, NULL);
}
