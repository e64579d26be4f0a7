/*
 * If the target has the same structure as the source, no manifest is sent and nothing is matched.
 */
#include <string.h>

#include "conformance/transfer_world.h"

static wherry_error error;

/** Fills all storages of a state with one byte value. */
static void fill(const wherry_value *state, int value) {
    wherry_prepared *prepared;
    wherry_storage *storage;
    must(wherry_prepare(state, NULL, &prepared, &error));
    for (size_t i = 0; (storage = wherry_prepared_storage(prepared, i)) != NULL; i++) {
        if (wherry_storage_nbytes(storage)) {
            memset(wherry_storage_data(storage), value, wherry_storage_nbytes(storage));
        }
    }
    wherry_prepared_destroy(prepared);
}

/**
 * A receive into a target with state_p == NULL. The limits make it fail if it must read a manifest.
 */
static ferry_call receive_into(const ferry_world *world, int32_t at, int32_t from, wherry_value *target,
                               wherry_limits *limits) {
    ferry_call call = ferry_receive(world, at, from);
    wherry_limits_init(limits);
    limits->manifest_bytes = 1;
    call.options.limits = limits;
    call.options.target = ferry_target;
    call.options.target_context = target;
    call.in_target = true;
    return call;
}

/** Repeated transfers: only the bytes of the tensors differ. */
static void test_repeated_transfers_read_no_manifest(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(3);
    wherry_value *target = ferry_large_state(90);
    for (int i = 0; i < 3; i++) {
        wherry_limits limits;
        fill(source, i + 1);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), receive_into(&world, 1, 0, target, &limits)};
        ferry_run(calls, 2);
        ferry_expect_ok(calls + 1);
        ferry_expect_ok(calls);
        must(wherry_value_compare(source, target, WHERRY_COMPARE_ALL, &error));
        assert_true(calls[1].stats.tensors == 3001 && !calls[1].received);
    }
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static wherry_value *state_of_step(int64_t step, int64_t bytes, uint8_t seed) {
    wherry_value *value;
    wherry_value *one = ferry_tensor(bytes, seed);
    must(wherry_int_create(step, &value, &error));
    must(wherry_dict_put(one, "step", value, &error));
    return one;
}

/**
 * If a value or a tensor differs, or the caller wants the state, the receiver reads the manifest. A
 * limit on the manifest's size shows whether it does.
 */
static void test_manifest_is_read_if_states_differ(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *target = state_of_step(1, 5000, 90);
    static const struct {
        int64_t step, bytes;
        bool in_target;
        bool limited; /**< Reading a manifest fails. */
        wherry_status status;
    } cases[] = {
        {1, 5000, true, true, WHERRY_OK},     {2, 5000, true, false, WHERRY_OK},
        {2, 5000, true, true, WHERRY_LIMIT},  {1, 5000, false, false, WHERRY_OK},
        {1, 5000, false, true, WHERRY_LIMIT}, {1, 5001, true, false, WHERRY_MISMATCH},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_value *source = state_of_step(cases[i].step, cases[i].bytes, (uint8_t)i);
        wherry_limits limits;
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), receive_into(&world, 1, 0, target, &limits)};
        calls[1].in_target = cases[i].in_target;
        calls[1].options.limits = cases[i].limited ? &limits : NULL;
        ferry_run(calls, 2);
        assert_int_equal(calls[1].status, cases[i].status);
        if (cases[i].status == WHERRY_OK) {
            must(wherry_value_compare(wherry_dict_get(source, "w"), wherry_dict_get(target, "w"), WHERRY_COMPARE_ALL,
                                      &error));
        }
        if (calls[1].received) {
            must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
        }
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(source);
    }
    wherry_value_destroy(target);
    ferry_close(&world);
}

/**
 * A DTensor with the same local tensor has another box at another rank, so the fingerprints differ.
 */
static void test_fingerprint_depends_on_the_rank(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    static const struct {
        int64_t source;
        bool limited; /**< Reading a manifest fails. */
        wherry_status status;
    } cases[] = {{11, true, WHERRY_OK}, {10, true, WHERRY_LIMIT}, {10, false, WHERRY_MISMATCH}};
    wherry_value *source = ferry_shard_of_eleven(1);
    wherry_value *target = ferry_shard_of_eleven(90);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        wherry_limits limits;
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), receive_into(&world, 1, 0, target, &limits)};
        calls[0].options.rank = cases[i].source;
        calls[1].options.rank = 11;
        calls[1].options.limits = cases[i].limited ? &limits : NULL;
        ferry_run(calls, 2);
        assert_int_equal(calls[1].status, cases[i].status);
    }
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** Compares all bytes of the storages of two states, also those between the tensors. */
static void compare_storages(const wherry_value *one, const wherry_value *other) {
    wherry_prepared *a;
    wherry_prepared *b;
    wherry_storage *storage;
    must(wherry_prepare(one, NULL, &a, &error));
    must(wherry_prepare(other, NULL, &b, &error));
    for (size_t i = 0; (storage = wherry_prepared_storage(a, i)) != NULL; i++) {
        uint64_t size = wherry_storage_nbytes(storage);
        assert_int_equal(size, wherry_storage_nbytes(wherry_prepared_storage(b, i)));
        if (size) {
            assert_memory_equal(wherry_storage_data(storage), wherry_storage_data(wherry_prepared_storage(b, i)), size);
        }
    }
    wherry_prepared_destroy(a);
    wherry_prepared_destroy(b);
}

/** With equal states, the plan matches no paths. The result is the same as with matching. */
static void test_equal_states_give_the_same_bytes_without_matching(void **state) {
    (void)state;
    enum { AS_RANK = 5 };
    ferry_world world = ferry_open();
    wh_random random = {77};
    for (int i = 0; i < 40; i++) {
        wh_random seeds[] = {random, random};
        wherry_value *source = i ? wh_random_state(&random) : ferry_large_state(3);
        wherry_value *targets[] = {i ? wh_random_state(seeds) : ferry_large_state(90),
                                   i ? wh_random_state(seeds + 1) : ferry_large_state(90)};
        wherry_limits limits;
        fill(targets[0], 0xA5);
        fill(targets[1], 0xA5);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), receive_into(&world, 1, 0, targets[0], &limits),
                              ferry_receive(&world, 2, 0)};
        calls[0].ranks[1] = 2;
        calls[0].count = 2;
        calls[2].options.target = ferry_target;
        calls[2].options.target_context = targets[1];
        for (size_t k = 0; k < 3; k++) {
            calls[k].options.rank = AS_RANK; /* The rank decides which boxes are local. */
        }
        ferry_run(calls, 3);
        for (size_t k = 0; k < 3; k++) {
            ferry_expect_ok(calls + k);
        }
        assert_int_equal(calls[1].stats.tensors, calls[2].stats.tensors);
        compare_storages(targets[0], targets[1]);
        wherry_value_destroy(calls[2].received);
        wherry_value_destroy(targets[0]);
        wherry_value_destroy(targets[1]);
        wherry_value_destroy(source);
    }
    ferry_close(&world);
}

/** A state of two tensors of `bytes` bytes, whose storages are `distance` bytes apart in memory. */
static wherry_value *two_over(uint8_t *memory, int64_t bytes, size_t distance) {
    wherry_value *both;
    must(wherry_dict_create(&both, &error));
    for (size_t i = 0; i < 2; i++) {
        wherry_storage *storage;
        wherry_value *value;
        must(wherry_storage_wrap(memory + i * distance, (uint64_t)bytes, wherry_device_cpu(), NULL, NULL, &storage,
                                 &error));
        wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = &bytes};
        must(wherry_tensor_create(&tensor, &value, &error));
        must(wherry_dict_put(both, i ? "b" : "a", value, &error));
        wherry_storage_unref(storage);
    }
    return both;
}

/**
 * If tensors of the target overlap and those of the source do not, the receive fails before it
 * writes anything, even if the states are equal.
 */
static void test_refuses_overlapping_targets(void **state) {
    (void)state;
    enum { BYTES = 5000 };
    static uint8_t memory[2][3 * BYTES];
    ferry_world world = ferry_open();
    memset(memory[0], 1, sizeof(memory[0]));
    memset(memory[1], 2, sizeof(memory[1]));
    wherry_value *source = two_over(memory[0], BYTES, BYTES);
    wherry_value *target = two_over(memory[1], BYTES, BYTES - 1);
    wherry_limits limits;
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), receive_into(&world, 1, 0, target, &limits)};
    ferry_run(calls, 2);
    assert_int_equal(calls[1].status, WHERRY_MISMATCH);
    assert_non_null(strstr(calls[1].error.message, "share memory"));
    assert_int_equal(calls[0].status, WHERRY_ABORTED);
    for (size_t i = 0; i < sizeof(memory[1]); i++) {
        assert_int_equal(memory[1][i], 2);
    }
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** A receive with state_p == NULL and without a target fails before any byte moves. */
static void test_refuses_a_receive_without_target_and_state(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(5000, 1);
    wherry_value *target = ferry_tensor(5000, 90);
    for (int i = 0; i < 2; i++) {
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].in_target = true;
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = i ? target : NULL;
        calls[1].options.flags = i ? WHERRY_RECV_NEW : 0;
        ferry_run(calls, 2);
        assert_int_equal(calls[1].status, WHERRY_INVALID_ARGUMENT);
        assert_int_equal(calls[0].status, WHERRY_ABORTED);
    }
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static wherry_status accept_nothing(void *context, const wherry_value *offered, const wherry_value **target_p) {
    (void)context;
    (void)offered;
    *target_p = NULL;
    return WHERRY_OK;
}

static void test_refuses_unclear_destinations(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *received;
    int32_t to = 1;
    wherry_transfer_options options = ferry_options();
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_send(world.transports[0], &to, 1, NULL, &options, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_checkpoint_recv(world.transports[0], 1, &options, NULL, &error));
    assert_non_null(strstr(error.message, "no target to receive into"));
    options.target = ferry_target;
    options.accept = accept_nothing;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[0], 1, &options, &received, &error));
    assert_non_null(strstr(error.message, "both target and accept"));
    ferry_close(&world);
}

const struct CMUnitTest ferry_same_cases[] = {
    cmocka_unit_test(test_repeated_transfers_read_no_manifest),
    cmocka_unit_test(test_manifest_is_read_if_states_differ),
    cmocka_unit_test(test_fingerprint_depends_on_the_rank),
    cmocka_unit_test(test_equal_states_give_the_same_bytes_without_matching),
    cmocka_unit_test(test_refuses_overlapping_targets),
    cmocka_unit_test(test_refuses_a_receive_without_target_and_state),
    cmocka_unit_test(test_refuses_unclear_destinations),
};
const size_t ferry_same_case_count = sizeof(ferry_same_cases) / sizeof(*ferry_same_cases);
