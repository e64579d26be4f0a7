/*
 * Tensors of torch. There may be many thousands of them, so that what is asked of each is kept to the least: all that DLPack can say in one call, the rest, or everything where
 * that is not to be had, by attributes and methods under interned names. Nothing here depends on torch's own ABI.
 */
#include <string.h>

#include "core.h"

/** A tensor while it is read. */
typedef struct reading {
    wherry_tensor tensor;
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
} reading;

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
    builder->read = wpy_dl_find(type);
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

/* ---- storages ---- */

/** The size of a torch.UntypedStorage, whose items are bytes. @return false with an exception set. */
static bool read_size(PyObject *storage, uint64_t *nbytes_p) {
    Py_ssize_t size = PyObject_Size(storage);
    *nbytes_p = (uint64_t)size;
    return size >= 0;
}

/** The storage that lies in memory which the library reaches; new where it was not met before. */
static wherry_storage *reached_storage(wpy_builder *builder, PyObject *storage, void *data, uint64_t nbytes,
                                       wherry_device device) {
    wpy_storage_key key = {(uintptr_t)data, nbytes};
    wherry_storage *found = wpy_storage_find(builder, key);
    return found ? found : wpy_storage_add(builder, key, data, nbytes, device, storage);
}

/**
 * The same for a device that the library cannot reach: host memory of the codec stands in for it, and codec.fill_host() copies the bytes when
 * all tensors have been read. Addresses on such a device may mean nothing, so the storage object itself is the key.
 */
static wherry_storage *staged_storage(wpy_builder *builder, PyObject *storage) {
    uint64_t address;
    uint64_t data;
    uint64_t nbytes;
    PyObject *number = PyObject_GetAttr(storage, wpy_name._cdata);
    address = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    wpy_storage_key key = {(uintptr_t)address, UINT64_MAX};
    wherry_storage *found = wpy_storage_find(builder, key);
    PyObject *copy = found ? NULL : PyObject_CallMethodObjArgs(builder->codec, wpy_name.to_host, storage, NULL);
    builder->staged = builder->staged || copy;
    if (copy && ask_number(copy, wpy_name.data_ptr, &data) && read_size(copy, &nbytes)) {
        found = wpy_storage_add(builder, key, (void *)(uintptr_t)data, nbytes, wherry_device_cpu(), copy);
    }
    Py_XDECREF(copy);
    return found;
}

/* ---- all at once, by DLPack ---- */

/** Bytes from the first element of a tensor to the end of its last; 0 where it has none. */
static uint64_t span_of(const reading *r, uint64_t item) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < r->tensor.ndim; i++) {
        if (!r->shape[i]) {
            return 0;
        }
        last += (uint64_t)(r->shape[i] - 1) * (uint64_t)r->strides[i];
    }
    return (last + 1) * item;
}

/** Finds the storage around a tensor whose first element is at `data`. @return false, without an exception where that cannot be told. */
static bool place_at_once(wpy_builder *builder, PyObject *storage, char *data, wherry_device device, reading *r) {
    uint64_t nbytes;
    uint64_t item = wherry_dtype_describe(r->tensor.dtype)->bytes;
    uint64_t span = span_of(r, item);
    uint64_t begin = (uintptr_t)data;
    if (!span || !read_size(storage, &nbytes)) {
        return false; /* without elements DLPack gives no address */
    }
    if (span != nbytes && !ask_number(storage, wpy_name.data_ptr, &begin)) {
        return false; /* only one that covers all of its storage begins where that does */
    }
    uint64_t distance = (uintptr_t)data - begin;
    if (distance % item) {
        return false;
    }
    r->tensor.offset = (int64_t)(distance / item);
    r->tensor.storage = reached_storage(builder, storage, data - distance, nbytes, device);
    return r->tensor.storage != NULL;
}

/** Reads all but the flags. @return false, without an exception where DLPack has no words for it. */
static bool read_at_once(wpy_builder *builder, PyObject *object, PyObject *storage, reading *r) {
    wpy_dl_tensor dl;
    if (builder->read(object, &dl) != 0) {
        PyErr_Clear();
        return false;
    }
    if ((dl.device_kind != WPY_DL_CPU && dl.device_kind != WPY_DL_CUDA) || dl.ndim < 0 || dl.ndim > WHERRY_NDIM_MAX ||
        !wpy_dl_dtype(&dl, &r->tensor.dtype)) {
        return false;
    }
    bool is_byte = r->tensor.dtype == WHERRY_U8 || r->tensor.dtype == WHERRY_I8; /* torch says so of 1 to 7 bits too */
    if (is_byte && !read_dtype(builder, object, &r->tensor.dtype)) {
        return false;
    }
    r->tensor.ndim = (uint32_t)dl.ndim;
    if (dl.ndim) {
        memcpy(r->shape, dl.shape, (size_t)dl.ndim * sizeof(*r->shape));
        memcpy(r->strides, dl.strides, (size_t)dl.ndim * sizeof(*r->strides));
    }
    wherry_device device = {WHERRY_DEVICE_CUDA, dl.device_index};
    device = dl.device_kind == WPY_DL_CPU ? wherry_device_cpu() : device;
    return place_at_once(builder, storage, (char *)dl.data + dl.byte_offset, device, r);
}

/* ---- one by one ---- */

/** The device of a tensor: mostly that of the one before. One of a kind that the library does not know is staged like a private one. */
static bool read_device(wpy_builder *builder, PyObject *tensor) {
    PyObject *device = PyObject_GetAttr(tensor, wpy_name.device);
    int known = device && builder->device_seen ? PyObject_RichCompareBool(device, builder->device_seen, Py_EQ) : 0;
    PyObject *text = device && known == 0 ? PyObject_Str(device) : NULL;
    const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (name && wherry_device_parse(name, &builder->device, NULL) != WHERRY_OK) {
        builder->device = (wherry_device){WHERRY_DEVICE_PRIVATE, -1};
    }
    bool ok = known > 0 || name;
    if (text && ok) {
        PyObject *before = builder->device_seen;
        builder->device_seen = Py_NewRef(device);
        Py_XDECREF(before);
    }
    Py_XDECREF(text);
    Py_XDECREF(device);
    return ok;
}

static bool place(wpy_builder *builder, PyObject *object, PyObject *storage, reading *r) {
    uint64_t data;
    uint64_t nbytes;
    uint64_t offset;
    if (!ask_number(object, wpy_name.storage_offset, &offset) || !read_device(builder, object)) {
        return false;
    }
    r->tensor.offset = (int64_t)offset;
    if (builder->device.kind != WHERRY_DEVICE_CPU && builder->device.kind != WHERRY_DEVICE_CUDA) {
        r->tensor.storage = staged_storage(builder, storage);
    } else if (ask_number(storage, wpy_name.data_ptr, &data) && read_size(storage, &nbytes)) {
        r->tensor.storage = reached_storage(builder, storage, (void *)(uintptr_t)data, nbytes, builder->device);
    }
    return r->tensor.storage != NULL;
}

static bool read_numbers(PyObject *tuple, int64_t *items, uint32_t *count_p) {
    Py_ssize_t count = tuple ? wpy_read_integers(tuple, items, WHERRY_NDIM_MAX) : -1;
    *count_p = (uint32_t)count;
    Py_XDECREF(tuple);
    return count >= 0;
}

/** Reads all but the flags. @return false with an exception set. */
static bool read_one_by_one(wpy_builder *builder, PyObject *object, PyObject *storage, reading *r) {
    uint32_t stride_count;
    if (!place(builder, object, storage, r) || !read_dtype(builder, object, &r->tensor.dtype) ||
        !read_numbers(PyObject_GetAttr(object, wpy_name.shape), r->shape, &r->tensor.ndim) ||
        !read_numbers(call(object, wpy_name.stride), r->strides, &stride_count)) {
        return false;
    }
    if (stride_count != r->tensor.ndim) {
        PyErr_SetString(PyExc_ValueError, "a tensor has as many strides as dimensions");
        return false;
    }
    return true;
}

/* ---- a tensor ---- */

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

static wherry_value *read_tensor(wpy_builder *builder, PyObject *object) {
    reading r;
    wherry_value *value;
    wherry_error error;
    r.tensor = (wherry_tensor){.shape = r.shape, .strides = r.strides};
    PyObject *storage = call(object, wpy_name.untyped_storage);
    bool ok = storage && builder->read && read_at_once(builder, object, storage, &r);
    ok = ok || (storage && !PyErr_Occurred() && read_one_by_one(builder, object, storage, &r));
    Py_XDECREF(storage);
    if (!ok || !read_flags(object, r.tensor.dtype, &r.tensor.flags)) {
        return NULL;
    }
    if (wherry_tensor_create(&r.tensor, &value, &error) != WHERRY_OK) {
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
