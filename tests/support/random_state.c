#include "random_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(wherry_status status, const wherry_error *error) {
    if (status != WHERRY_OK) {
        fprintf(stderr, "random state: %s: %s\n", wherry_status_name(status), error->message);
        abort();
    }
}

uint64_t wh_random_next(wh_random *random) {
    uint64_t z = random->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t wh_random_below(wh_random *random, uint64_t below) {
    return wh_random_next(random) % below;
}

wherry_storage *wh_random_storage(wh_random *random, uint64_t nbytes) {
    wherry_storage *storage;
    wherry_error error;
    must(wherry_storage_allocate(nbytes, wherry_device_cpu(), &storage, &error), &error);
    unsigned char *bytes = wherry_storage_data(storage);
    for (uint64_t i = 0; i < nbytes; i++) {
        bytes[i] = (unsigned char)wh_random_next(random);
    }
    return storage;
}

uint32_t wh_random_shape(wh_random *random, uint32_t max_ndim, int64_t *shape) {
    uint32_t ndim = (uint32_t)wh_random_below(random, max_ndim + 1);
    uint64_t large = wh_random_below(random, 3) ? WHERRY_NDIM_MAX : wh_random_below(random, 3);
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t most = d == large || d == large + 1 ? 40 : 5;
        shape[d] = wh_random_below(random, 25) ? 1 + (int64_t)wh_random_below(random, most) : 0;
    }
    return ndim;
}

uint64_t wh_tensor_needs(const wherry_tensor *tensor) {
    uint64_t last = (uint64_t)tensor->offset;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] == 0) {
            return 0;
        }
        last += (uint64_t)(tensor->shape[d] - 1) * (uint64_t)tensor->strides[d];
    }
    return (last + 1) * wherry_dtype_describe(tensor->dtype)->bytes;
}

/** Strides for a random order of the dimensions, with random padding. Elements do not overlap. */
static void loose_strides(wh_random *random, uint32_t ndim, const int64_t *shape, int64_t *strides) {
    uint32_t order[WHERRY_NDIM_MAX] = {0};
    for (uint32_t i = 0; i < ndim; i++) {
        uint32_t j = (uint32_t)wh_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    int64_t stride = wh_random_below(random, 4) ? 1 : 1 + (int64_t)wh_random_below(random, 3);
    for (uint32_t i = 0; i < ndim; i++) {
        strides[order[i]] = stride;
        stride *= shape[order[i]] ? shape[order[i]] : 1;
        stride += wh_random_below(random, 4) ? 0 : (int64_t)wh_random_below(random, 700);
    }
}

static void random_strides(wh_random *random, uint32_t ndim, const int64_t *shape, int64_t *strides) {
    if (wh_random_below(random, 2)) {
        loose_strides(random, ndim, shape, strides);
        return;
    }
    int64_t stride = 1;
    uint64_t odd = wh_random_below(random, 3);
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = odd ? stride : (int64_t)wh_random_below(random, 25);
        stride *= shape[d] ? shape[d] : 1;
    }
}

/** Storages that later tensors may share. */
typedef struct pool {
    wherry_storage *storages[8];
    size_t count;
    wherry_mesh *mesh;
} pool;

static wherry_storage *storage_for(wh_random *random, pool *shared, uint64_t needs) {
    for (int tries = 0; tries < 3 && shared->count; tries++) {
        wherry_storage *one = shared->storages[wh_random_below(random, shared->count)];
        if (wherry_storage_nbytes(one) >= needs && wh_random_below(random, 3)) {
            return wherry_storage_ref(one);
        }
    }
    wherry_storage *storage =
        wh_random_storage(random, needs + wh_random_below(random, 200) * wh_random_below(random, 20));
    if (shared->count < 8) {
        shared->storages[shared->count++] = wherry_storage_ref(storage);
    }
    return storage;
}

static wherry_value *random_tensor_of(wh_random *random, pool *shared, wherry_dtype dtype, uint32_t ndim,
                                      const int64_t *shape) {
    int64_t strides[WHERRY_NDIM_MAX] = {0};
    wherry_tensor tensor = {.dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides};
    random_strides(random, ndim, shape, strides);
    tensor.flags = (uint32_t)(wh_random_below(random, 4) ? 0 : wh_random_below(random, WHERRY_TENSOR_FLAGS + 1));
    tensor.offset = wh_random_below(random, 2) ? 0 : (int64_t)wh_random_below(random, 40);
    tensor.storage = storage_for(random, shared, wh_tensor_needs(&tensor));
    wherry_value *value;
    wherry_error error;
    must(wherry_tensor_create(&tensor, &value, &error), &error);
    wherry_storage_unref(tensor.storage);
    return value;
}

static wherry_dtype random_dtype(wh_random *random) {
    return (wherry_dtype)wh_random_below(random, WHERRY_I7 + 1);
}

static wherry_value *random_tensor(wh_random *random, pool *shared) {
    int64_t shape[WHERRY_NDIM_MAX] = {0};
    uint32_t ndim = wh_random_shape(random, 4, shape);
    return random_tensor_of(random, shared, random_dtype(random), ndim, shape);
}

static wherry_value *random_dtensor(wh_random *random, pool *shared) {
    static const char *const names[] = {"dp", "tp"};
    int64_t mesh_shape[] = {1 + (int64_t)wh_random_below(random, 3), 1 + (int64_t)wh_random_below(random, 3)};
    int64_t ranks[9];
    wherry_error error;
    for (int64_t i = 0; i < 9; i++) {
        ranks[i] = i + (int64_t)wh_random_below(random, 2) * 100;
    }
    if (!shared->mesh || wh_random_below(random, 2) == 0) {
        wherry_mesh_info info = {.device = WHERRY_DEVICE_CUDA,
                                 .ndim = 1 + (uint32_t)wh_random_below(random, 2),
                                 .shape = mesh_shape,
                                 .ranks = ranks,
                                 .dim_names = wh_random_below(random, 2) ? names : NULL};
        wherry_mesh_unref(shared->mesh);
        must(wherry_mesh_create(&info, &shared->mesh, &error), &error);
    }
    int64_t local[WHERRY_NDIM_MAX] = {0};
    int64_t global[WHERRY_NDIM_MAX] = {0};
    int64_t strides[WHERRY_NDIM_MAX] = {0};
    wherry_dtensor dtensor = {.mesh = shared->mesh, .dtype = random_dtype(random), .shape = global, .strides = strides};
    dtensor.ndim = wh_random_shape(random, 3, local);
    for (uint32_t d = 0; d < dtensor.ndim; d++) {
        global[d] = local[d] * (1 + (int64_t)wh_random_below(random, 3));
        strides[d] = (int64_t)wh_random_below(random, 100);
    }
    wherry_placement placements[2];
    for (int i = 0; i < 2; i++) {
        wherry_placement_kind kind = (wherry_placement_kind)wh_random_below(random, 4);
        placements[i] = (wherry_placement){.kind = dtensor.ndim ? kind : WHERRY_REPLICATE,
                                           .dim = dtensor.ndim ? (uint32_t)wh_random_below(random, dtensor.ndim) : 0,
                                           .split_factor = 1 + (int64_t)wh_random_below(random, 3),
                                           .reduce_op = "sum"};
    }
    dtensor.placements = placements;
    dtensor.flags = (uint32_t)wh_random_below(random, 2);
    dtensor.local = random_tensor_of(random, shared, dtensor.dtype, dtensor.ndim, local);
    wherry_value *value;
    must(wherry_dtensor_create(&dtensor, &value, &error), &error);
    return value;
}

static wherry_value *random_sharded(wh_random *random, pool *shared) {
    int64_t shape[] = {12, 8};
    int64_t offsets[4][2];
    int64_t sizes[4][2];
    wherry_shard shards[4];
    wherry_shard_info infos[4];
    wherry_shard_place places[4];
    wherry_error error;
    wherry_sharded sharded = {.dtype = random_dtype(random),
                              .requires_grad = wh_random_below(random, 2),
                              .format = (wherry_memory_format)wh_random_below(random, 4),
                              .ndim = 2,
                              .shape = shape,
                              .shard_count = (uint32_t)wh_random_below(random, 4),
                              .shards = shards,
                              .global_count = 4,
                              .global = infos};
    for (uint32_t i = 0; i < 4; i++) {
        places[i] = (wherry_shard_place){(int64_t)i - 1, {WHERRY_DEVICE_CUDA, (int32_t)i - 1}};
        for (int d = 0; d < 2; d++) {
            offsets[i][d] = d == 0 ? 3 * (int64_t)i : (int64_t)wh_random_below(random, 8);
            sizes[i][d] = d == 0 ? 3 : (int64_t)wh_random_below(random, (uint64_t)(9 - offsets[i][d]));
        }
        infos[i] = (wherry_shard_info){offsets[i], sizes[i], places[i]};
    }
    for (uint32_t i = 0; i < sharded.shard_count; i++) {
        shards[i] = (wherry_shard){random_tensor_of(random, shared, sharded.dtype, 2, sizes[i]), infos[i]};
    }
    sharded.sharding.kind = (wherry_sharding_kind)wh_random_below(random, 3);
    sharded.sharding.dim = -1;
    sharded.sharding.count = 4;
    sharded.sharding.places = places;
    sharded.sharding.boxes = infos;
    wherry_value *value;
    must(wherry_sharded_create(&sharded, &value, &error), &error);
    return value;
}

static wherry_value *random_scalar(wh_random *random) {
    static const char *const words[] = {"", "a", "weight", "q.weight", "läyer", "0", "a b", "\"\\\n\x01", "x_9"};
    wherry_value *value = NULL;
    wherry_error error;
    uint64_t bits = wh_random_next(random);
    double number;
    memcpy(&number, &bits, sizeof(number));
    unsigned char bytes[20];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)wh_random_next(random);
    }
    const char *word = words[wh_random_below(random, sizeof(words) / sizeof(*words))];
    wherry_status status = WHERRY_OK;
    switch (wh_random_below(random, 10)) {
    case 0:
        status = wherry_none_create(&value, &error);
        break;
    case 1:
        status = wherry_bool_create(bits & 1, &value, &error);
        break;
    case 2:
        status = wherry_bigint_create(bits & 1, bytes, wh_random_below(random, sizeof(bytes)), &value, &error);
        break;
    case 3:
        status = wherry_float_create(bits % 3 ? number : (double)(bits % 100), &value, &error);
        break;
    case 4:
        status = wherry_complex_create(number, -0.0, &value, &error);
        break;
    case 5:
        status = wherry_bytes_create(bytes, wh_random_below(random, sizeof(bytes)), &value, &error);
        break;
    case 6:
    case 7:
        status = wherry_int_create((int64_t)bits >> wh_random_below(random, 64), &value, &error);
        break;
    default:
        status = wherry_string_create(word, strlen(word), &value, &error);
        break;
    }
    must(status, &error);
    return value;
}

static wherry_value *random_value(wh_random *random, pool *shared, unsigned depth);

static void fill_container(wh_random *random, pool *shared, unsigned depth, wherry_value *container) {
    wherry_error error;
    uint64_t count = wh_random_below(random, wh_random_below(random, 10) ? 6 : 14) + (depth ? 0 : 3);
    for (uint64_t i = 0; i < count; i++) {
        wherry_value *item = random_value(random, shared, depth + 1);
        if (wherry_value_kind(container) != WHERRY_KIND_DICT) {
            must(wherry_sequence_append(container, item, &error), &error);
            continue;
        }
        wherry_value *key = random_scalar(random);
        if (wherry_dict_set(container, key, item, &error) != WHERRY_OK) {
            wherry_value_destroy(key);
            wherry_value_destroy(item);
        }
    }
}

static wherry_value *random_container(wh_random *random, pool *shared, unsigned depth) {
    wherry_value *value = NULL;
    wherry_error error;
    uint64_t kind = wh_random_below(random, 5);
    wherry_status status = kind == 0   ? wherry_list_create(&value, &error)
                           : kind == 1 ? wherry_tuple_create(&value, &error)
                                       : wherry_dict_create(&value, &error);
    must(status, &error);
    fill_container(random, shared, depth, value);
    if (wh_random_below(random, 5) == 0) {
        wherry_value *object;
        must(wherry_object_create("collections.OrderedDict", value, &object, &error), &error);
        return object;
    }
    return value;
}

static wherry_value *random_value(wh_random *random, pool *shared, unsigned depth) {
    uint64_t kind = depth == 0 ? 0 : wh_random_below(random, depth < 4 ? 12 : 8) + (depth < 4 ? 0 : 4);
    if (kind < 4) {
        return random_container(random, shared, depth);
    }
    return kind < 7    ? random_scalar(random)
           : kind < 10 ? random_tensor(random, shared)
           : kind < 11 ? random_dtensor(random, shared)
                       : random_sharded(random, shared);
}

wherry_value *wh_random_state(wh_random *random) {
    pool shared = {.count = 0};
    wherry_value *state = random_value(random, &shared, wh_random_below(random, 20) ? 0 : 4);
    for (size_t i = 0; i < shared.count; i++) {
        wherry_storage_unref(shared.storages[i]);
    }
    wherry_mesh_unref(shared.mesh);
    return state;
}

/** Storages of the source that have been cloned. */
typedef struct clones {
    const wherry_storage *from[512];
    wherry_storage *to[512];
    size_t count;
} clones;

static wherry_storage *clone_of(wh_random *random, clones *all, const wherry_storage *storage) {
    for (size_t i = 0; i < all->count; i++) {
        if (all->from[i] == storage) {
            return wherry_storage_ref(all->to[i]);
        }
    }
    wherry_storage *clone = wh_random_storage(random, wherry_storage_nbytes(storage));
    if (all->count == 512) {
        abort();
    }
    all->from[all->count] = storage;
    all->to[all->count++] = wherry_storage_ref(clone);
    return clone;
}

static wherry_value *target_tensor(wh_random *random, const wherry_value *source, clones *all) {
    int64_t strides[WHERRY_NDIM_MAX] = {0};
    wherry_tensor tensor = *wherry_tensor_get(source);
    if (all) {
        tensor.storage = clone_of(random, all, tensor.storage);
    } else {
        loose_strides(random, tensor.ndim, tensor.shape, strides);
        tensor.strides = strides;
        tensor.offset = (int64_t)wh_random_below(random, 50);
        tensor.storage = wh_random_storage(random, wh_tensor_needs(&tensor) + wh_random_below(random, 50));
    }
    wherry_value *value;
    wherry_error error;
    must(wherry_tensor_create(&tensor, &value, &error), &error);
    wherry_storage_unref(tensor.storage);
    return value;
}

static wherry_value *target_leaf(wh_random *random, const wherry_value *leaf, clones *all) {
    wherry_value *value = NULL;
    wherry_error error;
    if (wherry_tensor_get(leaf)) {
        return target_tensor(random, leaf, all);
    }
    if (wherry_dtensor_get(leaf)) {
        wherry_dtensor dtensor = *wherry_dtensor_get(leaf);
        dtensor.local = target_tensor(random, dtensor.local, all);
        must(wherry_dtensor_create(&dtensor, &value, &error), &error);
    } else if (wherry_sharded_get(leaf)) {
        wherry_sharded sharded = *wherry_sharded_get(leaf);
        wherry_shard shards[4];
        for (uint32_t i = 0; i < sharded.shard_count; i++) {
            shards[i] = sharded.shards[i];
            shards[i].tensor = target_tensor(random, shards[i].tensor, all);
        }
        sharded.shards = shards;
        must(wherry_sharded_create(&sharded, &value, &error), &error);
    } else {
        must(wherry_value_copy(leaf, &value, &error), &error);
    }
    return value;
}

wherry_value *wh_random_target(wh_random *random, const wherry_value *source, int alike) {
    clones *all = calloc(1, sizeof(*all));
    wherry_flat *flat;
    wherry_error error;
    must(wherry_flatten(source, &flat, &error), &error);
    size_t count = wherry_flat_count(flat);
    wherry_value **leaves = calloc(count + 1, sizeof(*leaves));
    for (size_t i = 0; i < count; i++) {
        leaves[i] = target_leaf(random, wherry_flat_leaf(flat, i), alike ? all : NULL);
    }
    wherry_value *target;
    must(wherry_unflatten(flat, leaves, count, &target, &error), &error);
    for (size_t i = 0; i < all->count; i++) {
        wherry_storage_unref(all->to[i]);
    }
    free(leaves);
    free(all);
    wherry_flat_destroy(flat);
    return target;
}

static wherry_value *empty_container(wherry_kind kind) {
    wherry_value *value = NULL;
    wherry_error error;
    must(kind == WHERRY_KIND_LIST    ? wherry_list_create(&value, &error)
         : kind == WHERRY_KIND_TUPLE ? wherry_tuple_create(&value, &error)
                                     : wherry_dict_create(&value, &error),
         &error);
    return value;
}

static wherry_value *thinned_container(wh_random *random, const wherry_value *state) {
    static const wherry_kind kinds[] = {WHERRY_KIND_LIST, WHERRY_KIND_TUPLE, WHERRY_KIND_DICT};
    wherry_kind kind = wherry_value_kind(state);
    bool dict = kind == WHERRY_KIND_DICT;
    size_t count = dict ? wherry_dict_count(state) : wherry_sequence_count(state);
    uint64_t lost = wh_random_below(random, 3); /* This chooses between none, some and most. */
    wherry_value *thin = empty_container(kind);
    wherry_error error;
    size_t kept = 0;
    if (!dict && lost && count) {
        count = wh_random_below(random, count + 1);
    }
    for (size_t i = 0; i < count; i++) {
        wherry_value *key;
        if (dict && wh_random_below(random, 3) < lost) {
            continue;
        }
        wherry_value *item = wh_random_thinned(random, dict ? wherry_dict_at(state, i) : wherry_sequence_at(state, i));
        if (dict) {
            must(wherry_value_copy(wherry_dict_key_at(state, i), &key, &error), &error);
        }
        must(dict ? wherry_dict_set(thin, key, item, &error) : wherry_sequence_append(thin, item, &error), &error);
        kept++;
    }
    if (kept == 0 && wh_random_below(random, 2)) {
        wherry_value_destroy(thin);
        return empty_container(kinds[wh_random_below(random, 3)]);
    }
    return thin;
}

wherry_value *wh_random_thinned(wh_random *random, const wherry_value *state) {
    wherry_value *value;
    wherry_error error;
    switch (wherry_value_kind(state)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT:
        return thinned_container(random, state);
    case WHERRY_KIND_OBJECT:
        must(wherry_object_create(wherry_object_type(state), wh_random_thinned(random, wherry_object_payload(state)),
                                  &value, &error),
             &error);
        return value;
    default:
        must(wherry_value_copy(state, &value, &error), &error);
        return value;
    }
}
