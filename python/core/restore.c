/*
 * Turns a received state into Python values. Before any byte moves, wpy_check_objects() asks the
 * codec whether it can rebuild every object. During the receive, wpy_restorer_allocate() allocates
 * new storages through the codec. Afterwards, wpy_restore() walks the tree.
 */
#include <sys/mman.h>

#include "core.h"

/** Size of a huge page. In new host memory, huge pages cause far fewer page faults. */
enum { HUGE_PAGE = 2 << 20 };

bool wpy_restorer_init(wpy_restorer *restorer, PyObject *codec, wpy_state *target) {
    *restorer = (wpy_restorer){.codec = codec, .owners = PyDict_New(), .target = target};
    return restorer->owners && wpy_nodes_ready();
}

void wpy_restorer_clear(wpy_restorer *restorer) {
    Py_CLEAR(restorer->owners);
}

/* ---- checking ---- */

static bool check(PyObject *codec, const wherry_value *value, const wpy_step *step);

static bool check_children(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    bool is_dict = wherry_value_kind(value) == WHERRY_KIND_DICT;
    size_t count = is_dict ? wherry_dict_count(value) : wherry_sequence_count(value);
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        wpy_step below = {.up = step, .value_key = is_dict ? wherry_dict_key_at(value, i) : NULL, .index = i};
        ok = check(codec, is_dict ? wherry_dict_at(value, i) : wherry_sequence_at(value, i), &below);
    }
    return ok;
}

static bool check_object(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    PyObject *name = PyUnicode_FromString(wherry_object_type(value));
    PyObject *answer = name ? PyObject_CallMethodObjArgs(codec, wpy_name.check, name, NULL) : NULL;
    if (name && !answer) {
        wpy_add_path(step);
    }
    bool ok = answer != NULL;
    Py_XDECREF(answer);
    Py_XDECREF(name);
    return ok && check(codec, wherry_object_payload(value), step);
}

static bool check(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    wherry_kind kind = wherry_value_kind(value);
    bool is_object = kind == WHERRY_KIND_OBJECT;
    if (!is_object && kind != WHERRY_KIND_LIST && kind != WHERRY_KIND_TUPLE && kind != WHERRY_KIND_DICT) {
        return true;
    }
    if (Py_EnterRecursiveCall(" while checking a state")) {
        return false;
    }
    bool ok = is_object ? check_object(codec, value, step) : check_children(codec, value, step);
    Py_LeaveRecursiveCall();
    return ok;
}

bool wpy_check_objects(PyObject *codec, const wherry_value *state) {
    wpy_step root = {0};
    return check(codec, state, &root);
}

/* ---- scalars and integers ---- */

void wpy_set_item(PyObject **sequence, size_t i, PyObject *item) {
    Py_ssize_t at = (Py_ssize_t)i;
    bool is_list = PyList_Check(*sequence);
    if (!item || (is_list ? PyList_SetItem(*sequence, at, item) : PyTuple_SetItem(*sequence, at, item)) != 0) {
        Py_CLEAR(*sequence);
    }
}

static PyObject *bigint_get(const wherry_value *value) {
    bool negative;
    size_t size;
    const uint8_t *magnitude = wherry_bigint_get(value, &negative, &size);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)magnitude, (Py_ssize_t)size);
    PyObject *number = bytes ? PyObject_CallMethod((PyObject *)&PyLong_Type, "from_bytes", "Os", bytes, "big") : NULL;
    Py_XDECREF(bytes);
    if (number && negative) {
        PyObject *positive = number;
        number = PyNumber_Negative(positive);
        Py_DECREF(positive);
    }
    return number;
}

static PyObject *scalar_get(const wherry_value *value) {
    size_t size;
    double real, imaginary;
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_NONE:
        return Py_NewRef(Py_None);
    case WHERRY_KIND_BOOL:
        return PyBool_FromLong(wherry_bool_get(value));
    case WHERRY_KIND_INT:
        return PyLong_FromLongLong(wherry_int_get(value));
    case WHERRY_KIND_BIGINT:
        return bigint_get(value);
    case WHERRY_KIND_FLOAT:
        return PyFloat_FromDouble(wherry_float_get(value));
    case WHERRY_KIND_COMPLEX:
        wherry_complex_get(value, &real, &imaginary);
        return PyComplex_FromDoubles(real, imaginary);
    case WHERRY_KIND_STRING: {
        const char *text = wherry_string_get(value, &size);
        return PyUnicode_FromStringAndSize(text, (Py_ssize_t)size);
    }
    default: {
        const void *bytes = wherry_bytes_get(value, &size);
        return PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    }
    }
}

PyObject *wpy_integers(const int64_t *items, size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        wpy_set_item(&tuple, i, PyLong_FromLongLong(items[i]));
    }
    return tuple;
}

/* ---- devices and memory ---- */

/** Asks the system for huge pages. A failure is ignored, because it only costs time. */
static void want_huge_pages(void *data, uint64_t nbytes) {
    uintptr_t begin = ((uintptr_t)data + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)data + nbytes) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (end > begin) {
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
}

/** Wraps the memory from codec.allocate() in a storage. The codec has chosen the device. */
static wherry_status keep_storage(wpy_restorer *restorer, PyObject *answer, uint64_t nbytes,
                                  wherry_storage **storage_p) {
    PyObject *owner, *pointer, *place;
    wherry_storage *storage;
    wherry_device device;
    wherry_error error;
    if (!PyArg_ParseTuple(answer, "OOO:allocate", &owner, &pointer, &place)) {
        return WHERRY_NO_MEMORY;
    }
    void *data = PyLong_AsVoidPtr(pointer);
    if (PyErr_Occurred() || !wpy_read_device(place, &device)) {
        return WHERRY_NO_MEMORY;
    }
    if (device.kind == WHERRY_DEVICE_CPU) {
        want_huge_pages(data, nbytes);
    }
    if (wherry_storage_wrap(data, nbytes, device, NULL, NULL, &storage, &error) != WHERRY_OK) {
        wpy_raise(&error);
        return error.status;
    }
    PyObject *key = PyLong_FromVoidPtr(storage);
    bool ok = key && PyDict_SetItem(restorer->owners, key, owner) == 0;
    Py_XDECREF(key);
    if (!ok) {
        wherry_storage_unref(storage);
        return WHERRY_NO_MEMORY;
    }
    *storage_p = storage;
    return WHERRY_OK;
}

wherry_status wpy_restorer_allocate(wpy_restorer *restorer, uint64_t nbytes, wherry_device device,
                                    wherry_storage **storage_p) {
    char text[WHERRY_DEVICE_TEXT_MAX];
    PyObject *answer = PyObject_CallMethod(restorer->codec, "allocate", "Ks", (unsigned long long)nbytes,
                                           wherry_device_text(device, text));
    if (!answer) {
        return PyErr_ExceptionMatches(PyExc_MemoryError) ? WHERRY_NO_MEMORY : WHERRY_UNSUPPORTED;
    }
    wherry_status status = keep_storage(restorer, answer, nbytes, storage_p);
    Py_DECREF(answer);
    return status;
}

/* ---- leaves ---- */

/** Returns the innermost payload of nested objects, or the value itself if it is not an object. */
static const wherry_value *inside(const wherry_value *value) {
    while (value && wherry_value_kind(value) == WHERRY_KIND_OBJECT) {
        value = wherry_object_payload(value);
    }
    return value;
}

/** The object that a value was received into, borrowed. NULL without an exception if none. */
static PyObject *target_object(const wpy_restorer *restorer, const wherry_value *value, const wherry_value *target) {
    value = inside(value);
    if (!target || wherry_value_kind(value) < WHERRY_KIND_TENSOR ||
        wherry_value_kind(value) != wherry_value_kind(target)) {
        return NULL;
    }
    return wpy_state_find(restorer->target, target);
}

static PyObject *new_tensor(wpy_restorer *restorer, const wherry_value *value) {
    const wherry_tensor *tensor = wherry_tensor_get(value);
    PyObject *key = PyLong_FromVoidPtr(tensor->storage);
    PyObject *owner = key ? PyDict_GetItemWithError(restorer->owners, key) : NULL;
    Py_XDECREF(key);
    PyObject *method = PyErr_Occurred() ? NULL : PyObject_GetAttr(restorer->codec, wpy_name.tensor);
    if (!method) {
        return NULL;
    }
    char device[WHERRY_DEVICE_TEXT_MAX];
    PyObject *made =
        PyObject_CallFunction(method, "Osi(NNL)I", owner ? owner : Py_None,
                              wherry_device_text(wherry_storage_device(tensor->storage), device), (int)tensor->dtype,
                              wpy_integers(tensor->shape, tensor->ndim), wpy_integers(tensor->strides, tensor->ndim),
                              (long long)tensor->offset, (unsigned)tensor->flags);
    Py_DECREF(method);
    return made;
}

/* ---- nodes, from which the codec rebuilds distributed tensors ---- */

/** Calls codec.distributed() with a node. Takes the reference to the node, which may be NULL. */
static PyObject *make(const wpy_restorer *restorer, PyObject *node) {
    PyObject *made = node ? PyObject_CallMethodObjArgs(restorer->codec, wpy_name.distributed, node, NULL) : NULL;
    Py_XDECREF(node);
    return made;
}

static PyObject *new_mesh(const wherry_mesh *mesh) {
    const wherry_mesh_info *info = wherry_mesh_get(mesh);
    size_t count = 1;
    for (uint32_t i = 0; i < info->ndim; i++) {
        count *= (size_t)info->shape[i];
    }
    PyObject *names = info->dim_names ? PyTuple_New((Py_ssize_t)info->ndim) : Py_NewRef(Py_None);
    for (uint32_t i = 0; names && info->dim_names && i < info->ndim; i++) {
        wpy_set_item(&names, i, PyUnicode_FromString(info->dim_names[i]));
    }
    return names ? PyObject_CallFunction(wpy_node.Mesh, "sNNN", wherry_device_kind_text(info->device),
                                         wpy_integers(info->shape, info->ndim), wpy_integers(info->ranks, count), names)
                 : NULL;
}

static PyObject *new_placements(const wherry_placement *placements, uint32_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        const wherry_placement *one = placements + i;
        wpy_set_item(&tuple, i,
                     PyObject_CallFunction(wpy_node.Placement, "iILz", (int)one->kind, (unsigned)one->dim,
                                           (long long)one->split_factor, one->reduce_op));
    }
    return tuple;
}

static PyObject *new_dtensor(wpy_restorer *restorer, const wherry_value *value) {
    const wherry_dtensor *dtensor = wherry_dtensor_get(value);
    PyObject *local = new_tensor(restorer, dtensor->local);
    if (!local) {
        return NULL;
    }
    PyObject *node = PyObject_CallFunction(wpy_node.DTensor, "NNNiINN", local, new_mesh(dtensor->mesh),
                                           new_placements(dtensor->placements, wherry_mesh_get(dtensor->mesh)->ndim),
                                           (int)dtensor->dtype, (unsigned)dtensor->flags,
                                           wpy_integers(dtensor->shape, dtensor->ndim),
                                           wpy_integers(dtensor->strides, dtensor->ndim));
    return make(restorer, node);
}

static PyObject *new_box(const wherry_shard_place *place, const int64_t *offsets, const int64_t *sizes, uint32_t ndim) {
    char device[WHERRY_DEVICE_TEXT_MAX];
    return PyObject_CallFunction(wpy_node.Box, "NNLs", wpy_integers(offsets, ndim), wpy_integers(sizes, ndim),
                                 (long long)place->rank, wherry_device_text(place->device, device));
}

/** A tuple of boxes. They may be members of larger structs, so they are `step` bytes apart. */
static PyObject *new_boxes(const wherry_shard_info *first, size_t step, uint32_t count, uint32_t ndim) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        const wherry_shard_info *info = (const void *)((const char *)first + i * step);
        wpy_set_item(&tuple, i, new_box(&info->place, info->offsets, info->sizes, ndim));
    }
    return tuple;
}

/** The boxes of a sharding spec. Those of a ChunkShardingSpec are places only. */
static PyObject *new_listed(const wherry_sharding *sharding, uint32_t ndim) {
    if (sharding->kind != WHERRY_SHARDING_CHUNK) {
        bool listed = sharding->kind == WHERRY_SHARDING_ENUMERABLE;
        return new_boxes(sharding->boxes, sizeof(*sharding->boxes), listed ? sharding->count : 0, ndim);
    }
    PyObject *tuple = PyTuple_New((Py_ssize_t)sharding->count);
    for (uint32_t i = 0; tuple && i < sharding->count; i++) {
        wpy_set_item(&tuple, i, new_box(sharding->places + i, NULL, NULL, 0));
    }
    return tuple;
}

static PyObject *new_sharded(wpy_restorer *restorer, const wherry_value *value) {
    const wherry_sharded *sharded = wherry_sharded_get(value);
    PyObject *tensors = PyTuple_New((Py_ssize_t)sharded->shard_count);
    for (uint32_t i = 0; tensors && i < sharded->shard_count; i++) {
        wpy_set_item(&tensors, i, new_tensor(restorer, sharded->shards[i].tensor));
    }
    if (!tensors) {
        return NULL;
    }
    const wherry_shard_info *local = sharded->shard_count ? &sharded->shards->info : NULL;
    PyObject *node = PyObject_CallFunction(
        wpy_node.Sharded, "iNNiNNNNiLN", (int)sharded->dtype, PyBool_FromLong(sharded->requires_grad),
        PyBool_FromLong(sharded->pin_memory), (int)sharded->format, wpy_integers(sharded->shape, sharded->ndim),
        tensors, new_boxes(local, sizeof(*sharded->shards), sharded->shard_count, sharded->ndim),
        new_boxes(sharded->global, sizeof(*sharded->global), sharded->global_count, sharded->ndim),
        (int)sharded->sharding.kind, (long long)sharded->sharding.dim, new_listed(&sharded->sharding, sharded->ndim));
    return make(restorer, node);
}

/* ---- the tree ---- */

static PyObject *restore(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                         const wpy_step *step);

static PyObject *restore_sequence(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                                  const wpy_step *step) {
    size_t count = wherry_sequence_count(value);
    bool is_list = wherry_value_kind(value) == WHERRY_KIND_LIST;
    PyObject *made = is_list ? PyList_New((Py_ssize_t)count) : PyTuple_New((Py_ssize_t)count);
    wpy_step below = {.up = step};
    for (size_t i = 0; made && i < count; i++) {
        below.index = i;
        PyObject *item =
            restore(restorer, wherry_sequence_at(value, i), target ? wherry_sequence_at(target, i) : NULL, &below);
        wpy_set_item(&made, i, item);
    }
    return made;
}

static PyObject *restore_dict(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                              const wpy_step *step) {
    size_t count = wherry_dict_count(value);
    PyObject *made = PyDict_New();
    for (size_t i = 0; made && i < count; i++) {
        const wherry_value *key = wherry_dict_key_at(value, i);
        wpy_step below = {.up = step, .value_key = key};
        PyObject *name = scalar_get(key);
        PyObject *item =
            name ? restore(restorer, wherry_dict_at(value, i), target ? wherry_dict_find(target, key) : NULL, &below)
                 : NULL;
        if (!item || PyDict_SetItem(made, name, item) != 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(item);
        Py_XDECREF(name);
    }
    return made;
}

static PyObject *restore_object(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                                const wpy_step *step) {
    const wherry_value *payload = wherry_object_payload(value);
    PyObject *content = restore(restorer, payload, target, step);
    PyObject *name = content ? PyUnicode_FromString(wherry_object_type(value)) : NULL;
    PyObject *made = name ? PyObject_CallMethodObjArgs(restorer->codec, wpy_name.decode, name, content, NULL) : NULL;
    if (name && !made) {
        wpy_add_path(step);
    }
    Py_XDECREF(name);
    Py_XDECREF(content);
    return made;
}

static PyObject *restore_kind(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                              const wpy_step *step) {
    PyObject *made;
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
        return restore_sequence(restorer, value, target, step);
    case WHERRY_KIND_DICT:
        return restore_dict(restorer, value, target, step);
    case WHERRY_KIND_OBJECT:
        return restore_object(restorer, value, target, step);
    case WHERRY_KIND_TENSOR:
        made = new_tensor(restorer, value);
        break;
    case WHERRY_KIND_DTENSOR:
        made = new_dtensor(restorer, value);
        break;
    case WHERRY_KIND_SHARDED:
        made = new_sharded(restorer, value);
        break;
    default:
        return scalar_get(value);
    }
    if (!made) {
        wpy_add_path(step);
    }
    return made;
}

static PyObject *restore(wpy_restorer *restorer, const wherry_value *value, const wherry_value *target,
                         const wpy_step *step) {
    target = inside(target);
    PyObject *in_place = restorer->target ? target_object(restorer, value, target) : NULL;
    if (in_place || PyErr_Occurred()) {
        return Py_XNewRef(in_place);
    }
    if (Py_EnterRecursiveCall(" while restoring a state")) {
        return NULL;
    }
    PyObject *made = restore_kind(restorer, value, target, step);
    Py_LeaveRecursiveCall();
    return made;
}

PyObject *wpy_restore(wpy_restorer *restorer, const wherry_value *state) {
    wpy_step root = {0};
    int collects = PyGC_Disable(); /* see wpy_build() */
    PyObject *made = restore(restorer, state, restorer->target ? restorer->target->root : NULL, &root);
    if (collects) {
        PyGC_Enable();
    }
    return made;
}
