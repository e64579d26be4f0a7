/*
 * Meshes, DTensors and ShardedTensors: their contents, invalid arguments, ownership, and the boxes
 * of a local tensor.
 */
#include "../support/build.h"

#include "state/sharded.h"

/*
 * ShardedTensors: boxes are within the global tensor, and shards have the shape of their box.
 * Ownership of shards.
 */

static const int64_t global_shape[] = {6, 4};
static const int64_t shard_offsets[3][2] = {{0, 0}, {2, 0}, {4, 0}};
static const int64_t shard_sizes[2] = {2, 4};

static wherry_value *new_shard(wherry_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t of[] = {rows, columns};
    return build_tensor(build_storage(256, 0), dtype, 0, 2, of, NULL);
}

static wherry_shard_info info_of(int number) {
    return (wherry_shard_info){shard_offsets[number], shard_sizes, {number, {WHERRY_DEVICE_CUDA, number}}};
}

/** A 6 by 4 tensor in three shards. Shards 0 and 2 are local; the caller owns their values. */
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
        .shape = global_shape,
        .shard_count = 2,
        .shards = f->shards,
        .global_count = 3,
        .global = f->global,
        .sharding = {.kind = WHERRY_SHARDING_CHUNK, .dim = -2, .count = 3, .places = f->places},
    };
}

static void check_info(const wherry_shard_info *info, int number) {
    assert_true(info->offsets != shard_offsets[number] && info->sizes != shard_sizes);
    assert_memory_equal(info->offsets, shard_offsets[number], sizeof(shard_offsets[number]));
    assert_memory_equal(info->sizes, shard_sizes, sizeof(shard_sizes));
    assert_int_equal(info->place.rank, number);
    assert_int_equal(info->place.device.kind, WHERRY_DEVICE_CUDA);
    assert_int_equal(info->place.device.index, number);
}

static void test_creates_sharded_tensors(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    wherry_value *value;
    must(wherry_sharded_create(&f.sharded, &value, NULL));
    const wherry_sharded *kept = wherry_sharded_get(value);
    assert_int_equal(wherry_value_kind(value), WHERRY_KIND_SHARDED);
    assert_true(kept->dtype == WHERRY_F32 && kept->requires_grad && kept->pin_memory);
    assert_int_equal(kept->format, WHERRY_FORMAT_PRESERVE);
    assert_true(kept->ndim == 2 && kept->shape != global_shape && kept->shape[0] == 6 && kept->shape[1] == 4);
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

static void test_keeps_an_enumerable_sharding(void **state) {
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

static void test_no_shard_may_be_local(void **state) {
    (void)state;
    wherry_sharded empty = {.dtype = WHERRY_U8, .ndim = 2, .shape = global_shape};
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

static void test_creates_sharded_scalars(void **state) {
    (void)state;
    wherry_shard shard = {build_tensor(build_storage(4, 0), WHERRY_F32, 0, 0, NULL, NULL),
                          {NULL, NULL, {-1, {WHERRY_DEVICE_CPU, -1}}}};
    wherry_sharded sharded = {.dtype = WHERRY_F32, .shard_count = 1, .shards = &shard};
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, NULL));
    assert_int_equal(wherry_sharded_get(value)->shards[0].info.place.rank, -1);
    wherry_value_destroy(value);
}

/** Creation must fail, and the caller still owns both tensors. */
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

static void test_refuses_boxes_outside_the_tensor(void **state) {
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

static void test_refuses_bad_shards(void **state) {
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
    replace(&f, build_tensor(build_storage(32, 0), WHERRY_F32, 0, 1, shard_sizes, NULL));
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

static void test_refuses_bad_arguments(void **state) {
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

/* Meshes and DTensors: their contents, invalid arguments, and ownership of the local tensor. */

static void test_creates_meshes(void **state) {
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

static void test_mesh_names_are_optional(void **state) {
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

static void test_refuses_bad_meshes(void **state) {
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

static const int64_t four_dims[] = {1, 2, 1, 1};
static const int64_t two_dims[] = {2, 3};

static wherry_value *new_local(void) {
    return build_tensor(build_storage(24, 0), WHERRY_F32, 0, 2, two_dims, NULL);
}

static void test_dtensor_keeps_its_placements(void **state) {
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
    wherry_mesh *mesh = build_mesh(4, four_dims);
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

static void test_dtensor_owns_its_local_tensor(void **state) {
    (void)state;
    static const int64_t one[] = {1};
    static const wherry_placement placement = {.kind = WHERRY_REPLICATE};
    wherry_mesh *mesh = build_mesh(1, one);
    wherry_value *local = new_local();
    wherry_dtensor dtensor = {local, mesh, &placement, WHERRY_F32, 0, 2, two_dims, two_dims};
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

static void refuse_dtensor(const wherry_dtensor *dtensor) {
    wherry_error error;
    wherry_value *value = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_dtensor_create(dtensor, &value, &error));
    assert_null(value);
}

static void test_refuses_bad_placements(void **state) {
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
        refuse_dtensor(&(wherry_dtensor){local, mesh, placements, WHERRY_F32, 0, 2, two_dims, two_dims});
    }
    wherry_value_destroy(local);
    wherry_mesh_unref(mesh);
}

static void test_refuses_bad_dtensors(void **state) {
    (void)state;
    static const int64_t one[] = {1};
    static const int64_t minus[] = {2, -3};
    static const wherry_placement placement = {.kind = WHERRY_REPLICATE};
    wherry_mesh *mesh = build_mesh(1, one);
    wherry_value *local = new_local();
    wherry_value *number = build_int(1);
    refuse_dtensor(NULL);
    refuse_dtensor(&(wherry_dtensor){NULL, mesh, &placement, WHERRY_F32, 0, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){number, mesh, &placement, WHERRY_F32, 0, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, NULL, &placement, WHERRY_F32, 0, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, NULL, WHERRY_F32, 0, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_I32, 0, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 1, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 2, 2, two_dims, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, minus, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, two_dims, minus});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, NULL, two_dims});
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, two_dims, NULL});
    wherry_value *list = build_list(local, NULL);
    refuse_dtensor(&(wherry_dtensor){local, mesh, &placement, WHERRY_F32, 0, 2, two_dims, two_dims});
    wherry_value_destroy(list);
    wherry_value_destroy(number);
    wherry_mesh_unref(mesh);
}

/*
 * The boxes that a rank has of its global tensor, compared with a simple model of torch, which
 * assigns each index as torch.chunk does.
 */

enum { SIDE_MAX = 14, RANKS_MAX = 64, DIMS = 3, CELLS = SIDE_MAX * SIDE_MAX * SIDE_MAX };

/** The global indices that a rank has of one dimension, in the order of its local tensor. */
typedef struct indices {
    int count;
    int at[SIDE_MAX];
} indices;

/** torch.chunk(of, pieces)[number]; empty if there are fewer pieces. */
static indices chunk(const indices *of, int pieces, int number) {
    indices result = {0};
    int length = (of->count + pieces - 1) / pieces;
    int piece = 0;
    for (int begin = 0; begin < of->count; begin += length, piece++) {
        for (int i = begin; i < begin + length && i < of->count && piece == number; i++) {
            result.at[result.count++] = of->at[i];
        }
    }
    return result;
}

static indices deal(const indices *of, int ways, int mine, int factor) {
    indices result = {0};
    for (int number = mine; number < ways * factor; number += ways) {
        indices piece = chunk(of, ways * factor, number);
        for (int i = 0; i < piece.count; i++) {
            result.at[result.count++] = piece.at[i];
        }
    }
    return result;
}

/** A layout of a DTensor. */
typedef struct layout {
    uint32_t ndim;
    int64_t shape[DIMS];
    uint32_t mesh_ndim;
    int64_t mesh_shape[DIMS];
    wherry_placement placements[DIMS];
    int rank_count;
    int64_t ranks[RANKS_MAX];
    bool all_shard;
} layout;

static void hold(const layout *l, int position, indices held[DIMS]) {
    for (uint32_t d = 0; d < l->ndim; d++) {
        held[d].count = 0;
        for (int i = 0; i < l->shape[d]; i++) {
            held[d].at[held[d].count++] = i;
        }
    }
    int coordinate[DIMS];
    for (uint32_t m = l->mesh_ndim; m-- > 0;) {
        coordinate[m] = position % (int)l->mesh_shape[m];
        position /= (int)l->mesh_shape[m];
    }
    for (uint32_t m = 0; m < l->mesh_ndim; m++) {
        const wherry_placement *p = l->placements + m;
        if (p->kind == WHERRY_SHARD) {
            held[p->dim] = chunk(held + p->dim, (int)l->mesh_shape[m], coordinate[m]);
        } else if (p->kind == WHERRY_STRIDED_SHARD) {
            held[p->dim] = deal(held + p->dim, (int)l->mesh_shape[m], coordinate[m], (int)p->split_factor);
        }
    }
}

static layout random_layout(uint64_t *seed) {
    layout l = {.ndim = (uint32_t)(next_random(seed) % (DIMS + 1)), .rank_count = 1, .all_shard = true};
    for (uint32_t d = 0; d < l.ndim; d++) {
        l.shape[d] = (int64_t)(next_random(seed) % (SIDE_MAX + 1));
    }
    l.mesh_ndim = 1 + (uint32_t)(next_random(seed) % DIMS);
    for (uint32_t m = 0; m < l.mesh_ndim; m++) {
        l.mesh_shape[m] = 1 + (int64_t)(next_random(seed) % 4);
        l.rank_count *= (int)l.mesh_shape[m];
        uint64_t kind = l.ndim ? next_random(seed) % 8 : next_random(seed) % 2 * 7;
        wherry_placement *p = l.placements + m;
        if (kind == 0) {
            *p = (wherry_placement){.kind = WHERRY_REPLICATE};
        } else if (kind == 7) {
            *p = (wherry_placement){.kind = WHERRY_PARTIAL, .reduce_op = "sum"};
        } else if (l.ndim > 0) {
            p->dim = (uint32_t)(next_random(seed) % l.ndim);
            p->kind = kind < 4 ? WHERRY_SHARD : WHERRY_STRIDED_SHARD;
            p->split_factor = kind < 4 ? 0 : 1 + (int64_t)(next_random(seed) % 5);
        }
        l.all_shard = l.all_shard && p->dim < l.ndim && (p->kind == WHERRY_SHARD || p->kind == WHERRY_STRIDED_SHARD);
    }
    for (int i = 0; i < l.rank_count; i++) {
        uint64_t other = next_random(seed) % ((uint64_t)i + 1);
        l.ranks[i] = l.ranks[other];
        l.ranks[other] = 10 + i;
    }
    return l;
}

/** The DTensor of one rank. Its local tensor has the shape that the model gives. */
static wherry_value *build_dtensor(const layout *l, const indices *held) {
    wherry_mesh_info info = {WHERRY_DEVICE_CPU, l->mesh_ndim, l->mesh_shape, l->ranks, NULL};
    int64_t local_shape[DIMS] = {0};
    for (uint32_t d = 0; d < l->ndim; d++) {
        local_shape[d] = held[d].count;
    }
    wherry_dtensor dtensor = {
        .local = build_tensor(build_bare(CELLS), WHERRY_U8, 0, l->ndim, local_shape, NULL),
        .placements = l->placements,
        .dtype = WHERRY_U8,
        .ndim = l->ndim,
        .shape = l->shape,
        .strides = l->shape,
    };
    must(wherry_mesh_create(&info, &dtensor.mesh, NULL));
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, NULL));
    wherry_mesh_unref(dtensor.mesh);
    return value;
}

/** How often the parts of one rank, and of all ranks, contain each element. */
typedef struct tally {
    const indices *held;
    int local[CELLS];
    int *global;
    int64_t parts;
} tally;

static int count_part(void *context, const wh_part *part) {
    tally *t = context;
    uint32_t ndim = part->global.ndim;
    int64_t volume = 1;
    assert_int_equal(part->local.ndim, ndim);
    for (uint32_t d = 0; d < ndim; d++) {
        assert_int_equal(part->local.sizes[d], part->global.sizes[d]);
        volume *= part->local.sizes[d];
    }
    assert_true(volume > 0);
    for (int64_t cell = 0; cell < volume; cell++) {
        int64_t rest = cell;
        int64_t local = 0;
        int64_t global = 0;
        for (uint32_t d = 0; d < ndim; d++) {
            int64_t at = rest % part->local.sizes[d];
            rest /= part->local.sizes[d];
            int64_t own = part->local.offsets[d] + at;
            assert_true(own >= 0 && own < t->held[d].count);
            assert_int_equal(t->held[d].at[own], part->global.offsets[d] + at);
            local = local * SIDE_MAX + own;
            global = global * SIDE_MAX + part->global.offsets[d] + at;
        }
        t->local[local]++;
        t->global[global]++;
    }
    t->parts++;
    return 0;
}

static void check_layout(const layout *l) {
    static int global[CELLS];
    memset(global, 0, sizeof(global));
    int64_t total = 1;
    for (uint32_t d = 0; d < l->ndim; d++) {
        total *= l->shape[d];
    }
    for (int position = 0; position < l->rank_count; position++) {
        indices held[DIMS] = {{0}};
        hold(l, position, held);
        wherry_value *value = build_dtensor(l, held);
        tally t = {.held = held, .global = global};
        assert_int_equal(wh_value_visit_parts(value, 0, l->ranks[position], count_part, &t), WH_PARTS_KNOWN);
        int64_t expected = 1;
        int64_t seen = 0;
        for (uint32_t d = 0; d < l->ndim; d++) {
            expected *= held[d].count;
        }
        for (int i = 0; i < CELLS; i++) {
            assert_true(t.local[i] <= 1);
            seen += t.local[i];
        }
        assert_int_equal(seen, expected);
        wherry_value_destroy(value);
    }
    int64_t covered = 0;
    for (int i = 0; i < CELLS; i++) {
        covered += global[i] > 0;
        if (l->all_shard) {
            assert_true(global[i] <= 1);
        }
    }
    assert_int_equal(covered, total);
}

static void test_boxes_of_random_layouts_match_torch(void **state) {
    (void)state;
    uint64_t seed = 1;
    int sharded = 0;
    for (int round = 0; round < 600; round++) {
        layout l = random_layout(&seed);
        check_layout(&l);
        sharded += l.all_shard;
    }
    assert_true(sharded > 100);
}

static int note_first(void *context, const wh_part *part) {
    *(wh_part *)context = *part;
    return 7;
}

/** Results of torch, as literals. */
static void test_known_boxes_match_torch(void **state) {
    (void)state;
    static const struct {
        int64_t size;
        int64_t ways;
        int position;
        int64_t begin;
        int64_t held;
    } cases[] = {{10, 4, 0, 0, 3}, {10, 4, 3, 9, 1}, {5, 4, 2, 4, 1}, {5, 4, 3, 0, 0}, {3, 4, 2, 2, 1},
                 {3, 4, 3, 0, 0},  {8, 2, 1, 4, 4},  {9, 1, 0, 0, 9}, {6, 4, 2, 4, 2}, {6, 4, 3, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        layout l = {.ndim = 1, .shape = {cases[i].size}, .mesh_ndim = 1, .mesh_shape = {cases[i].ways}};
        l.placements[0] = (wherry_placement){.kind = WHERRY_SHARD};
        for (int r = 0; r < cases[i].ways; r++) {
            l.ranks[r] = r;
        }
        indices held[DIMS] = {{.count = (int)cases[i].held}};
        wherry_value *value = build_dtensor(&l, held);
        wh_part part = {0};
        wh_parts_result parts = wh_value_visit_parts(value, 0, cases[i].position, note_first, &part);
        assert_int_equal(parts, cases[i].held ? WH_PARTS_STOPPED : WH_PARTS_KNOWN);
        assert_int_equal(part.global.offsets[0], cases[i].begin);
        assert_int_equal(part.global.sizes[0], cases[i].held);
        wherry_value_destroy(value);
    }
}

static void test_boxes_are_unknown_for_wrong_ranks_or_shapes(void **state) {
    (void)state;
    layout l = {.ndim = 1, .shape = {8}, .mesh_ndim = 1, .mesh_shape = {2}, .ranks = {3, 5}};
    l.placements[0] = (wherry_placement){.kind = WHERRY_SHARD};
    indices right[DIMS] = {{.count = 4}};
    indices wrong[DIMS] = {{.count = 3}};
    wherry_value *value = build_dtensor(&l, right);
    wh_part part;
    assert_int_equal(wh_value_visit_parts(value, 0, -1, note_first, &part), WH_PARTS_UNKNOWN);
    assert_int_equal(wh_value_visit_parts(value, 0, 4, note_first, &part), WH_PARTS_UNKNOWN);
    assert_int_equal(wh_value_visit_parts(value, 0, 5, note_first, &part), WH_PARTS_STOPPED);
    assert_int_equal(part.global.offsets[0], 4);
    wherry_value_destroy(value);
    value = build_dtensor(&l, wrong);
    assert_int_equal(wh_value_visit_parts(value, 0, 3, note_first, &part), WH_PARTS_UNKNOWN);
    wherry_value_destroy(value);
}

static int count_only(void *context, const wh_part *part) {
    (void)part;
    ++*(int *)context;
    return 0;
}

/** The maximum number of boxes, one more, and a split factor that no loop should run to. */
static void test_number_of_boxes_is_limited(void **state) {
    (void)state;
    static const int64_t mesh_shape[] = {2};
    static const struct {
        int64_t size;
        int64_t factor;
        wh_parts_result parts;
        int count;
    } cases[] = {{2 * 65536, 65536, WH_PARTS_KNOWN, 65536},
                 {2 * 65537, 65537, WH_PARTS_UNKNOWN, 0},
                 {10, INT64_MAX, WH_PARTS_KNOWN, 5},
                 {INT64_C(1) << 40, INT64_MAX, WH_PARTS_UNKNOWN, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_placement placement = {WHERRY_STRIDED_SHARD, 0, cases[i].factor, NULL};
        int64_t local = cases[i].size / 2;
        static const int64_t stride = 1;
        wherry_dtensor dtensor = {build_tensor(build_bare(INT64_C(1) << 40), WHERRY_U8, 0, 1, &local, NULL),
                                  build_mesh(1, mesh_shape),
                                  &placement,
                                  WHERRY_U8,
                                  0,
                                  1,
                                  &cases[i].size,
                                  &stride};
        wherry_value *value;
        must(wherry_dtensor_create(&dtensor, &value, NULL));
        wherry_mesh_unref(dtensor.mesh);
        int count = 0;
        assert_int_equal(wh_value_visit_parts(value, 0, 0, count_only, &count), cases[i].parts);
        assert_int_equal(count, cases[i].count);
        wherry_value_destroy(value);
    }
}

/** The boxes of two dimensions multiply. */
static void test_boxes_of_two_dimensions_multiply(void **state) {
    (void)state;
    static const int64_t mesh_shape[] = {2, 2};
    for (int64_t factor = 256; factor <= 257; factor++) {
        wherry_placement placements[] = {{WHERRY_STRIDED_SHARD, 0, 256, NULL}, {WHERRY_STRIDED_SHARD, 1, factor, NULL}};
        const int64_t shape[] = {512, 2 * factor};
        const int64_t local[] = {256, factor};
        wherry_dtensor dtensor = {.local = build_tensor(build_bare(1 << 17), WHERRY_U8, 0, 2, local, NULL),
                                  .mesh = build_mesh(2, mesh_shape),
                                  .placements = placements,
                                  .dtype = WHERRY_U8,
                                  .ndim = 2,
                                  .shape = shape,
                                  .strides = local};
        wherry_value *value;
        must(wherry_dtensor_create(&dtensor, &value, NULL));
        wherry_mesh_unref(dtensor.mesh);
        int count = 0;
        assert_int_equal(wh_value_visit_parts(value, 0, 3, count_only, &count),
                         factor == 256 ? WH_PARTS_KNOWN : WH_PARTS_UNKNOWN);
        assert_int_equal(count, factor == 256 ? 65536 : 0);
        wherry_value_destroy(value);
    }
}

static void test_plain_tensors_and_shards_have_one_box(void **state) {
    (void)state;
    static const int64_t shape[] = {2, 3};
    static const int64_t global[] = {10, 3};
    static const int64_t offsets[] = {4, 0};
    static const int64_t empty[] = {2, 0};
    wherry_value *tensor = build_tensor(build_bare(6), WHERRY_U8, 0, 2, shape, NULL);
    wh_part part;
    assert_int_equal(wh_value_visit_parts(tensor, 0, -1, note_first, &part), WH_PARTS_STOPPED);
    assert_true(part.global.offsets[0] == 0 && part.global.sizes[0] == 2 && part.local.sizes[1] == 3);
    wherry_shard shards[] = {
        {build_tensor(build_bare(0), WHERRY_U8, 0, 2, empty, NULL), {offsets, empty, {0, {WHERRY_DEVICE_CPU, -1}}}},
        {tensor, {offsets, shape, {0, {WHERRY_DEVICE_CPU, -1}}}}};
    wherry_sharded sharded = {.dtype = WHERRY_U8, .ndim = 2, .shape = global, .shard_count = 2, .shards = shards};
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, NULL));
    int count = 0;
    assert_int_equal(wh_value_visit_parts(value, 0, -1, count_only, &count), WH_PARTS_KNOWN);
    assert_int_equal(count, 0);
    assert_int_equal(wh_value_visit_parts(value, 1, -1, note_first, &part), WH_PARTS_STOPPED);
    assert_true(part.global.offsets[0] == 4 && part.global.offsets[1] == 0 && part.global.sizes[0] == 2);
    assert_true(part.local.offsets[0] == 0 && part.local.sizes[0] == 2 && part.local.sizes[1] == 3);
    wherry_value_destroy(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creates_sharded_tensors),
        cmocka_unit_test(test_keeps_an_enumerable_sharding),
        cmocka_unit_test(test_no_shard_may_be_local),
        cmocka_unit_test(test_creates_sharded_scalars),
        cmocka_unit_test(test_refuses_boxes_outside_the_tensor),
        cmocka_unit_test(test_refuses_bad_shards),
        cmocka_unit_test(test_refuses_bad_arguments),
        cmocka_unit_test(test_creates_meshes),
        cmocka_unit_test(test_mesh_names_are_optional),
        cmocka_unit_test(test_refuses_bad_meshes),
        cmocka_unit_test(test_dtensor_keeps_its_placements),
        cmocka_unit_test(test_dtensor_owns_its_local_tensor),
        cmocka_unit_test(test_refuses_bad_placements),
        cmocka_unit_test(test_refuses_bad_dtensors),
        cmocka_unit_test(test_boxes_of_random_layouts_match_torch),
        cmocka_unit_test(test_known_boxes_match_torch),
        cmocka_unit_test(test_boxes_are_unknown_for_wrong_ranks_or_shapes),
        cmocka_unit_test(test_number_of_boxes_is_limited),
        cmocka_unit_test(test_boxes_of_two_dimensions_multiply),
        cmocka_unit_test(test_plain_tensors_and_shards_have_one_box),
    };
    return cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
}
