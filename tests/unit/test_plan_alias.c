/* Overlapping targets: accepted only if their sources overlap in the same way. */
#include "plan/plan.h"
#include "support/build.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static wherry_error error;

/** A dict of two views of one storage, or of the same memory wrapped twice. */
typedef struct two_views {
    int64_t offset[2];
    int64_t strides[2][2];
    int64_t shape[2][2];
} two_views;

static wherry_value *build_pair(const two_views *views, int storages) {
    wherry_storage *one = build_storage(400, 1);
    wherry_storage *other = storages == 1 ? wherry_storage_ref(one) : build_storage(400, 2);
    wherry_value *state =
        build_dict("a", build_tensor(one, WHERRY_F32, views->offset[0], 2, views->shape[0], views->strides[0]), "b",
                   build_tensor(other, WHERRY_F32, views->offset[1], 2, views->shape[1], views->strides[1]), NULL);
    return state;
}

static wherry_status plan_status(const wherry_value *source, const wherry_value *target, uint64_t *bytes_p) {
    wherry_prepared *received = build_received(source, -1);
    wherry_plan *plan;
    wherry_plan_summary summary;
    wherry_status status = wherry_plan_create(received, target, NULL, &plan, &error);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(received);
        return status;
    }
    wherry_plan_summarize(plan, &summary);
    *bytes_p = summary.bytes;
    wherry_plan_destroy(plan);
    return status;
}

static void expect(const two_views *from, int from_storages, const two_views *to, int to_storages,
                   wherry_status expected, uint64_t bytes) {
    wherry_value *source = build_pair(from, from_storages);
    wherry_value *target = build_pair(to, to_storages);
    uint64_t written = 0;
    wherry_status status = plan_status(source, target, &written);
    if (status != expected) {
        fail_msg("%s: %s", wherry_status_name(status), status ? error.message : "");
    }
    assert_int_equal(written, bytes);
    if (status != WHERRY_OK) {
        assert_string_equal(error.path, "b");
        assert_non_null(strstr(error.message, "'a' and 'b' share memory"));
    }
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

static const two_views tied = {{0, 0}, {{3, 1}, {3, 1}}, {{2, 3}, {2, 3}}};
static const two_views shifted = {{0, 3}, {{3, 1}, {3, 1}}, {{2, 3}, {2, 3}}};
static const two_views turned = {{0, 0}, {{3, 1}, {1, 2}}, {{2, 3}, {2, 3}}};
static const two_views columns = {{0, 3}, {{6, 1}, {6, 1}}, {{4, 3}, {4, 3}}};
static const two_views rows = {{0, 12}, {{3, 1}, {3, 1}}, {{4, 3}, {4, 3}}};
static const two_views squares = {{0, 0}, {{3, 1}, {1, 3}}, {{3, 3}, {3, 3}}};

static void test_tied_targets_need_tied_sources(void **state) {
    (void)state;
    expect(&tied, 1, &tied, 1, WHERRY_OK, 24);
    expect(&tied, 1, &tied, 2, WHERRY_OK, 48);
    expect(&tied, 2, &tied, 1, WHERRY_MISMATCH, 0);
    expect(&tied, 2, &tied, 2, WHERRY_OK, 48);
}

static void test_partial_overlap_must_match(void **state) {
    (void)state;
    expect(&shifted, 1, &shifted, 1, WHERRY_OK, 48);
    expect(&tied, 1, &shifted, 1, WHERRY_MISMATCH, 0);
    expect(&shifted, 1, &tied, 1, WHERRY_MISMATCH, 0);
    expect(&shifted, 2, &shifted, 1, WHERRY_MISMATCH, 0);
    expect(&shifted, 1, &turned, 1, WHERRY_MISMATCH, 0);
}

/** A matrix and its transpose: the same memory twice, in different order. */
static void test_transposed_views_must_match(void **state) {
    (void)state;
    two_views plain = squares;
    memcpy(plain.strides[1], plain.strides[0], sizeof(plain.strides[1]));
    expect(&squares, 1, &squares, 1, WHERRY_OK, 36);
    expect(&squares, 1, &plain, 1, WHERRY_MISMATCH, 0);
}

/** Columns of one matrix interleave but do not overlap. */
static void test_accepts_interleaved_columns(void **state) {
    (void)state;
    expect(&rows, 2, &columns, 1, WHERRY_OK, 96);
    expect(&columns, 1, &columns, 1, WHERRY_OK, 96);
    expect(&rows, 1, &columns, 1, WHERRY_OK, 96);
    two_views crossing = columns;
    crossing.offset[1] = 2;
    expect(&rows, 2, &crossing, 1, WHERRY_MISMATCH, 0);
}

static void test_finds_memory_that_is_wrapped_twice(void **state) {
    (void)state;
    static char memory[24];
    wherry_storage *one;
    wherry_storage *other;
    uint64_t bytes;
    must(wherry_storage_wrap(memory, 24, wherry_device_cpu(), NULL, NULL, &one, &error));
    must(wherry_storage_wrap(memory, 20, wherry_device_cpu(), NULL, NULL, &other, &error));
    wherry_value *target = build_dict("a", build_tensor(one, WHERRY_F32, 0, 2, SHAPE(2, 3), NULL), "b",
                                      build_tensor(other, WHERRY_F32, 0, 2, SHAPE(1, 3), NULL), NULL);
    wherry_value *source = build_dict("a", build_tensor(build_storage(24, 1), WHERRY_F32, 0, 2, SHAPE(2, 3), NULL), "b",
                                      build_tensor(build_storage(24, 1), WHERRY_F32, 0, 2, SHAPE(1, 3), NULL), NULL);
    assert_int_equal(plan_status(source, target, &bytes), WHERRY_MISMATCH);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

/** A target whose own elements overlap needs a source whose elements overlap in the same way. */
static void test_overlap_within_a_tensor_must_match(void **state) {
    (void)state;
    uint64_t bytes = 0;
    wherry_value *whole = build_tensor(build_storage(24, 1), WHERRY_F32, 0, 2, SHAPE(2, 3), NULL);
    wherry_value *expanded = build_tensor(build_storage(24, 1), WHERRY_F32, 0, 2, SHAPE(2, 3), SHAPE(0, 1));
    wherry_value *window = build_tensor(build_storage(24, 1), WHERRY_F32, 0, 2, SHAPE(2, 3), SHAPE(1, 1));
    assert_int_equal(plan_status(whole, expanded, &bytes), WHERRY_MISMATCH);
    assert_non_null(strstr(error.message, "elements of the target may overlap"));
    assert_int_equal(plan_status(whole, window, &bytes), WHERRY_MISMATCH);
    assert_int_equal(plan_status(expanded, window, &bytes), WHERRY_MISMATCH);
    assert_int_equal(plan_status(expanded, whole, &bytes), WHERRY_OK);
    assert_int_equal(bytes, 24);
    assert_int_equal(plan_status(expanded, expanded, &bytes), WHERRY_OK);
    assert_int_equal(bytes, 12);
    assert_int_equal(plan_status(window, window, &bytes), WHERRY_OK);
    wherry_value_destroy(whole);
    wherry_value_destroy(expanded);
    wherry_value_destroy(window);
}

/** Tied weights stay tied and are copied once, even if the strides of the two sides differ. */
static void test_tied_tensors_are_copied_once(void **state) {
    (void)state;
    static const two_views standing = {{0, 0}, {{1, 2}, {1, 2}}, {{2, 3}, {2, 3}}};
    static const two_views padded = {{1, 1}, {{10, 1}, {10, 1}}, {{2, 3}, {2, 3}}};
    expect(&tied, 1, &standing, 1, WHERRY_OK, 24);
    expect(&padded, 1, &tied, 1, WHERRY_OK, 24);
    expect(&padded, 2, &tied, 1, WHERRY_MISMATCH, 0);
}

/** Two dimensions of equal stride overlap. */
static void test_equal_strides_overlap(void **state) {
    (void)state;
    uint64_t bytes;
    wherry_value *whole = build_tensor(build_storage(16, 1), WHERRY_F32, 0, 2, SHAPE(2, 2), NULL);
    wherry_value *stepping = build_tensor(build_storage(64, 1), WHERRY_F32, 0, 2, SHAPE(2, 2), SHAPE(4, 4));
    wherry_value *cube = build_tensor(build_storage(32, 1), WHERRY_F32, 0, 3, SHAPE(2, 2, 2), NULL);
    wherry_value *inside = build_tensor(build_storage(64, 1), WHERRY_F32, 0, 3, SHAPE(2, 2, 2), SHAPE(8, 2, 2));
    assert_int_equal(plan_status(whole, stepping, &bytes), WHERRY_MISMATCH);
    assert_int_equal(plan_status(cube, inside, &bytes), WHERRY_MISMATCH);
    wherry_value_destroy(whole);
    wherry_value_destroy(stepping);
    wherry_value_destroy(cube);
    wherry_value_destroy(inside);
}

/** Many columns of one matrix, each with its own source. */
static void test_accepts_many_columns(void **state) {
    (void)state;
    enum { COLUMNS = 512, ROWS = 4096 };
    wherry_storage *matrix = build_storage(COLUMNS * ROWS, 1);
    wherry_value *source = build_list(build_none(), NULL);
    wherry_value *target = build_list(build_none(), NULL);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < COLUMNS; i++) {
        wherry_value *column = build_view(matrix, WHERRY_U8, i, 1, SHAPE(ROWS), SHAPE(COLUMNS));
        must(wherry_sequence_append(target, column, &error));
        must(wherry_sequence_append(source, build_tensor(build_storage(ROWS, 2), WHERRY_U8, 0, 1, SHAPE(ROWS), NULL),
                                    &error));
    }
    assert_int_equal(plan_status(source, target, &bytes), WHERRY_OK);
    assert_int_equal(bytes, COLUMNS * ROWS);
    wherry_storage_unref(matrix);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
}

enum { RANDOM_CASES = 20000, RANDOM_BYTES = 64 };

/** A random view that fits a storage of RANDOM_BYTES. */
static void random_views(uint64_t *dice, two_views *views, const two_views *shape_of) {
    for (int v = 0; v < 2; v++) {
        int64_t last;
        do {
            last = views->offset[v] = (int64_t)(next_random(dice) % 8);
            for (int d = 0; d < 2; d++) {
                views->shape[v][d] = shape_of ? shape_of->shape[v][d] : 1 + (int64_t)(next_random(dice) % 3);
                views->strides[v][d] = (int64_t)(next_random(dice) % 6);
                last += (views->shape[v][d] - 1) * views->strides[v][d];
            }
        } while (last >= RANDOM_BYTES);
    }
}

/** True if a byte of the targets would be written with two different bytes of the sources. */
static bool is_in_conflict(const two_views *from, int from_storages, const two_views *to, int to_storages) {
    int written[2][RANDOM_BYTES];
    memset(written, -1, sizeof(written));
    for (int v = 0; v < 2; v++) {
        for (int64_t i = 0; i < from->shape[v][0]; i++) {
            for (int64_t j = 0; j < from->shape[v][1]; j++) {
                int64_t source = from->offset[v] + i * from->strides[v][0] + j * from->strides[v][1];
                int64_t target = to->offset[v] + i * to->strides[v][0] + j * to->strides[v][1];
                int *byte = &written[to_storages == 2 ? v : 0][target];
                int wanted = (int)source + (from_storages == 2 ? v * RANDOM_BYTES : 0);
                if (*byte != -1 && *byte != wanted) {
                    return true;
                }
                *byte = wanted;
            }
        }
    }
    return false;
}

static wherry_value *random_pair(const two_views *views, int storages) {
    wherry_storage *one = build_storage(RANDOM_BYTES, 1);
    wherry_storage *other = storages == 1 ? wherry_storage_ref(one) : build_storage(RANDOM_BYTES, 2);
    return build_dict("a", build_tensor(one, WHERRY_U8, views->offset[0], 2, views->shape[0], views->strides[0]), "b",
                      build_tensor(other, WHERRY_U8, views->offset[1], 2, views->shape[1], views->strides[1]), NULL);
}

/** Every accepted pair is free of conflicts, and many pairs without conflicts are accepted. */
static void test_random_pairs_are_judged_right(void **state) {
    (void)state;
    uint64_t dice = 1;
    int sound = 0;
    int accepted = 0;
    for (int i = 0; i < RANDOM_CASES; i++) {
        two_views from;
        two_views to;
        uint64_t bytes;
        int from_storages = 1 + (int)(next_random(&dice) % 2);
        int to_storages = 1 + (int)(next_random(&dice) % 2);
        random_views(&dice, &from, NULL);
        to = from;
        if (next_random(&dice) % 4) {
            random_views(&dice, &to, &from);
        }
        wherry_value *source = random_pair(&from, from_storages);
        wherry_value *target = random_pair(&to, to_storages);
        bool conflict = is_in_conflict(&from, from_storages, &to, to_storages);
        bool ok = plan_status(source, target, &bytes) == WHERRY_OK;
        if (ok && conflict) {
            fail_msg("case %d is accepted, although two source bytes have the same target", i);
        }
        sound += !conflict;
        accepted += ok;
        wherry_value_destroy(source);
        wherry_value_destroy(target);
    }
    assert_true(sound > RANDOM_CASES / 10 && accepted > sound / 2);
}

/** Stretches in ascending runs of random length, or unsorted. */
static void test_finds_overlapping_stretches(void **state) {
    (void)state;
    enum { MOST = 60 };
    uint64_t dice = 99;
    int found[2] = {0};
    for (int turn = 0; turn < 3000; turn++) {
        wh_stretch stretches[MOST];
        size_t count = (size_t)(next_random(&dice) % (MOST + 1));
        uint64_t leap = 1 + next_random(&dice) % 20; /* The average length of an ascending run. */
        uint64_t at = 100000;
        for (size_t i = 0; i < count; i++) {
            at = next_random(&dice) % leap ? at : 100000 + next_random(&dice) % 60000;
            stretches[i] = (wh_stretch){at, at + 1 + next_random(&dice) % 50};
            at += 50;
        }
        bool apart = true;
        for (size_t i = 0; i < count; i++) {
            for (size_t k = 0; k < i; k++) {
                apart = apart && (stretches[i].end <= stretches[k].begin || stretches[k].end <= stretches[i].begin);
            }
        }
        found[apart]++;
        if (wh_stretches_are_disjoint(stretches, count) != apart) {
            fail_msg("turn %d: %zu stretches are wrongly called %s", turn, count, apart ? "overlapping" : "disjoint");
        }
    }
    assert_true(found[false] > 100 && found[true] > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_overlapping_stretches),
        cmocka_unit_test(test_tied_targets_need_tied_sources),
        cmocka_unit_test(test_partial_overlap_must_match),
        cmocka_unit_test(test_transposed_views_must_match),
        cmocka_unit_test(test_accepts_interleaved_columns),
        cmocka_unit_test(test_finds_memory_that_is_wrapped_twice),
        cmocka_unit_test(test_overlap_within_a_tensor_must_match),
        cmocka_unit_test(test_tied_tensors_are_copied_once),
        cmocka_unit_test(test_equal_strides_overlap),
        cmocka_unit_test(test_accepts_many_columns),
        cmocka_unit_test(test_random_pairs_are_judged_right),
    };
    return cmocka_run_group_tests_name("plan_alias", tests, NULL, NULL);
}
