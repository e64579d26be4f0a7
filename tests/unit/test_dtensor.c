/* Meshes and DTensors: their contents, what is refused, and who owns the local tensor. */
#include "../support/build.h"

static void test_mesh(void **state) {
    (void)state;
    int64_t shape[] = {2, 3};
    int64_t ranks[] = {5, 4, 3, 2, 1, 0};
    char data[] = "data";
    const char *names[] = {data, "mod\xC3\xA8l"};
    wherry_mesh_info info = {WHERRY_DEVICE_CUDA, 2, shape, ranks, names};
    wherry_mesh *mesh;
    must(wherry_mesh_create(&info, &mesh, NULL));
    shape[0] = ranks[0] = 77;
    data[0] = 'X';
    const wherry_mesh_info *kept = wherry_mesh_get(mesh);
    assert_true(kept->device == WHERRY_DEVICE_CUDA && kept->ndim == 2);
    assert_true(kept->shape[0] == 2 && kept->shape[1] == 3 && kept->ranks[0] == 5 && kept->ranks[5] == 0);
    assert_string_equal(kept->dim_names[0], "data");
    assert_string_equal(kept->dim_names[1], "mod\xC3\xA8l");
    assert_ptr_equal(wherry_mesh_ref(mesh), mesh);
    wherry_mesh_unref(mesh);
    assert_int_equal(wherry_mesh_get(mesh)->ranks[1], 4);
    wherry_mesh_unref(mesh);
    wherry_mesh_unref(NULL);
}

static void test_mesh_without_names(void **state) {
    (void)state;
    int64_t shape[WHERRY_NDIM_MAX];
    for (int d = 0; d < WHERRY_NDIM_MAX; d++) {
        shape[d] = d == 40 ? 3 : 1;
    }
    wherry_mesh *mesh = build_mesh(WHERRY_NDIM_MAX, shape);
    assert_int_equal(wherry_mesh_get(mesh)->ndim, WHERRY_NDIM_MAX);
    assert_int_equal(wherry_mesh_get(mesh)->ranks[2], 2);
    assert_null(wherry_mesh_get(mesh)->dim_names);
    wherry_mesh_unref(mesh);
}

static void refuse_mesh(const wherry_mesh_info *info) {
    wherry_error error;
    wherry_mesh *mesh = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_mesh_create(info, &mesh, &error));
    assert_null(mesh);
}

static void test_mesh_refused(void **state) {
    (void)state;
    static const int64_t shape[WHERRY_NDIM_MAX + 1] = {2, 2};
    static const int64_t zero[] = {2, 0};
    static const int64_t minus[] = {-2, -2};
    static const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    static const int64_t ranks[] = {0, 1, 2, 3};
    static const int64_t bad_ranks[] = {0, 1, 2, -1};
    static const char *const bad_names[] = {"a", "\xFF"};
    static const char *const no_names[] = {"a", NULL};
    refuse_mesh(NULL);
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 0, shape, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, WHERRY_NDIM_MAX + 1, shape, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, zero, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, minus, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, huge, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, shape, bad_ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, NULL, ranks, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, shape, NULL, NULL});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, shape, ranks, bad_names});
    refuse_mesh(&(wherry_mesh_info){WHERRY_DEVICE_CPU, 2, shape, ranks, no_names});
}

static const int64_t mesh_shape[] = {1, 2, 1, 1};
static const int64_t local_shape[] = {2, 3};

static wherry_value *new_local(void) {
    return build_tensor(build_storage(24, 0), WHERRY_F32, 0, 2, local_shape, NULL);
}

static void test_placements(void **state) {
    (void)state;
    char op[] = "avg";
    int64_t shape[] = {4, 3};
    int64_t strides[] = {3, 1};
    wherry_placement placements[] = {
        {WHERRY_REPLICATE, 9, 9, "ignored"},
        {WHERRY_SHARD, 0, 9, "ignored"},
        {WHERRY_STRIDED_SHARD, 1, 4, "ignored"},
        {WHERRY_PARTIAL, 9, 9, op},
    };
    wherry_mesh *mesh = build_mesh(4, mesh_shape);
    wherry_value *local = new_local();
    wherry_dtensor dtensor = {local, mesh, placements, WHERRY_F32, WHERRY_TENSOR_REQUIRES_GRAD, 2, shape, strides};
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, NULL));
    wherry_mesh_unref(mesh);
    op[0] = 'X';
    shape[0] = strides[0] = 77;
    placements[1].dim = 77;
    const wherry_dtensor *kept = wherry_dtensor_get(value);
    assert_int_equal(wherry_value_kind(value), WHERRY_KIND_DTENSOR);
    assert_ptr_equal(kept->local, local);
    assert_ptr_equal(kept->mesh, mesh);
    assert_true(kept->dtype == WHERRY_F32 && kept->flags == WHERRY_TENSOR_REQUIRES_GRAD && kept->ndim == 2);
    assert_true(kept->shape[0] == 4 && kept->shape[1] == 3 && kept->strides[0] == 3 && kept->strides[1] == 1);
    const wherry_placement *p = kept->placements;
    assert_true(p[0].kind == WHERRY_REPLICATE && p[0].dim == 0 && p[0].split_factor == 0 && !p[0].reduce_op);
    assert_true(p[1].kind == WHERRY_SHARD && p[1].dim == 0 && p[1].split_factor == 0 && !p[1].reduce_op);
    assert_true(p[2].kind == WHERRY_STRIDED_SHARD && p[2].dim == 1 && p[2].split_factor == 4 && !p[2].reduce_op);
    assert_true(p[3].kind == WHERRY_PARTIAL && p[3].dim == 0 && p[3].split_factor == 0);
    assert_string_equal(p[3].reduce_op, "avg");
    wherry_value *copy;
    must(wherry_value_copy(value, &copy, NULL));
    must(wherry_value_compare(value, copy, WHERRY_COMPARE_ALL, NULL));
    assert_ptr_equal(wherry_dtensor_get(copy)->mesh, mesh);
    wherry_value_destroy(value);
    assert_int_equal(wherry_mesh_get(wherry_dtensor_get(copy)->mesh)->ndim, 4);
    wherry_value_destroy(copy);
}

static void test_local_is_taken(void **state) {
    (void)state;
    static const int64_t one[] = {1};
    static const wherry_placement placement = {.kind = WHERRY_REPLICATE};
    wherry_mesh *mesh = build_mesh(1, one);
    wherry_value *local = new_local();
    wherry_dtensor dtensor = {local, mesh, &placement, WHERRY_F32, 0, 2, local_shape, local_shape};
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, NULL));
    wherry_error error;
    wherry_value *second = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dtensor_create(&dtensor, &second, &error));
    wherry_value *list = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(list, local, &error));
    assert_null(second);
    must(wherry_sequence_append(list, value, NULL));
    wherry_value_destroy(list);
    wherry_mesh_unref(mesh);
}

static void refuse(const wherry_dtensor *dtensor) {
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dtensor_create(dtensor, &value, &error));
    assert_null(value);
}

static void test_placements_refused(void **state) {
    (void)state;
    static const int64_t mesh_of_two[] = {2, 2};
    static const wherry_placement bad[] = {
        {WHERRY_SHARD, 2, 0, NULL},         {WHERRY_SHARD, UINT32_MAX, 0, NULL},    {WHERRY_STRIDED_SHARD, 2, 1, NULL},
        {WHERRY_STRIDED_SHARD, 0, 0, NULL}, {WHERRY_STRIDED_SHARD, 0, -1, NULL},    {WHERRY_PARTIAL, 0, 0, NULL},
        {WHERRY_PARTIAL, 0, 0, "\xFF"},     {(wherry_placement_kind)4, 0, 0, NULL},
    };
    wherry_mesh *mesh = build_mesh(2, mesh_of_two);
    wherry_value *local = new_local();
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_placement placements[] = {{.kind = WHERRY_REPLICATE}, bad[i]};
        refuse(&(wherry_dtensor){local, mesh, placements, WHERRY_F32, 0, 2, local_shape, local_shape});
    }
    wherry_value_destroy(local);
    wherry_mesh_unref(mesh);
}

static void test_refused(void **state) {
    (void)state;
    static const int64_t one[] = {1};
    static const int64_t minus[] = {2, -3};
    static const wherry_placement placement = {.kind = WHERRY_REPLICATE};
    wherry_mesh *mesh = build_mesh(1, one);
    wherry_value *local = new_local();
    wherry_value *number = build_int(1);
    refuse(NULL);
    refuse(&(wherry_dtensor){NULL, mesh, &placement, WHERRY_F32, 0, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){number, mesh, &placement, WHERRY_F32, 0, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, NULL, &placement, WHERRY_F32, 0, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, mesh, NULL, WHERRY_F32, 0, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_I32, 0, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 1, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 2, 2, local_shape, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, minus, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, local_shape, minus});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, NULL, local_shape});
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, local_shape, NULL});
    wherry_value *list = build_list(local, NULL);
    refuse(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, local_shape, local_shape});
    wherry_value_destroy(list);
    wherry_value_destroy(number);
    wherry_mesh_unref(mesh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh),           cmocka_unit_test(test_mesh_without_names),
        cmocka_unit_test(test_mesh_refused),   cmocka_unit_test(test_placements),
        cmocka_unit_test(test_local_is_taken), cmocka_unit_test(test_placements_refused),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("dtensor", tests, NULL, NULL);
}
