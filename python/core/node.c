/*
 * Builds values from the nodes of wherry._nodes, by which a codec describes objects and tensors.
 * Nodes are named tuples. The code here relies on the order of their fields.
 */
#include <stdlib.h>

#include "core.h"

/** True if the node is of this type. Otherwise sets an exception. */
static bool is_node(PyObject *node, PyObject *type) {
    if ((PyObject *)Py_TYPE(node) == type) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "the codec returned a %R, but a %R is required", (PyObject *)Py_TYPE(node), type);
    return false;
}

/** Raises ValueError, unless another exception is set already. Always returns false. */
static bool raise_value_error(const char *message) {
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, message);
    }
    return false;
}

/** Adds a new value to the state as a leaf, unless it is NULL. Destroys it on failure. */
static wherry_value *add_leaf(wpy_builder *builder, wherry_value *value, PyObject *original) {
    if (value && !wpy_state_add_leaf(builder->state, value, original)) {
        wherry_value_destroy(value);
        return NULL;
    }
    return value;
}

/* ---- objects ---- */

static wherry_value *build_object(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    wherry_value *value = NULL;
    wherry_error error;
    const char *name;
    PyObject *inside;
    if (!PyArg_ParseTuple(node, "sO:Object", &name, &inside)) {
        return NULL;
    }
    bool nested = (PyObject *)Py_TYPE(inside) == wpy_node.Memory || (PyObject *)Py_TYPE(inside) == wpy_node.Object;
    wherry_value *payload =
        nested ? wpy_build_node(builder, inside, original, step) : wpy_build_value(builder, inside, step);
    if (!payload) {
        return NULL;
    }
    wpy_leaf *last = builder->state->leaf_count ? builder->state->leaves + builder->state->leaf_count - 1 : NULL;
    if (wherry_value_kind(payload) >= WHERRY_KIND_TENSOR && last && last->value == payload) {
        PyObject *before = last->object;
        /* A receive in place must return the wrapping object, not the tensor inside. */
        last->object = Py_NewRef(original);
        Py_DECREF(before);
    }
    if (wherry_object_create(name, payload, &value, &error) != WHERRY_OK) {
        wherry_value_destroy(payload);
        return wpy_raise(&error);
    }
    return value;
}

/* ---- memory ---- */

static wherry_value *build_memory(wpy_builder *builder, PyObject *node, PyObject *original) {
    int64_t shape[WHERRY_NDIM_MAX], strides[WHERRY_NDIM_MAX];
    unsigned long long address, nbytes;
    long long offset;
    int dtype;
    unsigned flags;
    PyObject *device_text, *shape_tuple, *stride_tuple, *owner;
    wherry_device device;
    wherry_value *value = NULL;
    wherry_error error;
    if (!PyArg_ParseTuple(node, "KKOiLOOIO:Memory", &address, &nbytes, &device_text, &dtype, &offset, &shape_tuple,
                          &stride_tuple, &flags, &owner)) {
        return NULL;
    }
    wpy_storage_key key = {(uintptr_t)address, nbytes};
    wherry_storage *storage = wpy_storage_find(builder, key);
    if (!storage && wpy_read_device(device_text, &device)) {
        storage = wpy_storage_add(builder, key, (void *)(uintptr_t)address, nbytes, device, owner);
    }
    Py_ssize_t ndim = storage ? wpy_read_integers(shape_tuple, shape, WHERRY_NDIM_MAX) : -1;
    if (ndim < 0 || wpy_read_integers(stride_tuple, strides, WHERRY_NDIM_MAX) != ndim) {
        raise_value_error("a tensor needs one stride per dimension");
        return NULL;
    }
    wherry_tensor tensor = {.storage = storage,
                            .dtype = (wherry_dtype)dtype,
                            .offset = offset,
                            .flags = flags,
                            .ndim = (uint32_t)ndim,
                            .shape = shape,
                            .strides = strides};
    if (wherry_tensor_create(&tensor, &value, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    return add_leaf(builder, value, original);
}

/** Builds a tensor that is part of a distributed tensor. It is never wrapped in an object. */
static wherry_value *build_part(wpy_builder *builder, PyObject *tensor, const wpy_step *step) {
    int torch = wpy_is_torch(builder, Py_TYPE(tensor));
    if (torch < 0) {
        return NULL;
    }
    wherry_value *value = torch ? wpy_build_torch(builder, tensor, true, step) : wpy_build_value(builder, tensor, step);
    if (value && wherry_value_kind(value) != WHERRY_KIND_TENSOR) {
        wherry_value_destroy(value);
        PyErr_SetString(PyExc_TypeError, "a part of a distributed tensor must be a plain tensor");
        return NULL;
    }
    return value;
}

/* ---- DTensor ---- */

enum { MESH_RANKS_MAX = 1 << 20 };

static wherry_mesh *build_mesh(PyObject *node) {
    int64_t shape[WHERRY_NDIM_MAX];
    const char *names[WHERRY_NDIM_MAX] = {0};
    wherry_mesh *mesh = NULL;
    wherry_error error;
    wherry_device device;
    PyObject *device_text, *shape_tuple, *rank_tuple, *dim_names;
    if (!is_node(node, wpy_node.Mesh) ||
        !PyArg_ParseTuple(node, "OOO!O:Mesh", &device_text, &shape_tuple, &PyTuple_Type, &rank_tuple, &dim_names)) {
        return NULL;
    }
    Py_ssize_t ndim = wpy_read_integers(shape_tuple, shape, WHERRY_NDIM_MAX);
    Py_ssize_t given = PyTuple_Size(rank_tuple);
    int64_t *ranks = given <= MESH_RANKS_MAX ? malloc(((size_t)given + 1) * sizeof(*ranks)) : NULL;
    int64_t count = 1;
    if (!ranks && given <= MESH_RANKS_MAX) {
        PyErr_NoMemory();
    }
    given = ranks ? wpy_read_integers(rank_tuple, ranks, (size_t)given) : -1;
    bool ok = ndim >= 0 && given >= 0 && wpy_read_device(device_text, &device);
    for (Py_ssize_t i = 0; ok && i < ndim; i++) {
        ok = shape[i] >= 1 && shape[i] <= MESH_RANKS_MAX && (count *= shape[i]) <= MESH_RANKS_MAX;
    }
    for (Py_ssize_t i = 0; ok && dim_names != Py_None && i < ndim; i++) {
        PyObject *name = PyTuple_GetItem(dim_names, i);
        names[i] = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
        ok = names[i] != NULL;
    }
    if (ok && count == given) {
        wherry_mesh_info info = {device.kind, (uint32_t)ndim, shape, ranks, dim_names == Py_None ? NULL : names};
        if (wherry_mesh_create(&info, &mesh, &error) != WHERRY_OK) {
            wpy_raise(&error);
        }
    } else {
        raise_value_error("a mesh needs one rank per position in its shape, and at most 1048576 ranks");
    }
    free(ranks);
    return mesh;
}

/** Reads a tuple of placements, one per dimension of a mesh. */
static bool read_placements(PyObject *tuple, wherry_placement *placements, uint32_t ndim) {
    if (PyTuple_Size(tuple) != (Py_ssize_t)ndim) {
        return raise_value_error("a DTensor needs one placement per dimension of its mesh");
    }
    for (uint32_t i = 0; i < ndim; i++) {
        PyObject *node = PyTuple_GetItem(tuple, (Py_ssize_t)i);
        int kind;
        unsigned dim;
        long long split_factor;
        const char *reduce_op;
        if (!is_node(node, wpy_node.Placement) ||
            !PyArg_ParseTuple(node, "iILz:Placement", &kind, &dim, &split_factor, &reduce_op)) {
            return false;
        }
        placements[i] = (wherry_placement){(wherry_placement_kind)kind, dim, split_factor, reduce_op};
    }
    return true;
}

static wherry_value *build_dtensor(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    wherry_placement placements[WHERRY_NDIM_MAX] = {0};
    int64_t shape[WHERRY_NDIM_MAX], strides[WHERRY_NDIM_MAX];
    int dtype;
    unsigned flags;
    PyObject *tensor, *mesh_node, *placement_tuple, *shape_tuple, *stride_tuple;
    wherry_value *value = NULL;
    wherry_error error;
    if (!PyArg_ParseTuple(node, "OOO!iIOO:DTensor", &tensor, &mesh_node, &PyTuple_Type, &placement_tuple, &dtype,
                          &flags, &shape_tuple, &stride_tuple)) {
        return NULL;
    }
    wherry_value *local = build_part(builder, tensor, step);
    wherry_mesh *mesh = local ? build_mesh(mesh_node) : NULL;
    Py_ssize_t ndim = mesh ? wpy_read_integers(shape_tuple, shape, WHERRY_NDIM_MAX) : -1;
    if (ndim >= 0 && wpy_read_integers(stride_tuple, strides, WHERRY_NDIM_MAX) == ndim &&
        read_placements(placement_tuple, placements, wherry_mesh_get(mesh)->ndim)) {
        wherry_dtensor dtensor = {local, mesh, placements, (wherry_dtype)dtype, flags, (uint32_t)ndim, shape, strides};
        if (wherry_dtensor_create(&dtensor, &value, &error) != WHERRY_OK) {
            wpy_raise(&error);
        }
    } else {
        raise_value_error("a DTensor needs one stride per dimension of its global shape");
    }
    wherry_mesh_unref(mesh);
    if (!value) {
        wherry_value_destroy(local);
    }
    return add_leaf(builder, value, original);
}

/* ---- ShardedTensor ---- */

/** An array of boxes. The memory for their offsets and sizes is behind them. */
typedef struct boxes {
    wherry_shard_info *items;
    uint32_t count;
} boxes;

static bool read_boxes(PyObject *tuple, uint32_t ndim, boxes *result) {
    Py_ssize_t count = PyTuple_Size(tuple);
    wherry_shard_info *items = calloc((size_t)count + 1, sizeof(*items) + 2 * (size_t)ndim * sizeof(int64_t));
    if (!items) {
        PyErr_NoMemory();
        return false;
    }
    *result = (boxes){items, (uint32_t)count};
    int64_t *numbers = (int64_t *)(items + count);
    for (Py_ssize_t i = 0; i < count; i++, numbers += 2 * (size_t)ndim) {
        PyObject *node = PyTuple_GetItem(tuple, i);
        PyObject *offsets, *sizes, *device;
        long long rank;
        if (!is_node(node, wpy_node.Box) || !PyArg_ParseTuple(node, "OOLO:Box", &offsets, &sizes, &rank, &device) ||
            wpy_read_integers(offsets, numbers, ndim) != (Py_ssize_t)ndim ||
            wpy_read_integers(sizes, numbers + ndim, ndim) != (Py_ssize_t)ndim ||
            !wpy_read_device(device, &items[i].place.device)) {
            return raise_value_error("a shard needs one offset and one size per dimension");
        }
        items[i].place.rank = rank;
        items[i].offsets = numbers;
        items[i].sizes = numbers + ndim;
    }
    return true;
}

/** The parts of a ShardedTensor that is being read. */
typedef struct sharded_parts {
    boxes local, all, listed;
    wherry_shard_place *places; /**< Those of `listed`, for a ChunkShardingSpec. */
    wherry_shard *shards;
    uint32_t made; /**< Number of shards whose tensors this struct owns. */
    int64_t shape[WHERRY_NDIM_MAX];
} sharded_parts;

static void clear_parts(sharded_parts *parts) {
    for (uint32_t i = 0; i < parts->made; i++) {
        wherry_value_destroy(parts->shards[i].tensor);
    }
    free(parts->shards);
    free(parts->places);
    free(parts->local.items);
    free(parts->all.items);
    free(parts->listed.items);
}

static bool read_sharding(PyObject *listed, sharded_parts *parts, uint32_t ndim, wherry_sharding *sharding) {
    bool chunks = sharding->kind == WHERRY_SHARDING_CHUNK;
    if (!read_boxes(listed, chunks ? 0 : ndim, &parts->listed)) {
        return false;
    }
    sharding->count = parts->listed.count;
    if (!chunks) {
        sharding->boxes = parts->listed.items;
        return true;
    }
    sharding->places = parts->places = calloc((size_t)sharding->count + 1, sizeof(*parts->places));
    for (uint32_t i = 0; parts->places && i < sharding->count; i++) {
        parts->places[i] = parts->listed.items[i].place;
    }
    return parts->places || PyErr_NoMemory();
}

static bool build_shards(wpy_builder *builder, PyObject *tensors, sharded_parts *parts, const wpy_step *step) {
    parts->shards = calloc((size_t)parts->local.count + 1, sizeof(*parts->shards));
    if (!parts->shards) {
        PyErr_NoMemory();
        return false;
    }
    if (PyTuple_Size(tensors) != (Py_ssize_t)parts->local.count) {
        return raise_value_error("a ShardedTensor needs one box per local tensor");
    }
    for (uint32_t i = 0; i < parts->local.count; i++) {
        wherry_value *tensor = build_part(builder, PyTuple_GetItem(tensors, (Py_ssize_t)i), step);
        if (!tensor) {
            return false;
        }
        parts->shards[parts->made++] = (wherry_shard){tensor, parts->local.items[i]};
    }
    return true;
}

static bool read_sharded(wpy_builder *builder, PyObject *node, sharded_parts *parts, wherry_sharded *sharded,
                         const wpy_step *step) {
    int dtype, requires_grad, pin_memory, format, kind;
    long long dim;
    PyObject *shape, *tensors, *local, *all, *listed;
    if (!PyArg_ParseTuple(node, "ippiOO!O!O!iLO!:Sharded", &dtype, &requires_grad, &pin_memory, &format, &shape,
                          &PyTuple_Type, &tensors, &PyTuple_Type, &local, &PyTuple_Type, &all, &kind, &dim,
                          &PyTuple_Type, &listed)) {
        return false;
    }
    Py_ssize_t ndim = wpy_read_integers(shape, parts->shape, WHERRY_NDIM_MAX);
    if (ndim < 0) {
        return false;
    }
    *sharded = (wherry_sharded){.dtype = (wherry_dtype)dtype,
                                .requires_grad = requires_grad,
                                .pin_memory = pin_memory,
                                .format = (wherry_memory_format)format,
                                .ndim = (uint32_t)ndim,
                                .shape = parts->shape,
                                .sharding = {.kind = (wherry_sharding_kind)kind, .dim = dim}};
    if (!read_boxes(local, (uint32_t)ndim, &parts->local) || !read_boxes(all, (uint32_t)ndim, &parts->all) ||
        !read_sharding(listed, parts, (uint32_t)ndim, &sharded->sharding) ||
        !build_shards(builder, tensors, parts, step)) {
        return false;
    }
    sharded->shard_count = parts->local.count;
    sharded->shards = parts->shards;
    sharded->global_count = parts->all.count;
    sharded->global = parts->all.items;
    return true;
}

static wherry_value *build_sharded(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    sharded_parts parts = {0};
    wherry_sharded sharded;
    wherry_value *value = NULL;
    wherry_error error;
    if (read_sharded(builder, node, &parts, &sharded, step)) {
        if (wherry_sharded_create(&sharded, &value, &error) == WHERRY_OK) {
            parts.made = 0;
        } else {
            wpy_raise(&error);
        }
    }
    clear_parts(&parts);
    return add_leaf(builder, value, original);
}

/* ---- all nodes ---- */

wherry_value *wpy_build_node(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    PyObject *type = (PyObject *)Py_TYPE(node);
    if (type == wpy_node.Object) {
        return build_object(builder, node, original, step);
    }
    if (type == wpy_node.Memory) {
        return build_memory(builder, node, original);
    }
    if (type == wpy_node.DTensor) {
        return build_dtensor(builder, node, original, step);
    }
    if (type == wpy_node.Sharded) {
        return build_sharded(builder, node, original, step);
    }
    PyErr_Format(PyExc_TypeError, "the method encode() of a codec must return a node of wherry._nodes, not a %R", type);
    return NULL;
}
