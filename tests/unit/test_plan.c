/*
 * Plans: which states are refused, with which path and message, without writing anything; partial
 * mode; the received state.
 */
#include "support/build.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static wherry_error error;

static wherry_value *floats(int64_t rows, int64_t columns, uint8_t seed) {
    uint64_t nbytes = (uint64_t)(rows * columns) * 4;
    return build_tensor(build_storage(nbytes, seed), WHERRY_F32, 0, 2, SHAPE(rows, columns), NULL);
}

static wherry_value *flagged(uint32_t flags) {
    wherry_storage *storage = build_storage(64, 3);
    wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_C64, .flags = flags, .ndim = 1, .shape = SHAPE(8)};
    wherry_value *value;
    must(wherry_tensor_create(&tensor, &value, &error));
    wherry_storage_unref(storage);
    return value;
}

/** Host memory that claims to be on a device. */
static wherry_value *on_device(wherry_device_kind kind) {
    static char memory[24];
    wherry_storage *storage;
    must(wherry_storage_wrap(memory, sizeof(memory), (wherry_device){kind, 0}, NULL, NULL, &storage, &error));
    return build_tensor(storage, WHERRY_F32, 0, 2, SHAPE(2, 3), NULL);
}

/**
 * Planning must fail with this path and message. The decoded state stays valid and can be planned.
 */
static void refused_with(const wherry_value *source, const wherry_value *target, const wherry_plan_options *options,
                         wherry_status status, const char *path, const char *words) {
    wherry_prepared *prepared = build_received(source, -1);
    wherry_plan_options fresh;
    wherry_plan *plan;
    must_fail(status, error, wherry_plan_create(prepared, target, options, &plan, &error));
    assert_string_equal(error.path, path);
    if (!strstr(error.message, words)) {
        fail_msg("the message '%s' lacks '%s'", error.message, words);
    }
    wherry_plan_options_init(&fresh);
    fresh.flags = WHERRY_PLAN_TO_DEVICE;
    must(wherry_plan_create(prepared, NULL, &fresh, &plan, &error));
    wherry_plan_destroy(plan);
}

/** Like refused_with, for two values under the name `w`. Destroys them. */
static void refused(wherry_value *source, wherry_value *target, wherry_status status, const char *words) {
    wherry_value *one = build_dict("w", source, NULL);
    wherry_value *other = build_dict("w", target, NULL);
    refused_with(one, other, NULL, status, "w", words);
    wherry_value_destroy(one);
    wherry_value_destroy(other);
}

static void test_refuses_tensors_that_differ(void **state) {
    (void)state;
    wherry_value *halves = build_tensor(build_storage(12, 1), WHERRY_F16, 0, 2, SHAPE(2, 3), NULL);
    wherry_value *ints = build_tensor(build_storage(24, 1), WHERRY_I32, 0, 2, SHAPE(2, 3), NULL);
    refused(floats(2, 3, 1), floats(3, 2, 2), WHERRY_MISMATCH, "the shapes differ");
    refused(floats(2, 3, 1), build_tensor(build_storage(24, 1), WHERRY_F32, 0, 1, SHAPE(6), NULL), WHERRY_MISMATCH,
            "the shapes differ");
    refused(floats(2, 3, 1), halves, WHERRY_MISMATCH, "the dtypes differ");
    refused(floats(2, 3, 1), ints, WHERRY_MISMATCH, "the dtypes differ");
    refused(flagged(WHERRY_TENSOR_CONJ), flagged(0), WHERRY_MISMATCH, "conj or neg");
    refused(flagged(0), flagged(WHERRY_TENSOR_NEG), WHERRY_MISMATCH, "conj or neg");
    refused(floats(2, 3, 1), on_device(WHERRY_DEVICE_CUDA), WHERRY_MISMATCH, "the devices differ");
    refused(on_device(WHERRY_DEVICE_CUDA), on_device(WHERRY_DEVICE_CUDA), WHERRY_UNSUPPORTED, "cuda:0");
    refused(floats(2, 3, 1), build_tensor(build_bare(24), WHERRY_F32, 0, 2, SHAPE(2, 3), NULL), WHERRY_UNSUPPORTED,
            "which this process cannot write, or it has no memory");
}

static void test_refuses_kinds_that_differ(void **state) {
    (void)state;
    refused(floats(2, 3, 1), build_int(1), WHERRY_MISMATCH, "the kinds differ");
    refused(build_int(1), floats(2, 3, 1), WHERRY_MISMATCH, "the target has float32[2, 3]");
    refused(build_list(floats(1, 1, 1), NULL), floats(1, 1, 1), WHERRY_MISMATCH, "the kinds differ");
    refused(build_list(floats(1, 1, 1), NULL), build_dict("a", floats(1, 1, 1), NULL), WHERRY_MISMATCH,
            "the kinds of containers differ");
}

static void test_error_names_both_sides_and_the_path(void **state) {
    (void)state;
    wherry_value *source = build_dict("layers", build_list(build_dict("q.weight", floats(2, 3, 1), NULL), NULL), NULL);
    wherry_value *target = build_dict("layers", build_list(build_dict("q.weight", floats(2, 4, 1), NULL), NULL), NULL);
    const char *path = "layers[0][\"q.weight\"]";
    refused_with(source, target, NULL, WHERRY_MISMATCH, path, "the source has float32[2, 3]");
    refused_with(source, target, NULL, WHERRY_MISMATCH, path, "the target has float32[2, 4]");
    refused_with(source, target, NULL, WHERRY_MISMATCH, path, path);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static void test_flag_allows_other_devices(void **state) {
    (void)state;
    wherry_value *source = build_dict("w", on_device(WHERRY_DEVICE_CUDA), NULL);
    wherry_value *target = build_dict("w", floats(2, 3, 9), NULL);
    wherry_plan_options options;
    wherry_plan *plan;
    wherry_plan_options_init(&options);
    refused_with(source, target, &options, WHERRY_MISMATCH, "w", "cuda:0");
    options.flags = WHERRY_PLAN_ANY_DEVICE;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    wherry_plan_destroy(plan);
    wherry_prepared *prepared = build_received(source, -1);
    must_fail(WHERRY_UNSUPPORTED, error, wherry_plan_create(prepared, NULL, NULL, &plan, &error));
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static void test_refuses_missing_and_extra_leaves(void **state) {
    (void)state;
    wherry_value *source = build_dict("a", floats(1, 2, 1), "b", floats(1, 2, 2), "step", build_int(7), NULL);
    wherry_value *target = build_dict("c", build_list(floats(1, 2, 3), build_none(), NULL), "a", floats(1, 2, 4), NULL);
    refused_with(source, target, NULL, WHERRY_MISMATCH, "c[0]", "missing from the source (2): 'c[0]', 'c[1]'");
    refused_with(source, target, NULL, WHERRY_MISMATCH, "c[0]", "missing from the target (2): 'b', 'step'");

    wherry_plan_options options;
    wherry_plan *plan;
    wherry_plan_summary summary;
    wherry_value *result;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_PARTIAL;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    wherry_plan_summarize(plan, &summary);
    assert_int_equal(summary.tensors, 1);
    assert_int_equal(summary.bytes, 8);
    assert_int_equal(summary.missing, 2);
    assert_int_equal(summary.extra, 2);
    assert_string_equal(wherry_plan_missing(plan, 0), "c[0]");
    assert_string_equal(wherry_plan_missing(plan, 1), "c[1]");
    assert_null(wherry_plan_missing(plan, 2));
    assert_string_equal(wherry_plan_extra(plan, 0), "b");
    assert_string_equal(wherry_plan_extra(plan, 1), "step");
    assert_null(wherry_plan_extra(plan, 2));
    execute_plan(source, plan);
    must(wherry_plan_take_state(plan, &result, &error));
    assert_int_equal(wherry_value_kind(wherry_dict_get(result, "b")), WHERRY_KIND_NONE);
    assert_int_equal(wherry_int_get(wherry_dict_get(result, "step")), 7);
    must(wherry_value_compare(wherry_dict_get(source, "a"), wherry_dict_get(target, "a"), WHERRY_COMPARE_ALL, &error));
    must(wherry_value_compare(wherry_dict_get(result, "a"), wherry_dict_get(target, "a"), WHERRY_COMPARE_ALL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_take_state(plan, &result, &error));
    wherry_plan_destroy(plan);
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

/** The part of one rank of a DTensor over two ranks. */
static wherry_value *row_shard(int64_t local_rows, int64_t rows, uint32_t dim) {
    wherry_mesh *mesh = build_mesh(1, SHAPE(2));
    wherry_placement placement = {.kind = WHERRY_SHARD, .dim = dim};
    wherry_dtensor dtensor = {.local = floats(local_rows, 4, 1),
                              .mesh = mesh,
                              .placements = &placement,
                              .dtype = WHERRY_F32,
                              .ndim = 2,
                              .shape = SHAPE(rows, 4),
                              .strides = SHAPE(4, 1)};
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, &error));
    wherry_mesh_unref(mesh);
    return value;
}

static void test_partial_mode_ignores_extra_parts(void **state) {
    (void)state;
    wherry_value *source = build_dict("d", row_shard(2, 4, 0), "w", floats(2, 2, 1), NULL);
    wherry_value *target = build_dict("w", floats(2, 2, 8), NULL);
    wherry_plan_options options;
    wherry_plan *plan;
    wherry_value *result;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_PARTIAL;
    must(wherry_plan_create(build_received(source, 0), target, &options, &plan, &error));
    execute_plan(source, plan);
    must(wherry_value_compare(wherry_dict_get(source, "w"), wherry_dict_get(target, "w"), WHERRY_COMPARE_ALL, &error));
    must(wherry_plan_take_state(plan, &result, &error));
    assert_int_equal(wherry_value_kind(wherry_dict_get(result, "d")), WHERRY_KIND_NONE);
    wherry_plan_destroy(plan);
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static void test_refuses_boxes_that_differ(void **state) {
    (void)state;
    wherry_value *source = build_dict("w", row_shard(3, 6, 0), NULL);
    wherry_value *target = build_dict("w", row_shard(3, 6, 0), NULL);
    wherry_value *larger = build_dict("w", row_shard(3, 5, 0), NULL);
    wherry_value *turned = build_dict("w", row_shard(3, 6, 1), NULL);
    wherry_plan_options options;
    wherry_plan *plan;
    wherry_plan_options_init(&options);
    refused_with(source, larger, &options, WHERRY_MISMATCH, "w", "the global shapes differ");
    refused_with(source, turned, &options, WHERRY_MISMATCH, "w", "the placements differ");
    options.rank = 0;
    must(wherry_plan_create(build_received(source, 0), target, &options, &plan, &error));
    wherry_plan_destroy(plan);
    options.rank = 1;
    wherry_prepared *prepared = build_received(source, 0);
    must_fail(WHERRY_MISMATCH, error, wherry_plan_create(prepared, target, &options, &plan, &error));
    assert_non_null(strstr(error.message, "different boxes of the global tensor, ["));
    assert_non_null(strstr(error.message, "] at the source and ["));
    const char *ours = strstr(error.message, "tensor, [");
    const char *theirs = strstr(error.message, " and [");
    assert_true(strncmp(ours + strlen("tensor, "), theirs + strlen(" and "), strcspn(ours, "]") - strlen("tensor, ")) !=
                0);
    assert_non_null(strstr(error.message, "receive from a rank that has the same box"));
    options.flags = WHERRY_PLAN_ANY_BOX;
    must(wherry_plan_create(prepared, target, &options, &plan, &error));
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
    wherry_value_destroy(larger);
    wherry_value_destroy(turned);
}

/** A ShardedTensor of three rows, two of them local, in the given order. */
static wherry_value *two_shards(int64_t first, int64_t second, uint8_t seed) {
    int64_t offsets[3][2] = {{0, 0}, {1, 0}, {2, 0}};
    int64_t sizes[] = {1, 4};
    wherry_shard_info infos[3];
    for (int i = 0; i < 3; i++) {
        infos[i] = (wherry_shard_info){offsets[i], sizes, {5, {WHERRY_DEVICE_CUDA, 2}}};
    }
    wherry_shard shards[] = {{floats(1, 4, (uint8_t)(seed + first)), infos[first]},
                             {floats(1, 4, (uint8_t)(seed + second)), infos[second]}};
    wherry_sharded sharded = {.dtype = WHERRY_F32,
                              .ndim = 2,
                              .shape = SHAPE(3, 4),
                              .shard_count = 2,
                              .shards = shards,
                              .global_count = 3,
                              .global = infos};
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, &error));
    return value;
}

static const char *shard_bytes(const wherry_value *value, uint32_t number) {
    return wherry_storage_data(wherry_tensor_get(wherry_sharded_get(value)->shards[number].tensor)->storage);
}

static void test_shards_are_matched_by_their_boxes(void **state) {
    (void)state;
    wherry_value *source = two_shards(0, 2, 10);
    wherry_value *target = two_shards(2, 0, 90);
    wherry_value *other = two_shards(1, 2, 0);
    wherry_plan_options options;
    wherry_plan *plan;
    wherry_value *result;
    wherry_plan_options_init(&options);
    options.rank = 3;
    refused_with(source, other, &options, WHERRY_MISMATCH, "", "no shard with the box of local shard 0");
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    void *bytes;
    size_t size;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_manifest_encode(wherry_plan_prepared(plan), &bytes, &size, &error));
    execute_plan(source, plan);
    assert_memory_equal(shard_bytes(target, 0), shard_bytes(source, 1), 16);
    assert_memory_equal(shard_bytes(target, 1), shard_bytes(source, 0), 16);
    must(wherry_plan_take_state(plan, &result, &error));
    for (uint32_t i = 0; i < 2; i++) {
        wherry_shard_place place = wherry_sharded_get(result)->shards[i].info.place;
        assert_int_equal(place.rank, 3);
        assert_int_equal(place.device.kind, WHERRY_DEVICE_CPU);
    }
    wherry_plan_destroy(plan);
    wherry_value_destroy(result);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
    wherry_value_destroy(other);
}

static wherry_status refuse_to_allocate(void *context, uint64_t nbytes, wherry_device device,
                                        wherry_storage **storage_p) {
    (void)context;
    (void)nbytes;
    (void)device;
    (void)storage_p;
    return WHERRY_SYSTEM;
}

static wherry_status allocate_too_little(void *context, uint64_t nbytes, wherry_device device,
                                         wherry_storage **storage_p) {
    ++*(int *)context;
    return wherry_storage_allocate(nbytes - 1, device, storage_p, NULL);
}

static void test_failed_allocate_is_reported(void **state) {
    (void)state;
    wherry_value *source = build_dict("w", floats(2, 2, 1), "e", floats(0, 3, 1), NULL);
    wherry_prepared *prepared = build_received(source, -1);
    wherry_plan_options options;
    wherry_plan *plan;
    int calls = 0;
    wherry_plan_options_init(&options);
    options.allocate = refuse_to_allocate;
    must_fail(WHERRY_SYSTEM, error, wherry_plan_create(prepared, NULL, &options, &plan, &error));
    options.allocate = allocate_too_little;
    options.context = &calls;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_create(prepared, NULL, &options, &plan, &error));
    assert_int_equal(calls, 1);
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(source);
}

static void test_refuses_invalid_arguments(void **state) {
    (void)state;
    wherry_value *source = build_dict("w", floats(2, 2, 1), NULL);
    wherry_prepared *own;
    wherry_prepared *prepared = build_received(source, -1);
    wherry_plan_options options;
    wherry_plan *plan;
    char bytes[16] = {0};
    must(wherry_prepare(source, NULL, &own, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_create(own, NULL, NULL, &plan, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_create(NULL, NULL, NULL, &plan, &error));
    wherry_plan_options_init(&options);
    options.flags = 1U << 31;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_create(prepared, NULL, &options, &plan, &error));
    wherry_plan_options_init(&options);
    options.struct_size = 0;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_create(prepared, NULL, &options, &plan, &error));
    must(wherry_plan_create(prepared, NULL, NULL, &plan, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_place(plan, 0, bytes, 15, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_plan_place(plan, 1, bytes, 16, &error));
    must(wherry_plan_place(plan, 0, bytes, 16, &error));
    assert_false(wherry_plan_chunk_is_direct(plan, 1));
    wherry_plan_destroy(plan);
    wherry_prepared_destroy(own);
    wherry_value_destroy(source);
}

/** A receiver that wants one of three matrices asks only for its chunks. */
static void test_requests_only_needed_chunks(void **state) {
    (void)state;
    enum { ROWS = 1024, COLUMNS = 1536 };
    wherry_value *source =
        build_dict("a", floats(ROWS, COLUMNS, 1), "b", floats(ROWS, COLUMNS, 2), "c", floats(ROWS, COLUMNS, 3), NULL);
    wherry_value *target = build_dict("b", floats(ROWS, COLUMNS, 9), NULL);
    wherry_plan_options options;
    wherry_plan *plan;
    size_t count;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_PARTIAL;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    assert_int_equal(count, 1);
    assert_int_equal(intervals[0].first, 1);
    assert_int_equal(intervals[0].count, 2);
    execute_plan(source, plan);
    must(wherry_value_compare(wherry_dict_get(source, "b"), wherry_dict_get(target, "b"), WHERRY_COMPARE_ALL, &error));
    wherry_plan_destroy(plan);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

/**
 * 20,000 small tensors of one storage are one copy; over separate storages they are a few chunks.
 */
static void test_small_tensors_are_coalesced(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    wherry_storage *storage = build_storage(COUNT * 64, 1);
    wherry_value *shared = build_list(build_none(), NULL);
    wherry_value *apart = build_list(build_none(), NULL);
    wherry_plan_summary summary;
    wherry_plan *plan;
    for (int64_t i = 0; i < COUNT; i++) {
        must(wherry_sequence_append(shared, build_view(storage, WHERRY_F32, i * 16, 1, SHAPE(16), NULL), &error));
        must(wherry_sequence_append(apart, floats(1, 16, 1), &error));
    }
    must(wherry_plan_create(build_received(shared, -1), NULL, NULL, &plan, &error));
    wherry_plan_summarize(plan, &summary);
    assert_int_equal(summary.copies, 1);
    wherry_plan_destroy(plan);
    wherry_value *target;
    must(wherry_value_copy(shared, &target, &error));
    must(wherry_plan_create(build_received(shared, -1), target, NULL, &plan, &error));
    wherry_plan_summarize(plan, &summary);
    assert_int_equal(summary.copies, 1);
    assert_int_equal(summary.tensors, COUNT);
    wherry_plan_destroy(plan);
    must(wherry_plan_create(build_received(apart, -1), NULL, NULL, &plan, &error));
    wherry_plan_summarize(plan, &summary);
    assert_int_equal(summary.copies, COUNT);
    assert_int_equal(summary.chunks, 1);
    assert_int_equal(summary.direct, 1);
    wherry_plan_destroy(plan);
    wherry_value_destroy(target);
    wherry_value_destroy(shared);
    wherry_value_destroy(apart);
    wherry_storage_unref(storage);
}

/**
 * If the extents of a manifest lack bytes of a tensor, it is refused before memory is allocated.
 */
static void test_uncovered_tensors_are_refused(void **state) {
    (void)state;
    static const unsigned char manifest[] = {/* Chunks have 4096 bytes, and the rank is -1. */
                                             0x87, 0x66, 'w', 'h', 'e', 'r', 'r', 'y', 0x01, 0x19, 0x10, 0x00, 0x20,
                                             /*
                                              * A storage of 64 bytes has one extent, bytes 0 to 31.
                                              */
                                             0x81, 0x84, 0x18, 0x40, 0x00, 0x20, 0x81, 0x82, 0x00, 0x18, 0x20,
                                             /* uint8[64] */
                                             0x80, 0x87, 0x0C, 0x00, 0x01, 0x00, 0x00, 0x81, 0x18, 0x40, 0xF6};
    wherry_prepared *prepared;
    wherry_plan *plan;
    must(wherry_manifest_decode(manifest, sizeof(manifest), NULL, &prepared, &error));
    must_fail(WHERRY_OUT_OF_BOUNDS, error, wherry_plan_create(prepared, NULL, NULL, &plan, &error));
    wherry_prepared_destroy(prepared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_tensors_that_differ),
        cmocka_unit_test(test_refuses_kinds_that_differ),
        cmocka_unit_test(test_error_names_both_sides_and_the_path),
        cmocka_unit_test(test_flag_allows_other_devices),
        cmocka_unit_test(test_refuses_missing_and_extra_leaves),
        cmocka_unit_test(test_partial_mode_ignores_extra_parts),
        cmocka_unit_test(test_refuses_boxes_that_differ),
        cmocka_unit_test(test_shards_are_matched_by_their_boxes),
        cmocka_unit_test(test_failed_allocate_is_reported),
        cmocka_unit_test(test_refuses_invalid_arguments),
        cmocka_unit_test(test_requests_only_needed_chunks),
        cmocka_unit_test(test_small_tensors_are_coalesced),
        cmocka_unit_test(test_uncovered_tensors_are_refused),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
