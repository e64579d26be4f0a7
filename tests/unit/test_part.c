/*
 * Which boxes of its global tensor a rank has, compared with a simple model of torch: indices are
 * dealt out one by one, as torch.chunk does.
 */
#include "../support/build.h"

#include "state/sharded.h"

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

/** One layout, and what each rank has according to the model. */
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

/** How often the parts of one rank, and of all ranks, name each element. */
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

static void test_random_layouts(void **state) {
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

/** Results of torch, written by hand. */
static void test_known_boxes(void **state) {
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
        wh_parts parts = wh_value_visit_parts(value, 0, cases[i].position, note_first, &part);
        assert_int_equal(parts, cases[i].held ? WH_PARTS_STOPPED : WH_PARTS_KNOWN);
        assert_int_equal(part.global.offsets[0], cases[i].begin);
        assert_int_equal(part.global.sizes[0], cases[i].held);
        wherry_value_destroy(value);
    }
}

static void test_unknown(void **state) {
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
static void test_many_boxes(void **state) {
    (void)state;
    static const int64_t mesh_shape[] = {2};
    static const struct {
        int64_t size;
        int64_t factor;
        wh_parts parts;
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
static void test_many_boxes_of_two_dimensions(void **state) {
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

static void test_tensor_and_shard(void **state) {
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
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_known_boxes),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_many_boxes),
        cmocka_unit_test(test_many_boxes_of_two_dimensions),
        cmocka_unit_test(test_tensor_and_shard),
    };
    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
