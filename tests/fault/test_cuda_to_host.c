/*
 * Many small tensors are copied from a device to the host over cuda_ipc by a few kernel launches
 * into pinned memory, not by one copy each. The bytes are the same if no memory can be pinned.
 */
#include <stdio.h>

#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
#include "memory/pinned.h"
#include "support/device_memory.h"
#include "support/fake_driver.h"

enum { COUNT = 2000, APART = 1024, LENGTH = 509, COPIES_MAX = 8 };

static wherry_error error;
static fake_driver fake;

static wherry_value *make_state(wherry_storage *memory, wherry_device device) {
    wherry_value *state = build_list(NULL);
    for (size_t i = 0; i < COUNT; i++) {
        int64_t size = LENGTH;
        wherry_storage *part;
        char *data = (char *)wherry_storage_data(memory) + i * APART + i % 7;
        must(wherry_storage_wrap(data, LENGTH, device, NULL, NULL, &part, &error));
        must(wherry_sequence_append(state, build_tensor(part, WHERRY_U8, 0, 1, &size, NULL), &error));
    }
    return state;
}

/** @return the number of copies that the driver was asked for. */
static uint64_t receive_on_host(void) {
    ferry_world world = ferry_open();
    wherry_storage *from = build_device_storage(0, (uint64_t)COUNT * APART, 5);
    wherry_storage *to = build_storage((uint64_t)COUNT * APART, 6);
    wherry_value *source = make_state(from, (wherry_device){WHERRY_DEVICE_CUDA, 0});
    wherry_value *target = make_state(to, wherry_device_cpu());
    uint64_t copies = fake.count("cuMemcpyAsync");
    ferry_call calls[] = {ferry_send(&world, 0, 1, source), ferry_receive(&world, 1, 0)};
    calls[1].options.flags = WHERRY_RECV_ANY_DEVICE;
    calls[1].options.target = ferry_target;
    calls[1].options.target_context = target;
    ferry_run(calls, 2);
    ferry_expect_ok(calls);
    ferry_expect_ok(calls + 1);
    copies = fake.count("cuMemcpyAsync") - copies;
    const uint8_t *bytes = wherry_storage_data(to);
    for (size_t i = 0; i < (size_t)COUNT * APART; i++) {
        size_t into = i % APART - i / APART % 7;
        uint8_t seed = i % APART >= i / APART % 7 && into < LENGTH ? 5 : 6;
        assert_int_equal(bytes[i], (uint8_t)(seed + 7 * i));
    }
    wherry_value_destroy(calls[1].received);
    wherry_value_destroy(source);
    wherry_value_destroy(target);
    wherry_storage_unref(from);
    wherry_storage_unref(to);
    ferry_close(&world);
    return copies;
}

static void test_many_small(void **state) {
    (void)state;
    assert_true(receive_on_host() <= COPIES_MAX);
}

static void test_nothing_pinned(void **state) {
    (void)state;
    setenv("WHERRY_PINNED_MIB", "0", 1);
    wh_pinned_trim();
    assert_true(receive_on_host() > COPIES_MAX);
    unsetenv("WHERRY_PINNED_MIB");
}

int main(void) {
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    fake = fake_driver_find();
    if (!fake.shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    ferry_kind = &local;
    ferry_lane = "cuda_ipc";
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_small), cmocka_unit_test(test_nothing_pinned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
