/*
 * Tensors of torch, read by their attributes: there may be many thousands of them, so that what is asked of each is kept to the least, and by interned names. Nothing here
 * depends on torch's own ABI.
 */
#include "core.h"

int wpy_is_torch(wpy_builder *builder, PyTypeObject *type) {
    if (type == builder->tensor_type) {
        return 1;
    }
    PyObject *wrapping = PyDict_GetItemWithError(builder->tensor_types, (PyObject *)type);
    if (!wrapping) {
        return PyErr_Occurred() ? -1 : 0;
    }
    builder->tensor_type = type;
    builder->wrapping = wrapping == Py_None ? NULL : wrapping;
    return 1;
}

static PyObject *call(PyObject *object, PyObject *method) {
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

/** An unsigned number that a method answers. @return false with an exception set. */
static bool ask_number(PyObject *object, PyObject *method, uint64_t *number_p) {
    PyObject *answer = call(object, method);
    if (!answer) {
        return false;
    }
    *number_p = PyLong_AsUnsignedLongLong(answer);
    Py_DECREF(answer);
    return !PyErr_Occurred();
}

/** The device of a tensor: mostly that of the one before. */
static bool read_device(wpy_builder *builder, PyObject *tensor, wherry_device *device_p) {
    PyObject *device = PyObject_GetAttr(tensor, wpy_name.device);
    int known = device && builder->device_seen ? PyObject_RichCompareBool(device, builder->device_seen, Py_EQ) : 0;
    PyObject *text = device && known == 0 ? PyObject_Str(device) : NULL;
    bool ok = known > 0 || (text && wpy_read_device(text, &builder->device));
    if (text && ok) {
        PyObject *before = builder->device_seen;
        builder->device_seen = Py_NewRef(device);
        Py_XDECREF(before);
    }
    *device_p = builder->device;
    Py_XDECREF(text);
    Py_XDECREF(device);
    return ok;
}

/** What the library can read of a storage: itself, or of a device that it does not know a copy on the host, which is the codec's. A new reference. */
static PyObject *readable(wpy_builder *builder, PyObject *storage, wherry_device *device) {
    if (device->kind == WHERRY_DEVICE_CPU || device->kind == WHERRY_DEVICE_CUDA) {
        return Py_NewRef(storage);
    }
    *device = wherry_device_cpu();
    return PyObject_CallMethodObjArgs(builder->codec, wpy_name.to_host, storage, NULL);
}

static wherry_storage *new_storage(wpy_builder *builder, PyObject *tensor, PyObject *storage, PyObject *key) {
    uint64_t data;
    uint64_t nbytes;
    wherry_storage *made = NULL;
    wherry_device device = wherry_device_cpu();
    PyObject *memory = read_device(builder, tensor, &device) ? readable(builder, storage, &device) : NULL;
    if (memory && ask_number(memory, wpy_name.data_ptr, &data) && ask_number(memory, wpy_name.nbytes, &nbytes)) {
        made = wpy_storage_add(builder, builder->storages, key, (void *)(uintptr_t)data, nbytes, device, memory);
    }
    Py_XDECREF(memory);
    return made;
}

static wherry_storage *read_storage(wpy_builder *builder, PyObject *tensor) {
    PyObject *storage = call(tensor, wpy_name.untyped_storage);
    PyObject *key = storage ? PyObject_GetAttr(storage, wpy_name._cdata) : NULL;
    wherry_storage *found = key ? wpy_storage_find(builder->storages, key) : NULL;
    if (key && !found && !PyErr_Occurred()) {
        found = new_storage(builder, tensor, storage, key);
    }
    Py_XDECREF(key);
    Py_XDECREF(storage);
    return found;
}

static bool read_dtype(const wpy_builder *builder, PyObject *tensor, wherry_dtype *dtype_p) {
    PyObject *dtype = PyObject_GetAttr(tensor, wpy_name.dtype);
    PyObject *code = dtype ? PyDict_GetItemWithError(builder->dtypes, dtype) : NULL;
    if (dtype && !code && !PyErr_Occurred()) {
        wherry_error error = {.status = WHERRY_UNSUPPORTED, .rank = -1};
        PyOS_snprintf(error.message, sizeof(error.message), "this dtype is not one that Wherry knows");
        wpy_raise(&error);
    }
    Py_XDECREF(dtype);
    *dtype_p = code ? (wherry_dtype)PyLong_AsLong(code) : WHERRY_U8;
    return code != NULL;
}

/** Adds a flag where an attribute or a method answers True. */
static bool read_flag(PyObject *answer, uint32_t flag, uint32_t *flags) {
    if (answer == Py_True) {
        *flags |= flag;
    }
    Py_XDECREF(answer);
    return answer != NULL;
}

static bool read_flags(PyObject *tensor, wherry_dtype dtype, uint32_t *flags) {
    return read_flag(PyObject_GetAttr(tensor, wpy_name.requires_grad), WHERRY_TENSOR_REQUIRES_GRAD, flags) &&
           read_flag(call(tensor, wpy_name.is_neg), WHERRY_TENSOR_NEG, flags) &&
           (wherry_dtype_describe(dtype)->class_ != WHERRY_CLASS_COMPLEX ||
            read_flag(call(tensor, wpy_name.is_conj), WHERRY_TENSOR_CONJ, flags));
}

static bool read_numbers(PyObject *tuple, int64_t *items, uint32_t *count_p) {
    Py_ssize_t count = tuple ? wpy_read_integers(tuple, items, WHERRY_NDIM_MAX) : -1;
    *count_p = (uint32_t)count;
    Py_XDECREF(tuple);
    return count >= 0;
}

static wherry_value *read_tensor(wpy_builder *builder, PyObject *object) {
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    uint32_t stride_count;
    uint64_t offset;
    wherry_value *value;
    wherry_error error;
    wherry_tensor tensor = {.shape = shape, .strides = strides};
    tensor.storage = read_storage(builder, object);
    if (!tensor.storage || !read_dtype(builder, object, &tensor.dtype) ||
        !read_numbers(PyObject_GetAttr(object, wpy_name.shape), shape, &tensor.ndim) ||
        !read_numbers(call(object, wpy_name.stride), strides, &stride_count) ||
        !ask_number(object, wpy_name.storage_offset, &offset) || !read_flags(object, tensor.dtype, &tensor.flags)) {
        return NULL;
    }
    tensor.offset = (int64_t)offset;
    if (stride_count != tensor.ndim) {
        PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as dimensions");
        return NULL;
    }
    if (wherry_tensor_create(&tensor, &value, &error) != WHERRY_OK) {
        wpy_raise(&error);
        return NULL;
    }
    return value;
}

/** Puts a tensor into an object, where its type is more than a plain one. Takes the tensor over. */
static wherry_value *wrap(wherry_value *tensor, PyObject *type_name) {
    wherry_value *value = NULL;
    wherry_error error;
    const char *name = PyUnicode_AsUTF8AndSize(type_name, NULL);
    if (name && wherry_object_create(name, tensor, &value, &error) == WHERRY_OK) {
        return value;
    }
    wherry_value_destroy(tensor);
    if (name) {
        wpy_raise(&error);
    }
    return NULL;
}

/** For a tensor that could not be read, having no memory, say: the codec knows why, and what to do about it. */
static wherry_value *ask_codec(wpy_builder *builder, PyObject *object, const wpy_step *step) {
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return NULL;
    }
    PyErr_Clear();
    return wpy_build_encoded(builder, object, step);
}

wherry_value *wpy_build_torch(wpy_builder *builder, PyObject *object, bool plain, const wpy_step *step) {
    PyObject *wrapping = plain ? NULL : builder->wrapping;
    wherry_value *value = read_tensor(builder, object); /* one that is not strided has no storage */
    if (!value && !plain) {
        return ask_codec(builder, object, step);
    }
    if (!value || !wpy_state_note(builder->state, value, object)) {
        wherry_value_destroy(value);
        wpy_add_path(step);
        return NULL;
    }
    return wrapping ? wrap(value, wrapping) : value;
}
