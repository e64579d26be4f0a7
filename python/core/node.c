/* Builds values from the nodes of wherry._nodes, by which a codec describes objects and tensors. */
#include <stdlib.h>

#include "core.h"

/** True if it is a node of this class with all its fields. */
static bool is_node(PyObject *node, PyObject *type, Py_ssize_t fields) {
    if (node && (PyObject *)Py_TYPE(node) == type && PyTuple_Size(node) == fields) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "the codec returned something other than a %R", type);
    return false;
}

/** A field of a node, borrowed. */
static PyObject *field(PyObject *node, Py_ssize_t number) {
    return PyTuple_GetItem(node, number);
}

static bool read_number(PyObject *number, int64_t *number_p) {
    *number_p = PyLong_AsLongLong(number);
    return *number_p != -1 || !PyErr_Occurred();
}

static bool is_leaf(const wherry_value *value) {
    return wherry_value_kind(value) >= WHERRY_KIND_TENSOR;
}

/* ---- objects ---- */

static wherry_value *build_object(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    wherry_value *value = NULL;
    wherry_error error;
    const char *name = PyUnicode_AsUTF8AndSize(field(node, 0), NULL);
    PyObject *inside = field(node, 1);
    if (!name) {
        return NULL;
    }
    bool nested = (PyObject *)Py_TYPE(inside) == wpy_node.memory || (PyObject *)Py_TYPE(inside) == wpy_node.object;
    wherry_value *payload =
        nested ? wpy_build_node(builder, inside, original, step) : wpy_build_value(builder, inside, step);
    if (!payload) {
        return NULL;
    }
    wpy_leaf *last = builder->state->leaf_count ? builder->state->leaves + builder->state->leaf_count - 1 : NULL;
    if (is_leaf(payload) && last && last->value == payload && last->object != original) {
        PyObject *before = last->object;
        last->object = Py_NewRef(original); /* a receive in place returns the wrapper, not the inner tensor */
        Py_DECREF(before);
    }
    if (wherry_object_create(name, payload, &value, &error) != WHERRY_OK) {
        wherry_value_destroy(payload);
        return wpy_raise(&error);
    }
    return value;
}

/* ---- memory ---- */

static wherry_storage *memory_storage(wpy_builder *builder, PyObject *node) {
    wherry_device device;
    void *data = PyLong_AsVoidPtr(field(node, 0));
    uint64_t nbytes = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(field(node, 1));
    if (PyErr_Occurred()) {
        return NULL;
    }
    wpy_storage_key key = {(uintptr_t)data, nbytes};
    wherry_storage *storage = wpy_storage_find(builder, key);
    if (storage || !wpy_read_device(field(node, 2), &device)) {
        return storage;
    }
    return wpy_storage_add(builder, key, data, nbytes, device, field(node, 8));
}

static wherry_value *build_memory(wpy_builder *builder, PyObject *node, PyObject *original) {
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    int64_t dtype;
    int64_t flags;
    wherry_value *value = NULL;
    wherry_error error;
    wherry_tensor tensor = {.storage = memory_storage(builder, node), .shape = shape, .strides = strides};
    if (!tensor.storage || !read_number(field(node, 3), &dtype) || !read_number(field(node, 4), &tensor.offset) ||
        !read_number(field(node, 7), &flags)) {
        return NULL;
    }
    Py_ssize_t ndim = wpy_read_integers(field(node, 5), shape, WHERRY_NDIM_MAX);
    if (ndim < 0 || wpy_read_integers(field(node, 6), strides, WHERRY_NDIM_MAX) != ndim) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a tensor needs one stride per dimension");
        }
        return NULL;
    }
    tensor.dtype = (wherry_dtype)dtype;
    tensor.flags = (uint32_t)flags;
    tensor.ndim = (uint32_t)ndim;
    if (wherry_tensor_create(&tensor, &value, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    if (!wpy_state_add_leaf(builder->state, value, original)) {
        wherry_value_destroy(value);
        return NULL;
    }
    return value;
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
    if (!is_node(node, wpy_node.mesh, 4)) {
        return NULL;
    }
    PyObject *dim_names = field(node, 3);
    Py_ssize_t ndim = wpy_read_integers(field(node, 1), shape, WHERRY_NDIM_MAX);
    Py_ssize_t given = PyTuple_Size(field(node, 2));
    int64_t *ranks = given >= 0 && given <= MESH_RANKS_MAX ? malloc(((size_t)given + 1) * sizeof(*ranks)) : NULL;
    int64_t count = 1;
    given = ranks ? wpy_read_integers(field(node, 2), ranks, (size_t)given) : -1;
    bool ok = ndim >= 0 && given >= 0 && wpy_read_device(field(node, 0), &device);
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
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "the number of ranks of a mesh does not match its shape");
    }
    free(ranks);
    return mesh;
}

static bool read_placements(PyObject *tuple, wherry_placement *placements, uint32_t *count_p) {
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0 || count > WHERRY_NDIM_MAX) {
        PyErr_SetString(PyExc_ValueError, "a DTensor needs a tuple with one placement per mesh dimension");
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *node = PyTuple_GetItem(tuple, i);
        int64_t kind;
        int64_t dim;
        if (!is_node(node, wpy_node.placement, 4) || !read_number(field(node, 0), &kind) ||
            !read_number(field(node, 1), &dim) || !read_number(field(node, 2), &placements[i].split_factor)) {
            return false;
        }
        placements[i].kind = (wherry_placement_kind)kind;
        placements[i].dim = (uint32_t)dim;
        placements[i].reduce_op = field(node, 3) == Py_None ? NULL : PyUnicode_AsUTF8AndSize(field(node, 3), NULL);
        if (PyErr_Occurred()) {
            return false;
        }
    }
    *count_p = (uint32_t)count;
    return true;
}

/** Creates a DTensor. Takes the local tensor, also on failure. */
static wherry_value *assemble_dtensor(PyObject *node, wherry_value *local, wherry_mesh *mesh) {
    wherry_placement placements[WHERRY_NDIM_MAX];
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    int64_t dtype;
    int64_t flags;
    uint32_t count;
    wherry_value *value = NULL;
    wherry_error error;
    Py_ssize_t ndim = wpy_read_integers(field(node, 5), shape, WHERRY_NDIM_MAX);
    bool ok = ndim >= 0 && wpy_read_integers(field(node, 6), strides, WHERRY_NDIM_MAX) == ndim &&
              read_placements(field(node, 2), placements, &count) && read_number(field(node, 3), &dtype) &&
              read_number(field(node, 4), &flags);
    if (ok && count != wherry_mesh_get(mesh)->ndim) {
        ok = false;
    }
    if (ok) {
        wherry_dtensor dtensor = {local,           mesh,           placements, (wherry_dtype)dtype,
                                  (uint32_t)flags, (uint32_t)ndim, shape,      strides};
        if (wherry_dtensor_create(&dtensor, &value, &error) != WHERRY_OK) {
            wpy_raise(&error);
        }
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "shape, strides and placements of a DTensor do not match");
    }
    if (!value) {
        wherry_value_destroy(local);
    }
    return value;
}

static wherry_value *build_dtensor(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    wherry_value *local = build_part(builder, field(node, 0), step);
    wherry_mesh *mesh = local ? build_mesh(field(node, 1)) : NULL;
    if (!mesh) {
        wherry_value_destroy(local);
        return NULL;
    }
    wherry_value *value = assemble_dtensor(node, local, mesh);
    wherry_mesh_unref(mesh);
    if (value && !wpy_state_add_leaf(builder->state, value, original)) {
        wherry_value_destroy(value);
        return NULL;
    }
    return value;
}

/* ---- ShardedTensor ---- */

/** Boxes, and the memory for their offsets and sizes. */
typedef struct boxes {
    wherry_shard_info *items;
    int64_t *numbers;
    uint32_t count;
} boxes;

static bool read_place(PyObject *node, wherry_shard_place *place) {
    return is_node(node, wpy_node.place, 2) && read_number(field(node, 0), &place->rank) &&
           wpy_read_device(field(node, 1), &place->device);
}

static bool read_boxes(PyObject *tuple, uint32_t ndim, boxes *result) {
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0) {
        return false;
    }
    result->items = calloc((size_t)count + 1, sizeof(*result->items));
    result->numbers = calloc(((size_t)count + 1) * 2 * WHERRY_NDIM_MAX, sizeof(*result->numbers));
    if (!result->items || !result->numbers) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *node = PyTuple_GetItem(tuple, i);
        int64_t *offsets = result->numbers + (size_t)i * 2 * WHERRY_NDIM_MAX;
        int64_t *sizes = offsets + WHERRY_NDIM_MAX;
        if (!is_node(node, wpy_node.box, 3) ||
            wpy_read_integers(field(node, 0), offsets, WHERRY_NDIM_MAX) != (Py_ssize_t)ndim ||
            wpy_read_integers(field(node, 1), sizes, WHERRY_NDIM_MAX) != (Py_ssize_t)ndim ||
            !read_place(field(node, 2), &result->items[i].place)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a shard needs an offset and a size per dimension");
            }
            return false;
        }
        result->items[i].offsets = offsets;
        result->items[i].sizes = sizes;
    }
    result->count = (uint32_t)count;
    return true;
}

static void clear_boxes(boxes *result) {
    free(result->items);
    free(result->numbers);
}

/** The parts of a ShardedTensor while it is read. */
typedef struct sharded_parts {
    boxes local;
    boxes all;
    boxes listed; /**< Of an enumerable sharding. */
    wherry_shard_place *places;
    wherry_shard *shards;
    uint32_t made; /**< Shards whose tensors are still owned here. */
    int64_t shape[WHERRY_NDIM_MAX];
} sharded_parts;

static void clear_parts(sharded_parts *parts) {
    for (uint32_t i = 0; i < parts->made; i++) {
        wherry_value_destroy(parts->shards[i].tensor);
    }
    free(parts->shards);
    free(parts->places);
    clear_boxes(&parts->local);
    clear_boxes(&parts->all);
    clear_boxes(&parts->listed);
}

static bool read_sharding(PyObject *node, uint32_t ndim, sharded_parts *parts, wherry_sharding *sharding) {
    int64_t kind;
    if (!is_node(node, wpy_node.sharding, 4)) {
        return false;
    }
    PyObject *places = field(node, 2);
    Py_ssize_t count = PyTuple_Size(places);
    parts->places = count >= 0 ? calloc((size_t)count + 1, sizeof(*parts->places)) : NULL;
    if (count >= 0 && !parts->places) {
        PyErr_NoMemory();
    }
    if (!parts->places || !read_number(field(node, 0), &kind) || !read_number(field(node, 1), &sharding->dim)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_place(PyTuple_GetItem(places, i), parts->places + i)) {
            return false;
        }
    }
    if (!read_boxes(field(node, 3), ndim, &parts->listed)) {
        return false;
    }
    sharding->kind = (wherry_sharding_kind)kind;
    if (sharding->kind == WHERRY_SHARDING_CHUNK) {
        sharding->count = (uint32_t)count;
        sharding->places = parts->places;
    } else if (sharding->kind == WHERRY_SHARDING_ENUMERABLE) {
        sharding->count = parts->listed.count;
        sharding->boxes = parts->listed.items;
    }
    return true;
}

static bool build_shards(wpy_builder *builder, PyObject *tensors, sharded_parts *parts, const wpy_step *step) {
    parts->shards = calloc((size_t)parts->local.count + 1, sizeof(*parts->shards));
    if (!parts->shards || PyTuple_Size(tensors) != (Py_ssize_t)parts->local.count) {
        PyErr_SetString(PyExc_ValueError, "a ShardedTensor needs one box per local tensor");
        return false;
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
    int64_t dtype;
    int64_t format;
    Py_ssize_t ndim = wpy_read_integers(field(node, 4), parts->shape, WHERRY_NDIM_MAX);
    if (ndim < 0 || !read_number(field(node, 0), &dtype) || !read_number(field(node, 3), &format)) {
        return false;
    }
    *sharded = (wherry_sharded){.dtype = (wherry_dtype)dtype,
                                .requires_grad = field(node, 1) == Py_True,
                                .pin_memory = field(node, 2) == Py_True,
                                .format = (wherry_memory_format)format,
                                .ndim = (uint32_t)ndim,
                                .shape = parts->shape};
    if (!read_boxes(field(node, 6), (uint32_t)ndim, &parts->local) ||
        !read_boxes(field(node, 7), (uint32_t)ndim, &parts->all) ||
        !read_sharding(field(node, 8), (uint32_t)ndim, parts, &sharded->sharding) ||
        !build_shards(builder, field(node, 5), parts, step)) {
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
    if (value && !wpy_state_add_leaf(builder->state, value, original)) {
        wherry_value_destroy(value);
        return NULL;
    }
    return value;
}

/* ---- all nodes ---- */

wherry_value *wpy_build_node(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step) {
    PyObject *type = (PyObject *)Py_TYPE(node);
    if (type == wpy_node.object && is_node(node, type, 2)) {
        return build_object(builder, node, original, step);
    }
    if (type == wpy_node.memory && is_node(node, type, 9)) {
        return build_memory(builder, node, original);
    }
    if (type == wpy_node.dtensor && is_node(node, type, 7)) {
        return build_dtensor(builder, node, original, step);
    }
    if (type == wpy_node.sharded && is_node(node, type, 9)) {
        return build_sharded(builder, node, original, step);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyErr_Format(PyExc_TypeError, "encode() of a codec must return a node of wherry._nodes, not a %R", type);
    return NULL;
}
