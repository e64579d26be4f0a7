/* Flatten and unflatten: the leaves of a tree in a stable order, and the tree with other leaves. */
#include "../support/build.h"

#include <stdlib.h>

static const int64_t shape[] = {3};

static wherry_value *build_tree(void) {
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

static void test_flatten(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
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

static void test_lone_leaves(void **state) {
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

static void test_round_trip(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
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

/** New leaves may have any kind, also non-empty containers. */
static void test_replaced_leaves(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
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

/** It is refused, and every leaf still belongs to the caller. */
static void refuse(const wherry_flat *flat, wherry_value **leaves, size_t count) {
    wherry_error error;
    wherry_value *again = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_unflatten(flat, leaves, count, &again, &error));
    assert_null(again);
}

static void test_refused(void **state) {
    (void)state;
    wherry_value *tree = build_tree();
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

static void test_depth(void **state) {
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

/** At the maximum depth, down to an empty list: copies of its own leaves fit. */
static void test_depth_of_an_empty_leaf(void **state) {
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

static void test_large(void **state) {
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
        cmocka_unit_test(test_flatten),
        cmocka_unit_test(test_lone_leaves),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_replaced_leaves),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_depth_of_an_empty_leaf),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests_name("flatten", tests, NULL, NULL);
}
