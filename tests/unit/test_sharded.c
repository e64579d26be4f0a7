/*
 * ShardedTensors: boxes within the global tensor, shards with the shape of their box, and who owns
 * them.
 */
#include "../support/build.h"

static const int64_t shape[] = {6, 4};
static const int64_t offsets[3][2] = {{0, 0}, {2, 0}, {4, 0}};
static const int64_t sizes[2] = {2, 4};

static wherry_value *new_shard(wherry_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t of[] = {rows, columns};
    return build_tensor(build_storage(256, 0), dtype, 0, 2, of, NULL);
}

static wherry_shard_info info_of(int number) {
    return (wherry_shard_info){offsets[number], sizes, {number, {WHERRY_DEVICE_CUDA, number}}};
}

/** A 6 by 4 tensor in three shards. Shards 0 and 2 are local; their values belong to the caller. */
typedef struct fixture {
    wherry_shard shards[2];
    wherry_shard_info global[3];
    wherry_shard_place places[3];
    wherry_sharded sharded;
} fixture;

static void set_up(fixture *f) {
    for (int i = 0; i < 3; i++) {
        f->global[i] = info_of(i);
        f->places[i] = f->global[i].place;
    }
    f->shards[0] = (wherry_shard){new_shard(WHERRY_F32, 2, 4), info_of(0)};
    f->shards[1] = (wherry_shard){new_shard(WHERRY_F32, 2, 4), info_of(2)};
    f->sharded = (wherry_sharded){
        .dtype = WHERRY_F32,
        .requires_grad = true,
        .pin_memory = true,
        .format = WHERRY_FORMAT_PRESERVE,
        .ndim = 2,
        .shape = shape,
        .shard_count = 2,
        .shards = f->shards,
        .global_count = 3,
        .global = f->global,
        .sharding = {.kind = WHERRY_SHARDING_CHUNK, .dim = -2, .count = 3, .places = f->places},
    };
}

static void check_info(const wherry_shard_info *info, int number) {
    assert_true(info->offsets != offsets[number] && info->sizes != sizes);
    assert_memory_equal(info->offsets, offsets[number], sizeof(offsets[number]));
    assert_memory_equal(info->sizes, sizes, sizeof(sizes));
    assert_int_equal(info->place.rank, number);
    assert_int_equal(info->place.device.kind, WHERRY_DEVICE_CUDA);
    assert_int_equal(info->place.device.index, number);
}

static void test_create(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    wherry_value *value;
    must(wherry_sharded_create(&f.sharded, &value, NULL));
    const wherry_sharded *kept = wherry_sharded_get(value);
    assert_int_equal(wherry_value_kind(value), WHERRY_KIND_SHARDED);
    assert_true(kept->dtype == WHERRY_F32 && kept->requires_grad && kept->pin_memory);
    assert_int_equal(kept->format, WHERRY_FORMAT_PRESERVE);
    assert_true(kept->ndim == 2 && kept->shape != shape && kept->shape[0] == 6 && kept->shape[1] == 4);
    assert_int_equal(kept->shard_count, 2);
    assert_ptr_equal(kept->shards[0].tensor, f.shards[0].tensor);
    assert_ptr_equal(kept->shards[1].tensor, f.shards[1].tensor);
    check_info(&kept->shards[0].info, 0);
    check_info(&kept->shards[1].info, 2);
    assert_int_equal(kept->global_count, 3);
    for (int i = 0; i < 3; i++) {
        check_info(kept->global + i, i);
    }
    assert_true(kept->sharding.kind == WHERRY_SHARDING_CHUNK && kept->sharding.dim == -2 && !kept->sharding.boxes);
    assert_int_equal(kept->sharding.count, 3);
    assert_int_equal(kept->sharding.places[2].rank, 2);
    wherry_error error;
    wherry_value *list = build_list(NULL);
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sequence_append(list, f.shards[1].tensor, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sharded_create(&f.sharded, &list, &error));
    wherry_value *copy;
    must(wherry_value_copy(value, &copy, NULL));
    must(wherry_value_compare(value, copy, WHERRY_COMPARE_ALL, NULL));
    wherry_value_destroy(list);
    wherry_value_destroy(value);
    check_info(&wherry_sharded_get(copy)->shards[1].info, 2);
    wherry_value_destroy(copy);
}

static void test_enumerable(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    f.sharded.sharding = (wherry_sharding){.kind = WHERRY_SHARDING_ENUMERABLE, .count = 3, .boxes = f.global};
    wherry_value *value;
    must(wherry_sharded_create(&f.sharded, &value, NULL));
    const wherry_sharding *kept = &wherry_sharded_get(value)->sharding;
    assert_true(kept->kind == WHERRY_SHARDING_ENUMERABLE && kept->count == 3 && !kept->places && kept->dim == 0);
    for (int i = 0; i < 3; i++) {
        check_info(kept->boxes + i, i);
    }
    wherry_value_destroy(value);
}

static void test_nothing_here(void **state) {
    (void)state;
    wherry_sharded empty = {.dtype = WHERRY_U8, .ndim = 2, .shape = shape};
    wherry_value *value;
    must(wherry_sharded_create(&empty, &value, NULL));
    assert_int_equal(wherry_sharded_get(value)->shard_count, 0);
    assert_int_equal(wherry_sharded_get(value)->sharding.kind, WHERRY_SHARDING_NONE);
    wherry_value *copy;
    must(wherry_value_copy(value, &copy, NULL));
    must(wherry_value_compare(value, copy, WHERRY_COMPARE_ALL, NULL));
    wherry_value_destroy(copy);
    wherry_value_destroy(value);
}

static void test_scalar(void **state) {
    (void)state;
    wherry_shard shard = {build_tensor(build_storage(4, 0), WHERRY_F32, 0, 0, NULL, NULL),
                          {NULL, NULL, {-1, {WHERRY_DEVICE_CPU, -1}}}};
    wherry_sharded sharded = {.dtype = WHERRY_F32, .shard_count = 1, .shards = &shard};
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, NULL));
    assert_int_equal(wherry_sharded_get(value)->shards[0].info.place.rank, -1);
    wherry_value_destroy(value);
}

/** It is refused, and both tensors still belong to the caller. */
static void refuse(fixture *f) {
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sharded_create(&f->sharded, &value, &error));
    assert_null(value);
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < 2; i++) {
        if (f->shards[i].tensor && (i == 0 || f->shards[1].tensor != f->shards[0].tensor)) {
            must(wherry_sequence_append(list, f->shards[i].tensor, NULL));
        }
    }
    wherry_value_destroy(list);
}

static void test_boxes_outside(void **state) {
    (void)state;
    static const int64_t bad[][2][2] = {
        {{5, 0}, {2, 4}}, {{0, 1}, {2, 4}}, {{-1, 0}, {2, 4}},        {{0, 0}, {-2, 4}},
        {{7, 0}, {0, 4}}, {{0, 0}, {2, 5}}, {{INT64_MAX, 0}, {2, 4}}, {{2, 0}, {INT64_MAX, 4}},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        fixture f;
        set_up(&f);
        f.global[1].offsets = bad[i][0];
        f.global[1].sizes = bad[i][1];
        refuse(&f);
        set_up(&f);
        f.shards[1].info.offsets = bad[i][0];
        f.shards[1].info.sizes = bad[i][1];
        refuse(&f);
        set_up(&f);
        wherry_shard_info box = {bad[i][0], bad[i][1], {0, {WHERRY_DEVICE_CPU, -1}}};
        f.sharded.sharding = (wherry_sharding){.kind = WHERRY_SHARDING_ENUMERABLE, .count = 1, .boxes = &box};
        refuse(&f);
    }
}

static void replace(fixture *f, wherry_value *tensor) {
    wherry_value_destroy(f->shards[1].tensor);
    f->shards[1].tensor = tensor;
}

static void test_shards_refused(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    replace(&f, new_shard(WHERRY_I32, 2, 4));
    refuse(&f);
    set_up(&f);
    replace(&f, new_shard(WHERRY_F32, 4, 2));
    refuse(&f);
    set_up(&f);
    replace(&f, new_shard(WHERRY_F32, 1, 4));
    refuse(&f);
    set_up(&f);
    replace(&f, build_tensor(build_storage(32, 0), WHERRY_F32, 0, 1, sizes, NULL));
    refuse(&f);
    set_up(&f);
    replace(&f, build_int(1));
    refuse(&f);
    set_up(&f);
    replace(&f, NULL);
    refuse(&f);
    set_up(&f);
    replace(&f, f.shards[0].tensor);
    refuse(&f);
    set_up(&f);
    wherry_value *list = build_list(f.shards[1].tensor, NULL);
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sharded_create(&f.sharded, &value, &error));
    assert_null(value);
    wherry_value_destroy(f.shards[0].tensor);
    wherry_value_destroy(list);
}

typedef void (*spoil_fn)(fixture *f);

static void spoil_dtype(fixture *f) {
    f->sharded.dtype = (wherry_dtype)99;
}

static void spoil_format(fixture *f) {
    f->sharded.format = (wherry_memory_format)4;
}

static void spoil_ndim(fixture *f) {
    f->sharded.ndim = WHERRY_NDIM_MAX + 1;
}

static void spoil_shape(fixture *f) {
    f->sharded.shape = NULL;
}

static void spoil_size(fixture *f) {
    static const int64_t minus[] = {6, -4};
    f->sharded.shape = minus;
}

static void spoil_shards(fixture *f) {
    f->sharded.shards = NULL;
}

static void spoil_global(fixture *f) {
    f->sharded.global = NULL;
}

static void spoil_rank(fixture *f) {
    f->global[0].place.rank = -2;
}

static void spoil_places(fixture *f) {
    f->sharded.sharding.places = NULL;
}

static void spoil_place(fixture *f) {
    f->places[2].rank = -2;
}

static void spoil_sharding(fixture *f) {
    f->sharded.sharding.kind = (wherry_sharding_kind)3;
}

static void spoil_boxes(fixture *f) {
    f->sharded.sharding = (wherry_sharding){.kind = WHERRY_SHARDING_ENUMERABLE, .count = 1};
}

static void spoil_numbers(fixture *f) {
    f->global[2].offsets = NULL;
}

static void test_refused(void **state) {
    (void)state;
    static const spoil_fn spoils[] = {spoil_dtype,    spoil_format, spoil_ndim,   spoil_shape,  spoil_size,
                                      spoil_shards,   spoil_global, spoil_rank,   spoil_places, spoil_place,
                                      spoil_sharding, spoil_boxes,  spoil_numbers};
    for (size_t i = 0; i < sizeof(spoils) / sizeof(*spoils); i++) {
        fixture f;
        set_up(&f);
        spoils[i](&f);
        refuse(&f);
    }
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_sharded_create(NULL, &value, &error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),  cmocka_unit_test(test_enumerable),    cmocka_unit_test(test_nothing_here),
        cmocka_unit_test(test_scalar),  cmocka_unit_test(test_boxes_outside), cmocka_unit_test(test_shards_refused),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
}
