/*
 * Finds the memory of torch tensors, and of any object with DLPack or the buffer protocol.
 *
 * A state may have many thousands of torch tensors, so each is read with as few calls as possible:
 * one call of a C function of DLPack reads all but the storage and flags. If torch is too old for
 * that, or DLPack cannot describe the tensor, its Python attributes and methods are read. Nothing
 * depends on torch's own ABI.
 */
#include <string.h>

#include "core.h"

/* ---- DLPack, version 1: https://dmlc.github.io/dlpack/latest/ ---- */

enum { DL_MAJOR = 1 };

typedef struct wpy_dl_tensor {
    void *data;
    int32_t device_kind, device_index, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t *shape;
    const int64_t *strides; /**< In elements; NULL if the tensor is contiguous. */
    uint64_t byte_offset;
} wpy_dl_tensor;

/** A capsule with the name "dltensor_versioned" points to this. */
typedef struct dl_versioned {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    wpy_dl_tensor tensor;
} dl_versioned;

/** The start of every version of the function table __dlpack_c_exchange_api__. */
typedef struct dl_header {
    uint32_t major, minor;
    const struct dl_header *previous; /**< The table of an older version, or NULL. */
} dl_header;

/** The function table. Functions that are not used here have no signature. */
typedef struct dl_table {
    dl_header header;
    void (*allocate)(void);
    void (*export_owned)(void);
    void (*import_owned)(void);
    wpy_dl_read_fn describe; /**< May be NULL. Its result borrows memory of the tensor. */
    void (*current_stream)(void);
} dl_table;

enum { DL_CPU = 1, DL_CUDA = 2 };

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };
enum { DL_F8_E4M3FN = 10, DL_F8_E4M3FNUZ = 11, DL_F8_E5M2 = 12, DL_F8_E5M2FNUZ = 13, DL_F8_E8M0FNU = 14 };

enum { DL_CODES = 15, DL_BYTES_MAX = 16 };

/** Element types by code and size in bytes, as number + 1; 0: the library has no such type. */
static const uint8_t dl_types[DL_CODES][DL_BYTES_MAX + 1] = {
    [DL_INT] = {[1] = WHERRY_I8 + 1, [2] = WHERRY_I16 + 1, [4] = WHERRY_I32 + 1, [8] = WHERRY_I64 + 1},
    [DL_UINT] = {[1] = WHERRY_U8 + 1, [2] = WHERRY_U16 + 1, [4] = WHERRY_U32 + 1, [8] = WHERRY_U64 + 1},
    [DL_FLOAT] = {[2] = WHERRY_F16 + 1, [4] = WHERRY_F32 + 1, [8] = WHERRY_F64 + 1},
    [DL_COMPLEX] = {[4] = WHERRY_C32 + 1, [8] = WHERRY_C64 + 1, [16] = WHERRY_C128 + 1},
    [DL_BFLOAT] = {[2] = WHERRY_BF16 + 1},
    [DL_BOOL] = {[1] = WHERRY_BOOL + 1},
    [DL_F8_E4M3FN] = {[1] = WHERRY_F8_E4M3FN + 1},
    [DL_F8_E4M3FNUZ] = {[1] = WHERRY_F8_E4M3FNUZ + 1},
    [DL_F8_E5M2] = {[1] = WHERRY_F8_E5M2 + 1},
    [DL_F8_E5M2FNUZ] = {[1] = WHERRY_F8_E5M2FNUZ + 1},
    [DL_F8_E8M0FNU] = {[1] = WHERRY_F8_E8M0FNU + 1},
};

/** Finds the element type. Returns false without an exception if the library lacks it. */
static bool dl_dtype(const wpy_dl_tensor *tensor, wherry_dtype *dtype_p) {
    bool known =
        tensor->code < DL_CODES && tensor->lanes == 1 && tensor->bits % 8 == 0 && tensor->bits / 8 <= DL_BYTES_MAX;
    uint8_t found = known ? dl_types[tensor->code][tensor->bits / 8] : 0;
    *dtype_p = (wherry_dtype)(found - 1);
    return found != 0;
}

/** The DLPack function that describes tensors of a type; NULL without an exception if none. */
static wpy_dl_read_fn dl_find(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttr((PyObject *)type, wpy_name.__dlpack_c_exchange_api__);
    const dl_header *header = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* The table stays valid until the process ends. */
    PyErr_Clear();
    while (header && header->major != DL_MAJOR) {
        header = header->previous;
    }
    return header ? ((const dl_table *)header)->describe : NULL;
}

PyObject *wpy_read_dlpack(PyObject *Py_UNUSED(module), PyObject *capsule) {
    const wpy_dl_tensor *tensor;
    uint64_t flags = 0;
    /* The capsule is not consumed, so its destructor frees the tensor. */
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dl_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (versioned->major != DL_MAJOR) {
            return PyErr_Format(PyExc_BufferError, "its DLPack version is %u, but only version %d can be read",
                                (unsigned)versioned->major, DL_MAJOR);
        }
        tensor = &versioned->tensor;
        flags = versioned->flags;
    } else {
        tensor = PyCapsule_GetPointer(capsule, "dltensor");
        if (!tensor) {
            return NULL;
        }
    }
    wherry_dtype dtype;
    PyObject *code = dl_dtype(tensor, &dtype) ? PyLong_FromLong(dtype) : Py_NewRef(Py_None);
    PyObject *shape = wpy_integers(tensor->shape, (size_t)tensor->ndim);
    PyObject *strides = tensor->strides ? wpy_integers(tensor->strides, (size_t)tensor->ndim) : Py_NewRef(Py_None);
    return Py_BuildValue("(KNiiNNK)", (unsigned long long)(uintptr_t)tensor->data + tensor->byte_offset, code,
                         (int)tensor->code, (int)tensor->bits, shape, strides, (unsigned long long)flags);
}

/* ---- the buffer protocol ---- */

PyObject *wpy_buffer_range(PyObject *Py_UNUSED(module), PyObject *object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_BufferError) &&
            !PyErr_ExceptionMatches(PyExc_ValueError)) {
            return NULL;
        }
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *range = Py_BuildValue("(Kn)", (unsigned long long)(uintptr_t)view.buf, view.len);
    PyBuffer_Release(&view);
    return range;
}

/* ---- attributes of a torch tensor ---- */

/** A tensor that is being read. */
typedef struct reading {
    wherry_tensor tensor;
    int64_t shape[WHERRY_NDIM_MAX], strides[WHERRY_NDIM_MAX];
} reading;

static PyObject *call(PyObject *object, PyObject *method) {
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

/** Calls a method that returns an unsigned number. */
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
        wpy_raise_status(WHERRY_UNSUPPORTED, "Wherry does not support this dtype");
    }
    Py_XDECREF(dtype);
    *dtype_p = code ? (wherry_dtype)PyLong_AsLong(code) : WHERRY_U8;
    return code != NULL;
}

/** Reads the size of a torch.UntypedStorage, whose items are bytes. */
static bool read_size(PyObject *storage, uint64_t *nbytes_p) {
    Py_ssize_t size = PyObject_Size(storage);
    *nbytes_p = (uint64_t)size;
    return size >= 0;
}

/** Reads the device of a tensor into the builder. An unknown kind becomes WHERRY_DEVICE_PRIVATE. */
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

/** Reads a tuple of integers. Takes the reference, which may be NULL. */
static bool read_numbers(PyObject *tuple, int64_t *items, uint32_t *count_p) {
    Py_ssize_t count = tuple ? wpy_read_integers(tuple, items, WHERRY_NDIM_MAX) : -1;
    *count_p = (uint32_t)count;
    Py_XDECREF(tuple);
    return count >= 0;
}

/** Sets a flag if the answer is True. Takes the reference, which may be NULL. */
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

/* ---- storages of torch ---- */

/** The storage for memory that the library can access. */
static wherry_storage *direct_storage(wpy_builder *builder, PyObject *storage, void *data, uint64_t nbytes,
                                      wherry_device device) {
    wpy_storage_key key = {(uintptr_t)data, nbytes};
    wherry_storage *found = wpy_storage_find(builder, key);
    return found ? found : wpy_storage_add(builder, key, data, nbytes, device, storage);
}

/**
 * The storage for memory on a device that the library cannot access. It consists of host memory
 * from the codec. codec.fill_host() copies the bytes there after all tensors have been read.
 * Addresses on such a device may be meaningless, so the address of the storage object is the key.
 */
static wherry_storage *staged_storage(wpy_builder *builder, PyObject *storage) {
    uint64_t data, nbytes;
    PyObject *number = PyObject_GetAttr(storage, wpy_name._cdata);
    uint64_t address = number ? PyLong_AsUnsignedLongLong(number) : 0;
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

/* ---- a torch tensor ---- */

/** Finds the storage of a tensor that begins at `data`. May return false without an exception. */
static bool find_storage(wpy_builder *builder, PyObject *storage, char *data, wherry_device device, reading *r) {
    uint64_t nbytes;
    uint64_t item = wherry_dtype_describe(r->tensor.dtype)->bytes;
    uint64_t begin = (uintptr_t)data;
    uint64_t last = 0;
    for (uint32_t i = 0; i < r->tensor.ndim; i++) {
        if (!r->shape[i]) {
            return false; /* DLPack gives no address for a tensor without elements. */
        }
        last += (uint64_t)(r->shape[i] - 1) * (uint64_t)r->strides[i];
    }
    if (!read_size(storage, &nbytes)) {
        return false;
    }
    /* A tensor that covers its whole storage begins where the storage begins. */
    if ((last + 1) * item != nbytes && !ask_number(storage, wpy_name.data_ptr, &begin)) {
        return false;
    }
    uint64_t distance = (uintptr_t)data - begin;
    if (distance % item) {
        return false;
    }
    r->tensor.offset = (int64_t)(distance / item);
    r->tensor.storage = direct_storage(builder, storage, data - distance, nbytes, device);
    return r->tensor.storage != NULL;
}

/** Reads all but the flags by DLPack. Returns false without an exception if DLPack cannot. */
static bool read_by_dlpack(wpy_builder *builder, PyObject *object, PyObject *storage, reading *r) {
    wpy_dl_tensor dl;
    if (builder->read(object, &dl) != 0) {
        PyErr_Clear();
        return false;
    }
    if ((dl.device_kind != DL_CPU && dl.device_kind != DL_CUDA) || dl.ndim < 0 || dl.ndim > WHERRY_NDIM_MAX ||
        !dl_dtype(&dl, &r->tensor.dtype)) {
        return false;
    }
    /* In DLPack, torch describes its dtypes of 1 to 7 bits as bytes. */
    bool is_byte = r->tensor.dtype == WHERRY_U8 || r->tensor.dtype == WHERRY_I8;
    if (is_byte && !read_dtype(builder, object, &r->tensor.dtype)) {
        return false;
    }
    r->tensor.ndim = (uint32_t)dl.ndim;
    if (dl.ndim) {
        memcpy(r->shape, dl.shape, (size_t)dl.ndim * sizeof(*r->shape));
        memcpy(r->strides, dl.strides, (size_t)dl.ndim * sizeof(*r->strides));
    }
    wherry_device device = {WHERRY_DEVICE_CUDA, dl.device_index};
    device = dl.device_kind == DL_CPU ? wherry_device_cpu() : device;
    return find_storage(builder, storage, (char *)dl.data + dl.byte_offset, device, r);
}

/** Reads all but the flags from attributes and methods. */
static bool read_by_attributes(wpy_builder *builder, PyObject *object, PyObject *storage, reading *r) {
    uint64_t data, nbytes, offset;
    uint32_t stride_count;
    if (!ask_number(object, wpy_name.storage_offset, &offset) || !read_device(builder, object)) {
        return false;
    }
    r->tensor.offset = (int64_t)offset;
    if (builder->device.kind != WHERRY_DEVICE_CPU && builder->device.kind != WHERRY_DEVICE_CUDA) {
        r->tensor.storage = staged_storage(builder, storage);
    } else if (ask_number(storage, wpy_name.data_ptr, &data) && read_size(storage, &nbytes)) {
        r->tensor.storage = direct_storage(builder, storage, (void *)(uintptr_t)data, nbytes, builder->device);
    }
    if (!r->tensor.storage || !read_dtype(builder, object, &r->tensor.dtype) ||
        !read_numbers(PyObject_GetAttr(object, wpy_name.shape), r->shape, &r->tensor.ndim) ||
        !read_numbers(call(object, wpy_name.stride), r->strides, &stride_count)) {
        return false;
    }
    if (stride_count != r->tensor.ndim) {
        PyErr_SetString(PyExc_ValueError, "a tensor needs one stride per dimension");
        return false;
    }
    return true;
}

static wherry_value *read_tensor(wpy_builder *builder, PyObject *object) {
    reading r;
    wherry_value *value;
    wherry_error error;
    r.tensor = (wherry_tensor){.shape = r.shape, .strides = r.strides};
    PyObject *storage = call(object, wpy_name.untyped_storage);
    bool ok = storage && builder->read && read_by_dlpack(builder, object, storage, &r);
    ok = ok || (storage && !PyErr_Occurred() && read_by_attributes(builder, object, storage, &r));
    Py_XDECREF(storage);
    if (!ok || !read_flags(object, r.tensor.dtype, &r.tensor.flags)) {
        return NULL;
    }
    return wherry_tensor_create(&r.tensor, &value, &error) == WHERRY_OK ? value : wpy_raise(&error);
}

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
    builder->read = dl_find(type);
    return 1;
}

wherry_value *wpy_build_torch(wpy_builder *builder, PyObject *object, bool plain, const wpy_step *step) {
    PyObject *wrapping = plain ? NULL : builder->wrapping;
    wherry_value *tensor = read_tensor(builder, object);
    wherry_value *value = NULL;
    wherry_error error;
    if (!tensor && !plain) {
        /* For example, the tensor is sparse. The codec encodes it, or raises with the reason. */
        if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
            return NULL;
        }
        PyErr_Clear();
        return wpy_build_encoded(builder, object, step);
    }
    if (!tensor || !wpy_state_add_leaf(builder->state, tensor, object)) {
        wherry_value_destroy(tensor);
        wpy_add_path(step);
        return NULL;
    }
    if (!wrapping) {
        return tensor;
    }
    const char *name = PyUnicode_AsUTF8AndSize(wrapping, NULL);
    if (name && wherry_object_create(name, tensor, &value, &error) == WHERRY_OK) {
        return value;
    }
    wherry_value_destroy(tensor);
    return name ? wpy_raise(&error) : NULL;
}
