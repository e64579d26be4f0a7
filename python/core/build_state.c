/*
 * Builds a state from a Python value. This file reads scalars, lists, tuples, and dicts whose
 * keys are scalars, but no subclasses of these types. tensor_memory.c reads torch tensors. The
 * codec describes everything else by nodes, which node.c reads.
 */
#include "core.h"

#include <stdlib.h>

/* ---- scalars, devices and integers ---- */

/** Creates the value of an integer outside the range of int64_t. */
static wherry_value *bigint_new(PyObject *number, bool negative) {
    wherry_value *value = NULL;
    wherry_error error;
    PyObject *magnitude = negative ? PyNumber_Negative(number) : Py_NewRef(number);
    PyObject *bits = magnitude ? PyObject_CallMethod(magnitude, "bit_length", NULL) : NULL;
    Py_ssize_t size = bits ? (PyLong_AsSsize_t(bits) + 7) / 8 : 0;
    PyObject *bytes = bits ? PyObject_CallMethod(magnitude, "to_bytes", "ns", size, "big") : NULL;
    if (bytes && wherry_bigint_create(negative, PyBytes_AsString(bytes), (size_t)size, &value, &error) != WHERRY_OK) {
        value = wpy_raise(&error);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(bits);
    Py_XDECREF(magnitude);
    return value;
}

wherry_value *wpy_scalar_new(PyObject *object) {
    wherry_value *value = NULL;
    wherry_error error;
    wherry_status status;
    if (PyUnicode_CheckExact(object)) {
        Py_ssize_t size;
        const char *text = PyUnicode_AsUTF8AndSize(object, &size);
        if (!text) {
            PyErr_Clear(); /* The codec encodes strings with lone surrogates. */
            return NULL;
        }
        status = wherry_string_create(text, (size_t)size, &value, &error);
    } else if (PyLong_CheckExact(object)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow) {
            return bigint_new(object, overflow < 0);
        }
        status = wherry_int_create(number, &value, &error);
    } else if (PyFloat_CheckExact(object)) {
        status = wherry_float_create(PyFloat_AsDouble(object), &value, &error);
    } else if (object == Py_None) {
        status = wherry_none_create(&value, &error);
    } else if (PyBool_Check(object)) {
        status = wherry_bool_create(object == Py_True, &value, &error);
    } else if (PyBytes_CheckExact(object)) {
        status = wherry_bytes_create(PyBytes_AsString(object), (size_t)PyBytes_Size(object), &value, &error);
    } else if (PyComplex_CheckExact(object)) {
        double imaginary = PyComplex_ImagAsDouble(object);
        status = wherry_complex_create(PyComplex_RealAsDouble(object), imaginary, &value, &error);
    } else {
        return NULL;
    }
    return status == WHERRY_OK ? value : wpy_raise(&error);
}

bool wpy_read_device(PyObject *text, wherry_device *device_p) {
    wherry_error error;
    const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
    if (name && wherry_device_parse(name, device_p, &error) != WHERRY_OK) {
        wpy_raise(&error);
        return false;
    }
    return name != NULL;
}

Py_ssize_t wpy_read_integers(PyObject *tuple, int64_t *items, size_t capacity) {
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (count < 0 || (size_t)count > capacity) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of at most %zu integers", capacity);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        items[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (items[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return count;
}

/* ---- storages ---- */

wherry_storage *wpy_storage_find(const wpy_builder *builder, wpy_storage_key key) {
    size_t number = wpy_map_find(&builder->storage_numbers, key.address, key.nbytes);
    return number == WPY_MAP_NONE ? NULL : builder->storages[number];
}

wherry_storage *wpy_storage_add(wpy_builder *builder, wpy_storage_key key, void *data, uint64_t nbytes,
                                wherry_device device, PyObject *owner) {
    wherry_storage *storage;
    wherry_error error;
    size_t count = builder->storage_numbers.count;
    if (count == builder->storage_capacity) {
        size_t capacity = count ? 2 * count : 64;
        wherry_storage **storages = realloc(builder->storages, capacity * sizeof(*storages));
        if (!storages) {
            PyErr_NoMemory();
            return NULL;
        }
        builder->storages = storages;
        builder->storage_capacity = capacity;
    }
    if (wherry_storage_wrap(data, nbytes, device, NULL, NULL, &storage, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    if (!wpy_map_add(&builder->storage_numbers, key.address, key.nbytes, count)) {
        wherry_storage_unref(storage);
        return NULL;
    }
    builder->storages[count] = storage;
    device = wherry_storage_device(storage);
    if (device.kind == WHERRY_DEVICE_CUDA && device.index >= 0 && device.index < 64) {
        builder->state->cuda_devices |= UINT64_C(1) << device.index;
    }
    return PyList_Append(builder->state->owners, owner) == 0 ? storage : NULL;
}

/* ---- containers ---- */

static wherry_value *build_sequence(wpy_builder *builder, PyObject *sequence, const wpy_step *step) {
    bool is_list = PyList_CheckExact(sequence);
    wherry_value *value;
    wherry_error error;
    if ((is_list ? wherry_list_create(&value, &error) : wherry_tuple_create(&value, &error)) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    wpy_step below = {.up = step};
    /* The codec may run code that changes the list, so read its length each time. */
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

/** Adds an entry to a dict. Returns 1; 0 if the key is not a scalar; -1 on failure. */
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

static wherry_value *build_dict(wpy_builder *builder, PyObject *dict, const wpy_step *step) {
    wherry_value *value;
    wherry_error error;
    PyObject *key, *item;
    Py_ssize_t position = 0;
    Py_ssize_t size = PyDict_Size(dict);
    wpy_state *state = builder->state;
    size_t leaves = state->leaf_count;
    int result = 1;
    if (wherry_dict_create(&value, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    while (result > 0 && PyDict_Next(dict, &position, &key, &item)) {
        wpy_step below = {.up = step, .key = Py_NewRef(key)};
        Py_INCREF(item);
        result = build_entry(builder, value, key, item, &below);
        Py_DECREF(item);
        Py_DECREF(key);
        if (result > 0 && PyDict_Size(dict) != size) {
            PyErr_SetString(PyExc_RuntimeError, "the size of a dict changed while it was being read");
            result = -1;
        }
    }
    if (result > 0) {
        return value;
    }
    wherry_value_destroy(value);
    while (state->leaf_count > leaves) {
        Py_DECREF(state->leaves[--state->leaf_count].object);
    }
    return result == 0 ? wpy_build_encoded(builder, dict, step) : NULL;
}

/* ---- all values ---- */

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
    bool is_dict = PyDict_CheckExact(object);
    if (is_dict || PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
        if (Py_EnterRecursiveCall(" while reading a state")) {
            return NULL;
        }
        wherry_value *value = is_dict ? build_dict(builder, object, step) : build_sequence(builder, object, step);
        Py_LeaveRecursiveCall();
        return value;
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
        PyErr_SetString(PyExc_TypeError, "the attributes tensor_types and dtypes of a codec must be dicts");
        return false;
    }
    return builder->dtypes != NULL;
}

PyObject *wpy_build(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *value, *codec;
    if (!PyArg_ParseTuple(arguments, "OO:build", &value, &codec) || !wpy_nodes_ready()) {
        return NULL;
    }
    wpy_builder builder = {.state = wpy_state_new()};
    wpy_step root = {0};
    /* Thousands of new objects, none of them garbage, would trigger useless garbage collections. */
    int collects = PyGC_Disable();
    if (builder.state && read_codec(&builder, codec)) {
        builder.state->root = wpy_build_value(&builder, value, &root);
    }
    for (size_t i = 0; i < builder.storage_numbers.count; i++) {
        wherry_storage_unref(builder.storages[i]);
    }
    free(builder.storages);
    wpy_map_clear(&builder.storage_numbers);
    Py_XDECREF(builder.tensor_types);
    Py_XDECREF(builder.dtypes);
    Py_XDECREF(builder.device_seen);
    if (collects) {
        PyGC_Enable();
    }
    bool ok = builder.state && builder.state->root;
    if (ok && builder.staged) {
        PyObject *filled = PyObject_CallMethodObjArgs(codec, wpy_name.fill_host, NULL);
        ok = filled != NULL;
        Py_XDECREF(filled);
    }
    if (!ok) {
        Py_CLEAR(builder.state);
    }
    return (PyObject *)builder.state;
}
