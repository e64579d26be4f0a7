#include "build.h"

#include <stdlib.h>

wherry_value *build_none(void) {
    wherry_value *value;
    must(wherry_none_create(&value, NULL));
    return value;
}

wherry_value *build_bool(bool content) {
    wherry_value *value;
    must(wherry_bool_create(content, &value, NULL));
    return value;
}

wherry_value *build_int(int64_t content) {
    wherry_value *value;
    must(wherry_int_create(content, &value, NULL));
    return value;
}

wherry_value *build_float(double content) {
    wherry_value *value;
    must(wherry_float_create(content, &value, NULL));
    return value;
}

wherry_value *build_complex(double real, double imaginary) {
    wherry_value *value;
    must(wherry_complex_create(real, imaginary, &value, NULL));
    return value;
}

wherry_value *build_string(const char *text) {
    wherry_value *value;
    must(wherry_string_create(text, strlen(text), &value, NULL));
    return value;
}

wherry_value *build_bytes(const void *bytes, size_t size) {
    wherry_value *value;
    must(wherry_bytes_create(bytes, size, &value, NULL));
    return value;
}

wherry_value *build_bigint(bool negative, uint8_t byte, size_t size) {
    uint8_t magnitude[64];
    assert_true(size <= sizeof(magnitude));
    memset(magnitude, byte, sizeof(magnitude));
    wherry_value *value;
    must(wherry_bigint_create(negative, magnitude, size, &value, NULL));
    return value;
}

double build_double(uint64_t bits) {
    double number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

static wherry_value *append_all(wherry_value *sequence, wherry_value *const *items) {
    for (; *items; items++) {
        must(wherry_sequence_append(sequence, *items, NULL));
    }
    return sequence;
}

wherry_value *build_list_of(wherry_value *const *items) {
    wherry_value *list;
    must(wherry_list_create(&list, NULL));
    return append_all(list, items);
}

wherry_value *build_tuple_of(wherry_value *const *items) {
    wherry_value *tuple;
    must(wherry_tuple_create(&tuple, NULL));
    return append_all(tuple, items);
}

wherry_value *build_dict_of(const void *const *pairs) {
    wherry_value *dict;
    must(wherry_dict_create(&dict, NULL));
    for (; pairs[0]; pairs += 2) {
        must(wherry_dict_put(dict, pairs[0], (wherry_value *)pairs[1], NULL));
    }
    return dict;
}

wherry_value *build_object(const char *type, wherry_value *payload) {
    wherry_value *object;
    must(wherry_object_create(type, payload, &object, NULL));
    return object;
}

wherry_value *build_nest(size_t depth, wherry_value *inside) {
    for (size_t i = 0; i < depth; i++) {
        inside = build_list(inside, NULL);
    }
    return inside;
}

wherry_storage *build_storage(uint64_t nbytes, uint8_t seed) {
    wherry_storage *storage;
    must(wherry_storage_allocate(nbytes, wherry_device_cpu(), &storage, NULL));
    uint8_t *bytes = wherry_storage_data(storage);
    for (uint64_t i = 0; i < nbytes; i++) {
        bytes[i] = (uint8_t)(seed + 7 * i);
    }
    return storage;
}

wherry_storage *build_bare(uint64_t nbytes) {
    wherry_storage *storage;
    must(wherry_storage_describe(nbytes, wherry_device_cpu(), &storage, NULL));
    return storage;
}

wherry_value *build_view(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                         const int64_t *shape, const int64_t *strides) {
    wherry_tensor tensor = {storage, dtype, 0, ndim, offset, shape, strides};
    wherry_value *value;
    must(wherry_tensor_create(&tensor, &value, NULL));
    return value;
}

wherry_value *build_tensor(wherry_storage *storage, wherry_dtype dtype, int64_t offset, uint32_t ndim,
                           const int64_t *shape, const int64_t *strides) {
    wherry_value *value = build_view(storage, dtype, offset, ndim, shape, strides);
    wherry_storage_unref(storage);
    return value;
}

wherry_mesh *build_mesh(uint32_t ndim, const int64_t *shape) {
    int64_t count = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    int64_t *ranks = calloc((size_t)count, sizeof(*ranks));
    assert_non_null(ranks);
    for (int64_t i = 0; i < count; i++) {
        ranks[i] = i;
    }
    wherry_mesh_info info = {WHERRY_DEVICE_CPU, ndim, shape, ranks, NULL};
    wherry_mesh *mesh;
    must(wherry_mesh_create(&info, &mesh, NULL));
    free(ranks);
    return mesh;
}

wherry_prepared *build_received(const wherry_value *state, int64_t rank) {
    wherry_error error;
    wherry_prepare_options options;
    wherry_prepared *sent;
    wherry_prepared *received;
    void *bytes;
    size_t size;
    wherry_prepare_options_init(&options);
    options.rank = rank;
    must(wherry_prepare(state, &options, &sent, &error));
    must(wherry_manifest_encode(sent, &bytes, &size, &error));
    must(wherry_manifest_decode(bytes, size, NULL, &received, &error));
    wherry_prepared_destroy(sent);
    wherry_free(bytes);
    return received;
}

wherry_plan *build_plan(const wherry_value *state, const wherry_value *target) {
    wherry_error error;
    wherry_plan *plan;
    must(wherry_plan_create(build_received(state, -1), target, NULL, &plan, &error));
    return plan;
}

static int append_piece(void *context, const wherry_piece *piece) {
    char **at = context;
    for (uint64_t i = 0; i < piece->count; i++) {
        const char *from = (const char *)wherry_storage_data(piece->storage) + piece->offset + i * piece->stride;
        memcpy(*at, from, piece->length);
        *at += piece->length;
    }
    return 0;
}

size_t copy_chunk(const wherry_prepared *sent, uint64_t chunk, void *bytes) {
    char *at = bytes;
    wherry_prepared_visit_chunk(sent, chunk, append_piece, &at);
    return (size_t)(at - (char *)bytes);
}

void execute_plan(const wherry_value *source, const wherry_plan *plan) {
    static char bytes[8 << 20];
    wherry_error error;
    wherry_prepared *sent;
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    must(wherry_prepare(source, NULL, &sent, &error));
    for (size_t i = 0; i < count; i++) {
        for (uint64_t c = intervals[i].first; c < intervals[i].first + intervals[i].count; c++) {
            must(wherry_plan_place(plan, c, bytes, copy_chunk(sent, c, bytes), &error));
        }
    }
    wherry_prepared_destroy(sent);
}

uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}
