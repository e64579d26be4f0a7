/* Values: scalars, objects, lists, tuples and dicts; ownership, depth, and copies of trees. */
#include "../support/build.h"

#include <stdio.h>

/* Scalars and objects keep their content bit by bit. */

static uint64_t bits_of(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static const uint64_t doubles[] = {
    0,
    UINT64_C(1) << 63,
    1,
    0x3FF0000000000000,
    0x7FF0000000000000,
    0xFFF0000000000000,
    0x7FF8000000000000,
    0x7FF8000000000001,
    0x7FF0000000000001,
    0xFFF80000DEADBEEF,
    0x7FEFFFFFFFFFFFFF,
    0x8000000000000001,
};
enum { DOUBLES = sizeof(doubles) / sizeof(*doubles) };

static void test_kinds_have_names(void **state) {
    (void)state;
    static const char *const names[] = {"none",    "bool",   "int",    "bigint",  "float",
                                        "complex", "string", "bytes",  "list",    "tuple",
                                        "dict",    "object", "tensor", "dtensor", "sharded tensor"};
    for (int i = 0; i < 15; i++) {
        assert_string_equal(wherry_kind_name((wherry_kind)i), names[i]);
    }
    assert_string_equal(wherry_kind_name((wherry_kind)15), "?");
    assert_string_equal(wherry_kind_name((wherry_kind)-1), "?");
}

static void test_scalars_keep_their_content(void **state) {
    (void)state;
    wherry_value *none = build_none();
    wherry_value *yes = build_bool(true);
    wherry_value *no = build_bool(false);
    assert_int_equal(wherry_value_kind(none), WHERRY_KIND_NONE);
    assert_int_equal(wherry_value_kind(yes), WHERRY_KIND_BOOL);
    assert_true(wherry_bool_get(yes) && !wherry_bool_get(no) && !wherry_bool_get(none));
    static const int64_t integers[] = {0, 1, -1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 5; i++) {
        wherry_value *value = build_int(integers[i]);
        assert_int_equal(wherry_value_kind(value), WHERRY_KIND_INT);
        assert_true(wherry_int_get(value) == integers[i]);
        wherry_value_destroy(value);
    }
    wherry_value_destroy(none);
    wherry_value_destroy(yes);
    wherry_value_destroy(no);
    wherry_value_destroy(NULL);
}

static void test_floats_keep_every_bit(void **state) {
    (void)state;
    for (int i = 0; i < DOUBLES; i++) {
        double number = build_double(doubles[i]);
        wherry_value *value = build_float(number);
        assert_int_equal(wherry_value_kind(value), WHERRY_KIND_FLOAT);
        assert_true(bits_of(wherry_float_get(value)) == doubles[i]);
        wherry_value *pair = build_complex(number, build_double(doubles[(i + 5) % DOUBLES]));
        double real;
        double imaginary;
        wherry_complex_get(pair, &real, &imaginary);
        assert_int_equal(wherry_value_kind(pair), WHERRY_KIND_COMPLEX);
        assert_true(bits_of(real) == doubles[i] && bits_of(imaginary) == doubles[(i + 5) % DOUBLES]);
        wherry_value *copy;
        must(wherry_value_copy(pair, &copy, NULL));
        must(wherry_value_compare(pair, copy, WHERRY_COMPARE_ALL, NULL));
        wherry_value_destroy(copy);
        wherry_value_destroy(value);
        wherry_value_destroy(pair);
    }
}

static void check_bigint(bool negative, const char *magnitude, size_t size, wherry_kind kind, int64_t small) {
    wherry_value *value;
    must(wherry_bigint_create(negative, magnitude, size, &value, NULL));
    assert_int_equal(wherry_value_kind(value), kind);
    bool sign;
    size_t got;
    const uint8_t *bytes = wherry_bigint_get(value, &sign, &got);
    if (kind == WHERRY_KIND_INT) {
        assert_true(wherry_int_get(value) == small);
        assert_null(bytes);
        assert_true(!sign && got == 0);
    } else {
        while (*magnitude == 0) {
            magnitude++;
            size--;
        }
        assert_int_equal(got, size);
        assert_int_equal(sign, negative);
        assert_memory_equal(bytes, magnitude, size);
        assert_int_equal(wherry_int_get(value), 0);
    }
    wherry_value_destroy(value);
}

static void test_bigints_are_kept_at_the_limits_of_int64(void **state) {
    (void)state;
    check_bigint(false, NULL, 0, WHERRY_KIND_INT, 0);
    check_bigint(true, "\0\0", 2, WHERRY_KIND_INT, 0);
    check_bigint(true, "\0\1", 2, WHERRY_KIND_INT, -1);
    check_bigint(false, "\x01\x00", 2, WHERRY_KIND_INT, 256);
    check_bigint(false, "\x7f\xff\xff\xff\xff\xff\xff\xff", 8, WHERRY_KIND_INT, INT64_MAX);
    check_bigint(false, "\x80\0\0\0\0\0\0\0", 8, WHERRY_KIND_BIGINT, 0);
    check_bigint(true, "\x80\0\0\0\0\0\0\0", 8, WHERRY_KIND_INT, INT64_MIN);
    check_bigint(true, "\x80\0\0\0\0\0\0\1", 8, WHERRY_KIND_BIGINT, 0);
    check_bigint(true, "\0\0\0\x80\0\0\0\0\0\0\0", 11, WHERRY_KIND_INT, INT64_MIN);
    check_bigint(false, "\0\xff\xff\xff\xff\xff\xff\xff\xff", 9, WHERRY_KIND_BIGINT, 0);
    check_bigint(false, "\1\0\0\0\0\0\0\0\0", 9, WHERRY_KIND_BIGINT, 0);
    check_bigint(true, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 17, WHERRY_KIND_BIGINT, 0);
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_bigint_create(false, NULL, 1, &value, &error));
    assert_null(value);
}

static void test_strings_keep_their_content(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
    } good[] = {
        {"", 0},
        {"a\0b", 3},
        {"\xC3\xA9", 2},
        {"\xE2\x82\xAC", 3},
        {"\xF0\x9F\x9A\xA3", 4},
        {"\xF4\x8F\xBF\xBF", 4},
        {"\x7F", 1},
        {"\xED\x9F\xBF", 3},
        {"\xEE\x80\x80", 3},
        {"\xEF\xBF\xBF", 3},
        {"\0", 1},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        wherry_value *value;
        size_t size;
        must(wherry_string_create(good[i].text, good[i].size, &value, NULL));
        const char *text = wherry_string_get(value, &size);
        assert_int_equal(size, good[i].size);
        assert_memory_equal(text, good[i].text, size + 1);
        assert_ptr_equal(wherry_string_get(value, NULL), text);
        assert_ptr_not_equal(text, good[i].text);
        assert_null(wherry_bytes_get(value, &size));
        assert_int_equal(size, 0);
        wherry_value_destroy(value);
    }
}

static void test_refuses_bad_strings(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\x80",
        "a\xFF",
        "\xC3",
        "\xC0\x80",
        "\xC1\xBF",
        "\xE2\x82",
        "\xE0\x80\x80",
        "\xED\xA0\x80",
        "\xED\xBF\xBF",
        "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80",
        "\xC3\x28",
        "\xF0\x9F\x9A",
        "abc\xE2\x28\xA1",
    };
    wherry_value *const untouched = (wherry_value *)&bad;
    wherry_error error;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_value *value = untouched;
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_string_create(bad[i], strlen(bad[i]), &value, &error));
        assert_ptr_equal(value, untouched);
    }
    wherry_value *value = untouched;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_string_create("\xC3\xA9", 1, &value, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_string_create(NULL, 1, &value, &error));
    assert_ptr_equal(value, untouched);
}

static void test_bytes_keep_their_content(void **state) {
    (void)state;
    char content[256];
    for (int i = 0; i < 256; i++) {
        content[i] = (char)i;
    }
    wherry_value *value = build_bytes(content, sizeof(content));
    wherry_value *empty = build_bytes(NULL, 0);
    content[3] = 'x';
    size_t size;
    const char *bytes = wherry_bytes_get(value, &size);
    assert_int_equal(size, 256);
    for (int i = 0; i < 256; i++) {
        assert_int_equal((unsigned char)bytes[i], i);
    }
    assert_non_null(wherry_bytes_get(empty, &size));
    assert_int_equal(size, 0);
    assert_null(wherry_string_get(value, NULL));
    wherry_error error;
    wherry_value *none = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_bytes_create(NULL, 1, &none, &error));
    assert_null(none);
    wherry_value_destroy(value);
    wherry_value_destroy(empty);
}

static void check_wrong_kind(const wherry_value *value) {
    double real = 1;
    double imaginary = 1;
    bool negative = true;
    size_t size = 1;
    if (wherry_value_kind(value) != WHERRY_KIND_BOOL) {
        assert_false(wherry_bool_get(value));
    }
    if (wherry_value_kind(value) != WHERRY_KIND_INT) {
        assert_int_equal(wherry_int_get(value), 0);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_FLOAT) {
        assert_true(wherry_float_get(value) == 0);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_COMPLEX) {
        wherry_complex_get(value, &real, &imaginary);
        assert_true(real == 0 && imaginary == 0);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_BIGINT) {
        assert_null(wherry_bigint_get(value, &negative, &size));
        assert_true(!negative && size == 0);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_STRING) {
        size = 1;
        assert_null(wherry_string_get(value, &size));
        assert_int_equal(size, 0);
    }
    if (wherry_value_kind(value) != WHERRY_KIND_OBJECT) {
        assert_null(wherry_object_type(value));
        assert_null(wherry_object_payload(value));
    }
    assert_null(wherry_tensor_get(value));
    assert_null(wherry_dtensor_get(value));
    assert_null(wherry_sharded_get(value));
}

static void test_refuses_to_read_another_kind(void **state) {
    (void)state;
    wherry_value *all = build_list(build_none(), build_bool(true), build_int(-1), build_bigint(true, 0xFF, 9),
                                   build_float(1.5), build_complex(1, 2), build_string("text"), build_bytes("bytes", 5),
                                   build_list(build_int(1), NULL), build_tuple(build_int(1), NULL),
                                   build_dict("a", build_int(1), NULL), build_object("type", build_int(1)), NULL);
    for (size_t i = 0; i < wherry_sequence_count(all); i++) {
        const wherry_value *value = wherry_sequence_at(all, i);
        assert_int_equal(wherry_value_kind(value), i);
        check_wrong_kind(value);
    }
    wherry_value_destroy(all);
}

static void test_objects_keep_their_content(void **state) {
    (void)state;
    char type[] = "collections.OrderedDict";
    wherry_value *payload = build_dict("a", build_int(1), NULL);
    wherry_value *object = build_object(type, payload);
    type[0] = 'X';
    assert_int_equal(wherry_value_kind(object), WHERRY_KIND_OBJECT);
    assert_string_equal(wherry_object_type(object), "collections.OrderedDict");
    assert_ptr_equal(wherry_object_payload(object), payload);
    wherry_value *outer = build_object("\xC3\xA9", object);
    assert_ptr_equal(wherry_object_payload(outer), object);
    wherry_value_destroy(outer);
}

static void test_refuses_bad_objects(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *payload = build_int(1);
    wherry_value *object = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create("", payload, &object, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create(NULL, payload, &object, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create("\xFF", payload, &object, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create("type", NULL, &object, &error));
    wherry_value *list = build_list(payload, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create("type", payload, &object, &error));
    assert_null(object);
    wherry_value *deep = build_nest(WHERRY_DEPTH_MAX, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_object_create("type", deep, &object, &error));
    assert_null(object);
    wherry_value_destroy(deep);
    wherry_value_destroy(list);
}

/** A success does not change the error record. */
static void test_success_does_not_change_the_error(void **state) {
    (void)state;
    wherry_error error;
    wherry_error before;
    memset(&error, 0x5A, sizeof(error));
    memset(&before, 0x5A, sizeof(before));
    wherry_value *value;
    must(wherry_string_create("a", 1, &value, &error));
    wherry_value *list = build_list(value, NULL);
    wherry_value *copy;
    must(wherry_value_copy(list, &copy, &error));
    must(wherry_value_compare(list, copy, WHERRY_COMPARE_ALL, &error));
    must(wherry_value_find(list, "[0]", &value, &error));
    assert_memory_equal(&error, &before, sizeof(error));
    wherry_value_destroy(copy);
    wherry_value_destroy(list);
}

/* Lists, tuples and dicts: order, keys, ownership, depth; copies of trees. */

static void test_sequences_keep_their_order(void **state) {
    (void)state;
    wherry_value *sequences[] = {build_list(NULL), build_tuple(NULL)};
    for (int kind = 0; kind < 2; kind++) {
        wherry_value *sequence = sequences[kind];
        assert_int_equal(wherry_value_kind(sequence), kind ? WHERRY_KIND_TUPLE : WHERRY_KIND_LIST);
        assert_int_equal(wherry_sequence_count(sequence), 0);
        assert_null(wherry_sequence_at(sequence, 0));
        for (int i = 0; i < 1000; i++) {
            must(wherry_sequence_append(sequence, build_int(i), NULL));
        }
        assert_int_equal(wherry_sequence_count(sequence), 1000);
        for (size_t i = 0; i < 1000; i++) {
            assert_int_equal(wherry_int_get(wherry_sequence_at(sequence, i)), i);
        }
        assert_null(wherry_sequence_at(sequence, 1000));
        assert_null(wherry_sequence_at(sequence, SIZE_MAX));
        assert_int_equal(wherry_dict_count(sequence), 0);
        assert_null(wherry_dict_at(sequence, 0));
        assert_null(wherry_dict_key_at(sequence, 0));
        assert_null(wherry_dict_get(sequence, "a"));
        wherry_value_destroy(sequence);
    }
}

static void test_refuses_bad_appends(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *item = build_int(1);
    wherry_value *dict = build_dict(NULL, NULL);
    wherry_value *list = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(dict, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(item, dict, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(NULL, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(list, NULL, &error));
    assert_int_equal(wherry_sequence_count(list), 0);
    must(wherry_sequence_append(list, item, NULL));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(list, item, &error));
    assert_int_equal(wherry_sequence_count(list), 1);
    wherry_value *other = build_tuple(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(other, item, &error));
    wherry_value_destroy(other);
    wherry_value_destroy(list);
    wherry_value_destroy(dict);
}

static void test_refuses_cycles(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *a = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(a, a, &error));
    wherry_value *b = build_dict(NULL, NULL);
    wherry_value *c = build_tuple(NULL);
    must(wherry_dict_put(b, "c", c, NULL));
    must(wherry_sequence_append(a, b, NULL));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(c, a, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_put(b, "a", a, &error));
    wherry_value *d = build_list(NULL);
    wherry_value *object = build_object("type", d);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(d, object, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(a, d, &error));
    must(wherry_sequence_append(a, object, NULL));
    wherry_value_destroy(a);
}

static void test_depth_is_limited(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *deep = build_nest(WHERRY_DEPTH_MAX, NULL);
    wherry_value *above = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(above, deep, &error));
    wherry_value *dict = build_dict(NULL, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_put(dict, "deep", deep, &error));
    wherry_value *innermost = deep;
    size_t depth = 1;
    for (; wherry_sequence_count(innermost); innermost = wherry_sequence_at(innermost, 0)) {
        depth++;
    }
    assert_int_equal(depth, 1000);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(innermost, above, &error));
    must(wherry_sequence_append(innermost, build_int(1), NULL));
    wherry_value *copy;
    must(wherry_value_copy(deep, &copy, NULL));
    must(wherry_value_compare(deep, copy, WHERRY_COMPARE_ALL, NULL));
    wherry_value_destroy(copy);
    wherry_value_destroy(above);
    wherry_value_destroy(dict);
    wherry_value_destroy(deep);
}

/**
 * The depth is counted from the root to the deepest container, whatever the order in which parts
 * are joined.
 */
static void test_depth_is_limited_in_any_order_of_joining(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *bottom = build_list(NULL);
    wherry_value *top = build_nest(600, NULL);
    wherry_value *at = top;
    while (wherry_sequence_count(at)) {
        at = wherry_sequence_at(at, 0);
    }
    wherry_value *too_deep = build_nest(401, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(at, too_deep, &error));
    wherry_value *fits = build_nest(399, bottom);
    must(wherry_sequence_append(at, fits, NULL));
    wherry_value *one = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(bottom, one, &error));
    wherry_value_destroy(one);
    wherry_value_destroy(too_deep);
    wherry_value_destroy(top);
}

static void test_dicts_keep_their_order(void **state) {
    (void)state;
    wherry_value *dict = build_dict("z", build_int(1), "a", build_int(2), "", build_int(3), NULL);
    assert_int_equal(wherry_value_kind(dict), WHERRY_KIND_DICT);
    assert_int_equal(wherry_dict_count(dict), 3);
    assert_string_equal(wherry_string_get(wherry_dict_key_at(dict, 0), NULL), "z");
    assert_string_equal(wherry_string_get(wherry_dict_key_at(dict, 1), NULL), "a");
    assert_string_equal(wherry_string_get(wherry_dict_key_at(dict, 2), NULL), "");
    assert_int_equal(wherry_int_get(wherry_dict_at(dict, 2)), 3);
    assert_null(wherry_dict_at(dict, 3));
    assert_null(wherry_dict_key_at(dict, 3));
    assert_int_equal(wherry_int_get(wherry_dict_get(dict, "a")), 2);
    assert_null(wherry_dict_get(dict, "b"));
    assert_int_equal(wherry_sequence_count(dict), 0);
    assert_null(wherry_sequence_at(dict, 0));
    wherry_value_destroy(dict);
}

static wherry_value *key_of(int which) {
    switch (which) {
    case 0:
        return build_none();
    case 1:
    case 2:
        return build_bool(which == 1);
    case 3:
        return build_int(1);
    case 4:
        return build_float(1.0);
    case 5:
        return build_complex(1.0, 0.0);
    case 6:
        return build_string("1");
    case 7:
        return build_bytes("1", 1);
    case 8:
    case 9:
        return build_float(which == 8 ? 0.0 : -0.0);
    case 10:
    case 11:
        return build_float(build_double(0x7FF8000000000000 + (uint64_t)which));
    case 12:
    case 13:
        return build_bigint(which == 12, 0xFF, 8);
    case 14:
        return build_string("");
    case 15:
        return build_bytes("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8);
    case 16:
    case 17:
        return build_complex(0.0, which == 16 ? 0.0 : -0.0);
    case 18:
        return build_bytes("", 0);
    case 19:
        return build_int(0);
    case 20:
        return build_bytes("1\0", 2);
    default:
        return NULL;
    }
}

/** Keys of each kind are all different, also in a dict that is large enough for an index. */
static void test_keys_of_every_kind_differ(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *dict = build_dict(NULL, NULL);
    int count = 0;
    for (wherry_value *key = key_of(0); key; key = key_of(++count)) {
        assert_null(wherry_dict_find(dict, key));
        must(wherry_dict_set(dict, key, build_int(count), NULL));
        for (int i = 0; i <= count; i++) {
            wherry_value *same = key_of(i);
            assert_int_equal(wherry_int_get(wherry_dict_find(dict, same)), i);
            wherry_value *item = build_int(-1);
            must_fail(WHERRY_DUPLICATE_KEY, error, wherry_dict_set(dict, same, item, &error));
            wherry_value_destroy(item);
            wherry_value_destroy(same);
        }
    }
    assert_int_equal(count, 21);
    assert_int_equal(wherry_dict_count(dict), 21);
    wherry_value_destroy(dict);
}

static void test_refuses_bad_keys(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *dict = build_dict("taken", build_int(1), NULL);
    wherry_value *item = build_int(2);
    wherry_value *keys[] = {build_list(NULL), build_tuple(NULL), build_dict(NULL, NULL),
                            build_object("type", build_int(1))};
    for (int i = 0; i < 4; i++) {
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(dict, keys[i], item, &error));
        wherry_value_destroy(keys[i]);
    }
    wherry_value *key = build_string("free");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(dict, NULL, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(dict, key, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(dict, key, key, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(item, key, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(NULL, key, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(dict, key, wherry_dict_at(dict, 0), &error));
    wherry_value *owned = (wherry_value *)wherry_dict_key_at(dict, 0);
    wherry_value *second = build_dict(NULL, NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_set(second, owned, item, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_put(dict, "\xFF", item, &error));
    must_fail(WHERRY_DUPLICATE_KEY, error, wherry_dict_put(dict, "taken", item, &error));
    assert_int_equal(wherry_dict_count(dict), 1);
    assert_int_equal(wherry_dict_count(second), 0);
    must(wherry_dict_set(dict, key, item, NULL));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dict_put(second, "again", item, &error));
    wherry_value_destroy(second);
    wherry_value_destroy(dict);
}

static void test_finds_keys_in_large_dicts(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    wherry_error error;
    wherry_value *dict = build_dict(NULL, NULL);
    char name[32];
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "layer.%d.weight", i);
        must(wherry_dict_put(dict, name, build_int(i), NULL));
        must(wherry_dict_set(dict, build_int(i), build_int(-i), NULL));
    }
    assert_int_equal(wherry_dict_count(dict), 2 * COUNT);
    wherry_value *item = build_none();
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), "layer.%d.weight", i);
        assert_ptr_equal(wherry_dict_get(dict, name), wherry_dict_at(dict, 2 * (size_t)i));
        assert_int_equal(wherry_int_get(wherry_dict_get(dict, name)), i);
        wherry_value *key = build_int(i);
        assert_int_equal(wherry_int_get(wherry_dict_find(dict, key)), -i);
        must_fail(WHERRY_DUPLICATE_KEY, error, wherry_dict_set(dict, key, item, &error));
        wherry_value_destroy(key);
    }
    assert_null(wherry_dict_get(dict, "layer.20000.weight"));
    wherry_value_destroy(item);
    wherry_value_destroy(dict);
}

static void test_copies_trees(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 3};
    wherry_storage *storage = build_storage(24, 1);
    wherry_value *tree = build_dict(
        "none", build_none(), "bool", build_bool(true), "int", build_int(-7), "big", build_bigint(true, 0xAB, 12),
        "float", build_float(-0.0), "complex", build_complex(1, build_double(0x7FF8000000000007)), "string",
        build_string("\xC3\xA9"), "bytes", build_bytes("a\0b", 3), "empty", build_list(build_list(NULL), NULL), "tuple",
        build_tuple(build_tuple(NULL), build_dict(NULL, NULL), NULL), "object",
        build_object("A", build_object("B", build_none())), "tensor",
        build_view(storage, WHERRY_F32, 0, 2, shape, NULL), NULL);
    wherry_value *copy;
    must(wherry_value_copy(tree, &copy, NULL));
    must(wherry_value_compare(tree, copy, WHERRY_COMPARE_ALL, NULL));
    assert_ptr_equal(wherry_tensor_get(wherry_dict_get(copy, "tensor"))->storage, storage);
    assert_ptr_not_equal(wherry_dict_get(copy, "string"), wherry_dict_get(tree, "string"));
    wherry_value_destroy(tree);
    wherry_storage_unref(storage);
    const wherry_tensor *tensor = wherry_tensor_get(wherry_dict_get(copy, "tensor"));
    assert_int_equal(*(uint8_t *)wherry_storage_data(tensor->storage), 1);
    must(wherry_dict_put(copy, "more", build_int(1), NULL));
    wherry_value_destroy(copy);
    wherry_error error;
    copy = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_copy(NULL, &copy, &error));
    assert_null(copy);
}

/** The copy of a subtree is a tree without an owner. */
static void test_copy_of_a_part_has_no_owner(void **state) {
    (void)state;
    wherry_value *inner = build_list(build_int(1), NULL);
    wherry_value *outer = build_list(inner, NULL);
    wherry_value *copy;
    must(wherry_value_copy(inner, &copy, NULL));
    must(wherry_sequence_append(outer, copy, NULL));
    assert_int_equal(wherry_int_get(wherry_sequence_at(copy, 0)), 1);
    wherry_value_destroy(outer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_have_names),
        cmocka_unit_test(test_scalars_keep_their_content),
        cmocka_unit_test(test_floats_keep_every_bit),
        cmocka_unit_test(test_bigints_are_kept_at_the_limits_of_int64),
        cmocka_unit_test(test_strings_keep_their_content),
        cmocka_unit_test(test_refuses_bad_strings),
        cmocka_unit_test(test_bytes_keep_their_content),
        cmocka_unit_test(test_refuses_to_read_another_kind),
        cmocka_unit_test(test_objects_keep_their_content),
        cmocka_unit_test(test_refuses_bad_objects),
        cmocka_unit_test(test_success_does_not_change_the_error),
        cmocka_unit_test(test_sequences_keep_their_order),
        cmocka_unit_test(test_refuses_bad_appends),
        cmocka_unit_test(test_refuses_cycles),
        cmocka_unit_test(test_depth_is_limited),
        cmocka_unit_test(test_depth_is_limited_in_any_order_of_joining),
        cmocka_unit_test(test_dicts_keep_their_order),
        cmocka_unit_test(test_keys_of_every_kind_differ),
        cmocka_unit_test(test_refuses_bad_keys),
        cmocka_unit_test(test_finds_keys_in_large_dicts),
        cmocka_unit_test(test_copies_trees),
        cmocka_unit_test(test_copy_of_a_part_has_no_owner),
    };
    return cmocka_run_group_tests_name("value", tests, NULL, NULL);
}
