/* Compares two trees that differ in one place. The comparison must report exactly that path. */
#include "../support/build.h"

/** `changed` if this is the change to make, else `base`. */
#define CHANGE(number, base, changed) (change == (number) ? (changed) : (base))

static void check_differs(const wherry_value *one, const wherry_value *other, const char *path, unsigned flags) {
    wherry_error error;
    must_fail(WHERRY_MISMATCH, error, wherry_value_compare(one, other, flags, &error));
    assert_string_equal(error.path, path);
    assert_non_null(strstr(error.message, " against "));
    must_fail(WHERRY_MISMATCH, error, wherry_value_compare(other, one, flags, &error));
    assert_string_equal(error.path, path);
    assert_int_equal(wherry_value_compare(one, other, flags, NULL), WHERRY_MISMATCH);
}

typedef wherry_value *(*build_fn)(int change);

/**
 * Compares build(0) with build(1), build(2) and so on. paths[i] is the expected difference; "="
 * means none.
 */
static void check_changes(build_fn build, const char *const *paths, int count) {
    wherry_value *base = build(0);
    wherry_value *same = build(0);
    must(wherry_value_compare(base, same, WHERRY_COMPARE_ALL, NULL));
    must(wherry_value_compare(base, base, WHERRY_COMPARE_ALL, NULL));
    for (int i = 0; i < count; i++) {
        wherry_value *changed = build(i + 1);
        if (*paths[i] == '=') {
            must(wherry_value_compare(base, changed, WHERRY_COMPARE_ALL, NULL));
        } else {
            check_differs(base, changed, paths[i], WHERRY_COMPARE_ALL);
        }
        wherry_value_destroy(changed);
    }
    wherry_value_destroy(same);
    wherry_value_destroy(base);
}

static wherry_value *build_scalars(int change) {
    double nan = build_double(0x7FF8000000000001);
    return build_list(build_int(CHANGE(1, 1, 2)), build_float(CHANGE(2, 0.0, -0.0)),
                      CHANGE(3, 0, 1) ? build_float(1) : build_int(1), build_bool(CHANGE(4, true, false)),
                      build_string(CHANGE(5, "a", "b")), build_bytes("ab", CHANGE(6, 1, 2)),
                      build_bigint(CHANGE(7, true, false), 0xFF, 9), build_complex(1, CHANGE(8, 2, -2)),
                      build_float(CHANGE(9, nan, build_double(0x7FF8000000000002))),
                      CHANGE(10, 0, 1) ? build_list(NULL) : build_none(), build_bigint(false, 0xFF, CHANGE(11, 9, 10)),
                      CHANGE(12, 0, 1) ? build_bytes("a", 1) : build_string("a"), NULL);
}

static void test_finds_changed_scalars(void **state) {
    (void)state;
    static const char *const paths[] = {"[0]", "[1]", "[2]", "[3]", "[4]",  "[5]",
                                        "[6]", "[7]", "[8]", "[9]", "[10]", "[11]"};
    check_changes(build_scalars, paths, 12);
}

static wherry_value *build_containers(int change) {
    wherry_value *list = CHANGE(1, 0, 1) ? build_tuple(build_int(1), NULL) : build_list(build_int(1), NULL);
    wherry_value *longer = build_list(build_int(1), CHANGE(2, 0, 1) ? build_int(2) : NULL, NULL);
    wherry_value *order = CHANGE(3, 0, 1) ? build_dict("b", build_int(1), "a", build_int(1), NULL)
                                          : build_dict("a", build_int(1), "b", build_int(1), NULL);
    wherry_value *keys = build_dict("x", build_int(1), CHANGE(4, "y", "z"), build_int(2), NULL);
    wherry_value *kinds = build_dict(NULL, NULL);
    must(wherry_dict_set(kinds, CHANGE(5, 0, 1) ? build_float(1) : build_int(1), build_none(), NULL));
    wherry_value *object = build_object(CHANGE(6, "T", "U"), build_dict("x", build_int(CHANGE(7, 1, 2)), NULL));
    wherry_value *wrapped = CHANGE(8, 0, 1) ? build_int(1) : build_object("T", build_int(1));
    return build_dict("list", list, "longer", longer, "order", order, "keys", keys, "kinds", kinds, "object", object,
                      "wrapped", wrapped, NULL);
}

static void test_finds_changed_containers(void **state) {
    (void)state;
    static const char *const paths[] = {"list", "longer", "order", "keys", "kinds", "object", "object.x", "wrapped"};
    check_changes(build_containers, paths, 8);
}

static wherry_storage *wrap_on(wherry_device device) {
    static uint8_t bytes[64];
    for (int i = 0; i < 64; i++) {
        bytes[i] = (uint8_t)(7 * i);
    }
    wherry_storage *storage;
    must(wherry_storage_wrap(bytes, sizeof(bytes), device, NULL, NULL, &storage, NULL));
    return storage;
}

static wherry_value *build_one_tensor(int change) {
    static const int64_t shapes[][2] = {{2, 3}, {3, 2}};
    static const int64_t strides[][2] = {{3, 1}, {4, 1}};
    static const int64_t flat = 6;
    static const int64_t step = 1;
    wherry_device other = {WHERRY_DEVICE_CPU, 0};
    wherry_storage *storage = CHANGE(7, 0, 1) ? wrap_on(other) : build_storage(CHANGE(8, 64, 68), 0);
    uint8_t *bytes = wherry_storage_data(storage);
    if (change == 9) {
        bytes[27] ^= 1;
    } else if (change == 10) {
        bytes[3] ^= 1;
        bytes[28] ^= 1;
    }
    wherry_tensor tensor = {.storage = storage,
                            .dtype = CHANGE(1, WHERRY_F32, WHERRY_I32),
                            .flags = CHANGE(2, 0, WHERRY_TENSOR_NEG),
                            .ndim = CHANGE(3, 2, 1),
                            .offset = CHANGE(4, 1, 2),
                            .shape = CHANGE(3, shapes[change == 5], &flat),
                            .strides = CHANGE(3, strides[change == 6], &step)};
    wherry_value *value;
    must(wherry_tensor_create(&tensor, &value, NULL));
    wherry_storage_unref(storage);
    return build_dict("w", value, NULL);
}

static void test_finds_changed_tensors(void **state) {
    (void)state;
    static const char *const paths[] = {"w", "w", "w", "w", "w", "w", "w", "w", "w", "="};
    check_changes(build_one_tensor, paths, 10);
}

static void test_flags_relax_the_comparison(void **state) {
    (void)state;
    wherry_value *base = build_one_tensor(0);
    wherry_value *larger = build_one_tensor(8);
    wherry_value *content = build_one_tensor(9);
    wherry_value *dtype = build_one_tensor(1);
    must(wherry_value_compare(base, content, WHERRY_COMPARE_NO_CONTENT, NULL));
    check_differs(base, content, "w", WHERRY_COMPARE_NO_SHARING);
    must(wherry_value_compare(base, larger, WHERRY_COMPARE_NO_SHARING, NULL));
    check_differs(base, larger, "w", WHERRY_COMPARE_NO_CONTENT);
    check_differs(base, dtype, "w", WHERRY_COMPARE_NO_CONTENT | WHERRY_COMPARE_NO_SHARING);
    wherry_error error;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_compare(base, base, 4, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_compare(base, NULL, 0, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_value_compare(NULL, base, 0, &error));
    wherry_value_destroy(base);
    wherry_value_destroy(larger);
    wherry_value_destroy(content);
    wherry_value_destroy(dtype);
}

/** Four equal tensors. Digit i of `pattern` is the number of the storage of tensor i. */
static wherry_value *build_sharing(const char *pattern) {
    static const int64_t shape[] = {8};
    wherry_storage *storages[4];
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < 4; i++) {
        storages[i] = build_storage(8, 0);
    }
    for (int i = 0; i < 4; i++) {
        must(wherry_sequence_append(list, build_view(storages[pattern[i] - '0'], WHERRY_U8, 0, 1, shape, NULL), NULL));
    }
    for (int i = 0; i < 4; i++) {
        wherry_storage_unref(storages[i]);
    }
    return list;
}

static void test_finds_changed_sharing(void **state) {
    (void)state;
    static const struct {
        const char *one;
        const char *other;
        const char *path;
    } cases[] = {{"0123", "3210", NULL},  {"0011", "1100", NULL},  {"0000", "2222", NULL},  {"0123", "0012", "[1]"},
                 {"0012", "0123", "[1]"}, {"0101", "0110", "[2]"}, {"0121", "0120", "[3]"}, {"0000", "0001", "[3]"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_value *one = build_sharing(cases[i].one);
        wherry_value *other = build_sharing(cases[i].other);
        if (cases[i].path) {
            check_differs(one, other, cases[i].path, WHERRY_COMPARE_ALL);
        } else {
            must(wherry_value_compare(one, other, WHERRY_COMPARE_ALL, NULL));
        }
        must(wherry_value_compare(one, other, WHERRY_COMPARE_NO_SHARING, NULL));
        wherry_value_destroy(one);
        wherry_value_destroy(other);
    }
}

static wherry_value *build_one_dtensor(int change) {
    static const int64_t mesh_shapes[][2] = {{2, 2}, {4, 1}};
    static const int64_t ranks[][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}};
    static const char *const names[][2] = {{"a", "b"}, {"a", "c"}};
    static const int64_t shapes[][2] = {{4, 4}, {4, 5}};
    static const int64_t strides[][2] = {{4, 1}, {1, 4}};
    static const int64_t local_shape[] = {2, 4};
    wherry_mesh_info info = {CHANGE(1, WHERRY_DEVICE_CPU, WHERRY_DEVICE_CUDA), 2, mesh_shapes[change == 2],
                             ranks[change == 3], CHANGE(5, names[change == 4], NULL)};
    wherry_placement placements[] = {{WHERRY_STRIDED_SHARD, CHANGE(6, 0, 1), CHANGE(7, 2, 3), NULL},
                                     {WHERRY_PARTIAL, 0, 0, CHANGE(8, "sum", "avg")}};
    if (change == 9) {
        placements[1] = (wherry_placement){.kind = WHERRY_REPLICATE};
    }
    wherry_dtensor dtensor = {.placements = placements,
                              .dtype = WHERRY_U8,
                              .flags = CHANGE(10, 0, WHERRY_TENSOR_REQUIRES_GRAD),
                              .ndim = 2,
                              .shape = shapes[change == 11],
                              .strides = strides[change == 12]};
    dtensor.local = build_tensor(build_storage(8, CHANGE(13, 0, 1)), WHERRY_U8, 0, 2, local_shape, NULL);
    must(wherry_mesh_create(&info, &dtensor.mesh, NULL));
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, NULL));
    wherry_mesh_unref(dtensor.mesh);
    return build_list(value, NULL);
}

static void test_finds_changed_dtensors(void **state) {
    (void)state;
    static const char *const paths[] = {"[0]", "[0]", "[0]", "[0]", "[0]", "[0]", "[0]",
                                        "[0]", "[0]", "[0]", "[0]", "[0]", "[0]"};
    check_changes(build_one_dtensor, paths, 13);
}

static wherry_sharding sharding_of(int change, wherry_shard_place *places, wherry_shard_info *boxes) {
    if (change == 10) {
        return (wherry_sharding){.kind = WHERRY_SHARDING_NONE};
    }
    if (change >= 11) {
        return (wherry_sharding){.kind = WHERRY_SHARDING_ENUMERABLE, .count = CHANGE(12, 2, 1), .boxes = boxes};
    }
    return (wherry_sharding){WHERRY_SHARDING_CHUNK, CHANGE(7, 0, 1), CHANGE(8, 2, 1), places, NULL};
}

static wherry_value *build_one_sharded(int change) {
    static const int64_t shapes[][1] = {{8}, {9}};
    static const int64_t offsets[] = {0, 4, 3};
    static const int64_t size = 4;
    wherry_shard_info global[] = {{offsets, &size, {0, {WHERRY_DEVICE_CPU, -1}}},
                                  {offsets + (change == 5 ? 2 : 1), &size, {1, {WHERRY_DEVICE_CPU, -1}}}};
    wherry_shard_info boxes[] = {global[0], global[1]};
    wherry_shard_place places[] = {global[0].place, global[1].place};
    places[1].rank += change == 9;
    boxes[1].place.device.index += change == 13;
    wherry_shard shards[] = {
        {build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, &size, NULL), global[0]},
        {build_tensor(build_storage(4, CHANGE(14, 0, 1)), WHERRY_U8, 0, 1, &size, NULL), global[1]}};
    shards[1].info.place.device.kind = CHANGE(6, WHERRY_DEVICE_CPU, WHERRY_DEVICE_CUDA);
    wherry_sharded sharded = {.dtype = WHERRY_U8,
                              .requires_grad = CHANGE(1, true, false),
                              .pin_memory = CHANGE(2, false, true),
                              .format = CHANGE(3, WHERRY_FORMAT_CONTIGUOUS, WHERRY_FORMAT_CHANNELS_LAST),
                              .ndim = 1,
                              .shape = shapes[change == 4],
                              .shard_count = 2,
                              .shards = shards,
                              .global_count = 2,
                              .global = global,
                              .sharding = sharding_of(change, places, boxes)};
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, NULL));
    return build_list(value, NULL);
}

static void test_finds_changed_sharded_tensors(void **state) {
    (void)state;
    static const char *const paths[] = {"[0]", "[0]", "[0]", "[0]", "[0]", "[0]", "[0]",
                                        "[0]", "[0]", "[0]", "[0]", "[0]", "[0]", "[0]"};
    check_changes(build_one_sharded, paths, 14);
    wherry_value *enumerable = build_one_sharded(11);
    for (int change = 12; change <= 14; change++) {
        wherry_value *changed = build_one_sharded(change);
        check_differs(enumerable, changed, "[0]", WHERRY_COMPARE_ALL);
        wherry_value_destroy(changed);
    }
    wherry_value_destroy(enumerable);
}

/** For views that are not contiguous, bytes between elements do not count. */
static void test_ignores_bytes_between_elements(void **state) {
    (void)state;
    static const int64_t shape[] = {4, 3};
    static const int64_t strides[] = {2, 20};
    for (int spoiled = 0; spoiled < 64; spoiled++) {
        bool seen = spoiled >= 2 && (spoiled - 2) % 20 < 8 && (spoiled - 2) % 2 == 0 && spoiled < 62;
        wherry_storage *storage = build_storage(64, 0);
        ((uint8_t *)wherry_storage_data(storage))[spoiled] ^= 0x80;
        wherry_value *one = build_tensor(build_storage(64, 0), WHERRY_U8, 2, 2, shape, strides);
        wherry_value *other = build_tensor(storage, WHERRY_U8, 2, 2, shape, strides);
        assert_int_equal(wherry_value_compare(one, other, WHERRY_COMPARE_ALL, NULL),
                         seen ? WHERRY_MISMATCH : WHERRY_OK);
        wherry_value_destroy(one);
        wherry_value_destroy(other);
    }
}

static void test_refuses_memory_that_is_not_on_the_host(void **state) {
    (void)state;
    static const int64_t shape[] = {4};
    static const int64_t empty[] = {0};
    wherry_device cuda = {WHERRY_DEVICE_CUDA, 0};
    wherry_value *pairs[][2] = {{build_tensor(build_bare(4), WHERRY_U8, 0, 1, shape, NULL),
                                 build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, shape, NULL)},
                                {build_tensor(wrap_on(cuda), WHERRY_U8, 0, 1, shape, NULL),
                                 build_tensor(wrap_on(cuda), WHERRY_U8, 0, 1, shape, NULL)}};
    wherry_error error;
    for (int i = 0; i < 2; i++) {
        wherry_value *one = build_dict("w", pairs[i][0], NULL);
        wherry_value *other = build_dict("w", pairs[i][1], NULL);
        must_fail(WHERRY_UNSUPPORTED, error, wherry_value_compare(one, other, WHERRY_COMPARE_ALL, &error));
        assert_string_equal(error.path, "w");
        must(wherry_value_compare(one, other, WHERRY_COMPARE_NO_CONTENT, NULL));
        wherry_value_destroy(one);
        wherry_value_destroy(other);
    }
    wherry_value *one = build_tensor(build_bare(4), WHERRY_U8, 0, 1, empty, NULL);
    wherry_value *other = build_tensor(build_bare(4), WHERRY_U8, 0, 1, empty, NULL);
    must(wherry_value_compare(one, other, WHERRY_COMPARE_ALL, NULL));
    wherry_value_destroy(one);
    wherry_value_destroy(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_changed_scalars),
        cmocka_unit_test(test_finds_changed_containers),
        cmocka_unit_test(test_finds_changed_tensors),
        cmocka_unit_test(test_flags_relax_the_comparison),
        cmocka_unit_test(test_finds_changed_sharing),
        cmocka_unit_test(test_finds_changed_dtensors),
        cmocka_unit_test(test_finds_changed_sharded_tensors),
        cmocka_unit_test(test_ignores_bytes_between_elements),
        cmocka_unit_test(test_refuses_memory_that_is_not_on_the_host),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
