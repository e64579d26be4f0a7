/*
 * Every allocation of a transfer fails in turn, on both sides and in all threads. Both sides end in
 * time, with success or with an error that says why. Nothing leaks, and the next transfer works.
 * "test_transfer_memory CASE" runs one case, so that cases can run in parallel.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_world.h"
#include "lane/blocks/blocks_internal.h"

/** The timeout is short, because a side whose peer could not start waits for all of it. */
enum { TIMEOUT_MS = 250, STALE_MS = 150, LIMIT_MS = 15000, NEXT_MS = 20000 };

/** How many transfers without a failure may be too slow: on a busy machine, 250 ms are short. */
enum { LATE_MAX = 100 };

static atomic_long allocations; /* allocations since the last call of count_from */
static atomic_long live;        /* blocks not freed yet */
static atomic_long failing;     /* the number of the allocation that fails; -1: none */
static bool large;              /* True if the state has a tensor of several chunks. */
static long told;               /* how often a side reported that it was out of memory */
static wherry_error error;

static bool fails(void) {
    return atomic_fetch_add(&allocations, 1) == atomic_load(&failing);
}

static void *allocate(void *context, size_t size) {
    (void)context;
    void *memory = fails() ? NULL : malloc(size);
    atomic_fetch_add(&live, memory != NULL);
    return memory;
}

static void *reallocate(void *context, void *memory, size_t size) {
    (void)context;
    void *grown = fails() ? NULL : realloc(memory, size);
    atomic_fetch_add(&live, grown && !memory);
    return grown;
}

static void release(void *context, void *memory) {
    (void)context;
    atomic_fetch_sub(&live, 1);
    free(memory);
}

static int set_up(void **state) {
    (void)state;
    static const wherry_allocator counting = {allocate, reallocate, release, NULL};
    atomic_store(&failing, -1);
    wherry_allocator_set(&counting);
    return 0;
}

/** Several chunks become one block, although no_progress_ms is short. */
static int set_large(void **state) {
    (void)state;
    wh_blocks_limit.patience_ms = 1;
    large = true;
    return 0;
}

static int set_small(void **state) {
    (void)state;
    large = false;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return 0;
}

static const wh_group_kind table = {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place};
static const wh_group_kind bare = {"plain", wh_open_plain_place, wh_join_table_place, wh_close_table_place};
static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
static const wh_group_kind sockets = {"unix", wh_open_unix_place, wh_join_place, wh_close_place};

/** A list, and a view with gaps, which needs scratch memory. */
static wherry_value *make_state(void) {
    int64_t bytes = 9 << 20;
    if (large) {
        return build_dict("large", build_tensor(build_storage(9 << 20, 1), WHERRY_U8, 0, 1, &bytes, NULL), NULL);
    }
    int64_t shape[] = {40, 3};
    int64_t strides[] = {7, 1};
    int64_t plain = 500;
    return build_dict("list", build_list(build_int(1), build_string("text"), NULL), "view",
                      build_tensor(build_storage(40 * 7 * 4, 1), WHERRY_F32, 0, 2, shape, strides), "plain",
                      build_tensor(build_storage(500, 2), WHERRY_U8, 0, 1, &plain, NULL), NULL);
}

/**
 * True for the statuses of a side when it, or the other one, has no memory. UNSUPPORTED: the only
 * lane could not be used for lack of memory.
 */
static bool is_right(wherry_status status) {
    return status == WHERRY_OK || status == WHERRY_NO_MEMORY || status == WHERRY_ABORTED ||
           status == WHERRY_TIMED_OUT || status == WHERRY_REVOKED || status == WHERRY_PEER_LOST ||
           status == WHERRY_UNSUPPORTED;
}

static void run_calls(ferry_call *calls, const ferry_world *world, const wherry_value *state,
                      const wherry_value *target, wherry_verify verify, int64_t timeout_ms) {
    calls[0] = ferry_send(world, 0, 1, state);
    calls[1] = ferry_receive(world, 1, 0);
    for (int i = 0; i < 2; i++) {
        calls[i].options.timeout_ms = timeout_ms;
        calls[i].options.no_progress_ms = timeout_ms == TIMEOUT_MS ? STALE_MS : timeout_ms;
        calls[i].options.threads = 2;
    }
    calls[1].options.verify = verify;
    if (target) {
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = (void *)target;
        /* The view has gaps, so its bytes move although they are compared first. */
        calls[1].options.flags = ferry_lane && strcmp(ferry_lane, "ring") == 0 ? WHERRY_RECV_COMPARE : 0;
    }
    ferry_run(calls, 2);
}

/** What happened to an allocation. OUT_OF_TIME: the transfer ended before it. */
typedef enum happened { FAILED, NOT_REACHED, OUT_OF_TIME } happened;

/** A transfer in which allocation `number` fails. */
static happened fail_at(const ferry_world *world, long number, bool in_place, wherry_verify verify) {
    ferry_call calls[2];
    wherry_value *state = make_state();
    wherry_value *target = in_place ? make_state() : NULL;
    uint64_t begun = wh_clock_now();
    atomic_store(&allocations, 0);
    atomic_store(&failing, number);
    run_calls(calls, world, state, target, verify, TIMEOUT_MS);
    bool failed = atomic_load(&allocations) > number;
    atomic_store(&failing, -1);
    uint64_t took = (wh_clock_now() - begun) / 1000000;
    for (int i = 0; i < 2; i++) {
        told += calls[i].status == WHERRY_NO_MEMORY;
        if (!is_right(calls[i].status) || took > LIMIT_MS) {
            fail_msg("allocation %ld, %s, %llu ms: %s: %s", number, i ? "receiver" : "source", (unsigned long long)took,
                     wherry_status_name(calls[i].status), calls[i].error.message);
        }
    }
    if (calls[1].status == WHERRY_OK) {
        must(wherry_value_compare(state, calls[1].received, WHERRY_COMPARE_ALL, &error));
        wherry_value_destroy(calls[1].received);
    }
    wherry_value_destroy(state);
    wherry_value_destroy(target);
    bool done = calls[0].status == WHERRY_OK && calls[1].status == WHERRY_OK;
    return failed ? FAILED : done ? NOT_REACHED : OUT_OF_TIME;
}

static bool is_lost(wherry_status status) {
    return status == WHERRY_PEER_LOST || status == WHERRY_TIMED_OUT;
}

/**
 * The next transfer between the same two ranks must succeed. If the group had no memory for a
 * message, it has closed the connection and opened a new one. This loss may be noticed only now, so
 * one loss is allowed. The first of two tries has less time, because a side that has lost the other
 * leaves it waiting.
 */
static void expect_next_works(const ferry_world *world, long number) {
    ferry_call calls[2] = {{.status = WHERRY_INTERNAL}, {.status = WHERRY_INTERNAL}};
    wherry_value *state = make_state();
    int tries = ferry_kind == &local ? 1 : 2;
    bool lost = true;
    for (int i = 0; i < tries && lost; i++) {
        run_calls(calls, world, state, NULL, WHERRY_VERIFY_ON, i + 1 < tries ? NEXT_MS / 10 : NEXT_MS);
        lost = is_lost(calls[0].status) || is_lost(calls[1].status);
        if (calls[1].status == WHERRY_OK) {
            must(wherry_value_compare(state, calls[1].received, WHERRY_COMPARE_ALL, &error));
            wherry_value_destroy(calls[1].received);
        }
    }
    if (calls[0].status != WHERRY_OK || calls[1].status != WHERRY_OK) {
        fail_msg("after allocation %ld: %s; %s", number, calls[0].error.message, calls[1].error.message);
    }
    wherry_value_destroy(state);
}

/**
 * @param step  1: every allocation; more: a sample.
 * @return the number of allocations.
 */
static long fail_each(const wh_group_kind *kind, const char *lane, long step, bool in_place, wherry_verify verify) {
    ferry_kind = kind;
    ferry_lane = lane;
    /* ucx keeps its workers in the process, and a leak checker finds them there. */
    bool keeps = lane && strcmp(lane, "ucx") == 0;
    long number = 0;
    int late = 0;
    told = 0;
    for (happened what = FAILED; what != NOT_REACHED; number += what == FAILED ? step : 0) {
        long before = atomic_load(&live);
        ferry_world world = ferry_open();
        what = fail_at(&world, number, in_place, verify);
        late += what == OUT_OF_TIME;
        assert_true(late < LATE_MAX);
        expect_next_works(&world, number);
        ferry_close(&world);
        if (atomic_load(&live) != before && !keeps) {
            fail_msg("%s, allocation %ld: %ld blocks leaked", lane, number, atomic_load(&live) - before);
        }
    }
    assert_true(told > 5);
    return number;
}

#define MEMORY_TEST(name, kind, lane, step, in_place, verify)                                                          \
    static void test_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        assert_true(fail_each(kind, lane, step, in_place, verify) > 60);                                               \
    }

MEMORY_TEST(cma, &local, "cma", 1, false, WHERRY_VERIFY_ON)
MEMORY_TEST(ring, &local, "ring", 1, true, WHERRY_VERIFY_ON)
MEMORY_TEST(stream, &local, "stream", 1, false, WHERRY_VERIFY_ON)
MEMORY_TEST(blocks, &table, "blocks", 1, true, WHERRY_VERIFY_ON)
MEMORY_TEST(blocks_in_parts, &bare, "blocks", 1, false, WHERRY_VERIFY_ON)
MEMORY_TEST(long_blocks, &table, "blocks", 2, true, WHERRY_VERIFY_ON)
MEMORY_TEST(all_lanes, &local, NULL, 3, true, WHERRY_VERIFY_OFF)
MEMORY_TEST(ucx, &local, "ucx", 1, true, WHERRY_VERIFY_ON)
MEMORY_TEST(sockets, &sockets, "stream", 5, true, WHERRY_VERIFY_DEFAULT)

int main(int count, char **arguments) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cma),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_blocks_in_parts),
        cmocka_unit_test_setup_teardown(test_long_blocks, set_large, set_small),
        cmocka_unit_test(test_all_lanes),
        cmocka_unit_test(test_ucx),
        cmocka_unit_test(test_sockets),
    };
    struct CMUnitTest chosen[sizeof(tests) / sizeof(*tests)];
    size_t some = 0;
    for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
        if (count < 2 || strcmp(tests[i].name + strlen("test_"), arguments[1]) == 0) {
            chosen[some++] = tests[i];
        }
    }
    wherry_log_set_level(WHERRY_LOG_OFF);
    return some ? _cmocka_run_group_tests("transfer_memory", chosen, some, set_up, tear_down) : 1;
}
