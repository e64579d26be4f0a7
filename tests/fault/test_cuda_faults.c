/*
 * Faults that only the fake CUDA driver can produce: each call fails in turn, work does not end, a
 * context breaks. It also counts the memory in use.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "memory/cuda_share.h"
#include "memory/pinned.h"
#include "support/device_memory.h"
#include "support/device_state.h"
#include "support/fake_driver.h"

enum { OUT_OF_MEMORY = 2, UNKNOWN = 999, ILLEGAL_ADDRESS = 700, MIB = 1 << 20 };

/**
 * The first calls fail one by one. Of the later calls, most of which ask whether a copy is done,
 * only some fail.
 */
enum { EACH = 80 };

static wherry_error error;
static fake_driver fake;

static wherry_device alternate(size_t number) {
    return number % 2 ? wherry_device_cpu() : (wherry_device){WHERRY_DEVICE_CUDA, 0};
}

/** Small tensors and one of several chunks. Every second tensor is on the device. */
static wherry_value *mixed_state(uint8_t seed, int64_t large) {
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < 12; i++) {
        int64_t bytes = i ? 100 * i : large;
        must(wherry_sequence_append(
            list, build_tensor(build_storage((uint64_t)bytes, (uint8_t)(seed + i)), WHERRY_U8, 0, 1, &bytes, NULL),
            &error));
    }
    return list;
}

typedef struct scene {
    ferry_world world;
    wherry_value *host;
    wherry_value *source;
    wherry_value *target;
} scene;

static scene scene_open(const char *lanes, int64_t large) {
    ferry_lane = lanes;
    scene s = {ferry_open(), mixed_state(3, large), mixed_state(3, large), mixed_state(9, large)};
    move_state(s.source, alternate);
    move_state(s.target, alternate);
    return s;
}

static void scene_close(scene *s) {
    wherry_value_destroy(s->host);
    wherry_value_destroy(s->source);
    wherry_value_destroy(s->target);
    ferry_close(&s->world);
}

static void run_once(const scene *s, ferry_call calls[2], int64_t timeout_ms) {
    calls[0] = ferry_send(&s->world, 0, 1, s->source);
    calls[1] = ferry_receive(&s->world, 1, 0);
    calls[0].options.timeout_ms = calls[1].options.timeout_ms = timeout_ms;
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = s->target;
    ferry_run(calls, 2);
}

/**
 * Like run_once, for a source that may fail before the receiver has asked it. The receiver is then
 * cancelled, so that it does not wait for its timeout.
 */
static void run_to_failure(const scene *s, ferry_call calls[2]) {
    wherry_cancel *cancel;
    must(wherry_cancel_create(&cancel, &error));
    calls[0] = ferry_send(&s->world, 0, 1, s->source);
    calls[1] = ferry_receive(&s->world, 1, 0);
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = s->target;
    calls[1].options.cancel = cancel;
    ferry_start(calls);
    ferry_start(calls + 1);
    ferry_join(calls);
    if (calls[0].status != WHERRY_OK) {
        wherry_cancel_request(cancel);
    }
    ferry_join(calls + 1);
    wherry_cancel_destroy(cancel);
}

static void expect_good(const scene *s, ferry_call calls[2]) {
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    expect_state(calls[1].received, s->host);
}

/**
 * Makes each call of the driver fail in turn. Both sides return, nothing leaks, and the next
 * transfer succeeds.
 */
static void fail_each(const char *lanes) {
    scene s = scene_open(lanes, 9 << 20);
    ferry_call calls[2];
    run_once(&s, calls, FERRY_MS);
    expect_good(&s, calls);
    size_t before = fake.device_bytes();
    int failures = 0;
    fake.fail_at(0, 0);
    run_to_failure(&s, calls);
    uint64_t most = fake.calls();
    assert_true(calls[1].status == WHERRY_OK && most > 20);
    wherry_value_destroy(calls[1].received);
    for (uint64_t number = 1; number <= most; number += number < EACH ? 1 : 1 + number / 6) {
        fake.fail_at(number, number % 2 ? OUT_OF_MEMORY : UNKNOWN);
        run_to_failure(&s, calls);
        fake.fail_at(0, 0);
        if (calls[1].status == WHERRY_OK) {
            wherry_value_destroy(calls[1].received);
        } else {
            failures++;
            assert_true(calls[1].error.message[0] != 0);
        }
        assert_int_equal(calls[0].status == WHERRY_OK, calls[1].status == WHERRY_OK);
    }
    assert_true(failures > 5);
    run_once(&s, calls, FERRY_MS);
    expect_good(&s, calls);
    assert_int_equal(fake.device_bytes(), before);
    scene_close(&s);
}

static void test_each_call_fails_staged(void **state) {
    (void)state;
    fail_each("cma,ring");
}

static void test_each_call_fails_device_to_device(void **state) {
    (void)state;
    fail_each("cma,cuda_ipc");
}

/**
 * Both sides wait for the work that the caller has queued on a stream, but not longer than the
 * call's timeout.
 */
static void test_work_on_the_callers_stream(void **state) {
    (void)state;
    scene s = scene_open("cma,cuda_ipc", 1 << 20);
    ferry_call calls[2];
    fake.shut_gate(NULL);
    run_once(&s, calls, 300);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(calls[i].status, WHERRY_TIMED_OUT);
        assert_non_null(strstr(calls[i].error.message, "timed out"));
    }
    assert_non_null(strstr(calls[0].error.message, "stream"));
    fake.open_gate();
    run_once(&s, calls, FERRY_MS);
    expect_good(&s, calls);
    scene_close(&s);
}

/** The caller passes a stream that is not the default one. */
static void test_a_stream_of_the_caller(void **state) {
    (void)state;
    scene s = scene_open("cma,ring", 1 << 20);
    int (*create)(void **, unsigned);
    int (*destroy)(void *);
    int (*set_current)(void *);
    int (*retain)(void **, int);
    *(void **)&create = fake_driver_symbol("cuStreamCreate");
    *(void **)&destroy = fake_driver_symbol("cuStreamDestroy_v2");
    *(void **)&set_current = fake_driver_symbol("cuCtxSetCurrent");
    *(void **)&retain = fake_driver_symbol("cuDevicePrimaryCtxRetain");
    void *context;
    void *stream;
    assert_int_equal(retain(&context, 0), 0);
    assert_int_equal(set_current(context), 0);
    assert_int_equal(create(&stream, 0), 0);
    fake.shut_gate(stream);
    ferry_call calls[] = {ferry_send(&s.world, 0, 1, s.source), ferry_receive(&s.world, 1, 0)};
    for (int given = 1; given >= 0; given--) {
        calls[0] = ferry_send(&s.world, 0, 1, s.source);
        calls[1] = ferry_receive(&s.world, 1, 0);
        calls[0].options.stream = given ? stream : NULL;
        calls[0].options.timeout_ms = calls[1].options.timeout_ms = given ? 300 : FERRY_MS;
        ferry_run(calls, 2);
        assert_int_equal(calls[0].status, given ? WHERRY_TIMED_OUT : WHERRY_OK);
    }
    ferry_expect_ok(calls + 1);
    wherry_value_destroy(calls[1].received);
    fake.open_gate();
    assert_int_equal(destroy(stream), 0);
    scene_close(&s);
}

/** The error says that the context is broken, and the process continues. */
static void test_a_context_breaks(void **state) {
    (void)state;
    scene s = scene_open("cma,ring", 1 << 20);
    ferry_call calls[2];
    fake.break_context(ILLEGAL_ADDRESS);
    run_once(&s, calls, FERRY_MS);
    assert_int_equal(calls[0].status, WHERRY_SYSTEM);
    assert_non_null(strstr(calls[0].error.message, "the CUDA context of this process is broken"));
    assert_true(calls[1].status != WHERRY_OK);
    fake.break_context(0);
    run_once(&s, calls, FERRY_MS);
    expect_good(&s, calls);
    scene_close(&s);
}

/** The additional memory of each kind is bounded, however large the state is. */
static void test_memory_is_bounded(void **state) {
    (void)state;
    enum { LARGE = 192 * MIB };
    static const char *const lanes[] = {"cma,cuda_ipc", "cma,ring"};
    wh_pinned_trim();
    for (size_t i = 0; i < 2; i++) {
        scene s = scene_open(lanes[i], LARGE);
        ferry_call calls[2];
        fake.forget_peak();
        size_t before = fake.device_bytes();
        run_once(&s, calls, FERRY_MS);
        expect_good(&s, calls);
        assert_true(fake.device_peak() - before <= 2 * MIB);
        /* The limit includes the run lists of the queues. */
        assert_true(fake.pinned_bytes() <= 132 * MIB);
        scene_close(&s);
    }
    assert_int_equal(fake.imports(), 0);
}

/** Many small tensors are copied by a few kernel launches, not by one copy each. */
static void test_small_tensors_are_launches(void **state) {
    (void)state;
    enum { COUNT = 2000 };
    static const char *const lanes[] = {"cuda_ipc", "ring"};
    for (size_t lane = 0; lane < 2; lane++) {
        ferry_lane = lanes[lane];
        ferry_world world = ferry_open();
        wherry_storage *storages[2] = {build_device_storage(0, (uint64_t)COUNT * 1024, 5),
                                       build_device_storage(0, (uint64_t)COUNT * 1024, 6)};
        wherry_value *states[2];
        for (size_t side = 0; side < 2; side++) {
            states[side] = build_list(NULL);
            for (int i = 0; i < COUNT; i++) {
                int64_t size = 500;
                wherry_storage *part;
                char *data = (char *)wherry_storage_data(storages[side]) + (size_t)i * 1024;
                must(wherry_storage_wrap(data, 500, all_on_device(0), NULL, NULL, &part, &error));
                must(wherry_sequence_append(states[side], build_tensor(part, WHERRY_U8, 0, 1, &size, NULL), &error));
            }
        }
        uint64_t copies = fake.count("cuMemcpyAsync");
        uint64_t launches = fake.count("cuLaunchKernel");
        ferry_call calls[] = {ferry_send(&world, 0, 1, states[0]), ferry_receive(&world, 1, 0)};
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = states[1];
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        assert_true(fake.count("cuLaunchKernel") - launches <= 8 && fake.count("cuLaunchKernel") > launches);
        assert_true(fake.count("cuMemcpyAsync") - copies <= 8);
        for (int i = 0; i < COUNT * 1024; i++) {
            uint8_t expected = (uint8_t)((i % 1024 < 500 ? 5 : 6) + 7 * i);
            assert_int_equal(((uint8_t *)fake.shadow(wherry_storage_data(storages[1])))[i], expected);
        }
        wherry_value_destroy(calls[1].received);
        for (size_t side = 0; side < 2; side++) {
            wherry_value_destroy(states[side]);
            wherry_storage_unref(storages[side]);
        }
        ferry_close(&world);
    }
}

enum { TRACED_BYTES = 21 << 20, TRACED_CHUNK = 4 << 20 };

/** The target of a traced receive, and how many ranges were reported before their bytes arrived. */
typedef struct watched {
    const uint8_t *bytes; /**< The fake device's memory. */
    atomic_uint told;
    atomic_uint early;
} watched;

static void look_at_range(void *context, const wherry_trace_event *event) {
    watched *w = context;
    if (event->chunk == WHERRY_TRACE_PHASE) {
        return;
    }
    uint64_t last = event->chunk * TRACED_CHUNK + event->bytes - 1;
    atomic_fetch_add(&w->told, 1);
    atomic_fetch_add(&w->early, w->bytes[last] != (uint8_t)(3 + 7 * last));
}

/** A trace reports a range only when its bytes are on the device. */
static void test_traced_bytes_are_on_the_device(void **state) {
    (void)state;
    static const char *const lanes[] = {"stream", "cuda_ipc"};
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    for (size_t i = 0; i < 2; i++) {
        ferry_lane = lanes[i];
        ferry_world world = ferry_open();
        wherry_value *source = ferry_tensor(TRACED_BYTES, 3);
        wherry_value *target = ferry_tensor(TRACED_BYTES, 9);
        move_state(source, all_on_device);
        move_state(target, all_on_device);
        watched w = {fake.shadow(wherry_storage_data(wherry_tensor_get(wherry_dict_get(target, "w"))->storage)), 0, 0};
        ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = target;
        calls[1].options.verify = WHERRY_VERIFY_OFF;
        calls[1].options.trace = look_at_range;
        calls[1].options.trace_context = &w;
        ferry_run(calls, 2);
        ferry_expect_ok(calls);
        ferry_expect_ok(calls + 1);
        assert_int_equal(atomic_load(&w.told), calls[1].stats.chunks);
        assert_int_equal(atomic_load(&w.early), 0);
        wherry_value_destroy(calls[1].received);
        wherry_value_destroy(target);
        wherry_value_destroy(source);
        ferry_close(&world);
    }
    unsetenv("FAKE_CUDA_DELAY_US");
}

/** If memory cannot be shared, the reason names the call and the driver's answer. */
static void test_the_reason_why_memory_is_not_shared(void **state) {
    (void)state;
    wherry_storage *storage = build_device_storage(0, 4096, 1);
    wh_cuda_allocation allocation;
    setenv("FAKE_CUDA_NO_IPC", "1", 1);
    must_fail(WHERRY_UNSUPPORTED, error, wh_cuda_describe(wherry_storage_data(storage), &allocation, &error));
    unsetenv("FAKE_CUDA_NO_IPC");
    assert_non_null(strstr(error.message, "cannot share this memory with other processes"));
    assert_non_null(strstr(error.message, "(801)"));
    wherry_storage_unref(storage);
}

int main(void) {
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    ferry_kind = &local;
    wherry_log_set_level(WHERRY_LOG_OFF);
    fake = fake_driver_find();
    if (!fake.shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_tensors_are_launches),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_work_on_the_callers_stream),
        cmocka_unit_test(test_a_stream_of_the_caller),
        cmocka_unit_test(test_a_context_breaks),
        cmocka_unit_test(test_each_call_fails_staged),
        cmocka_unit_test(test_each_call_fails_device_to_device),
        cmocka_unit_test(test_the_reason_why_memory_is_not_shared),
        cmocka_unit_test(test_traced_bytes_are_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
