/*
 * The extension _rehearse, for tests: wherry._core with more functions. restore() takes a state
 * through manifest and plan within this process, as if another process received it; tensors(),
 * storages() and dump() show what is in it. It is a copy of the extension's code: a state works
 * only with the copy that has built it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

/** Where to copy the next piece of a chunk. */
typedef struct gathering {
    uint8_t *at;
} gathering;

static int gather(void *context, const wherry_piece *piece) {
    gathering *g = context;
    const uint8_t *from = (const uint8_t *)wherry_storage_data(piece->storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        memcpy(g->at, from + i * piece->stride, piece->length);
        g->at += piece->length;
    }
    return 0;
}

static wherry_status copy_chunk(const wherry_prepared *source, const wherry_plan *plan, uint64_t chunk,
                                wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(source, chunk, &begin, &length);
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes) {
        *error = (wherry_error){.status = WHERRY_NO_MEMORY, .rank = -1};
        return WHERRY_NO_MEMORY;
    }
    gathering g = {bytes};
    wherry_prepared_visit_chunk(source, chunk, gather, &g);
    wherry_status status = wherry_plan_place(plan, chunk, bytes, length, error);
    free(bytes);
    return status;
}

static wherry_status copy_chunks(const wherry_prepared *source, const wherry_plan *plan, wherry_error *error) {
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t c = 0; c < intervals[i].count && status == WHERRY_OK; c++) {
            status = copy_chunk(source, plan, intervals[i].first + c, error);
        }
    }
    return status;
}

static wherry_status allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    return wpy_restorer_allocate(context, nbytes, device, storage_p);
}

/** Makes a plan from the encoded manifest, as a receiver does. */
static wherry_status make_plan(const wherry_prepared *source, wpy_restorer *restorer, wherry_plan **plan_p,
                               wherry_error *error) {
    void *bytes;
    size_t size;
    wherry_prepared *received = NULL;
    wherry_status status = wherry_manifest_encode(source, &bytes, &size, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_manifest_decode(bytes, size, NULL, &received, error);
    wherry_free(bytes);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.allocate = allocate;
    options.context = restorer;
    if (!wpy_check_objects(restorer->codec, wherry_prepared_state(received))) {
        status = WHERRY_UNSUPPORTED;
    } else {
        status =
            wherry_plan_create(received, restorer->target ? restorer->target->root : NULL, &options, plan_p, error);
    }
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(received);
    }
    return status;
}

static PyObject *rehearse(const wherry_prepared *source, wpy_restorer *restorer) {
    wherry_plan *plan = NULL;
    wherry_value *state = NULL;
    wherry_error error;
    wherry_status status = make_plan(source, restorer, &plan, &error);
    if (status == WHERRY_OK) {
        status = copy_chunks(source, plan, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_plan_take_state(plan, &state, &error);
    }
    PyObject *value = NULL;
    if (status == WHERRY_OK) {
        value = wpy_restore(restorer, state);
    } else if (!PyErr_Occurred()) {
        wpy_raise(&error);
    }
    wherry_value_destroy(state);
    wherry_plan_destroy(plan);
    return value;
}

static PyObject *restore(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *state;
    PyObject *codec;
    PyObject *target = Py_None;
    wpy_restorer restorer = {0};
    wherry_prepared *prepared;
    wherry_error error;
    if (!PyArg_ParseTuple(arguments, "O!O|O:restore", wpy_state_type, &state, &codec, &target)) {
        return NULL;
    }
    PyObject *value = NULL;
    if (wpy_restorer_init(&restorer, codec, target == Py_None ? NULL : (wpy_state *)target)) {
        if (wherry_prepare(((wpy_state *)state)->root, NULL, &prepared, &error) == WHERRY_OK) {
            value = rehearse(prepared, &restorer);
            wherry_prepared_destroy(prepared);
        } else {
            wpy_raise(&error);
        }
    }
    wpy_restorer_clear(&restorer);
    return value;
}

static PyObject *dump(PyObject *module, PyObject *state) {
    (void)module;
    char *text = NULL;
    size_t size = 0;
    wherry_error error;
    FILE *out = open_memstream(&text, &size);
    if (!out) {
        return PyErr_NoMemory();
    }
    wherry_status status = wherry_value_dump(((wpy_state *)state)->root, out, &error);
    PyObject *result = NULL;
    if (fclose(out) == 0 && status == WHERRY_OK) {
        result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, "backslashreplace");
    } else {
        wpy_raise(&error);
    }
    free(text);
    return result;
}

/** (pointer, nbytes, device) per unique storage. */
static PyObject *storages(PyObject *module, PyObject *self) {
    (void)module;
    wherry_prepared *prepared;
    wherry_error error;
    if (wherry_prepare(((wpy_state *)self)->root, NULL, &prepared, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    PyObject *list = PyList_New(0);
    wherry_storage *storage;
    for (size_t i = 0; list && (storage = wherry_prepared_storage(prepared, i)); i++) {
        char device[WHERRY_DEVICE_TEXT_MAX];
        wherry_device_text(wherry_storage_device(storage), device);
        PyObject *row = Py_BuildValue("(KKs)", (unsigned long long)(uintptr_t)wherry_storage_data(storage),
                                      (unsigned long long)wherry_storage_nbytes(storage), device);
        if (!row || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    wherry_prepared_destroy(prepared);
    return list;
}

/** (path, dtype, shape, strides, offset, number of the storage, flags) */
static PyObject *tensor_row(const char *path, const wherry_tensor *tensor, PyObject *numbers) {
    PyObject *address = PyLong_FromVoidPtr(tensor->storage);
    PyObject *number = address ? PyDict_GetItemWithError(numbers, address) : NULL;
    if (address && !number && !PyErr_Occurred()) {
        PyObject *next = PyLong_FromSsize_t(PyDict_Size(numbers));
        if (next && PyDict_SetItem(numbers, address, next) == 0) {
            number = PyDict_GetItemWithError(numbers, address);
        }
        Py_XDECREF(next);
    }
    PyObject *shape = number ? wpy_integers(tensor->shape, tensor->ndim) : NULL;
    PyObject *strides = shape ? wpy_integers(tensor->strides, tensor->ndim) : NULL;
    PyObject *row = NULL;
    if (strides) {
        row = Py_BuildValue("(siOOLOI)", path, (int)tensor->dtype, shape, strides, (long long)tensor->offset, number,
                            (unsigned)tensor->flags);
    }
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    Py_XDECREF(address);
    return row;
}

/** Adds a row per tensor of a leaf. */
static bool add_rows(PyObject *list, const char *path, const wherry_value *leaf, PyObject *numbers) {
    const wherry_sharded *sharded = wherry_sharded_get(leaf);
    const wherry_dtensor *dtensor = wherry_dtensor_get(leaf);
    uint32_t count = sharded ? sharded->shard_count : wherry_value_kind(leaf) >= WHERRY_KIND_TENSOR;
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++) {
        const wherry_value *part = sharded ? sharded->shards[i].tensor : dtensor ? dtensor->local : leaf;
        PyObject *row = tensor_row(path, wherry_tensor_get(part), numbers);
        ok = row && PyList_Append(list, row) == 0;
        Py_XDECREF(row);
    }
    return ok;
}

/** (path, dtype, shape, strides, offset, number of the storage, flags) per tensor. */
static PyObject *tensors(PyObject *module, PyObject *self) {
    (void)module;
    wherry_flat *flat;
    wherry_error error;
    if (wherry_flatten(((wpy_state *)self)->root, &flat, &error) != WHERRY_OK) {
        return wpy_raise(&error);
    }
    PyObject *numbers = PyDict_New();
    PyObject *list = numbers ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < wherry_flat_count(flat); i++) {
        char *path;
        if (wherry_path_format(wherry_flat_path(flat, i), &path, &error) != WHERRY_OK) {
            wpy_raise(&error);
            Py_CLEAR(list);
            break;
        }
        if (!add_rows(list, path, wherry_flat_leaf(flat, i), numbers)) {
            Py_CLEAR(list);
        }
        wherry_free(path);
    }
    Py_XDECREF(numbers);
    wherry_flat_destroy(flat);
    return list;
}

static PyMethodDef functions[] = {
    {"restore", restore, METH_VARARGS, "restore(state, codec, target=None) -> value"},
    {"tensors", tensors, METH_O, "(path, dtype, shape, strides, offset, number of the storage, flags) per tensor"},
    {"storages", storages, METH_O, "(pointer, nbytes, device) per unique storage"},
    {"dump", dump, METH_O, "dump(state) -> str, one line per value"},
    {NULL, NULL, 0, NULL},
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__rehearse(void);

PyMODINIT_FUNC PyInit__rehearse(void) {
    PyObject *module = PyInit__core();
    if (module && PyModule_AddFunctions(module, functions) != 0) {
        Py_CLEAR(module);
    }
    return module;
}
