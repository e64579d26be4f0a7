/* The chunks of a prepared state, compared with a map of the bytes that each view covers. */
#include "../support/build.h"

#include <stdlib.h>

#include "state/prepare.h"

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

/** Checks from all pieces whether each chunk continues the one before. @return how many do. */
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
 * Chunks are end to end, within 15 bytes of their size, and their pieces are the bytes of the
 * extents in order.
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

static void test_random_views(void **state) {
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
 * By hand: a tensor of four chunks, one with two rows of two chunks each and a gap between, a small
 * one, and the rest of a large one.
 */
static void test_which_continue(void **state) {
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
static void test_interleaved_with_gaps(void **state) {
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
static void test_elements_are_whole(void **state) {
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

static void test_visit_ends(void **state) {
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
        cmocka_unit_test(test_random_views),
        cmocka_unit_test(test_which_continue),
        cmocka_unit_test(test_interleaved_with_gaps),
        cmocka_unit_test(test_elements_are_whole),
        cmocka_unit_test(test_visit_ends),
    };
    return cmocka_run_group_tests_name("prepared_chunks", tests, NULL, NULL);
}
