#include "conformance/transfer_world.h"

const wh_group_kind *ferry_kind;
const char *ferry_lane;

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
    static const wh_lane_ops *const lanes[] = {&wh_lane_cma, &wh_lane_ring, &wh_lane_stream};
    wherry_error error;
    ferry_world world = {.place = ferry_kind->open(FERRY_RANKS)};
    joining all[FERRY_RANKS];
    for (int32_t rank = 0; rank < FERRY_RANKS; rank++) {
        all[rank] = (joining){.place = world.place, .rank = rank};
        assert_int_equal(pthread_create(&all[rank].thread, NULL, join_group, all + rank), 0);
    }
    for (int32_t rank = 0; rank < FERRY_RANKS; rank++) {
        pthread_join(all[rank].thread, NULL);
        world.groups[rank] = all[rank].group;
        must(wh_transport_create(world.groups[rank], 0, lanes, 3, world.transports + rank, &error));
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

static void *run(void *context) {
    ferry_call *call = context;
    if (call->count) {
        call->status = wherry_checkpoint_send(call->transport, call->ranks, call->count, call->state, &call->options,
                                              call->outcomes, &call->error);
    } else {
        call->options.stats = call->options.stats ? call->options.stats : &call->stats;
        call->status =
            wherry_checkpoint_recv(call->transport, call->ranks[0], &call->options, &call->received, &call->error);
    }
    return NULL;
}

void ferry_start(ferry_call *call) {
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
