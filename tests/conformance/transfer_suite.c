#include "conformance/transfer_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/transfer_world.h"
#include "support/asleep.h"
#include "transfer/transfer_timing.h"

static wherry_error error;

static void test_random_states_arrive(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wh_random random = {11};
    for (int i = 0; i < 40; i++) {
        wherry_value *source = wh_random_state(&random);
        ferry_one(&world, source, NULL, NULL, 0);
        wh_random again = random;
        wherry_value *target = wh_random_target(&random, source, i % 2);
        wherry_value *twin = wh_random_target(&again, source, i % 2);
        ferry_one(&world, source, target, twin, 0);
        wherry_value_destroy(twin);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
    }
    ferry_close(&world);
}

static void test_small_states_arrive(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    int64_t none[] = {3, 0};
    wherry_value *states[] = {
        build_none(),
        build_dict(NULL),
        build_dict("step", build_int(7), "name", build_string("x"), NULL),
        ferry_tensor(1, 1),
        build_list(build_tensor(build_storage(0, 0), WHERRY_F32, 0, 2, none, NULL), build_int(1), NULL),
    };
    for (size_t i = 0; i < sizeof(states) / sizeof(*states); i++) {
        ferry_one(&world, states[i], NULL, NULL, 0);
        wherry_value_destroy(states[i]);
    }
    ferry_close(&world);
}

static void test_statistics_of_a_large_state_are_right(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(3);
    for (int verify = WHERRY_VERIFY_ON; verify <= WHERRY_VERIFY_OFF; verify++) {
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.verify = (wherry_verify)verify;
        ferry_run(calls, 2);
        ferry_expect_ok(calls + 1);
        ferry_expect_ok(calls);
        must(wherry_value_compare(source, calls[1].received, WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[1].received);
        const wherry_stats *stats = &calls[1].stats;
        assert_string_equal(stats->lane, ferry_lane);
        assert_string_equal(calls[0].outcomes[0].stats.lane, ferry_lane);
        /* Encryption also checks the data, and nobody can alter it. */
        bool encrypted = world.groups[1]->encrypts_all;
        assert_int_equal(stats->checked, encrypted || verify == WHERRY_VERIFY_ON);
        assert_int_equal(stats->verified, encrypted);
        assert_int_equal(stats->tensors, 3001);
        assert_true(stats->bytes_moved == stats->bytes_wanted && stats->bytes_wanted > (21 << 20));
        assert_true(stats->total_seconds > 0 && stats->data_seconds > 0 && stats->data_seconds < stats->total_seconds);
        assert_int_equal(stats->retries, 0);
        assert_int_equal(calls[0].outcomes[0].stats.bytes_wanted, stats->bytes_wanted);
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** At most so many PROGRESS messages come on top, one per WH_RECV_TELL_MS or WH_SHOW_MS. */
static void expect_messages(const wherry_stats *stats, uint64_t needed, uint64_t interval_ms) {
    uint64_t progress = (uint64_t)(stats->total_seconds * 1e3) / interval_ms;
    if (stats->messages < needed || stats->messages > needed + progress) {
        fail_msg("%llu messages in %.3f s instead of %llu", (unsigned long long)stats->messages, stats->total_seconds,
                 (unsigned long long)needed);
    }
}

/**
 * WANT, PLAN and DONE from the receiver; OFFER and RELEASED from the source. DIGESTS comes on top
 * if chunks are checked and the lane does not carry digests; PROGRESS if a transfer takes long.
 */
static void test_one_source_costs_five_messages(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    bool by_message = strcmp(ferry_lane, "cma") == 0 || strcmp(ferry_lane, "blocks") == 0;
    for (int i = 0; i < 20; i++) {
        bool checked = i % 2;
        wherry_value *source = i % 4 < 2 ? ferry_tensor(1000, 1) : ferry_large_state(3);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.verify = checked ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        expect_messages(&calls[1].stats, 3, WH_RECV_TELL_MS);
        expect_messages(&calls[0].outcomes[0].stats, checked && by_message ? 3 : 2, WH_SHOW_MS);
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(source);
    }
    ferry_close(&world);
}

static void test_sends_to_several_destinations(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(9);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0), ferry_receive(&world, 2, 0)};
    calls[0].ranks[1] = 2;
    calls[0].count = 2;
    ferry_run(calls, 3);
    for (int i = 0; i < 3; i++) {
        ferry_expect_ok(calls + i);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(calls[0].outcomes[i].rank, i + 1);
        assert_int_equal(calls[0].outcomes[i].status, WHERRY_OK);
        must(wherry_value_compare(source, calls[i + 1].received, WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[i + 1].received);
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void test_one_failed_destination_does_not_stop_the_other(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(100000, 1);
    wherry_value *target = ferry_tensor(99999, 2);
    wherry_value *before = ferry_tensor(99999, 2);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0), ferry_receive(&world, 2, 0)};
    calls[0].ranks[1] = 2;
    calls[0].count = 2;
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = target;
    ferry_run(calls, 3);
    assert_int_equal(calls[0].status, WHERRY_ABORTED);
    assert_int_equal(calls[0].outcomes[0].status, WHERRY_ABORTED);
    assert_int_equal(calls[0].outcomes[0].error.rank, 1);
    assert_string_equal(calls[0].outcomes[0].error.path, "w");
    assert_int_equal(calls[0].outcomes[1].status, WHERRY_OK);
    assert_int_equal(calls[1].status, WHERRY_MISMATCH);
    assert_string_equal(calls[1].error.path, "w");
    ferry_expect_ok(calls + 2);
    must(wherry_value_compare(before, target, WHERRY_COMPARE_ALL, &error));
    wherry_value_destroy(calls[2].received);
    wherry_value_destroy(before);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void test_both_sides_must_name_the_same_step(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1000, 1);
    const struct {
        int64_t source, receiver;
        wherry_status status;
    } cases[] = {
        {5, 5, WHERRY_OK}, {5, 6, WHERRY_MISMATCH}, {WHERRY_STEP_ANY, 6, WHERRY_OK}, {5, WHERRY_STEP_ANY, WHERRY_OK}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[0].options.step = cases[i].source;
        calls[1].options.step = cases[i].receiver;
        ferry_run(calls, 2);
        assert_int_equal(calls[0].status, cases[i].status);
        assert_int_equal(calls[1].status, cases[i].status);
        if (cases[i].status == WHERRY_OK) {
            wherry_value_destroy(calls[1].received);
        } else {
            assert_non_null(strstr(calls[0].error.message, "step 5"));
            assert_non_null(strstr(calls[1].error.message, "step 6"));
        }
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void test_times_out_without_a_peer(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1000, 1);
    for (int i = 0; i < 3; i++) {
        ferry_call sends = ferry_send(&world, 0, 1, source);
        sends.options.timeout_ms = 30;
        ferry_run(&sends, 1);
        assert_int_equal(sends.status, WHERRY_TIMED_OUT);
        assert_non_null(strstr(sends.error.message, "timed out"));
        ferry_call receives = ferry_receive(&world, 1, 0);
        receives.options.timeout_ms = 30;
        ferry_run(&receives, 1);
        assert_int_equal(receives.status, WHERRY_TIMED_OUT);
        assert_non_null(strstr(receives.error.message, "timed out"));
        ferry_one(&world, source, NULL, NULL, 0);
    }
    int32_t waiting[FERRY_RANKS];
    assert_int_equal(wherry_transport_waiting(world.transports[0], waiting, FERRY_RANKS), 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void test_lanes_are_listed(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    size_t count = 0;
    bool found = false;
    for (const char *name; (name = wherry_transport_lane(world.transports[0], count)); count++) {
        found = found || strcmp(name, ferry_lane) == 0;
    }
    assert_true(found && count > 1);
    assert_null(wherry_transport_lane(world.transports[0], SIZE_MAX));
    assert_null(wherry_transport_lane(NULL, 0));
    ferry_close(&world);
}

static void test_cancel_ends_waiting_calls(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(1000, 1);
    for (int side = 0; side < 2; side++) {
        wherry_cancel *cancel;
        must(wherry_cancel_create(&cancel, &error));
        ferry_call call = side ? ferry_receive(&world, 1, 0) : ferry_send(&world, 0, 1, source);
        call.options.cancel = cancel;
        ferry_start(&call);
        wh_await_asleep(getpid());
        uint64_t begin = wh_clock_now();
        wherry_cancel_request(cancel);
        ferry_join(&call);
        assert_true(wh_clock_now() - begin < FERRY_MS / 4 * UINT64_C(1000000));
        assert_int_equal(call.status, WHERRY_CANCELLED);
        ferry_run(&call, 1);
        assert_int_equal(call.status, WHERRY_CANCELLED);
        wherry_cancel_destroy(cancel);
    }
    ferry_one(&world, source, NULL, NULL, 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

/** The lane of the suite; another one if a rank sends to itself and the lane needs two ranks. */
static const char *lane_between(int32_t from, int32_t to) {
    return from == to && strcmp(ferry_lane, "blocks") == 0 ? "ring" : ferry_lane;
}

/** All ranks send to and receive from all others at once, with a different state per pair. */
static void test_all_ranks_transfer_at_once(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    for (int round = 0; round < 10; round++) {
        ferry_call calls[2 * FERRY_RANKS * FERRY_RANKS];
        wherry_value *states[FERRY_RANKS][FERRY_RANKS] = {{NULL}};
        size_t count = 0;
        for (int32_t from = 0; from < FERRY_RANKS; from++) {
            for (int32_t to = 0; to < FERRY_RANKS; to++) {
                states[from][to] = ferry_tensor(60000 + 10 * from + to, (uint8_t)(round + 16 * from + to));
                calls[count++] = ferry_send(&world, from, to, states[from][to]);
                calls[count++] = ferry_receive(&world, to, from);
                calls[count - 1].options.lanes = calls[count - 2].options.lanes = lane_between(from, to);
            }
        }
        ferry_run(calls, count);
        for (size_t i = 0; i < count; i++) {
            ferry_expect_ok(calls + i);
        }
        for (size_t i = 1; i < count; i += 2) {
            size_t pair = i / 2;
            must(wherry_value_compare(states[pair / FERRY_RANKS][pair % FERRY_RANKS], calls[i].received,
                                      WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[i].received);
        }
        for (int i = 0; i < FERRY_RANKS * FERRY_RANKS; i++) {
            wherry_value_destroy(states[i / FERRY_RANKS][i % FERRY_RANKS]);
        }
    }
    ferry_close(&world);
}

typedef struct progress_seen {
    int calls;
    uint64_t last;
    uint64_t total;
    bool rising;
} progress_seen;

static void see_progress(void *context, const wherry_progress *progress) {
    progress_seen *seen = context;
    seen->rising = seen->rising && progress->bytes >= seen->last;
    seen->calls++;
    seen->last = progress->bytes;
    seen->total = progress->total;
    assert_string_equal(progress->lane, ferry_lane);
}

static wherry_status count_allocation(void *context, uint64_t nbytes, wherry_device device,
                                      wherry_storage **storage_p) {
    ++*(int *)context;
    return wherry_storage_allocate(nbytes, device, storage_p, NULL);
}

static void test_progress_and_allocation_callbacks_are_called(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_large_state(5);
    progress_seen seen = {.rising = true};
    int allocations = 0;
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.progress = see_progress;
    calls[1].options.progress_context = &seen;
    calls[1].options.allocate = count_allocation;
    calls[1].options.allocate_context = &allocations;
    ferry_run(calls, 2);
    ferry_expect_ok(calls + 1);
    ferry_expect_ok(calls);
    assert_true(seen.calls >= 1 && seen.rising);
    assert_true(seen.last == seen.total && seen.total == calls[1].stats.bytes_wanted);
    assert_int_equal(allocations, 3001);
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static wherry_status no_target(void *context, const wherry_value **target_p) {
    (void)context;
    (void)target_p;
    return WHERRY_NOT_FOUND;
}

static void test_source_hears_that_the_receiver_gave_up(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(5000, 1);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.target = no_target;
    calls[0].options.timeout_ms = 500;
    ferry_run(calls, 2);
    assert_int_equal(calls[1].status, WHERRY_NOT_FOUND);
    assert_true(calls[0].status == WHERRY_ABORTED || calls[0].status == WHERRY_TIMED_OUT);
    ferry_one(&world, source, NULL, NULL, 0);
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void test_refuses_invalid_arguments(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *source = ferry_tensor(10, 1);
    wherry_value *received;
    int32_t ranks[] = {1, 1, FERRY_RANKS};
    wherry_transfer_options options = ferry_options();
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_send(world.transports[0], ranks, 2, source, &options, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_send(world.transports[0], ranks + 2, 1, source, &options, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_send(world.transports[0], NULL, 1, source, &options, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_send(world.transports[0], ranks, 1, NULL, &options, NULL, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[0], -1, &options, &received, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_checkpoint_recv(world.transports[0], 1, &options, NULL, &error));
    const char *lanes[] = {"boat", "cma,", "^cma,ring", ",", "^cuda_ipc,^nccl,^cma,^ring,^ucx,^blocks,^stream"};
    for (size_t i = 0; i < sizeof(lanes) / sizeof(*lanes); i++) {
        options.lanes = lanes[i];
        must_fail(WHERRY_INVALID_ARGUMENT, error,
                  wherry_checkpoint_recv(world.transports[0], 1, &options, &received, &error));
    }
    options = ferry_options();
    options.no_progress_ms = 0;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[0], 1, &options, &received, &error));
    options = ferry_options();
    options.flags = 1u << 31;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[0], 1, &options, &received, &error));
    options.struct_size = 0;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wherry_checkpoint_recv(world.transports[0], 1, &options, &received, &error));
    must(wherry_checkpoint_send(world.transports[0], NULL, 0, source, NULL, NULL, &error));
    wherry_value_destroy(source);
    ferry_close(&world);
}

static void choose(const wh_group_kind *kind, const char *lane) {
    ferry_kind = kind;
    ferry_lane = lane;
    wherry_log_set_level(WHERRY_LOG_OFF);
}

int wh_transfer_smoke_run(const wh_group_kind *kind, const char *lane) {
    struct CMUnitTest cases[] = {
        cmocka_unit_test(test_small_states_arrive),
        cmocka_unit_test(test_statistics_of_a_large_state_are_right),
        cmocka_unit_test(test_one_source_costs_five_messages),
        cmocka_unit_test(test_sends_to_several_destinations),
        cmocka_unit_test(test_one_failed_destination_does_not_stop_the_other),
        cmocka_unit_test(test_cancel_ends_waiting_calls),
    };
    choose(kind, lane);
    return ferry_run_cases("transfer_smoke", cases, sizeof(cases) / sizeof(*cases));
}

int wh_transfer_suite_run(const wh_group_kind *kind, const char *lane) {
    static const struct CMUnitTest own[] = {
        cmocka_unit_test(test_random_states_arrive),
        cmocka_unit_test(test_small_states_arrive),
        cmocka_unit_test(test_statistics_of_a_large_state_are_right),
        cmocka_unit_test(test_one_source_costs_five_messages),
        cmocka_unit_test(test_sends_to_several_destinations),
        cmocka_unit_test(test_one_failed_destination_does_not_stop_the_other),
        cmocka_unit_test(test_both_sides_must_name_the_same_step),
        cmocka_unit_test(test_times_out_without_a_peer),
        cmocka_unit_test(test_lanes_are_listed),
        cmocka_unit_test(test_cancel_ends_waiting_calls),
        cmocka_unit_test(test_all_ranks_transfer_at_once),
        cmocka_unit_test(test_progress_and_allocation_callbacks_are_called),
        cmocka_unit_test(test_source_hears_that_the_receiver_gave_up),
        cmocka_unit_test(test_refuses_invalid_arguments),
    };
    choose(kind, lane);
    size_t count = sizeof(own) / sizeof(*own);
    size_t more = ferry_option_case_count + ferry_same_case_count + ferry_several_case_count + ferry_serve_case_count;
    struct CMUnitTest *all = calloc(count + more, sizeof(*all));
    memcpy(all, own, sizeof(own));
    memcpy(all + count, ferry_option_cases, ferry_option_case_count * sizeof(*all));
    count += ferry_option_case_count;
    memcpy(all + count, ferry_same_cases, ferry_same_case_count * sizeof(*all));
    count += ferry_same_case_count;
    memcpy(all + count, ferry_several_cases, ferry_several_case_count * sizeof(*all));
    count += ferry_several_case_count;
    memcpy(all + count, ferry_serve_cases, ferry_serve_case_count * sizeof(*all));
    count += ferry_serve_case_count;
    int failed = ferry_run_cases("transfer", all, count);
    free(all);
    return failed;
}
