#include "conformance/transfer_world.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/point.h"

const wh_group_kind *ferry_kind;
const char *ferry_lane;

static wherry_error error;

typedef struct joining {
    void *place;
    int32_t rank;
    wh_group *group;
    pthread_t thread;
} joining;

static void *join_group(void *context) {
    joining *one = context;
    one->group = ferry_kind->join(one->place, one->rank);
    return NULL;
}

ferry_world ferry_open(void) {
    static const wh_lane_ops *const lanes[] = {&wh_lane_cuda_ipc, &wh_lane_nccl,   &wh_lane_cma,   &wh_lane_ring,
                                               &wh_lane_ucx,      &wh_lane_blocks, &wh_lane_stream};
    ferry_world world = {.place = ferry_kind->open(FERRY_RANKS)};
    joining all[FERRY_RANKS];
    for (int32_t rank = 0; rank < FERRY_RANKS; rank++) {
        all[rank] = (joining){.place = world.place, .rank = rank};
        assert_int_equal(pthread_create(&all[rank].thread, NULL, join_group, all + rank), 0);
    }
    for (int32_t rank = 0; rank < FERRY_RANKS; rank++) {
        pthread_join(all[rank].thread, NULL);
        world.groups[rank] = all[rank].group;
        must(wh_transport_create(world.groups[rank], 0, lanes, sizeof(lanes) / sizeof(*lanes), world.transports + rank,
                                 &error));
    }
    return world;
}

void ferry_close(ferry_world *world) {
    for (int32_t rank = 0; rank < FERRY_RANKS; rank++) {
        wherry_transport_destroy(world->transports[rank]);
        wh_group_destroy(world->groups[rank]);
    }
    ferry_kind->close(world->place);
}

wherry_transfer_options ferry_options(void) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.timeout_ms = FERRY_MS;
    options.lanes = ferry_lane;
    return options;
}

ferry_call ferry_send(const ferry_world *world, int32_t from, int32_t to, const wherry_value *state) {
    return (ferry_call){
        .transport = world->transports[from], .ranks = {to}, .count = 1, .state = state, .options = ferry_options()};
}

ferry_call ferry_receive(const ferry_world *world, int32_t at, int32_t from) {
    return (ferry_call){.transport = world->transports[at], .ranks = {from}, .options = ferry_options()};
}

ferry_call ferry_receive_from_two(const ferry_world *world) {
    ferry_call call = ferry_receive(world, 2, 0);
    call.ranks[1] = 1;
    call.source_count = 2;
    call.options.step = 5;
    return call;
}

/** Receives from several sources, in one group or in several. */
static wherry_status receive_from(ferry_call *call, wherry_value **received_p) {
    if (!call->transports[0]) {
        return wherry_checkpoint_recv_from(call->transport, call->ranks, call->source_count, &call->options, received_p,
                                           &call->error);
    }
    wherry_source sources[FERRY_RANKS];
    for (size_t i = 0; i < call->source_count; i++) {
        sources[i] = (wherry_source){call->transports[i], call->ranks[i], i ? "the other server" : NULL};
    }
    return wherry_checkpoint_recv_sources(sources, call->source_count, &call->options, received_p, &call->error);
}

/* ---- the end of a case ---- */

wherry_cancel *ferry_withdraw;
static atomic_int running;
static atomic_bool over;

void ferry_note_begin(void) {
    atomic_fetch_add(&running, 1);
}

void ferry_note_end(void) {
    atomic_fetch_sub(&running, 1);
}

bool ferry_is_over(void) {
    return atomic_load(&over);
}

static int begin_case(void **state) {
    (void)state;
    atomic_store(&over, false);
    return 0;
}

/**
 * Runs the case deep in the stack. If the case fails, its calls still use its part of the stack
 * while cmocka continues above.
 */
static void run_case(void **state) {
    volatile char room_of_cmocka[1 << 16];
    room_of_cmocka[0] = 0;
    (*(const CMUnitTestFunction *)*state)(state);
    /* This use of the array keeps it on the stack until here. */
    assert_int_equal(room_of_cmocka[0], 0);
}

static int end_case(void **state) {
    (void)state;
    wh_point_hook = NULL;
    atomic_store(&over, true);
    if (ferry_withdraw) {
        wherry_cancel_request(ferry_withdraw);
        ferry_withdraw = NULL;
    }
    for (int i = 0; i < 2 * FERRY_MS && atomic_load(&running); i++) {
        usleep(1000);
    }
    return atomic_load(&running) ? -1 : 0;
}

int ferry_run_cases(const char *name, struct CMUnitTest *cases, size_t count) {
    CMUnitTestFunction *functions = calloc(count, sizeof(*functions));
    for (size_t i = 0; i < count; i++) {
        functions[i] = cases[i].test_func;
        cases[i] = (struct CMUnitTest){cases[i].name, run_case, begin_case, end_case, functions + i};
    }
    int failed = _cmocka_run_group_tests(name, cases, count, NULL, NULL);
    free(functions);
    return failed;
}

static void *run(void *context) {
    ferry_call *call = context;
    if (call->count) {
        call->status = wherry_checkpoint_send(call->transport, call->ranks, call->count, call->state, &call->options,
                                              call->outcomes, &call->error);
    } else {
        call->options.stats = call->options.stats ? call->options.stats : &call->stats;
        wherry_value **received_p = call->in_target ? NULL : &call->received;
        call->status = call->source_count ? receive_from(call, received_p)
                                          : wherry_checkpoint_recv(call->transport, call->ranks[0], &call->options,
                                                                   received_p, &call->error);
    }
    ferry_note_end();
    return NULL;
}

void ferry_start(ferry_call *call) {
    ferry_note_begin();
    assert_int_equal(pthread_create(&call->thread, NULL, run, call), 0);
}

void ferry_join(ferry_call *call) {
    pthread_join(call->thread, NULL);
}

void ferry_run(ferry_call *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ferry_start(calls + i);
    }
    for (size_t i = 0; i < count; i++) {
        ferry_join(calls + i);
    }
}

wherry_status ferry_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

void ferry_expect_ok(const ferry_call *call) {
    if (call->status != WHERRY_OK) {
        print_error("%s: %s\n", wherry_status_name(call->status), call->error.message);
    }
    assert_int_equal(call->status, WHERRY_OK);
}

wherry_value *ferry_tensor(int64_t bytes, uint8_t seed) {
    return build_dict("w", build_tensor(build_storage((uint64_t)bytes, seed), WHERRY_U8, 0, 1, &bytes, NULL), NULL);
}

wherry_value *ferry_state(int count, int64_t large, uint8_t seed) {
    wherry_value *small = build_list(NULL);
    for (int i = 0; i < count; i++) {
        int64_t bytes = 1 + i % 700;
        wherry_value *item =
            build_tensor(build_storage((uint64_t)bytes, (uint8_t)(seed + i)), WHERRY_U8, 0, 1, &bytes, NULL);
        must(wherry_sequence_append(small, item, &error));
    }
    return build_dict("small", small, "large",
                      build_tensor(build_storage((uint64_t)large, seed), WHERRY_U8, 0, 1, &large, NULL), NULL);
}

wherry_value *ferry_large_state(uint8_t seed) {
    return ferry_state(3000, 21 << 20, seed);
}

wherry_value *ferry_expected(const wherry_value *source, const wherry_value *target, uint32_t flags) {
    wherry_prepare_options prepare;
    wherry_plan_options options;
    wherry_prepared *sent;
    wherry_prepared *prepared;
    wherry_plan *plan;
    wherry_value *result;
    void *manifest;
    size_t size;
    wherry_prepare_options_init(&prepare);
    wherry_plan_options_init(&options);
    prepare.rank = 0;
    options.rank = 1;
    options.flags = flags;
    must(wherry_prepare(source, &prepare, &sent, &error));
    must(wherry_manifest_encode(sent, &manifest, &size, &error));
    must(wherry_manifest_decode(manifest, size, NULL, &prepared, &error));
    must(wherry_plan_create(prepared, target, &options, &plan, &error));
    wherry_prepared_summary summary;
    wherry_prepared_summarize(sent, &summary);
    char *bytes = malloc(summary.chunk_bytes + 16);
    for (uint64_t chunk = 0; chunk < summary.chunks; chunk++) {
        must(wherry_plan_place(plan, chunk, bytes, copy_chunk(sent, chunk, bytes), &error));
    }
    must(wherry_plan_take_state(plan, &result, &error));
    free(bytes);
    wherry_plan_destroy(plan);
    wherry_free(manifest);
    wherry_prepared_destroy(sent);
    return result;
}

void ferry_one(const ferry_world *world, const wherry_value *state, const wherry_value *target,
               const wherry_value *twin, uint32_t flags) {
    ferry_call calls[] = {ferry_send(world, 0, 1, state), ferry_receive(world, 1, 0)};
    calls[1].options.flags = flags;
    if (target) {
        calls[1].options.target = ferry_target;
        calls[1].options.target_context = (void *)target;
    }
    ferry_run(calls, 2);
    ferry_expect_ok(calls + 1);
    ferry_expect_ok(calls);
    wherry_value *expected = ferry_expected(state, twin, flags & WHERRY_RECV_NEW ? WHERRY_PLAN_NEW : 0);
    wherry_status status = wherry_value_compare(expected, calls[1].received, WHERRY_COMPARE_ALL, &error);
    if (status != WHERRY_OK) {
        print_error("%s: %s\n", error.path, error.message);
    }
    assert_int_equal(status, WHERRY_OK);
    wherry_value_destroy(expected);
    wherry_value_destroy(calls[1].received);
}
