/** @file device_state.h  Moves a state to a device and back, for comparison. */
#ifndef WH_TESTS_DEVICE_STATE_H
#define WH_TESTS_DEVICE_STATE_H

#include <stdlib.h>
#include <string.h>

#include "memory/cuda.h"
#include "memory/memory.h"
#include "state/prepare.h"
#include "state/value.h"
#include "support/build.h"

/** The device of each storage, by its index, so that both sides choose the same. */
typedef wherry_device (*device_choice)(size_t number);

static inline wherry_storage *copy_storage(wherry_storage *from, wherry_device device) {
    wherry_error error;
    wherry_storage *to;
    uint64_t nbytes = wherry_storage_nbytes(from);
    if (nbytes == 0) {
        must(wherry_storage_describe(0, device, &to, &error));
        return to;
    }
    char *bytes = malloc(nbytes);
    must(wherry_storage_allocate(nbytes, device, &to, &error));
    if (wherry_storage_device(from).kind == WHERRY_DEVICE_CPU) {
        memcpy(bytes, wherry_storage_data(from), nbytes);
    } else {
        must(wh_cuda_read(wherry_storage_device(from).index, bytes, wherry_storage_data(from), nbytes, &error));
    }
    must(wh_memory_of(device.kind)->write(wherry_storage_data(to), bytes, nbytes, &error));
    free(bytes);
    return to;
}

typedef struct device_move {
    const wherry_prepared *prepared;
    wherry_storage **storages;
    size_t next;
} device_move;

static inline bool move_leaf(void *context, wherry_value *leaf) {
    device_move *move = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        wherry_tensor *tensor = wh_value_tensor_at(leaf, i)->as.tensor;
        wherry_storage *to = move->storages[move->prepared->tensor_storages[move->next++]];
        wherry_storage_unref(tensor->storage);
        tensor->storage = wherry_storage_ref(to);
        if (leaf->kind == WHERRY_KIND_SHARDED) {
            ((wherry_shard *)leaf->as.sharded->shards)[i].info.place.device = wherry_storage_device(to);
        }
    }
    return true;
}

/** Moves the storages of a state. Tensors that shared a storage still share it. */
static inline void move_state(wherry_value *state, device_choice choose) {
    wherry_error error;
    wherry_prepared *prepared;
    must(wherry_prepare(state, NULL, &prepared, &error));
    device_move move = {.prepared = prepared,
                        .storages = calloc(prepared->storage_count + 1, sizeof(wherry_storage *))};
    for (size_t i = 0; i < prepared->storage_count; i++) {
        move.storages[i] = copy_storage(prepared->storages[i], choose(i));
    }
    wh_visit_tensor_leaves(state, move_leaf, &move);
    for (size_t i = 0; i < prepared->storage_count; i++) {
        wherry_storage_unref(move.storages[i]);
    }
    free(move.storages);
    wherry_prepared_destroy(prepared);
}

static inline wherry_device to_host(size_t number) {
    (void)number;
    return wherry_device_cpu();
}

static inline wherry_device all_on_device(size_t number) {
    (void)number;
    return (wherry_device){WHERRY_DEVICE_CUDA, 0};
}

/** Checks that a state on any device equals one on the host, and destroys it. */
static inline void expect_state(wherry_value *state, const wherry_value *expected) {
    wherry_error error;
    move_state(state, to_host);
    wherry_status status = wherry_value_compare(expected, state, WHERRY_COMPARE_ALL, &error);
    if (status != WHERRY_OK) {
        print_error("%s: %s\n", error.path, error.message);
    }
    assert_int_equal(status, WHERRY_OK);
    wherry_value_destroy(state);
}

#endif
