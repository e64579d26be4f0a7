/*
 * Random states. Each is encoded, decoded and compared. Then its plan is executed: into new memory,
 * in place, and in place into a target that lacks some leaves. A simple loop over indices,
 * independent of extents, chunks and copies, compares every element.
 *
 * WHERRY_PROPERTY_SEED repeats one state. WHERRY_PROPERTY_STATES sets the number of states.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>
#include <cmocka.h>

#include "manifest/manifest.h"
#include "support/random_state.h"

enum { STATES = 10000, CANARY = 0xA5 };

static uint64_t current_seed;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("seed %llu: ", (unsigned long long)current_seed);                                              \
            fail_msg(__VA_ARGS__);                                                                                     \
        }                                                                                                              \
    } while (0)

/** Calls fn for each tensor of a state, including local tensors. */
typedef void (*tensor_fn)(void *context, size_t number, const wherry_tensor *tensor);

static void each_tensor(const wherry_value *state, tensor_fn fn, void *context) {
    wherry_flat *flat;
    assert_int_equal(wherry_flatten(state, &flat, NULL), WHERRY_OK);
    size_t number = 0;
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        const wherry_value *leaf = wherry_flat_leaf(flat, i);
        const wherry_sharded *sharded = wherry_sharded_get(leaf);
        if (wherry_tensor_get(leaf)) {
            fn(context, number++, wherry_tensor_get(leaf));
        } else if (wherry_dtensor_get(leaf)) {
            fn(context, number++, wherry_tensor_get(wherry_dtensor_get(leaf)->local));
        }
        for (uint32_t s = 0; sharded && s < sharded->shard_count; s++) {
            fn(context, number++, wherry_tensor_get(sharded->shards[s].tensor));
        }
    }
    wherry_flat_destroy(flat);
}

/** The byte offset of element `number` in row-major order. */
static uint64_t element_offset(const wherry_tensor *tensor, uint64_t number) {
    uint64_t at = (uint64_t)tensor->offset;
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        at += number % (uint64_t)tensor->shape[d] * (uint64_t)tensor->strides[d];
        number /= (uint64_t)tensor->shape[d];
    }
    return at * wherry_dtype_describe(tensor->dtype)->bytes;
}

static uint64_t element_count(const wherry_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        count *= (uint64_t)tensor->shape[d];
    }
    return count;
}

/** Per storage: which bytes some element covers. */
typedef struct coverage {
    const wherry_storage *storages[1024];
    unsigned char *marks[1024];
    size_t count;
} coverage;

static unsigned char *marks_of(coverage *covered, const wherry_storage *storage) {
    for (size_t i = 0; i < covered->count; i++) {
        if (covered->storages[i] == storage) {
            return covered->marks[i];
        }
    }
    assert_true(covered->count < 1024);
    covered->storages[covered->count] = storage;
    return covered->marks[covered->count++] = calloc(1, wherry_storage_nbytes(storage) + 1);
}

static void cover_tensor(void *context, size_t number, const wherry_tensor *tensor) {
    (void)number;
    unsigned char *marks = marks_of(context, tensor->storage);
    for (uint64_t i = 0; i < element_count(tensor); i++) {
        memset(marks + element_offset(tensor, i), 1, wherry_dtype_describe(tensor->dtype)->bytes);
    }
}

static void release_coverage(coverage *covered) {
    for (size_t i = 0; i < covered->count; i++) {
        free(covered->marks[i]);
    }
}

/** The tensors of a state in order. */
typedef struct listing {
    const wherry_tensor *tensors[4096];
    size_t count;
} listing;

static void list_tensor(void *context, size_t number, const wherry_tensor *tensor) {
    listing *list = context;
    assert_true(number < 4096);
    list->tensors[number] = tensor;
    list->count = number + 1;
}

/** Preparing and encoding in one walk gives the same bytes. */
static void check_one_walk(const wherry_prepared *two_walks, const wherry_prepare_options *options) {
    wherry_prepared *prepared;
    void *bytes;
    void *again;
    size_t size;
    size_t again_size;
    wherry_error error;
    CHECK(wherry_manifest_encode(two_walks, &bytes, &size, &error) == WHERRY_OK, "encode: %s", error.message);
    CHECK(wh_manifest_prepare(wherry_prepared_state(two_walks), options, &prepared, &again, &again_size, &error) ==
              WHERRY_OK,
          "one walk: %s", error.message);
    CHECK(size == again_size && memcmp(bytes, again, size) == 0, "encoding in one walk gives other bytes");
    CHECK(prepared->solid == two_walks->solid && prepared->storage_count == two_walks->storage_count &&
              (!prepared->storage_count || memcmp(prepared->storage_fields, two_walks->storage_fields,
                                                  prepared->storage_count * sizeof(wh_storage_fields)) == 0),
          "preparing in one walk gives another result");
    wherry_prepared_destroy(prepared);
    wherry_free(bytes);
    wherry_free(again);
}

static wherry_prepared *prepare(const wherry_value *state, wh_random *random, int max_gap) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.chunk_bytes = UINT32_C(4096) << wh_random_below(random, 3);
    options.max_gap = (uint32_t)max_gap;
    options.rank = (int64_t)wh_random_below(random, 4) - 1;
    wherry_prepared *prepared;
    wherry_error error;
    CHECK(wherry_prepare(state, &options, &prepared, &error) == WHERRY_OK, "prepare: %s", error.message);
    check_one_walk(prepared, &options);
    return prepared;
}

static wherry_prepared *round_trip(const wherry_prepared *sent) {
    void *bytes;
    void *again;
    size_t size;
    size_t again_size;
    wherry_prepared *received;
    wherry_error error;
    CHECK(wherry_manifest_encode(sent, &bytes, &size, &error) == WHERRY_OK, "encode: %s", error.message);
    CHECK(wherry_manifest_decode(bytes, size, NULL, &received, &error) == WHERRY_OK, "decode: %s", error.message);
    CHECK(wherry_manifest_encode(received, &again, &again_size, &error) == WHERRY_OK, "encode: %s", error.message);
    CHECK(size == again_size && memcmp(bytes, again, size) == 0, "encoding the decoded state gives other bytes");
    CHECK(wherry_value_compare(wherry_prepared_state(sent), wherry_prepared_state(received), WHERRY_COMPARE_NO_CONTENT,
                               &error) == WHERRY_OK,
          "the decoded state differs at '%s': %s", error.path, error.message);
    wherry_free(bytes);
    wherry_free(again);
    return received;
}

/** The bytes of a chunk at the source, concatenated. */
typedef struct payload {
    unsigned char bytes[1 << 15];
    uint64_t size;
} payload;

static int add_piece(void *context, const wherry_piece *piece) {
    payload *to = context;
    for (uint64_t i = 0; i < piece->count; i++) {
        assert_true(to->size + piece->length <= sizeof(to->bytes));
        assert_true(piece->offset + i * piece->stride + piece->length <= wherry_storage_nbytes(piece->storage));
        memcpy(to->bytes + to->size,
               (const char *)wherry_storage_data(piece->storage) + piece->offset + i * piece->stride, piece->length);
        to->size += piece->length;
    }
    return 0;
}

/** Checks the properties of a direct chunk. */
typedef struct direct_check {
    uint64_t end;
    uint64_t copies;
    int direct;
} direct_check;

static int check_copy(void *context, const wherry_copy *copy) {
    direct_check *check = context;
    check->copies++;
    if (check->direct && (copy->count != 1 || copy->chunk_offset < check->end)) {
        return 1;
    }
    check->end = copy->chunk_offset + copy->length;
    return 0;
}

static void execute(const wherry_prepared *sent, const wherry_plan *plan) {
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    uint64_t end = 0;
    wherry_error error;
    for (size_t i = 0; i < count; i++) {
        CHECK(intervals[i].count > 0 && (i == 0 || intervals[i].first > end), "intervals touch");
        end = intervals[i].first + intervals[i].count;
        for (uint64_t chunk = intervals[i].first; chunk < end; chunk++) {
            payload bytes = {.size = 0};
            wherry_prepared_visit_chunk(sent, chunk, add_piece, &bytes);
            CHECK(wherry_plan_place(plan, chunk, bytes.bytes, bytes.size, &error) == WHERRY_OK, "%s", error.message);
            direct_check check = {.direct = wherry_plan_chunk_is_direct(plan, chunk)};
            CHECK(wherry_plan_visit_chunk(plan, chunk, check_copy, &check) == 0, "chunk is not direct");
            CHECK(check.copies > 0, "a chunk is requested but not needed");
        }
    }
}

/** Storages filled with a canary, for memory that a plan requests. */
static wherry_status allocate_canary(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    (void)context;
    wherry_status status = wherry_storage_allocate(nbytes, device, storage_p, NULL);
    if (status == WHERRY_OK) {
        memset(wherry_storage_data(*storage_p), CANARY, nbytes);
    }
    return status;
}

static void check_elements(const wherry_value *source, const wherry_value *received) {
    listing *from = calloc(1, sizeof(*from));
    listing *to = calloc(1, sizeof(*to));
    each_tensor(source, list_tensor, from);
    each_tensor(received, list_tensor, to);
    CHECK(from->count == to->count, "%zu tensors became %zu", from->count, to->count);
    for (size_t t = 0; t < from->count; t++) {
        const wherry_tensor *a = from->tensors[t];
        const wherry_tensor *b = to->tensors[t];
        for (uint64_t i = 0; i < element_count(a); i++) {
            const char *x = (const char *)wherry_storage_data(a->storage) + element_offset(a, i);
            const char *y = (const char *)wherry_storage_data(b->storage) + element_offset(b, i);
            CHECK(memcmp(x, y, wherry_dtype_describe(a->dtype)->bytes) == 0, "element %llu of tensor %zu differs",
                  (unsigned long long)i, t);
        }
    }
    free(from);
    free(to);
}

static void check_new(const wherry_value *source, const wherry_prepared *sent, wherry_prepared *received) {
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.allocate = allocate_canary;
    wherry_plan *plan;
    wherry_value *state;
    wherry_error error;
    CHECK(wherry_plan_create(received, NULL, &options, &plan, &error) == WHERRY_OK, "plan: %s", error.message);
    execute(sent, plan);
    assert_int_equal(wherry_plan_take_state(plan, &state, &error), WHERRY_OK);
    wherry_plan_destroy(plan);
    check_elements(source, state);
    coverage *covered = calloc(1, sizeof(*covered));
    each_tensor(state, cover_tensor, covered);
    for (size_t s = 0; s < covered->count; s++) {
        const unsigned char *bytes = wherry_storage_data(covered->storages[s]);
        for (uint64_t i = 0; i < wherry_storage_nbytes(covered->storages[s]); i++) {
            CHECK(covered->marks[s][i] || bytes[i] == CANARY, "a byte outside all views was written");
        }
    }
    release_coverage(covered);
    free(covered);
    wherry_value_destroy(state);
}

/** Compares the bytes that the target's views do not cover with copies from before the receive. */
static void check_untouched(const coverage *covered, unsigned char *const *before) {
    for (size_t s = 0; s < covered->count; s++) {
        const unsigned char *bytes = wherry_storage_data(covered->storages[s]);
        for (uint64_t i = 0; i < wherry_storage_nbytes(covered->storages[s]); i++) {
            CHECK(covered->marks[s][i] || bytes[i] == before[s][i], "a byte outside the target's views was written");
        }
    }
}

/** The bytes of a target's storages before the receive. */
static unsigned char **remember(const coverage *covered) {
    unsigned char **before = calloc(covered->count + 1, sizeof(*before));
    for (size_t s = 0; s < covered->count; s++) {
        uint64_t nbytes = wherry_storage_nbytes(covered->storages[s]);
        before[s] = calloc(1, nbytes + 1);
        if (nbytes) {
            memcpy(before[s], wherry_storage_data(covered->storages[s]), nbytes);
        }
    }
    return before;
}

static void forget(coverage *covered, unsigned char **before) {
    for (size_t s = 0; s < covered->count; s++) {
        free(before[s]);
    }
    free(before);
    release_coverage(covered);
    free(covered);
}

static void check_in_place(wh_random *random, const wherry_value *source, const wherry_prepared *sent,
                           wherry_prepared *received, int alike) {
    wherry_value *target = wh_random_target(random, source, alike);
    coverage *covered = calloc(1, sizeof(*covered));
    each_tensor(target, cover_tensor, covered);
    unsigned char **before = remember(covered);
    wherry_plan *plan;
    wherry_value *state;
    wherry_error error;
    CHECK(wherry_plan_create(received, target, NULL, &plan, &error) == WHERRY_OK, "plan in place: %s", error.message);
    execute(sent, plan);
    check_elements(source, target);
    check_untouched(covered, before);
    assert_int_equal(wherry_plan_take_state(plan, &state, &error), WHERRY_OK);
    wherry_plan_destroy(plan);
    check_elements(target, state);
    forget(covered, before);
    wherry_value_destroy(state);
    wherry_value_destroy(target);
}

static bool covers(const coverage *covered, const wherry_storage *storage) {
    bool found = false;
    for (size_t s = 0; s < covered->count && !found; s++) {
        found = covered->storages[s] == storage;
    }
    return found;
}

/**
 * Tensors without a target are over new storages with the source's sizes, shared as at the source,
 * and only their elements were written.
 */
static void check_new_storages(const wherry_value *source, const wherry_value *state, const coverage *targets) {
    listing *from = calloc(1, sizeof(*from));
    listing *to = calloc(1, sizeof(*to));
    coverage *covered = calloc(1, sizeof(*covered));
    each_tensor(source, list_tensor, from);
    each_tensor(state, list_tensor, to);
    each_tensor(state, cover_tensor, covered);
    for (size_t i = 0; i < to->count && i < from->count; i++) {
        const wherry_storage *own = to->tensors[i]->storage;
        if (covers(targets, own)) {
            continue;
        }
        CHECK(wherry_storage_nbytes(own) == wherry_storage_nbytes(from->tensors[i]->storage),
              "a storage changed its size");
        for (size_t j = 0; j < i; j++) {
            bool shared = from->tensors[i]->storage == from->tensors[j]->storage;
            CHECK(covers(targets, to->tensors[j]->storage) || shared == (own == to->tensors[j]->storage),
                  "tensors %zu and %zu share a storage on one side only", j, i);
        }
    }
    for (size_t s = 0; s < covered->count; s++) {
        const unsigned char *bytes = wherry_storage_data(covered->storages[s]);
        bool anew = !covers(targets, covered->storages[s]);
        for (uint64_t i = 0; anew && i < wherry_storage_nbytes(covered->storages[s]); i++) {
            CHECK(covered->marks[s][i] || bytes[i] == CANARY, "a byte of new memory outside all views was written");
        }
    }
    release_coverage(covered);
    free(covered);
    free(from);
    free(to);
}

/** Each leaf of the target equals the leaf of the state at the same path. */
static void check_adopted(const wherry_value *target, const wherry_value *state) {
    wherry_flat *flat;
    assert_int_equal(wherry_flatten(target, &flat, NULL), WHERRY_OK);
    for (size_t i = 0; i < wherry_flat_count(flat); i++) {
        const wherry_tensor *own = wherry_tensor_get(wherry_flat_leaf(flat, i));
        const wherry_value *leaf = wherry_value_at(state, wherry_flat_path(flat, i));
        if (own) {
            const wherry_tensor *got = wherry_tensor_get(leaf);
            CHECK(got && got->storage == own->storage && got->offset == own->offset, "a target was not used");
        }
    }
    wherry_flat_destroy(flat);
}

/** In place, into a target that lacks part of the source. */
static void check_partly_new(wh_random *random, const wherry_value *source, const wherry_prepared *sent,
                             wherry_prepared *received, int alike) {
    wherry_value *whole = wh_random_target(random, source, alike);
    wherry_value *target = wh_random_thinned(random, whole);
    coverage *covered = calloc(1, sizeof(*covered));
    /* Leaves that were removed from the target still exist, and must not be written. */
    each_tensor(whole, cover_tensor, covered);
    for (size_t s = 0; s < covered->count; s++) {
        memset(covered->marks[s], 0, wherry_storage_nbytes(covered->storages[s]));
    }
    each_tensor(target, cover_tensor, covered);
    unsigned char **before = remember(covered);
    wherry_plan_options options;
    wherry_plan_summary summary;
    wherry_plan *plan;
    wherry_value *state;
    wherry_error error;
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_NEW;
    options.allocate = allocate_canary;
    CHECK(wherry_plan_create(received, target, &options, &plan, &error) == WHERRY_OK, "plan with new leaves: %s",
          error.message);
    wherry_plan_summarize(plan, &summary);
    execute(sent, plan);
    assert_int_equal(wherry_plan_take_state(plan, &state, &error), WHERRY_OK);
    wherry_plan_destroy(plan);
    wherry_prepared_summary sizes;
    wherry_prepared_summarize(sent, &sizes);
    CHECK(summary.tensors == sizes.tensors && summary.missing == 0, "%llu tensors of %llu, %llu missing",
          (unsigned long long)summary.tensors, (unsigned long long)sizes.tensors, (unsigned long long)summary.missing);
    check_elements(source, state);
    check_untouched(covered, before);
    check_adopted(target, state);
    check_new_storages(source, state, covered);
    forget(covered, before);
    wherry_value_destroy(state);
    wherry_value_destroy(target);
    wherry_value_destroy(whole);
}

/**
 * Without gaps, the space has exactly the covered bytes, each once. With gaps it has at least as
 * many.
 */
static void check_space(const wherry_value *source, const wherry_prepared *exact, const wherry_prepared *loose) {
    coverage *covered = calloc(1, sizeof(*covered));
    each_tensor(source, cover_tensor, covered);
    uint64_t bytes = 0;
    for (size_t s = 0; s < covered->count; s++) {
        for (uint64_t i = 0; i < wherry_storage_nbytes(covered->storages[s]); i++) {
            bytes += covered->marks[s][i];
        }
    }
    wherry_prepared_summary summary;
    wherry_prepared_summarize(exact, &summary);
    CHECK(summary.bytes == bytes, "views cover %llu bytes, the space has %llu", (unsigned long long)bytes,
          (unsigned long long)summary.bytes);
    wherry_prepared_summarize(loose, &summary);
    CHECK(summary.bytes >= bytes, "the space lacks bytes");
    release_coverage(covered);
    free(covered);
}

static void check_state(uint64_t seed) {
    wh_random random = {seed};
    current_seed = seed;
    wherry_value *source = wh_random_state(&random);
    wherry_prepared *exact = prepare(source, &random, 0);
    wherry_prepared *loose = prepare(source, &random, (int)wh_random_below(&random, 4096));
    check_space(source, exact, loose);
    check_new(source, exact, round_trip(exact));
    check_new(source, loose, round_trip(loose));
    check_in_place(&random, source, loose, round_trip(loose), 0);
    check_in_place(&random, source, exact, round_trip(exact), 1);
    check_partly_new(&random, source, loose, round_trip(loose), 1);
    check_partly_new(&random, source, exact, round_trip(exact), 0);
    wherry_prepared_destroy(exact);
    wherry_prepared_destroy(loose);
    wherry_value_destroy(source);
}

static void test_random_states_arrive(void **state) {
    (void)state;
    const char *seed = getenv("WHERRY_PROPERTY_SEED");
    const char *wanted = getenv("WHERRY_PROPERTY_STATES");
    uint64_t count = wanted ? strtoull(wanted, NULL, 10) : STATES;
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    for (uint64_t i = 0; i < (seed ? 1 : count); i++) {
        check_state(first + i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_states_arrive)};
    return cmocka_run_group_tests_name("property", tests, NULL, NULL);
}
