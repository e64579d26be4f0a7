/* From a Python value to a state: exact builtin types and tensors are read here, everything else is the codec's. */
#include "core.h"

#include <stdlib.h>

static wherry_value *raise_null(const wherry_error *error) {
    wpy_raise(error);
    return NULL;
}

/* ---- storages ---- */

wherry_storage *wpy_storage_find(const wpy_builder *builder, wpy_storage_key key) {
    size_t number = wpy_map_find(&builder->storage_numbers, key.address, key.nbytes);
    return number == WPY_MAP_NONE ? NULL : builder->storages[number];
}

/** Takes a storage over, where there is room for it. @return false with an exception set. */
static bool own(wpy_builder *builder, wpy_storage_key key, wherry_storage *storage) {
    size_t count = builder->storage_numbers.count;
    if (count == builder->storage_capacity) {
        size_t capacity = count ? 2 * count : 64;
        wherry_storage **storages = realloc(builder->storages, capacity * sizeof(*storages));
        if (!storages) {
            PyErr_NoMemory();
            return false;
        }
        builder->storages = storages;
        builder->storage_capacity = capacity;
    }
    builder->storages[count] = storage;
    return wpy_map_add(&builder->storage_numbers, key.address, key.nbytes, count);
}

wherry_storage *wpy_storage_add(wpy_builder *builder, wpy_storage_key key, void *data, uint64_t nbytes,
                                wherry_device device, PyObject *owner) {
    wherry_storage *storage;
    wherry_error error;
    if (wherry_storage_wrap(data, nbytes, device, NULL, NULL, &storage, &error) != WHERRY_OK) {
        wpy_raise(&error);
        return NULL;
    }
    if (!own(builder, key, storage)) {
        wherry_storage_unref(storage);
        return NULL;
    }
    device = wherry_storage_device(storage);
    if (device.kind == WHERRY_DEVICE_CUDA && device.index >= 0 && device.index < 64) {
        builder->state->cuda_devices |= UINT64_C(1) << device.index;
    }
    return PyList_Append(builder->state->keep, owner) == 0 ? storage : NULL;
}

/* ---- containers ---- */

static wherry_value *build_sequence(wpy_builder *builder, PyObject *sequence, const wpy_step *step) {
    bool is_list = PyList_CheckExact(sequence);
    wherry_value *value;
    wherry_error error;
    if ((is_list ? wherry_list_create(&value, &error) : wherry_tuple_create(&value, &error)) != WHERRY_OK) {
        return raise_null(&error);
    }
    wpy_step below = {.up = step};
    /* A list may change while a codec runs: its length is asked for each time. */
    for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(sequence) : PyTuple_Size(sequence)); i++) {
        PyObject *item = Py_NewRef(is_list ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i));
        below.index = (uint64_t)i;
        wherry_value *child = wpy_build_value(builder, item, &below);
        Py_DECREF(item);
        if (!child || wherry_sequence_append(value, child, &error) != WHERRY_OK) {
            if (child) {
                wherry_value_destroy(child);
                wpy_raise(&error);
                wpy_add_path(&below);
            }
            wherry_value_destroy(value);
            return NULL;
        }
    }
    return value;
}

/** Adds an entry. @return 1; 0 where the key is not a scalar; -1 with an exception set. */
static int build_entry(wpy_builder *builder, wherry_value *dict, PyObject *key, PyObject *item, const wpy_step *below) {
    wherry_error error;
    wherry_value *name = wpy_scalar_new(key);
    if (!name) {
        return PyErr_Occurred() ? -1 : 0;
    }
    wherry_value *child = wpy_build_value(builder, item, below);
    if (child && wherry_dict_set(dict, name, child, &error) == WHERRY_OK) {
        return 1;
    }
    wherry_value_destroy(name);
    if (child) {
        wherry_value_destroy(child);
        wpy_raise(&error);
        wpy_add_path(below);
    }
    return -1;
}

/** Forgets the leaves of what is thrown away. */
static void forget_leaves(wpy_state *state, size_t count) {
    while (state->leaf_count > count) {
        Py_DECREF(state->leaves[--state->leaf_count].object);
    }
}

static wherry_value *build_dict(wpy_builder *builder, PyObject *dict, const wpy_step *step) {
    wherry_value *value;
    wherry_error error;
    PyObject *key;
    PyObject *item;
    Py_ssize_t position = 0;
    Py_ssize_t size = PyDict_Size(dict);
    size_t leaves = builder->state->leaf_count;
    int result = 1;
    if (wherry_dict_create(&value, &error) != WHERRY_OK) {
        return raise_null(&error);
    }
    while (result > 0 && PyDict_Next(dict, &position, &key, &item)) {
        wpy_step below = {.up = step, .key = Py_NewRef(key)};
        Py_INCREF(item);
        result = build_entry(builder, value, key, item, &below);
        Py_DECREF(item);
        Py_DECREF(key);
        if (result > 0 && PyDict_Size(dict) != size) {
            PyErr_SetString(PyExc_RuntimeError, "the dict changed its size while it was read");
            result = -1;
        }
    }
    if (result > 0) {
        return value;
    }
    wherry_value_destroy(value);
    forget_leaves(builder->state, leaves);
    return result == 0 ? wpy_build_encoded(builder, dict, step) : NULL;
}

static wherry_value *build_container(wpy_builder *builder, PyObject *object, const wpy_step *step) {
    if (Py_EnterRecursiveCall(" while a state was read")) {
        return NULL;
    }
    wherry_value *value =
        PyDict_CheckExact(object) ? build_dict(builder, object, step) : build_sequence(builder, object, step);
    Py_LeaveRecursiveCall();
    return value;
}

/* ---- everything ---- */

wherry_value *wpy_build_encoded(wpy_builder *builder, PyObject *object, const wpy_step *step) {
    PyObject *node = PyObject_CallMethodObjArgs(builder->codec, wpy_name.encode, object, NULL);
    wherry_value *value = node ? wpy_build_node(builder, node, object, step) : NULL;
    Py_XDECREF(node);
    if (!value) {
        wpy_add_path(step);
    }
    return value;
}

wherry_value *wpy_build_value(wpy_builder *builder, PyObject *object, const wpy_step *step) {
    if (PyDict_CheckExact(object) || PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        return build_container(builder, object, step);
    }
    int torch = wpy_is_torch(builder, Py_TYPE(object));
    if (torch) {
        return torch > 0 ? wpy_build_torch(builder, object, false, step) : NULL;
    }
    wherry_value *value = wpy_scalar_new(object);
    return value || PyErr_Occurred() ? value : wpy_build_encoded(builder, object, step);
}

static bool read_codec(wpy_builder *builder, PyObject *codec) {
    builder->codec = codec;
    builder->tensor_types = PyObject_GetAttr(codec, wpy_name.tensor_types);
    builder->dtypes = builder->tensor_types ? PyObject_GetAttr(codec, wpy_name.dtypes) : NULL;
    if (builder->dtypes && (!PyDict_Check(builder->tensor_types) || !PyDict_Check(builder->dtypes))) {
        PyErr_SetString(PyExc_TypeError, "tensor_types and dtypes of a codec are dicts");
        return false;
    }
    return builder->dtypes != NULL;
}

static void clear_builder(wpy_builder *builder) {
    for (size_t i = 0; i < builder->storage_numbers.count; i++) {
        wherry_storage_unref(builder->storages[i]);
    }
    free(builder->storages);
    wpy_map_clear(&builder->storage_numbers);
    Py_XDECREF(builder->tensor_types);
    Py_XDECREF(builder->dtypes);
    Py_XDECREF(builder->device_seen);
}

PyObject *wpy_build(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *value;
    PyObject *codec;
    if (!PyArg_ParseTuple(arguments, "OO:build", &value, &codec) || !wpy_nodes_ready()) {
        return NULL;
    }
    wpy_builder builder = {.state = wpy_state_new()};
    wpy_step root = {0};
    /* Thousands of objects are made, none of them garbage: the collector would look through all of the program's again and again. */
    int collects = PyGC_Disable();
    if (builder.state && read_codec(&builder, codec)) {
        builder.state->root = wpy_build_value(&builder, value, &root);
    }
    clear_builder(&builder);
    if (collects) {
        PyGC_Enable();
    }
    if (builder.state && builder.state->root && builder.staged) {
        PyObject *filled = PyObject_CallMethodObjArgs(codec, wpy_name.fill_host, NULL);
        if (!filled) {
            Py_CLEAR(builder.state);
        }
        Py_XDECREF(filled);
    }
    if (builder.state && !builder.state->root) {
        Py_CLEAR(builder.state);
    }
    return (PyObject *)builder.state;
}
