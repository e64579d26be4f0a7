/* Scalars, devices, and tuples of integers. */
#include <string.h>

#include "core.h"

/** What a call has made, or NULL with its error raised. */
static wherry_value *made(wherry_status status, wherry_value *const *value, const wherry_error *error) {
    if (status != WHERRY_OK) {
        wpy_raise(error);
        return NULL;
    }
    return *value;
}

/** An integer that does not fit 64 bits: its magnitude by int.to_bytes. */
static wherry_value *bigint_new(PyObject *number, bool negative) {
    wherry_value *value = NULL;
    wherry_error error;
    PyObject *magnitude = negative ? PyNumber_Negative(number) : Py_NewRef(number);
    PyObject *bits = magnitude ? PyObject_CallMethod(magnitude, "bit_length", NULL) : NULL;
    Py_ssize_t size = bits ? (PyLong_AsSsize_t(bits) + 7) / 8 : 0;
    PyObject *bytes = bits ? PyObject_CallMethod(magnitude, "to_bytes", "ns", size, "big") : NULL;
    if (bytes) {
        value =
            made(wherry_bigint_create(negative, PyBytes_AsString(bytes), (size_t)size, &value, &error), &value, &error);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(bits);
    Py_XDECREF(magnitude);
    return value;
}

static wherry_value *int_new(PyObject *number) {
    int overflow;
    wherry_value *value = NULL;
    wherry_error error;
    long long content = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow) {
        return bigint_new(number, overflow < 0);
    }
    return made(wherry_int_create(content, &value, &error), &value, &error);
}

static wherry_value *string_new(PyObject *text) {
    Py_ssize_t size;
    wherry_value *value = NULL;
    wherry_error error;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (!bytes) {
        PyErr_Clear(); /* lone surrogates: a codec's business */
        return NULL;
    }
    return made(wherry_string_create(bytes, (size_t)size, &value, &error), &value, &error);
}

static wherry_value *bytes_new(PyObject *bytes) {
    wherry_value *value = NULL;
    wherry_error error;
    return made(wherry_bytes_create(PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes), &value, &error), &value,
                &error);
}

wherry_value *wpy_scalar_new(PyObject *object) {
    wherry_value *value = NULL;
    wherry_error error;
    if (PyUnicode_CheckExact(object)) {
        return string_new(object);
    }
    if (PyLong_CheckExact(object)) {
        return int_new(object);
    }
    if (PyFloat_CheckExact(object)) {
        return made(wherry_float_create(PyFloat_AsDouble(object), &value, &error), &value, &error);
    }
    if (object == Py_None) {
        return made(wherry_none_create(&value, &error), &value, &error);
    }
    if (PyBool_Check(object)) {
        return made(wherry_bool_create(object == Py_True, &value, &error), &value, &error);
    }
    if (PyBytes_CheckExact(object)) {
        return bytes_new(object);
    }
    if (PyComplex_CheckExact(object)) {
        return made(
            wherry_complex_create(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object), &value, &error),
            &value, &error);
    }
    return NULL;
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

PyObject *wpy_scalar_get(const wherry_value *value) {
    size_t size;
    double real;
    double imaginary;
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

bool wpy_read_device(PyObject *text, wherry_device *device_p) {
    wherry_error error;
    const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
    if (name && wherry_device_parse(name, device_p, &error) != WHERRY_OK) {
        wpy_raise(&error);
        return false;
    }
    return name != NULL;
}

PyObject *wpy_integers(const int64_t *items, size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(items[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

Py_ssize_t wpy_read_integers(PyObject *tuple, int64_t *items, size_t capacity) {
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (count < 0 || (size_t)count > capacity) {
        PyErr_Format(PyExc_ValueError, "a tuple of at most %zu integers is wanted", capacity);
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
