/* Preparing: unique storages, covered bytes, and chunks, compared with a map of bytes. */
#include "../support/build.h"

#include <stdlib.h>

#include "state/prepare.h"

/* Preparing: unique storages, covered bytes, and chunks. */

static const uint64_t GIB = UINT64_C(1) << 30;
static const uint64_t MIB = UINT64_C(1) << 20;

static wherry_prepared *prepare(const wherry_value *state, uint32_t chunk_bytes, uint32_t max_gap) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.chunk_bytes = chunk_bytes;
    options.max_gap = max_gap;
    wherry_prepared *prepared;
    must(wherry_prepare(state, &options, &prepared, NULL));
    return prepared;
}

static wherry_prepared_summary summarize(const wherry_value *state, const wherry_prepare_options *options) {
    wherry_prepared *prepared;
    wherry_prepared_summary summary;
    must(wherry_prepare(state, options, &prepared, NULL));
    wherry_prepared_summarize(prepared, &summary);
    wherry_prepared_destroy(prepared);
    return summary;
}

static void test_options_are_used(void **state) {
    (void)state;
    wherry_prepare_options options;
    memset(&options, 0xEE, sizeof(options));
    wherry_prepare_options_init(&options);
    assert_true(options.struct_size == sizeof(options) && options.chunk_bytes == 4 * MIB && options.max_gap == 4095);
    assert_true(options.reserved == 0 && options.rank == -1);
    wherry_value *value = build_int(1);
    for (uint32_t chunk_bytes = 4096; chunk_bytes <= GIB; chunk_bytes *= 2) {
        options.chunk_bytes = chunk_bytes;
        options.rank = (int64_t)chunk_bytes;
        wherry_prepared *prepared;
        wherry_prepared_summary summary;
        must(wherry_prepare(value, &options, &prepared, NULL));
        wherry_prepared_summarize(prepared, &summary);
        assert_int_equal(summary.chunk_bytes, chunk_bytes);
        assert_int_equal(prepared->rank, chunk_bytes);
        assert_ptr_equal(wherry_prepared_state(prepared), value);
        wherry_prepared_destroy(prepared);
    }
    wherry_value_destroy(value);
}

static void test_refuses_bad_options(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2048, 4095, 4097, 12288, 3 << 20, UINT32_C(1) << 31, UINT32_MAX};
    wherry_value *value = build_int(1);
    wherry_error error;
    wherry_prepared *prepared = NULL;
    wherry_prepare_options options;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        wherry_prepare_options_init(&options);
        options.chunk_bytes = sizes[i];
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(value, &options, &prepared, &error));
    }
    wherry_prepare_options_init(&options);
    options.rank = -2;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(value, &options, &prepared, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(NULL, NULL, &prepared, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(value, NULL, NULL, &error));
    assert_null(prepared);
    wherry_value_destroy(value);
}

/**
 * A struct of an older version is shorter and gets defaults for the rest. A struct of a newer
 * version is refused.
 */
static void test_older_options_get_defaults(void **state) {
    (void)state;
    wherry_value *value = build_int(1);
    struct {
        wherry_prepare_options options;
        uint64_t newer;
    } given;
    memset(&given, 0xEE, sizeof(given));
    given.options.struct_size = 8;
    given.options.chunk_bytes = 8192;
    wherry_prepared *prepared;
    must(wherry_prepare(value, &given.options, &prepared, NULL));
    assert_int_equal(prepared->rank, -1);
    wherry_prepared_summary summary;
    wherry_prepared_summarize(prepared, &summary);
    assert_int_equal(summary.chunk_bytes, 8192);
    wherry_prepared_destroy(prepared);
    given.options.struct_size = 4;
    assert_int_equal(summarize(value, &given.options).chunk_bytes, 4 * MIB);
    static const uint32_t bad[] = {0, 1, 3, sizeof(given.options) + 1, sizeof(given.options) + 8, UINT32_MAX};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        wherry_error error;
        wherry_prepare_options_init(&given.options);
        given.options.struct_size = bad[i];
        prepared = NULL;
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(value, &given.options, &prepared, &error));
        assert_null(prepared);
    }
    wherry_value_destroy(value);
}

static void test_prepares_empty_states(void **state) {
    (void)state;
    static const int64_t none[] = {0, 5};
    wherry_value *values[] = {build_none(), build_dict(NULL, NULL), build_object("T", build_list(NULL)),
                              build_tensor(build_storage(0, 0), WHERRY_F32, 0, 2, none, NULL),
                              build_tensor(build_storage(100, 0), WHERRY_F32, 3, 2, none, NULL)};
    for (int i = 0; i < 5; i++) {
        wherry_prepared *prepared;
        wherry_prepared_summary summary;
        must(wherry_prepare(values[i], NULL, &prepared, NULL));
        wherry_prepared_summarize(prepared, &summary);
        assert_true(summary.tensors == (i > 2) && summary.storages == (i > 2) && summary.extents == 0);
        assert_true(summary.bytes == 0 && summary.chunks == 0 && summary.view_bytes == 0);
        assert_int_equal(summary.storage_bytes, i == 4 ? 100 : 0);
        uint64_t begin = 9;
        uint64_t length = 9;
        wherry_prepared_chunk(prepared, 0, &begin, &length);
        assert_true(begin == 0 && length == 0);
        size_t count = 9;
        wherry_prepared_extents(prepared, 0, &count);
        assert_int_equal(count, 0);
        assert_null(wherry_prepared_storage(prepared, summary.storages));
        assert_int_equal(wherry_prepared_visit_chunk(prepared, 0, NULL, NULL), 0);
        wherry_prepared_destroy(prepared);
        wherry_value_destroy(values[i]);
    }
    wherry_prepared_destroy(NULL);
}

static void test_storages_are_unique(void **state) {
    (void)state;
    static const int64_t shape[] = {16};
    static uint8_t memory[32];
    wherry_device cpu = wherry_device_cpu();
    wherry_storage *storages[5];
    must(wherry_storage_wrap(memory, 32, cpu, NULL, NULL, &storages[0], NULL));
    must(wherry_storage_wrap(memory, 32, cpu, NULL, NULL, &storages[1], NULL));
    storages[2] = build_storage(32, 0);
    storages[3] = build_bare(32);
    storages[4] = build_bare(32);
    wherry_value *list = build_list(NULL);
    static const int order[] = {2, 0, 1, 0, 3, 4, 3, 2};
    for (int i = 0; i < 8; i++) {
        must(wherry_sequence_append(list, build_view(storages[order[i]], WHERRY_U8, i, 1, shape, NULL), NULL));
    }
    wherry_prepared *prepared = prepare(list, 4096, 0);
    wherry_prepared_summary summary;
    wherry_prepared_summarize(prepared, &summary);
    assert_true(summary.tensors == 8 && summary.storages == 4 && summary.storage_bytes == 128);
    assert_int_equal(summary.view_bytes, 8 * 16);
    assert_ptr_equal(wherry_prepared_storage(prepared, 0), storages[2]);
    assert_ptr_equal(wherry_prepared_storage(prepared, 1), storages[0]);
    assert_ptr_equal(wherry_prepared_storage(prepared, 2), storages[3]);
    assert_ptr_equal(wherry_prepared_storage(prepared, 3), storages[4]);
    assert_null(wherry_prepared_storage(prepared, 4));
    size_t count;
    const wherry_extent *extents = wherry_prepared_extents(prepared, 1, &count);
    assert_true(count == 1 && extents->offset == 1 && extents->length == 18 && extents->level_count == 0);
    assert_null(wherry_prepared_extents(prepared, 4, &count));
    assert_int_equal(count, 0);
    for (int i = 0; i < 5; i++) {
        wherry_storage_unref(storages[i]);
    }
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(list);
}

/** Finds local tensors of DTensors and ShardedTensors, and tensors within objects. */
static void test_finds_all_tensors(void **state) {
    (void)state;
    static const int64_t shape[] = {4};
    static const int64_t offset[] = {0};
    static const int64_t one[] = {1};
    static const wherry_placement placement = {.kind = WHERRY_REPLICATE};
    wherry_dtensor dtensor = {.local = build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, shape, NULL),
                              .mesh = build_mesh(1, one),
                              .placements = &placement,
                              .dtype = WHERRY_U8,
                              .ndim = 1,
                              .shape = shape,
                              .strides = one};
    wherry_value *first;
    must(wherry_dtensor_create(&dtensor, &first, NULL));
    wherry_mesh_unref(dtensor.mesh);
    wherry_shard shards[2];
    for (int i = 0; i < 2; i++) {
        shards[i] = (wherry_shard){build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, shape, NULL),
                                   {offset, shape, {0, {WHERRY_DEVICE_CPU, -1}}}};
    }
    wherry_sharded sharded = {.dtype = WHERRY_U8, .ndim = 1, .shape = shape, .shard_count = 2, .shards = shards};
    wherry_value *second;
    must(wherry_sharded_create(&sharded, &second, NULL));
    wherry_value *third = build_tensor(build_storage(4, 0), WHERRY_U8, 0, 1, shape, NULL);
    wherry_value *tree = build_list(first, second, build_object("T", build_dict("x", third, NULL)), NULL);
    wherry_prepared_summary summary = summarize(tree, NULL);
    assert_true(summary.tensors == 4 && summary.storages == 4 && summary.bytes == 16 && summary.chunks == 1);
    wherry_value_destroy(tree);
}

/** Eight views of one 1 GiB storage cover it once. A slice of 4 KiB covers 4 KiB. */
static void test_views_cover_a_storage_once(void **state) {
    (void)state;
    static const int64_t shape[] = {1 << 14, 1 << 14};
    static const int64_t transposed[] = {1, 1 << 14};
    static const int64_t slice[] = {1024};
    wherry_storage *storage = build_bare(GIB);
    wherry_value *views = build_list(NULL);
    for (int i = 0; i < 8; i++) {
        must(wherry_sequence_append(views, build_view(storage, WHERRY_F32, 0, 2, shape, i % 2 ? transposed : NULL),
                                    NULL));
    }
    wherry_prepared_summary summary = summarize(views, NULL);
    assert_true(summary.tensors == 8 && summary.storages == 1 && summary.extents == 1);
    assert_true(summary.bytes == GIB && summary.view_bytes == 8 * GIB && summary.chunks == 256);
    wherry_value_destroy(views);
    wherry_value *part = build_view(storage, WHERRY_F32, 12345678, 1, slice, NULL);
    summary = summarize(part, NULL);
    assert_true(summary.bytes == 4096 && summary.storage_bytes == GIB && summary.chunks == 1);
    wherry_value_destroy(part);
    wherry_storage_unref(storage);
}

/**
 * A column of a matrix costs at most one page per run beyond its own bytes, and nothing if gaps are
 * forbidden.
 */
static void test_columns_cost_at_most_a_page_per_run(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 16, 256, 1023};
    static const int64_t widths[] = {1024, 1536, 4096};
    for (int w = 0; w < 3; w++) {
        for (int c = 0; c < 4; c++) {
            for (int turned = 0; turned < 2; turned++) {
                int64_t shape[2];
                int64_t strides[2];
                shape[turned] = 1024;
                strides[turned] = widths[w];
                shape[!turned] = columns[c];
                strides[!turned] = 1;
                uint64_t useful = 4096 * (uint64_t)columns[c];
                wherry_value *view =
                    build_tensor(build_bare(4096 * (uint64_t)widths[w]), WHERRY_F32, 1, 2, shape, strides);
                wherry_prepared_summary summary = summarize(view, NULL);
                assert_true(summary.bytes >= useful && summary.bytes <= useful + 1024 * 4096);
                assert_int_equal(summary.extents, 1);
                assert_int_equal(summary.view_bytes, useful);
                wherry_prepare_options options;
                wherry_prepare_options_init(&options);
                options.max_gap = 0;
                summary = summarize(view, &options);
                assert_true(summary.bytes == useful && summary.extents == 1);
                wherry_value_destroy(view);
            }
        }
    }
}

/** Columns of 1024 bytes, 3072 bytes apart: the gap is sent only if max_gap allows it. */
static void test_max_gap_limits_gaps_within_a_view(void **state) {
    (void)state;
    static const int64_t shape[] = {100, 256};
    static const int64_t strides[] = {1024, 1};
    static const struct {
        uint64_t bytes;
        uint32_t max_gap;
        uint32_t levels;
    } cases[] = {{100 * 1024, 3071, 1}, {99 * 4096 + 1024, 3072, 0}, {100 * 1024, 0, 1}, {99 * 4096 + 1024, 4095, 0}};
    wherry_value *view = build_tensor(build_bare(100 * 4096), WHERRY_F32, 0, 2, shape, strides);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_prepared *prepared = prepare(view, 4096, cases[i].max_gap);
        wherry_prepared_summary summary;
        wherry_prepared_summarize(prepared, &summary);
        size_t count;
        const wherry_extent *extent = wherry_prepared_extents(prepared, 0, &count);
        assert_int_equal(summary.bytes, cases[i].bytes);
        assert_true(count == 1 && extent->offset == 0 && extent->level_count == cases[i].levels);
        wherry_prepared_destroy(prepared);
    }
    wherry_value_destroy(view);
}

/** max_gap also applies between two views: 50 bytes, a gap of 100, 50 bytes. */
static void test_max_gap_limits_gaps_between_views(void **state) {
    (void)state;
    static const int64_t shape[] = {50};
    static const struct {
        uint32_t max_gap;
        uint64_t bytes;
        uint64_t extents;
    } cases[] = {{99, 100, 2}, {100, 200, 1}, {0, 100, 2}, {4095, 200, 1}};
    wherry_storage *storage = build_bare(300);
    wherry_value *views = build_list(build_view(storage, WHERRY_U8, 160, 1, shape, NULL),
                                     build_view(storage, WHERRY_U8, 10, 1, shape, NULL), NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_prepared *prepared = prepare(views, 4096, cases[i].max_gap);
        wherry_prepared_summary summary;
        wherry_prepared_summarize(prepared, &summary);
        size_t count;
        assert_true(summary.bytes == cases[i].bytes && summary.extents == cases[i].extents);
        assert_int_equal(wherry_prepared_extents(prepared, 0, &count)->offset, 10);
        wherry_prepared_destroy(prepared);
    }
    wherry_storage_unref(storage);
    wherry_value_destroy(views);
}

static void test_refuses_too_large_states(void **state) {
    (void)state;
    static const int64_t shape[] = {1};
    wherry_value *list = build_list(build_tensor(build_bare(INT64_MAX), WHERRY_U8, 0, 1, shape, NULL), NULL);
    wherry_prepared_summary summary = summarize(list, NULL);
    assert_true(summary.storage_bytes == INT64_MAX && summary.bytes == 1);
    must(wherry_sequence_append(list, build_tensor(build_bare(1), WHERRY_U8, 0, 1, shape, NULL), NULL));
    wherry_error error;
    wherry_prepared *prepared = NULL;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(list, NULL, &prepared, &error));
    must(wherry_sequence_append(list, build_tensor(build_bare(INT64_MAX), WHERRY_U8, 0, 1, shape, NULL), NULL));
    must(wherry_sequence_append(list, build_tensor(build_bare(INT64_MAX), WHERRY_U8, 0, 1, shape, NULL), NULL));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_prepare(list, NULL, &prepared, &error));
    assert_null(prepared);
    wherry_value_destroy(list);
}

/** A prepared state holds its own references to its storages. */
static void test_prepared_state_keeps_its_storages(void **state) {
    (void)state;
    static const int64_t shape[] = {8};
    wherry_value *tensor = build_tensor(build_storage(8, 3), WHERRY_U8, 0, 1, shape, NULL);
    wherry_prepared *prepared;
    must(wherry_prepare(tensor, NULL, &prepared, NULL));
    wherry_storage *storage = wherry_storage_ref(wherry_prepared_storage(prepared, 0));
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(tensor);
    assert_int_equal(*(uint8_t *)wherry_storage_data(storage), 3);
    wherry_storage_unref(storage);
}

/* The chunks of a prepared state, compared with a map of the bytes that each view covers. */

enum { STORAGES = 3, STORAGE_BYTES = 9000, VIEWS = 6 };

typedef struct scene {
    wherry_storage *storages[STORAGES];
    wherry_value *state;
    uint8_t covered[STORAGES][STORAGE_BYTES];
} scene;

static void mark(scene *s, int storage, const wherry_tensor *tensor) {
    uint32_t item = wherry_dtype_describe(tensor->dtype)->bytes;
    for (uint64_t i = 0; i < wherry_tensor_count(tensor); i++) {
        uint64_t rest = i;
        uint64_t at = (uint64_t)tensor->offset;
        for (uint32_t d = 0; d < tensor->ndim; d++) {
            at += rest % (uint64_t)tensor->shape[d] * (uint64_t)tensor->strides[d];
            rest /= (uint64_t)tensor->shape[d];
        }
        memset(s->covered[storage] + at * item, 1, item);
    }
}

/** Random views of up to three dimensions, with any strides that fit. */
static void add_view(scene *s, uint64_t *seed) {
    static const wherry_dtype dtypes[] = {WHERRY_U8, WHERRY_F16, WHERRY_F32, WHERRY_C64, WHERRY_C128};
    int storage = (int)(next_random(seed) % STORAGES);
    wherry_dtype dtype = dtypes[next_random(seed) % 5];
    int64_t room = STORAGE_BYTES / (int64_t)wherry_dtype_describe(dtype)->bytes - 1;
    int64_t shape[3];
    int64_t strides[3];
    uint32_t ndim = (uint32_t)(next_random(seed) % 4);
    for (uint32_t d = 0; d < ndim; d++) {
        shape[d] = (int64_t)(next_random(seed) % 20);
        int64_t most = shape[d] > 1 ? room / (shape[d] - 1) : 100;
        strides[d] = (int64_t)(next_random(seed) % (uint64_t)(1 + (most < 200 ? most : 200)));
        room -= shape[d] > 1 ? (shape[d] - 1) * strides[d] : 0;
    }
    int64_t offset = (int64_t)(next_random(seed) % (uint64_t)(room + 1));
    wherry_value *view = build_view(s->storages[storage], dtype, offset, ndim, shape, strides);
    mark(s, storage, wherry_tensor_get(view));
    must(wherry_sequence_append(s->state, view, NULL));
}

static void build_scene(scene *s, uint64_t *seed) {
    memset(s->covered, 0, sizeof(s->covered));
    s->state = build_list(NULL);
    for (int i = 0; i < STORAGES; i++) {
        s->storages[i] = build_bare(STORAGE_BYTES);
    }
    for (int i = 0; i < VIEWS; i++) {
        add_view(s, seed);
    }
}

static void destroy_scene(scene *s) {
    wherry_value_destroy(s->state);
    for (int i = 0; i < STORAGES; i++) {
        wherry_storage_unref(s->storages[i]);
    }
}

/** The bytes of the space in order, each as storage * STORAGE_BYTES + offset. */
typedef struct sequence {
    uint32_t *at;
    uint64_t count;
} sequence;

static void append_run(sequence *to, int storage, uint64_t offset, uint64_t length) {
    assert_true(offset + length <= STORAGE_BYTES);
    for (uint64_t i = 0; i < length; i++) {
        to->at[to->count++] = (uint32_t)((uint64_t)storage * STORAGE_BYTES + offset + i);
    }
}

static void append_levels(sequence *to, int storage, const wherry_extent *extent, uint32_t level, uint64_t offset) {
    if (level == extent->level_count) {
        append_run(to, storage, offset, extent->length);
        return;
    }
    for (uint64_t i = 0; i < extent->levels[level].count; i++) {
        append_levels(to, storage, extent, level + 1, offset + i * extent->levels[level].stride);
    }
}

static int storage_number(const scene *s, const wherry_storage *storage) {
    for (int i = 0; i < STORAGES; i++) {
        if (s->storages[i] == storage) {
            return i;
        }
    }
    fail();
    return -1;
}

static sequence unroll_extents(const scene *s, const wherry_prepared *prepared, uint64_t bytes) {
    sequence all = {calloc(bytes + 1, sizeof(uint32_t)), 0};
    for (size_t i = 0; wherry_prepared_storage(prepared, i); i++) {
        int storage = storage_number(s, wherry_prepared_storage(prepared, i));
        size_t count;
        const wherry_extent *extents = wherry_prepared_extents(prepared, i, &count);
        for (size_t e = 0; e < count; e++) {
            append_levels(&all, storage, extents + e, 0, extents[e].offset);
        }
    }
    assert_int_equal(all.count, bytes);
    return all;
}

typedef struct visit {
    const scene *scene;
    sequence found;
} visit;

static int note_piece(void *context, const wherry_piece *piece) {
    visit *v = context;
    for (uint64_t i = 0; i < piece->count; i++) {
        append_run(&v->found, storage_number(v->scene, piece->storage), piece->offset + i * piece->stride,
                   piece->length);
    }
    return 0;
}

/** The last piece of a chunk, and the number of runs in all its pieces. */
typedef struct single {
    wherry_piece piece;
    uint64_t count;
} single;

static int note_single(void *context, const wherry_piece *piece) {
    single *s = context;
    s->piece = *piece;
    s->count += piece->count;
    return 0;
}

/** Computes from all pieces which chunks continue the previous one. @return how many do. */
static uint64_t check_continues(const wherry_prepared *prepared, uint64_t chunks) {
    uint64_t found = 0;
    single before = {.count = 0};
    for (uint64_t chunk = 0; chunk < chunks; chunk++) {
        single own = {.count = 0};
        wherry_prepared_visit_chunk(prepared, chunk, note_single, &own);
        bool continues = own.count == 1 && before.count == 1 && own.piece.storage == before.piece.storage &&
                         own.piece.offset == before.piece.offset + before.piece.length;
        assert_int_equal(wh_prepared_chunk_continues(prepared, chunk), continues ? own.piece.length : 0);
        found += continues;
        before = own;
    }
    assert_int_equal(wh_prepared_chunk_continues(prepared, chunks), 0);
    assert_int_equal(wh_prepared_chunk_continues(prepared, UINT64_MAX), 0);
    return found;
}

/**
 * Chunks are adjacent and within 15 bytes of their size. Their pieces are the bytes of the extents,
 * in order.
 */
static void check_chunks(const scene *s, const wherry_prepared *prepared, const sequence *all) {
    wherry_prepared_summary summary;
    wherry_prepared_summarize(prepared, &summary);
    visit v = {s, {calloc(all->count + 1, sizeof(uint32_t)), 0}};
    uint64_t begin;
    uint64_t length;
    for (uint64_t chunk = 0; chunk < summary.chunks; chunk++) {
        wherry_prepared_chunk(prepared, chunk, &begin, &length);
        assert_int_equal(begin, v.found.count);
        assert_true(begin <= chunk * summary.chunk_bytes && begin + 15 >= chunk * summary.chunk_bytes);
        assert_true(length > 0 && length <= summary.chunk_bytes + 15);
        assert_int_equal(wherry_prepared_visit_chunk(prepared, chunk, note_piece, &v), 0);
        assert_int_equal(v.found.count, begin + length);
    }
    assert_int_equal(v.found.count, summary.bytes);
    assert_memory_equal(v.found.at, all->at, all->count * sizeof(*all->at));
    wherry_prepared_chunk(prepared, summary.chunks, &begin, &length);
    assert_true(begin == 0 && length == 0);
    free(v.found.at);
}

/** The space has all bytes that views cover. All other bytes are in gaps that are not too wide. */
static void check_covered(const scene *s, const sequence *all, uint64_t max_gap) {
    static uint8_t seen[STORAGES][STORAGE_BYTES];
    memset(seen, 0, sizeof(seen));
    for (uint64_t i = 0; i < all->count; i++) {
        uint8_t *byte = &seen[0][0] + all->at[i];
        assert_true(max_gap > 0 || *byte == 0);
        *byte = 1;
    }
    for (int storage = 0; storage < STORAGES; storage++) {
        uint64_t last = UINT64_MAX;
        for (uint64_t at = 0; at < STORAGE_BYTES; at++) {
            assert_true(seen[storage][at] >= s->covered[storage][at]);
            if (!s->covered[storage][at]) {
                continue;
            }
            uint64_t gap = last == UINT64_MAX ? UINT64_MAX : at - last - 1;
            for (uint64_t between = last == UINT64_MAX ? 0 : last + 1; between < at; between++) {
                assert_true(!seen[storage][between] || gap <= max_gap);
            }
            last = at;
        }
        for (uint64_t at = last == UINT64_MAX ? 0 : last + 1; at < STORAGE_BYTES; at++) {
            assert_int_equal(seen[storage][at], 0);
        }
    }
}

static void test_chunks_of_random_views_are_right(void **state) {
    (void)state;
    static const uint32_t gaps[] = {0, 1, 16, 100, 4095};
    static scene s;
    uint64_t seed = 11;
    uint64_t chunks = 0;
    uint64_t continued = 0;
    for (int round = 0; round < 300; round++) {
        build_scene(&s, &seed);
        wherry_prepare_options options;
        wherry_prepare_options_init(&options);
        options.chunk_bytes = 4096;
        options.max_gap = gaps[round % 5];
        wherry_prepared *prepared;
        wherry_prepared_summary summary;
        must(wherry_prepare(s.state, &options, &prepared, NULL));
        wherry_prepared_summarize(prepared, &summary);
        assert_int_equal(summary.tensors, VIEWS);
        chunks += summary.chunks;
        sequence all = unroll_extents(&s, prepared, summary.bytes);
        check_covered(&s, &all, options.max_gap);
        check_chunks(&s, prepared, &all);
        continued += check_continues(prepared, summary.chunks);
        free(all.at);
        wherry_prepared_destroy(prepared);
        destroy_scene(&s);
    }
    assert_true(chunks > 300);
    assert_true(continued > 30 && continued < chunks / 2);
}

/**
 * A fixed example: a tensor of four chunks, one with two rows of two chunks each and a gap between
 * them, a small one, and the end of a large one.
 */
static void test_continuing_chunks_are_found(void **state) {
    (void)state;
    static const int64_t large[] = {16384};
    static const int64_t rows[] = {2, 8192};
    static const int64_t apart[] = {20000, 1};
    static const int64_t small[] = {100};
    static const uint64_t expected[] = {0, 4096, 4096, 4096, 0, 4096, 0, 4096, 0, 0, 4096, 4096, 112, 0};
    wherry_value *tree = build_list(build_tensor(build_bare(16384), WHERRY_U8, 0, 1, large, NULL),
                                    build_tensor(build_bare(28192), WHERRY_U8, 0, 2, rows, apart),
                                    build_tensor(build_bare(100), WHERRY_U8, 0, 1, small, NULL),
                                    build_tensor(build_bare(16384), WHERRY_U8, 0, 1, large, NULL), NULL);
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.chunk_bytes = 4096;
    wherry_prepared *prepared;
    must(wherry_prepare(tree, &options, &prepared, NULL));
    for (uint64_t chunk = 0; chunk < sizeof(expected) / sizeof(*expected); chunk++) {
        assert_int_equal(wh_prepared_chunk_continues(prepared, chunk), expected[chunk]);
    }
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(tree);
}

/** A view whose runs interleave, with gaps that are filled: no byte is in two extents. */
static void test_interleaved_views_share_no_byte(void **state) {
    (void)state;
    static const int64_t shape[] = {5, 4, 2};
    static const int64_t strides[] = {3, 8, 5};
    static scene s;
    memset(&s, 0, sizeof(s));
    s.storages[0] = build_bare(STORAGE_BYTES);
    s.state = build_view(s.storages[0], WHERRY_U8, 0, 3, shape, strides);
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.max_gap = 1;
    wherry_prepared *prepared;
    wherry_prepared_summary summary;
    must(wherry_prepare(s.state, &options, &prepared, NULL));
    wherry_prepared_summarize(prepared, &summary);
    sequence all = unroll_extents(&s, prepared, summary.bytes);
    int twice = 0;
    for (uint64_t i = 0; i < all.count; i++) {
        for (uint64_t j = 0; j < i; j++) {
            twice += all.at[i] == all.at[j];
        }
    }
    free(all.at);
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(s.state);
    wherry_storage_unref(s.storages[0]);
    assert_int_equal(twice, 0);
}

/** Elements of 16 bytes are never cut. */
static void test_elements_are_never_split(void **state) {
    (void)state;
    static const int64_t few[] = {7};
    static const int64_t many[] = {1000};
    wherry_value *tree = build_list(build_tensor(build_bare(7), WHERRY_U8, 0, 1, few, NULL),
                                    build_tensor(build_bare(16000), WHERRY_C128, 0, 1, many, NULL), NULL);
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.chunk_bytes = 4096;
    wherry_prepared *prepared;
    must(wherry_prepare(tree, &options, &prepared, NULL));
    wherry_prepared_summary summary;
    wherry_prepared_summarize(prepared, &summary);
    assert_true(summary.bytes == 16007 && summary.chunks == 4);
    for (uint64_t chunk = 1; chunk < 4; chunk++) {
        uint64_t begin;
        uint64_t length;
        wherry_prepared_chunk(prepared, chunk, &begin, &length);
        assert_true(begin <= chunk * 4096 && begin + 15 >= chunk * 4096);
        assert_int_equal((begin - 7) % 16, 0);
    }
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(tree);
}

static int stop_at_once(void *context, const wherry_piece *piece) {
    (void)piece;
    ++*(int *)context;
    return 42;
}

static void test_visitor_can_end_the_visit(void **state) {
    (void)state;
    static const int64_t shape[] = {10};
    static const int64_t strides[] = {9};
    wherry_value *tree = build_list(build_tensor(build_bare(100), WHERRY_U8, 0, 1, shape, strides),
                                    build_tensor(build_bare(100), WHERRY_U8, 0, 1, shape, NULL), NULL);
    wherry_prepared *prepared;
    must(wherry_prepare(tree, NULL, &prepared, NULL));
    int calls = 0;
    assert_int_equal(wherry_prepared_visit_chunk(prepared, 0, stop_at_once, &calls), 42);
    assert_int_equal(calls, 1);
    assert_int_equal(wherry_prepared_visit_chunk(prepared, 1, stop_at_once, &calls), 0);
    assert_int_equal(calls, 1);
    wherry_prepared_destroy(prepared);
    wherry_value_destroy(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_used),
        cmocka_unit_test(test_refuses_bad_options),
        cmocka_unit_test(test_older_options_get_defaults),
        cmocka_unit_test(test_prepares_empty_states),
        cmocka_unit_test(test_storages_are_unique),
        cmocka_unit_test(test_finds_all_tensors),
        cmocka_unit_test(test_views_cover_a_storage_once),
        cmocka_unit_test(test_columns_cost_at_most_a_page_per_run),
        cmocka_unit_test(test_max_gap_limits_gaps_within_a_view),
        cmocka_unit_test(test_max_gap_limits_gaps_between_views),
        cmocka_unit_test(test_refuses_too_large_states),
        cmocka_unit_test(test_prepared_state_keeps_its_storages),
        cmocka_unit_test(test_chunks_of_random_views_are_right),
        cmocka_unit_test(test_continuing_chunks_are_found),
        cmocka_unit_test(test_interleaved_views_share_no_byte),
        cmocka_unit_test(test_elements_are_never_split),
        cmocka_unit_test(test_visitor_can_end_the_visit),
    };
    return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
