#include "mpi_scene.h"

#include <stdlib.h>

enum { SMALL = 300, SMALL_BYTES = 1000, LARGE_BYTES = 9 << 20 };

int scene_rank;
int scene_level;
int scene_failures;
wherry_error scene_error;
wherry_stats scene_stats;

void scene_check(bool holds, const char *what, const char *file, int line) {
    if (!holds) {
        fprintf(stderr, "rank %d: %s:%d: not true: %s (latest error: %s)\n", scene_rank, file, line, what,
                scene_error.message);
        scene_failures++;
    }
}

void scene_must(wherry_status status, const char *what, const char *file, int line) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s:%d: %s: %s: %s\n", scene_rank, file, line, what, wherry_status_name(status),
                scene_error.message);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

scene scene_open(MPI_Comm communicator) {
    scene at;
    MUST(wherry_group_from_mpi(communicator, NULL, &at.group, &scene_error));
    MUST(wherry_transport_create(at.group, NULL, &at.transport, &scene_error));
    return at;
}

void scene_close(scene *at) {
    wherry_transport_destroy(at->transport);
    wherry_group_leave(at->group);
}

static void add_tensor(wherry_value *state, const char *name, int64_t bytes) {
    wherry_storage *storage;
    wherry_value *value;
    MUST(wherry_storage_allocate((uint64_t)bytes, wherry_device_cpu(), &storage, &scene_error));
    wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = &bytes};
    MUST(wherry_tensor_create(&tensor, &value, &scene_error));
    MUST(wherry_dict_put(state, name, value, &scene_error));
    wherry_storage_unref(storage);
}

wherry_value *scene_state(int seed) {
    wherry_value *state;
    MUST(wherry_dict_create(&state, &scene_error));
    add_tensor(state, "large", LARGE_BYTES);
    for (int i = 0; i < SMALL; i++) {
        char name[32];
        snprintf(name, sizeof(name), "small%d", i);
        add_tensor(state, name, SMALL_BYTES + i);
    }
    scene_fill(state, seed);
    return state;
}

/** The byte at an offset. */
static unsigned char byte_at(int seed, size_t tensor, size_t offset) {
    return (unsigned char)((size_t)seed * 31 + tensor * 7 + offset * 13 + (offset >> 12));
}

void scene_fill(const wherry_value *state, int seed) {
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_storage *storage = wherry_tensor_get(wherry_dict_at(state, i))->storage;
        unsigned char *bytes = wherry_storage_data(storage);
        for (size_t k = 0; k < wherry_storage_nbytes(storage); k++) {
            bytes[k] = byte_at(seed, i, k);
        }
    }
}

bool scene_has(const wherry_value *state, int seed) {
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_storage *storage = wherry_tensor_get(wherry_dict_at(state, i))->storage;
        const unsigned char *bytes = wherry_storage_data(storage);
        for (size_t k = 0; k < wherry_storage_nbytes(storage); k++) {
            if (bytes[k] != byte_at(seed, i, k)) {
                return false;
            }
        }
    }
    return true;
}

static wherry_status give_target(void *context, const wherry_value **target_p) {
    *target_p = context;
    return WHERRY_OK;
}

wherry_transfer_options scene_options(const char *lanes, wherry_value *target) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.timeout_ms = SCENE_MS;
    options.lanes = lanes;
    options.target = target ? give_target : NULL;
    options.target_context = target;
    return options;
}

const char *scene_ferry(const scene *at, int from, int to, const char *lanes, int seed) {
    int own = wherry_group_rank(at->group);
    scene_stats.lane[0] = '\0';
    if (own == from) {
        wherry_value *state = scene_state(seed);
        wherry_transfer_options options = scene_options(lanes, NULL);
        int32_t rank = to;
        MUST(wherry_checkpoint_send(at->transport, &rank, 1, state, &options, NULL, &scene_error));
        wherry_value_destroy(state);
    } else if (own == to) {
        wherry_value *target = scene_state(seed + 1);
        wherry_value *received;
        wherry_transfer_options options = scene_options(lanes, target);
        options.stats = &scene_stats;
        MUST(wherry_checkpoint_recv(at->transport, from, &options, &received, &scene_error));
        CHECK(scene_has(target, seed));
        wherry_value_destroy(received);
        wherry_value_destroy(target);
    }
    return scene_stats.lane;
}
