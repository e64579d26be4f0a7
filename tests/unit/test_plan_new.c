/*
 * Plans in place that allocate memory for leaves that the target lacks: the received state, and
 * what is still refused.
 */
#include "support/build.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static wherry_error error;

static wherry_value *floats(int64_t rows, int64_t columns, uint8_t seed) {
    return build_tensor(build_storage((uint64_t)(rows * columns) * 4, seed), WHERRY_F32, 0, 2, SHAPE(rows, columns),
                        NULL);
}

static wherry_plan_options with_flags(uint32_t flags) {
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.flags = flags;
    options.rank = 3;
    return options;
}

/** Receives and returns the state. */
static wherry_value *ferry(const wherry_value *source, const wherry_value *target, uint32_t flags) {
    wherry_plan_options options = with_flags(flags);
    wherry_plan *plan;
    wherry_value *state;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    execute_plan(source, plan);
    must(wherry_plan_take_state(plan, &state, &error));
    wherry_plan_destroy(plan);
    return state;
}

static void refused(wherry_value *source, wherry_value *target, uint32_t flags, const char *words) {
    wherry_prepared *prepared = build_received(source, -1);
    wherry_plan_options options = with_flags(flags);
    wherry_plan *plan;
    must_fail(WHERRY_MISMATCH, error, wherry_plan_create(prepared, target, &options, &plan, &error));
    if (!strstr(error.message, words)) {
        fail_msg("the message '%s' lacks '%s'", error.message, words);
    }
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static const wherry_storage *storage_of(const wherry_value *dict, const char *name) {
    return wherry_tensor_get(wherry_dict_get(dict, name))->storage;
}

/** The target has a model, and an optimizer without state because it has not taken a step. */
static void test_fresh_optimizer_gets_memory(void **state) {
    (void)state;
    wherry_value *moments = build_list(
        build_dict("step", build_int(7), "exp_avg", floats(2, 3, 5), "exp_avg_sq", floats(2, 3, 6), NULL), NULL);
    wherry_value *source = build_dict("model", build_dict("w", floats(2, 3, 1), NULL), "state", moments, NULL);
    wherry_value *target = build_dict("model", build_dict("w", floats(2, 3, 9), NULL), "state", build_dict(NULL), NULL);
    wherry_plan_options options = with_flags(WHERRY_PLAN_NEW);
    wherry_plan_summary summary;
    wherry_plan *plan;
    wherry_value *result;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    wherry_plan_summarize(plan, &summary);
    assert_int_equal(summary.tensors, 3);
    assert_int_equal(summary.bytes, 3 * 24);
    assert_int_equal(summary.missing, 0);
    assert_int_equal(summary.extra, 3);
    assert_string_equal(wherry_plan_extra(plan, 0), "state[0].step");
    assert_string_equal(wherry_plan_extra(plan, 1), "state[0].exp_avg");
    assert_string_equal(wherry_plan_extra(plan, 2), "state[0].exp_avg_sq");
    execute_plan(source, plan);
    must(wherry_plan_take_state(plan, &result, &error));
    wherry_plan_destroy(plan);
    must(wherry_value_compare(source, result, WHERRY_COMPARE_ALL, &error));
    must(wherry_value_compare(wherry_dict_get(source, "model"), wherry_dict_get(target, "model"), WHERRY_COMPARE_ALL,
                              &error));
    assert_ptr_equal(storage_of(wherry_dict_get(result, "model"), "w"),
                     storage_of(wherry_dict_get(target, "model"), "w"));
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

/**
 * Three views of one storage, one of them with a target. The other two share a new storage of the
 * full size.
 */
static void test_views_without_a_target_share_a_new_storage(void **state) {
    (void)state;
    wherry_storage *storage = build_storage(160, 1);
    wherry_value *source = build_dict("a", build_view(storage, WHERRY_F32, 0, 1, SHAPE(10), NULL), "b",
                                      build_view(storage, WHERRY_F32, 4, 1, SHAPE(10), NULL), "c",
                                      build_view(storage, WHERRY_F32, 20, 2, SHAPE(2, 4), SHAPE(8, 2)), NULL);
    wherry_value *target = build_dict("b", build_tensor(build_storage(56, 9), WHERRY_F32, 4, 1, SHAPE(10), NULL), NULL);
    wherry_value *result = ferry(source, target, WHERRY_PLAN_NEW);
    must(wherry_value_compare(source, result, WHERRY_COMPARE_NO_SHARING, &error));
    assert_ptr_equal(storage_of(result, "a"), storage_of(result, "c"));
    assert_ptr_equal(storage_of(result, "b"), storage_of(target, "b"));
    assert_int_equal(wherry_storage_nbytes(storage_of(result, "a")), 160);
    assert_int_equal(wherry_tensor_get(wherry_dict_get(result, "c"))->offset, 20);
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
    wherry_storage_unref(storage);
}

/**
 * The local tensor of a DTensor and the shards of a ShardedTensor. The places name the receiving
 * rank and device.
 */
static void test_sharded_tensors_get_memory(void **state) {
    (void)state;
    wherry_mesh *mesh = build_mesh(1, SHAPE(2));
    wherry_placement placement = {.kind = WHERRY_SHARD};
    wherry_dtensor dtensor = {.local = floats(2, 3, 1),
                              .mesh = mesh,
                              .placements = &placement,
                              .dtype = WHERRY_F32,
                              .ndim = 2,
                              .shape = SHAPE(4, 3),
                              .strides = SHAPE(3, 1)};
    wherry_shard_info infos[] = {{SHAPE(0, 0), SHAPE(1, 4), {5, {WHERRY_DEVICE_CUDA, 2}}},
                                 {SHAPE(1, 0), SHAPE(1, 4), {6, {WHERRY_DEVICE_CUDA, 1}}}};
    wherry_shard shards[] = {{floats(1, 4, 20), infos[0]}, {floats(1, 4, 30), infos[1]}};
    wherry_sharded sharded = {.dtype = WHERRY_F32,
                              .ndim = 2,
                              .shape = SHAPE(2, 4),
                              .shard_count = 2,
                              .shards = shards,
                              .global_count = 2,
                              .global = infos};
    wherry_value *part;
    wherry_value *pieces;
    must(wherry_dtensor_create(&dtensor, &part, &error));
    must(wherry_sharded_create(&sharded, &pieces, &error));
    wherry_mesh_unref(mesh);
    wherry_value *source = build_dict("w", floats(2, 2, 1), "d", part, "s", pieces, NULL);
    wherry_value *target = build_dict("w", floats(2, 2, 8), NULL);
    wherry_value *result = ferry(source, target, WHERRY_PLAN_NEW);
    must(wherry_value_compare(wherry_dict_get(source, "d"), wherry_dict_get(result, "d"), WHERRY_COMPARE_ALL, &error));
    must(wherry_value_compare(wherry_dict_get(source, "w"), wherry_dict_get(target, "w"), WHERRY_COMPARE_ALL, &error));
    const wherry_sharded *from = wherry_sharded_get(wherry_dict_get(source, "s"));
    const wherry_sharded *to = wherry_sharded_get(wherry_dict_get(result, "s"));
    for (uint32_t i = 0; i < 2; i++) {
        assert_memory_equal(wherry_storage_data(wherry_tensor_get(to->shards[i].tensor)->storage),
                            wherry_storage_data(wherry_tensor_get(from->shards[i].tensor)->storage), 16);
        assert_int_equal(to->shards[i].info.place.rank, 3);
        assert_int_equal(to->shards[i].info.place.device.kind, WHERRY_DEVICE_CPU);
    }
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static void test_empty_containers_are_filled(void **state) {
    (void)state;
    wherry_value *containers[] = {build_dict(NULL), build_list(NULL), build_tuple(NULL),
                                  build_object("collections.OrderedDict", build_dict(NULL))};
    wherry_value *sources[] = {build_dict("a", floats(1, 2, 1), NULL), build_list(floats(1, 2, 1), build_int(2), NULL)};
    for (size_t i = 0; i < sizeof(containers) / sizeof(*containers); i++) {
        for (size_t k = 0; k < 2; k++) {
            wherry_value *result = ferry(sources[k], containers[i], WHERRY_PLAN_NEW);
            must(wherry_value_compare(sources[k], result, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(result);
        }
        wherry_value_destroy(containers[i]);
    }
    wherry_value_destroy(sources[0]);
    wherry_value_destroy(sources[1]);
}

/** A none in the target is a placeholder. */
static void test_none_is_a_placeholder(void **state) {
    (void)state;
    wherry_value *source =
        build_dict("w", floats(1, 2, 1), "d", build_dict("x", floats(2, 2, 9), NULL), "a", floats(1, 3, 5), NULL);
    wherry_value *target = build_dict("w", build_none(), "d", build_none(), "a", floats(1, 3, 70), NULL);
    wherry_value *received = ferry(source, target, WHERRY_PLAN_NEW);
    must(wherry_value_compare(source, received, WHERRY_COMPARE_ALL, &error));
    assert_ptr_equal(wherry_tensor_get(wherry_dict_get(received, "a"))->storage,
                     wherry_tensor_get(wherry_dict_get(target, "a"))->storage);
    wherry_value_destroy(received);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
}

static void test_still_refuses_other_differences(void **state) {
    (void)state;
    uint32_t anew = WHERRY_PLAN_NEW;
    refused(build_dict("w", floats(1, 2, 1), NULL), build_dict("w", build_none(), NULL), 0, "the kinds differ");
    refused(build_dict("w", build_none(), NULL), build_dict("w", floats(1, 2, 1), NULL), anew, "the kinds differ");
    refused(build_dict("w", build_int(1), NULL), build_dict("w", floats(1, 2, 1), NULL), anew, "the kinds differ");
    refused(build_dict("w", floats(1, 2, 1), NULL), build_dict("w", build_dict(NULL), NULL), anew, "the kinds differ");
    refused(build_list(floats(1, 2, 1), NULL), build_dict("a", build_int(1), NULL), anew,
            "the kinds of containers differ");
    refused(build_list(NULL), build_dict("a", build_int(1), NULL), anew, "the kinds of containers differ");
    refused(build_dict("w", floats(1, 2, 1), "n", floats(1, 1, 1), NULL), build_dict("w", floats(2, 1, 1), NULL), anew,
            "the shapes differ");
    refused(build_dict("n", floats(1, 2, 1), NULL), build_dict("w", floats(1, 2, 1), NULL), anew,
            "missing from the source (1): 'w'; use WHERRY_RECV_PARTIAL to receive what both have");
    assert_null(strstr(error.message, "of the source"));
    refused(build_dict("w", floats(1, 2, 1), NULL), build_dict(NULL), 0,
            "WHERRY_RECV_NEW to receive the rest into new memory");
    refused(build_dict("l", build_list(floats(1, 2, 1), NULL), NULL), build_dict("l", build_dict(NULL), NULL),
            WHERRY_PLAN_PARTIAL, "the kinds of containers differ");
}

/**
 * With both flags, leaves missing from the source stay, and those missing from the target are new.
 */
static void test_partial_and_new_can_be_combined(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", floats(1, 2, 1), "b", floats(1, 2, 2), NULL);
    wherry_value *target = build_dict("a", floats(1, 2, 3), "c", floats(1, 2, 4), NULL);
    wherry_value *left = floats(1, 2, 4);
    wherry_value *result = ferry(source, target, WHERRY_PLAN_NEW | WHERRY_PLAN_PARTIAL);
    must(wherry_value_compare(source, result, WHERRY_COMPARE_ALL, &error));
    must(wherry_value_compare(wherry_dict_get(source, "a"), wherry_dict_get(target, "a"), WHERRY_COMPARE_ALL, &error));
    must(wherry_value_compare(left, wherry_dict_get(target, "c"), WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(left);
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

typedef struct asked {
    uint64_t nbytes[4];
    size_t count;
    size_t fail_at; /**< The number of the call that fails. */
} asked;

static wherry_status allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    asked *a = context;
    assert_true(a->count < 4);
    a->nbytes[a->count++] = nbytes;
    return a->count == a->fail_at ? WHERRY_NOT_FOUND : wherry_storage_allocate(nbytes, device, storage_p, &error);
}

/**
 * Memory is requested once per needed storage. If the request fails, the decoded state is still
 * valid.
 */
static void test_allocates_once_per_storage(void **state) {
    (void)state;
    wherry_storage *shared = build_storage(100, 1);
    wherry_value *source = build_dict("a", floats(1, 4, 1), "b", build_view(shared, WHERRY_U8, 10, 1, SHAPE(20), NULL),
                                      "c", floats(1, 1, 1), "d", build_view(shared, WHERRY_U8, 50, 1, SHAPE(20), NULL),
                                      "e", build_view(shared, WHERRY_U8, 0, 1, SHAPE(5), NULL), "f",
                                      build_tensor(build_storage(0, 1), WHERRY_F32, 0, 1, SHAPE(0), NULL), NULL);
    wherry_value *target =
        build_dict("a", floats(1, 4, 9), "e", build_tensor(build_storage(5, 1), WHERRY_U8, 0, 1, SHAPE(5), NULL), NULL);
    wherry_prepared *prepared = build_received(source, -1);
    wherry_plan_options options = with_flags(WHERRY_PLAN_NEW);
    wherry_plan *plan;
    for (size_t fail_at = 1; fail_at <= 3; fail_at++) {
        asked a = {.fail_at = fail_at};
        options.allocate = allocate;
        options.context = &a;
        if (fail_at == 3) {
            must(wherry_plan_create(prepared, target, &options, &plan, &error));
            assert_int_equal(a.count, 2);
            assert_int_equal(a.nbytes[0], 100);
            assert_int_equal(a.nbytes[1], 4);
        } else {
            must_fail(WHERRY_NOT_FOUND, error, wherry_plan_create(prepared, target, &options, &plan, &error));
        }
    }
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
    wherry_storage_unref(shared);
}

/** The flag changes nothing without a target, or if the target lacks nothing. */
static void test_flag_changes_nothing_if_nothing_is_missing(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", floats(1, 2, 1), "n", build_int(3), NULL);
    wherry_value *target = build_dict("a", floats(1, 2, 7), "n", build_int(4), NULL);
    for (int in_place = 0; in_place < 2; in_place++) {
        wherry_value *result = ferry(source, in_place ? target : NULL, WHERRY_PLAN_NEW);
        must(wherry_value_compare(source, result, WHERRY_COMPARE_ALL, &error));
        assert_true((storage_of(result, "a") == storage_of(target, "a")) == (in_place == 1));
        wherry_value_destroy(result);
    }
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fresh_optimizer_gets_memory),
        cmocka_unit_test(test_views_without_a_target_share_a_new_storage),
        cmocka_unit_test(test_sharded_tensors_get_memory),
        cmocka_unit_test(test_empty_containers_are_filled),
        cmocka_unit_test(test_none_is_a_placeholder),
        cmocka_unit_test(test_still_refuses_other_differences),
        cmocka_unit_test(test_partial_and_new_can_be_combined),
        cmocka_unit_test(test_allocates_once_per_storage),
        cmocka_unit_test(test_flag_changes_nothing_if_nothing_is_missing),
    };
    return cmocka_run_group_tests_name("plan_new", tests, NULL, NULL);
}
