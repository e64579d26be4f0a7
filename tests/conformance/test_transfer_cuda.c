/*
 * test_transfer_cuda LANE: sending and receiving device memory over a lane, on a real device or on
 * the fake driver.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "memory/cuda.h"
#include "memory/pinned.h"
#include "support/device_memory.h"
#include "support/device_state.h"

static wherry_error error;
static const char *device_lane; /* The lane that moves device memory. */
static bool is_straight;        /* True if the lane has no digests. */

static wherry_device cuda(int32_t index) {
    return (wherry_device){WHERRY_DEVICE_CUDA, index < wh_cuda_device_count() ? index : 0};
}

static wherry_device here_and_there(size_t number) {
    return number % 3 == 0 ? wherry_device_cpu() : cuda((int32_t)(number % 3) - 1);
}

/** Several chunks of one tensor, and many small ones. */
static wherry_value *large_state(uint8_t seed) {
    return ferry_state(300, 21 << 20, seed);
}

/** The call must have received this state, which is on the host. */
static void expect_received(const ferry_call *call, const wherry_value *expected) {
    ferry_expect_ok(call);
    expect_state(call->received, expected);
}

/** calls[0] sent the state that `host` is a copy of; calls[1] received it into a copy of `twin`. */
static void expect_transferred(const ferry_call *calls, const wherry_value *host, wherry_value *twin) {
    ferry_expect_ok(calls);
    wherry_value *expected = ferry_expected(host, twin, 0);
    expect_received(calls + 1, expected);
    wherry_value_destroy(expected);
}

static wherry_value *random_state(uint64_t seed) {
    wh_random random = {seed};
    return wh_random_state(&random);
}

/**
 * Random states, fully or partly on devices; into new memory, and into targets on other devices.
 */
static void test_random_states_arrive(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    for (uint64_t i = 0; i < 24; i++) {
        wh_random random = {i};
        wh_random again = {i};
        wherry_value *host = random_state(1000 + i);
        wherry_value *source = random_state(1000 + i);
        wherry_value *target = i % 4 ? wh_random_target(&random, host, i % 2) : NULL;
        wherry_value *twin = i % 4 ? wh_random_target(&again, host, i % 2) : NULL;
        move_state(source, i % 3 ? here_and_there : all_on_device);
        if (target && i % 4 > 1) {
            move_state(target, i % 4 == 2 ? here_and_there : all_on_device);
        }
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.flags = WHERRY_RECV_ANY_DEVICE;
        calls[1].options.verify = i % 5 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_DEFAULT;
        if (target) {
            calls[1].options.target = ferry_target;
            calls[1].options.target_context = target;
        }
        if (is_straight) {
            /* This lane has no digests and needs device memory, so allow other lanes. */
            calls[1].options.lanes = calls[0].options.lanes = NULL;
        }
        ferry_run(calls, 2);
        expect_transferred(calls, host, twin);
        wherry_value_destroy(twin);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        wherry_value_destroy(host);
    }
    ferry_close(&world);
}

static void test_large_state_arrives(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *host = large_state(3);
    wherry_value *source = large_state(3);
    move_state(source, all_on_device);
    for (int i = 0; i < 4; i++) {
        wherry_value *target = large_state(9);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        move_state(target, all_on_device);
        calls[1].options.verify = i % 2 && !is_straight ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
        if (i < 2) {
            calls[1].options.target = ferry_target;
            calls[1].options.target_context = target;
        }
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        expect_received(calls + 1, host);
        assert_string_equal(calls[1].stats.lane, device_lane);
        assert_string_equal(calls[0].outcomes[0].stats.lane, device_lane);
        assert_true(calls[1].stats.bytes_moved == calls[1].stats.bytes_wanted);
        assert_int_equal(calls[0].outcomes[0].stats.bytes_wanted, calls[1].stats.bytes_wanted);
        wherry_value_destroy(target);
    }
    wherry_value_destroy(source);
    wherry_value_destroy(host);
    ferry_close(&world);
}

/** Host and device memory in one state use different lanes; the statistics name both. */
static void test_host_and_device_memory_use_two_lanes(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *host = large_state(5);
    wherry_value *source = large_state(5);
    move_state(source, here_and_there);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0), ferry_receive(&world, 2, 0)};
    calls[0].ranks[1] = 2;
    calls[0].count = 2;
    char lanes[64];
    snprintf(lanes, sizeof(lanes), "cma,%s", device_lane);
    for (int i = 0; i < 3; i++) {
        calls[i].options.lanes = lanes;
        calls[i].options.verify = WHERRY_VERIFY_OFF;
    }
    ferry_run(calls, 3);
    ferry_expect_ok(calls);
    for (int i = 1; i < 3; i++) {
        expect_received(calls + i, host);
        char expected[64];
        snprintf(expected, sizeof(expected), "cma+%s", device_lane);
        assert_string_equal(calls[i].stats.lane, expected);
        assert_string_equal(calls[0].outcomes[i - 1].stats.lane, expected);
        assert_true(calls[0].outcomes[i - 1].stats.bytes_wanted == calls[i].stats.bytes_wanted);
    }
    wherry_value_destroy(source);
    wherry_value_destroy(host);
    ferry_close(&world);
}

/** Two sources with the same state, fully or partly on devices; into new memory and in place. */
static void test_two_sources_send_one_state(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *host = large_state(6);
    for (int i = 0; i < 4; i++) {
        bool mixed = i % 2;
        wherry_value *target = large_state(9);
        wherry_value *sources[] = {large_state(6), large_state(6)};
        ferry_call calls[] = {ferry_send(&world, 0, 2, sources[0]), ferry_send(&world, 1, 2, sources[1]),
                              ferry_receive_from_two(&world)};
        for (int k = 0; k < 2; k++) {
            move_state(sources[k], mixed ? here_and_there : all_on_device);
            calls[k].options.step = calls[2].options.step;
        }
        move_state(target, mixed ? here_and_there : all_on_device);
        calls[2].options.verify = i < 2 && !is_straight ? WHERRY_VERIFY_ALL : WHERRY_VERIFY_OFF;
        if (i >= 2) {
            calls[2].options.target = ferry_target;
            calls[2].options.target_context = target;
        }
        for (int k = 0; mixed && is_straight && k < 3; k++) {
            calls[k].options.lanes = NULL; /* Host memory uses another lane. */
        }
        ferry_run(calls, 3);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        expect_received(calls + 2, host);
        const wherry_stats *stats = &calls[2].stats;
        assert_int_equal(stats->sources[0].bytes + stats->sources[1].bytes, stats->bytes_moved);
        assert_true(stats->sources[0].status == WHERRY_OK && stats->sources[1].status == WHERRY_OK);
        wherry_value_destroy(target);
        wherry_value_destroy(sources[0]);
        wherry_value_destroy(sources[1]);
    }
    wherry_value_destroy(host);
    ferry_close(&world);
}

/** Two ranks that send to each other at the same time. */
static void test_two_ranks_send_to_each_other(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    for (int turn = 0; turn < 2; turn++) { /* The second turn reuses what the lane has open. */
        wherry_value *host[2] = {large_state(3), large_state(8)};
        wherry_value *source[2] = {large_state(3), large_state(8)};
        move_state(source[0], all_on_device);
        move_state(source[1], all_on_device);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source[0]), ferry_receive(&world, 1, 0),
                              ferry_send(&world, 1, 0, source[1]), ferry_receive(&world, 0, 1)};
        ferry_run(calls, 4);
        for (int i = 0; i < 2; i++) {
            ferry_expect_ok(calls + 2 * i);
            expect_received(calls + 2 * i + 1, host[i]);
            assert_string_equal(calls[2 * i + 1].stats.lane, device_lane);
            wherry_value_destroy(source[i]);
            wherry_value_destroy(host[i]);
        }
    }
    ferry_close(&world);
}

/** New memory on another kind of device than the source's, and on another device. */
static void test_receives_on_another_device(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *host = large_state(7);
    for (int i = 0; i < 4; i++) {
        wherry_value *source = large_state(7);
        wherry_device to = i == 0 ? wherry_device_cpu() : cuda(i % 2);
        if (i < 3) {
            move_state(source, all_on_device);
        }
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.flags = WHERRY_RECV_TO_DEVICE;
        calls[1].options.device = to;
        if (i == 3 && is_straight) {
            calls[0].options.lanes = calls[1].options.lanes = NULL;
        }
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        const wherry_value *large = wherry_dict_get(calls[1].received, "large");
        wherry_device got = wherry_storage_device(wherry_tensor_get(large)->storage);
        assert_true(got.kind == to.kind && got.index == to.index);
        expect_received(calls + 1, host);
        wherry_value_destroy(source);
    }
    wherry_value_destroy(host);
    ferry_close(&world);
}

/** The receiver's tensor has other strides: every other row, or columns. */
static void test_receives_into_other_strides(void **state) {
    (void)state;
    enum { ROWS = 1500, COLUMNS = 1000 };
    ferry_world world = ferry_open();
    int64_t shape[] = {ROWS, COLUMNS};
    int64_t transposed[] = {1, ROWS};
    int64_t apart[] = {2 * COLUMNS, 1};
    for (int i = 0; i < 2; i++) {
        wherry_value *host = build_tensor(build_storage(ROWS * COLUMNS * 4, 3), WHERRY_F32, 0, 2, shape, NULL);
        wherry_value *source =
            build_tensor(build_device_storage(0, ROWS * COLUMNS * 4, 3), WHERRY_F32, 0, 2, shape, NULL);
        wherry_value *target = build_tensor(build_device_storage(0, ROWS * COLUMNS * 8, 9), WHERRY_F32, 0, 2, shape,
                                            i ? transposed : apart);
        wherry_value *twin =
            build_tensor(build_storage(ROWS * COLUMNS * 8, 9), WHERRY_F32, 0, 2, shape, i ? transposed : apart);
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
        ferry_run(calls, 2);
        expect_transferred(calls, host, twin);
        wherry_value_destroy(twin);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        wherry_value_destroy(host);
    }
    ferry_close(&world);
}

static void say_how(const wh_lane_end *end, wh_string *text) {
    (void)end;
    wh_string_format(text, "as told");
}

static wherry_status refuse(const wh_lane_site *site, const void *bytes, size_t size, bool *ready_p,
                            wh_lane_end **end_p, wherry_error *why) {
    (void)site, (void)bytes, (void)size, (void)ready_p, (void)end_p;
    return wh_fail(why, WHERRY_REFUSED, "this lane refuses all requests");
}

/**
 * The statistics keep the detail of the host's lane if the device lane has none. They drop the
 * detail of a rejected lane.
 */
static void test_statistics_keep_the_right_detail(void **state) {
    (void)state;
    static wh_lane_ops told;
    static const wh_lane_ops *const lanes[] = {&told,        &wh_lane_cuda_ipc, &wh_lane_nccl,  &wh_lane_ring,
                                               &wh_lane_ucx, &wh_lane_blocks,   &wh_lane_stream};
    told = wh_lane_ring;
    told.name = "told";
    /* Without this, device memory would not use the other lane. */
    told.traits &= ~(uint32_t)WH_LANE_STAGES;
    told.describe = say_how;
    ferry_world world = ferry_open();
    for (int32_t rank = 0; rank < 2; rank++) {
        wherry_transport_destroy(world.transports[rank]);
        must(wh_transport_create(world.groups[rank], 0, lanes, sizeof(lanes) / sizeof(*lanes), world.transports + rank,
                                 &error));
    }
    wherry_value *source = large_state(5);
    move_state(source, here_and_there);
    for (int refused = 0; refused < 2; refused++) {
        char order[64];
        snprintf(order, sizeof(order), "told,%s", refused ? "ring" : device_lane);
        told.accept = refused ? refuse : told.accept;
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[0].options.lanes = calls[1].options.lanes = order;
        calls[1].options.verify = WHERRY_VERIFY_OFF;
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        const wherry_stats *sides[] = {&calls[0].outcomes[0].stats, &calls[1].stats};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(strncmp(sides[i]->lane, refused ? "ring" : "told+", refused ? 4 : 5), 0);
            if (refused || strcmp(device_lane, "ucx") != 0) { /* Only ucx has a detail. */
                assert_string_equal(sides[i]->detail, refused ? "" : "as told");
            }
        }
        wherry_value_destroy(calls[1].received);
    }
    wherry_value_destroy(source);
    ferry_close(&world);
}

enum { CHUNKS_MAX = 64 };

/** Recorded trace events, from several threads. */
typedef struct traced {
    atomic_uint seen[CHUNKS_MAX];
    _Atomic uint64_t bytes;
    atomic_uint strange;
} traced;

static void note_range(void *context, const wherry_trace_event *event) {
    traced *t = context;
    if (event->chunk == WHERRY_TRACE_PHASE) {
        return;
    }
    bool fine = event->chunk < CHUNKS_MAX && event->begin_ns && event->end_ns >= event->begin_ns &&
                strcmp(event->lane, device_lane) == 0;
    atomic_fetch_add(&t->strange, !fine);
    atomic_fetch_add(&t->bytes, event->bytes);
    atomic_fetch_add(t->seen + event->chunk % CHUNKS_MAX, 1);
}

/** A trace has each range exactly once, with any lane. */
static void test_trace_has_each_range_once(void **state) {
    (void)state;
    ferry_world world = ferry_open();
    wherry_value *host = large_state(3);
    wherry_value *source = large_state(3);
    traced t = {.bytes = 0};
    move_state(source, all_on_device);
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.verify = WHERRY_VERIFY_OFF;
    calls[1].options.trace = note_range;
    calls[1].options.trace_context = &t;
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    expect_received(calls + 1, host);
    assert_int_equal(atomic_load(&t.strange), 0);
    assert_int_equal(atomic_load(&t.bytes), calls[1].stats.bytes_wanted);
    for (uint64_t i = 0; i < CHUNKS_MAX; i++) {
        assert_int_equal(atomic_load(t.seen + i), i < calls[1].stats.chunks);
    }
    wherry_value_destroy(source);
    wherry_value_destroy(host);
    ferry_close(&world);
}

/** If no memory can be pinned, everything goes through plain memory. */
static void test_works_without_pinned_memory(void **state) {
    setenv("WHERRY_PINNED_MIB", "0", 1);
    wh_pinned_trim();
    test_large_state_arrives(state);
    unsetenv("WHERRY_PINNED_MIB");
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: test_transfer_cuda LANE\n");
        return 2;
    }
    if (wh_cuda_check(&error) != WHERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        printf("1..0 # SKIP needs a CUDA device\n");
        return 0;
    }
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    static const wh_group_kind table = {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind near = {"near", wh_open_near_place, wh_join_place, wh_close_place};
    bool blocks = strcmp(arguments[1], "blocks") == 0;
    ferry_kind = blocks ? &table : strcmp(arguments[1], "ring") == 0 ? &near : &local;
    ferry_lane = device_lane = arguments[1];
    is_straight = strcmp(device_lane, "cuda_ipc") == 0 || strcmp(device_lane, "nccl") == 0;
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_state_arrives),
        cmocka_unit_test(test_host_and_device_memory_use_two_lanes),
        cmocka_unit_test(test_receives_on_another_device),
        cmocka_unit_test(test_two_sources_send_one_state),
        cmocka_unit_test(test_two_ranks_send_to_each_other),
        cmocka_unit_test(test_receives_into_other_strides),
        cmocka_unit_test(test_works_without_pinned_memory),
        cmocka_unit_test(test_random_states_arrive),
        cmocka_unit_test(test_trace_has_each_range_once),
        cmocka_unit_test(test_statistics_keep_the_right_detail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
