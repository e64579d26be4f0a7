/*
 * Reading a chunk back from the target: in one piece, from several places, and the cases in which
 * that is impossible.
 */
#include "support/build.h"

#include "plan/plan.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static wherry_error error;

static wherry_value *bytes(int64_t count, uint8_t seed) {
    return build_tensor(build_storage((uint64_t)count, seed), WHERRY_U8, 0, 1, SHAPE(count), NULL);
}

/** A matrix whose rows are `stride` bytes apart. */
static wherry_value *rows(int64_t count, int64_t width, int64_t stride, uint8_t seed) {
    uint64_t nbytes = (uint64_t)(count * stride);
    return build_tensor(build_storage(nbytes, seed), WHERRY_U8, 0, 2, SHAPE(count, width), SHAPE(stride, 1));
}

static const char *memory_of(const wherry_value *state, const char *name) {
    return wherry_storage_data(wherry_tensor_get(wherry_dict_get(state, name))->storage);
}

/**
 * Gathers the only chunk of `source` from `target`. Destroys both. @param expects  the bytes of the
 * source, which the target has too. @param whole  they are one run of the target's memory.
 */
static void gather(wherry_value *source, wherry_value *target, bool expects, bool whole) {
    wh_gathered gathered = {0};
    struct iovec run;
    char sent[1000];
    wherry_plan *plan = build_plan(source, target);
    for (int again = 0; again < 2; again++) {
        assert_true(wh_plan_gather(plan, 0, &gathered, &run) == expects);
        if (expects) {
            wherry_prepared *prepared;
            must(wherry_prepare(source, NULL, &prepared, &error));
            assert_int_equal(run.iov_len, copy_chunk(prepared, 0, sent));
            assert_memory_equal(run.iov_base, sent, run.iov_len);
            assert_true((run.iov_base == memory_of(target, "w")) == whole);
            wherry_prepared_destroy(prepared);
        }
    }
    wh_gathered_destroy(&gathered);
    wherry_plan_destroy(plan);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
}

static wherry_value *alone(wherry_value *tensor) {
    return build_dict("w", tensor, NULL);
}

static void test_one_run_is_not_copied(void **state) {
    (void)state;
    gather(alone(bytes(100, 3)), alone(bytes(100, 3)), true, true);
}

static void test_pieces_are_put_together(void **state) {
    (void)state;
    /* Each row of 20 bytes continues the seeds of the row before. */
    wherry_value *target = rows(5, 20, 30, 0);
    char *to = wherry_storage_data(wherry_tensor_get(target)->storage);
    wherry_value *source = bytes(100, 3);
    const char *from = wherry_storage_data(wherry_tensor_get(source)->storage);
    for (size_t row = 0; row < 5; row++) {
        memcpy(to + 30 * row, from + 20 * row, 20);
    }
    wherry_value *flat = rows(5, 20, 20, 3);
    wherry_value_destroy(source);
    gather(alone(flat), alone(target), true, false);
}

/** Two tensors of the source share their bytes, and those of the target do not. */
static void test_two_destinations(void **state) {
    (void)state;
    wherry_storage *shared = build_storage(100, 3);
    wherry_value *source = build_dict("v", build_view(shared, WHERRY_U8, 0, 1, SHAPE(100), NULL), "w",
                                      build_tensor(shared, WHERRY_U8, 0, 1, SHAPE(100), NULL), NULL);
    gather(source, build_dict("v", bytes(100, 3), "w", bytes(100, 4), NULL), false, false);
}

/** The chunk has the gaps between the rows of the source, which have no destination. */
static void test_no_destination(void **state) {
    (void)state;
    gather(alone(rows(50, 10, 12, 3)), alone(rows(50, 10, 12, 3)), false, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_run_is_not_copied),
        cmocka_unit_test(test_pieces_are_put_together),
        cmocka_unit_test(test_two_destinations),
        cmocka_unit_test(test_no_destination),
    };
    return cmocka_run_group_tests_name("plan_gather", tests, NULL, NULL);
}
