/* Printing trees. */
#include "../support/build.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static char *dump(const wherry_value *value) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    must(wherry_value_dump(value, out, NULL));
    fclose(out);
    return text;
}

static void check_dump(wherry_value *value, const char *expected) {
    char *text = dump(value);
    assert_string_equal(text, expected);
    free(text);
    wherry_value_destroy(value);
}

static void test_prints_a_tree(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 3};
    static const int64_t strides[] = {1, 2};
    wherry_storage *storage = build_storage(40, 0);
    wherry_tensor tensor = {storage, WHERRY_F32, WHERRY_TENSOR_FLAGS, 2, 4, shape, strides};
    wherry_value *flagged;
    must(wherry_tensor_create(&tensor, &flagged, NULL));
    wherry_value *tree =
        build_dict("list", build_list(build_int(-1), build_tuple(NULL), NULL), "a b", build_string("x\"\n"), "object",
                   build_object("Outer", build_object("Inner", build_dict("x", build_none(), NULL))), "plain",
                   build_view(storage, WHERRY_BF16, 0, 2, shape, NULL), "flagged", flagged, "scalar",
                   build_view(storage, WHERRY_F64, 0, 0, NULL, NULL), NULL);
    must(wherry_dict_set(tree, build_int(7), build_bool(true), NULL));
    must(wherry_dict_set(tree, build_float(0.5), build_bigint(true, 0xAB, 9), NULL));
    wherry_storage_unref(storage);
    check_dump(tree, "dict of 8\n"
                     "  list: list of 2\n"
                     "    [0]: -1\n"
                     "    [1]: tuple of 0\n"
                     "  [\"a b\"]: \"x\\\"\\n\"\n"
                     "  object: <Outer> <Inner> dict of 1\n"
                     "    x: none\n"
                     "  plain: bfloat16[2, 3] cpu, storage #0\n"
                     "  flagged: float32[2, 3] strides [1, 2] offset 4 cpu requires_grad conj neg, storage #0\n"
                     "  scalar: float64[] cpu, storage #0\n"
                     "  {7}: true\n"
                     "  {0.5}: -0xababababababababab\n");
}

static void test_prints_scalars(void **state) {
    (void)state;
    check_dump(build_none(), "none\n");
    check_dump(build_float(-0.0), "-0.0\n");
    check_dump(build_complex(1, 2), "c(1.0,2.0)\n");
    check_dump(build_bytes("\0\xFF", 2), "b\"\\x00\\xff\"\n");
    check_dump(build_string("\xC3\xA9"), "\"\xC3\xA9\"\n");
    check_dump(build_object("T", build_list(NULL)), "<T> list of 0\n");
    check_dump(build_object("\x1B[2J", build_list(NULL)), "<\"\\x1b[2J\"> list of 0\n");
}

/** Long texts are truncated between characters, and show their length. */
static void test_truncates_long_texts(void **state) {
    (void)state;
    char text[82] = "a";
    for (size_t i = 1; i < 81; i += 2) {
        text[i] = '\xC3';
        text[i + 1] = '\xA9';
    }
    wherry_value *value = build_string(text);
    char *dumped = dump(value);
    assert_non_null(strstr(dumped, "... (81 bytes)"));
    size_t shown = strcspn(dumped + 1, "\"");
    assert_int_equal(shown, 59);
    assert_memory_equal(dumped + 1, text, shown);
    free(dumped);
    wherry_value_destroy(value);
}

static void test_prints_sharded_tensors(void **state) {
    (void)state;
    static const int64_t mesh_shape[] = {1, 2, 1, 1};
    static const int64_t local[] = {2, 3};
    static const int64_t global[] = {4, 3};
    static const int64_t offsets[] = {2, 0};
    static const int64_t strides[] = {3, 1};
    static const wherry_placement placements[] = {{WHERRY_REPLICATE, 0, 0, NULL},
                                                  {WHERRY_SHARD, 0, 0, NULL},
                                                  {WHERRY_STRIDED_SHARD, 1, 2, NULL},
                                                  {WHERRY_PARTIAL, 0, 0, "sum"}};
    wherry_dtensor dtensor = {build_tensor(build_storage(6, 0), WHERRY_U8, 0, 2, local, NULL),
                              build_mesh(4, mesh_shape),
                              placements,
                              WHERRY_U8,
                              0,
                              2,
                              global,
                              strides};
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, NULL));
    wherry_mesh_unref(dtensor.mesh);
    check_dump(value, "DTensor uint8[4, 3] (replicate, shard 0, strided shard 1 by 2, partial sum) over a mesh "
                      "cpu[1, 2, 1, 1], local uint8[2, 3] cpu, storage #0\n");
    wherry_shard_info info = {offsets, local, {1, {WHERRY_DEVICE_CPU, -1}}};
    wherry_shard shard = {build_tensor(build_storage(6, 0), WHERRY_U8, 0, 2, local, NULL), info};
    wherry_sharded sharded = {.dtype = WHERRY_U8,
                              .ndim = 2,
                              .shape = global,
                              .shard_count = 1,
                              .shards = &shard,
                              .global_count = 1,
                              .global = &info};
    must(wherry_sharded_create(&sharded, &value, NULL));
    check_dump(value, "ShardedTensor uint8[4, 3], 1 of 1 shards here: at [2, 0] uint8[2, 3] cpu, storage #0\n");
}

static wherry_value *build_many(int count) {
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < count; i++) {
        must(wherry_sequence_append(list, build_int(i), NULL));
    }
    return list;
}

/** Over a stream without a buffer, one with a line buffer, and one whose buffer gets full. */
static void test_reports_a_failed_write(void **state) {
    (void)state;
    static const struct {
        int mode;
        int items;
    } cases[] = {{_IONBF, 1}, {_IOLBF, 3}, {_IOFBF, 100000}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        FILE *full = fopen("/dev/full", "w");
        assert_non_null(full);
        setvbuf(full, NULL, cases[i].mode, BUFSIZ);
        wherry_value *value = build_many(cases[i].items);
        wherry_error error;
        must_fail(WHERRY_SYSTEM, error, wherry_value_dump(value, full, &error));
        assert_int_equal(error.errnum, ENOSPC);
        wherry_value_destroy(value);
        fclose(full);
    }
}

/** The buffer of the stream is flushed before the function returns. */
static void test_reports_a_failed_flush(void **state) {
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    wherry_value *value = build_int(1);
    wherry_status status = wherry_value_dump(value, full, NULL);
    wherry_value_destroy(value);
    fclose(full);
    assert_int_equal(status, WHERRY_SYSTEM);
}

static void test_prints_the_deepest_tree(void **state) {
    (void)state;
    wherry_value *deep = build_nest(WHERRY_DEPTH_MAX, build_int(5));
    char *text = dump(deep);
    assert_string_equal(text + strlen(text) - strlen("  [0]: 5\n"), "  [0]: 5\n");
    free(text);
    wherry_value_destroy(deep);
}

static void test_refuses_NULL(void **state) {
    (void)state;
    wherry_error error;
    wherry_value *value = build_int(1);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_dump(NULL, stderr, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_dump(value, NULL, &error));
    wherry_value_destroy(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prints_a_tree),           cmocka_unit_test(test_prints_scalars),
        cmocka_unit_test(test_truncates_long_texts),    cmocka_unit_test(test_prints_sharded_tensors),
        cmocka_unit_test(test_reports_a_failed_write),  cmocka_unit_test(test_reports_a_failed_flush),
        cmocka_unit_test(test_prints_the_deepest_tree), cmocka_unit_test(test_refuses_NULL),
    };
    return cmocka_run_group_tests_name("dump", tests, NULL, NULL);
}
