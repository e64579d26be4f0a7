/* The states that the benchmarks transfer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/**
 * The content of a tensor. It depends on the number of the tensor, so that swapped tensors are
 * noticed.
 */
static int pattern(size_t number) {
    return (int)(number % 251 + 1);
}

static struct iovec extent_of(const wherry_value *value) {
    const wherry_tensor *tensor = wherry_tensor_get(value);
    if (!tensor) {
        bench_die("the state has a value that is not a tensor");
    }
    return (struct iovec){wherry_storage_data(tensor->storage), wherry_storage_nbytes(tensor->storage)};
}

static void add(wherry_value *state, const char *name, int64_t rows, int64_t columns, wherry_dtype dtype,
                uint64_t element) {
    int64_t shape[] = {rows, columns};
    wherry_error error;
    wherry_storage *storage;
    wherry_value *value;
    bench_check(
        wherry_storage_allocate((uint64_t)rows * (uint64_t)columns * element, wherry_device_cpu(), &storage, &error),
        &error);
    wherry_tensor tensor = {.storage = storage, .dtype = dtype, .ndim = 2, .shape = shape};
    bench_check(wherry_tensor_create(&tensor, &value, &error), &error);
    bench_check(wherry_dict_put(state, name, value, &error), &error);
    wherry_storage_unref(storage);
}

static wherry_value *create_dict(void) {
    wherry_error error;
    wherry_value *value;
    bench_check(wherry_dict_create(&value, &error), &error);
    return value;
}

static bench_state finish(wherry_value *value) {
    bench_state state = {.value = value, .count = wherry_dict_count(value)};
    state.extents = bench_alloc(state.count, sizeof(*state.extents));
    for (size_t i = 0; i < state.count; i++) {
        state.extents[i] = extent_of(wherry_dict_at(value, i));
        state.bytes += state.extents[i].iov_len;
    }
    return state;
}

bench_state bench_state_uniform(size_t tensors, uint64_t nbytes) {
    enum { PER_LAYER = 10, COLUMNS = 16, ELEMENT = 4 };
    wherry_value *value = create_dict();
    for (size_t i = 0; i < tensors; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model.layers.%zu.block.weight%zu", i / PER_LAYER, i % PER_LAYER);
        add(value, name, (int64_t)(nbytes / COLUMNS / ELEMENT), COLUMNS, WHERRY_F32, ELEMENT);
    }
    return finish(value);
}

bench_state bench_state_layers(size_t layers) {
    static const struct {
        const char *name;
        int64_t rows;
        int64_t columns;
    } parts[] = {
        {"self_attn.q_proj", 4096, 4096}, {"self_attn.k_proj", 4096, 4096}, {"self_attn.v_proj", 4096, 4096},
        {"self_attn.o_proj", 4096, 4096}, {"mlp.gate_proj", 11008, 4096},   {"mlp.up_proj", 11008, 4096},
        {"mlp.down_proj", 4096, 11008},   {"input_layernorm", 1, 4096},     {"post_attention_layernorm", 1, 4096},
    };
    wherry_value *value = create_dict();
    for (size_t i = 0; i < layers; i++) {
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++) {
            char name[64];
            snprintf(name, sizeof(name), "model.layers.%zu.%s.weight", i, parts[k].name);
            add(value, name, parts[k].rows, parts[k].columns, WHERRY_BF16, 2);
        }
    }
    return finish(value);
}

void bench_state_destroy(bench_state *state) {
    wherry_value_destroy(state->value);
    free(state->extents);
    *state = (bench_state){0};
}

void bench_state_fill(const bench_state *state, bool source) {
    for (size_t i = 0; i < state->count; i++) {
        memset(state->extents[i].iov_base, source ? pattern(i) : 0, state->extents[i].iov_len);
    }
}

void bench_state_check(const wherry_value *value) {
    for (size_t i = 0; i < wherry_dict_count(value); i++) {
        struct iovec extent = extent_of(wherry_dict_at(value, i));
        const unsigned char *bytes = extent.iov_base;
        if (bytes[0] != pattern(i) || bytes[extent.iov_len / 2] != pattern(i) ||
            bytes[extent.iov_len - 1] != pattern(i)) {
            bench_die("tensor %zu of the received state does not have the source's bytes", i);
        }
    }
}
