/* Errors of the library as Python exceptions, and where in a value they are. */
#include <string.h>

#include "core.h"

static PyObject *make_error;

PyObject *wpy_set_error_class(PyObject *module, PyObject *make) {
    (void)module;
    PyObject *before = make_error;
    make_error = Py_NewRef(make);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/** Text that comes from other processes in part: what is not UTF-8 is shown, and is no error. */
static PyObject *text_or_none(const char *text) {
    return *text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace") : Py_NewRef(Py_None);
}

PyObject *wpy_error_new(const wherry_error *error) {
    if (!make_error) {
        return PyObject_CallFunction(PyExc_RuntimeError, "s", error->message);
    }
    const char *message = *error->message ? error->message : wherry_status_text(error->status);
    PyObject *text = text_or_none(message);
    PyObject *rank = error->rank >= 0 ? PyLong_FromLong(error->rank) : Py_NewRef(Py_None);
    PyObject *path = text_or_none(error->path);
    PyObject *made = NULL;
    if (text && rank && path) {
        made = PyObject_CallFunction(make_error, "iOOOi", (int)error->status, text, rank, path, (int)error->errnum);
    }
    Py_XDECREF(text);
    Py_XDECREF(rank);
    Py_XDECREF(path);
    return made;
}

PyObject *wpy_raise(const wherry_error *error) {
    PyObject *exception = wpy_error_new(error);
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

wpy_pending wpy_set_aside(void) {
    wpy_pending pending;
    PyErr_Fetch(&pending.type, &pending.value, &pending.traceback);
    return pending;
}

void wpy_put_back(wpy_pending pending) {
    PyErr_Restore(pending.type, pending.value, pending.traceback);
}

/** The text of the path that ends at a step; NULL without an exception where it cannot be had. */
static char *path_text(const wpy_step *last) {
    wherry_step steps[WHERRY_PATH_STEPS_MAX];
    wherry_value *made[WHERRY_PATH_STEPS_MAX] = {0};
    size_t count = 0;
    for (const wpy_step *at = last; at && at->up; at = at->up) {
        count++;
    }
    if (count > WHERRY_PATH_STEPS_MAX) {
        return NULL;
    }
    bool ok = true;
    size_t at_number = count;
    for (const wpy_step *at = last; at && at->up && ok; at = at->up) {
        at_number--;
        made[at_number] = at->key ? wpy_scalar_new(at->key) : NULL;
        ok = !at->key || made[at_number];
        steps[at_number] = (wherry_step){at->key ? made[at_number] : at->value_key, at->index};
    }
    wherry_path *path = NULL;
    char *text = NULL;
    if (ok && wherry_path_create(steps, count, &path, NULL) == WHERRY_OK) {
        wherry_path_format(path, &text, NULL);
    }
    wherry_path_destroy(path);
    for (size_t i = 0; i < count; i++) {
        wherry_value_destroy(made[i]);
    }
    PyErr_Clear();
    return text;
}

void wpy_add_path(const wpy_step *step) {
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *known = value ? PyObject_GetAttr(value, wpy_name.path) : NULL;
    if (known == Py_None) {
        char *text = path_text(step);
        PyObject *path = text ? PyUnicode_FromString(text) : NULL;
        PyObject *old = PyObject_Str(value);
        PyObject *message = path && old ? PyUnicode_FromFormat("at '%U': %U", path, old) : NULL;
        PyObject *arguments = message ? PyTuple_Pack(1, message) : NULL;
        if (arguments) {
            PyObject_SetAttr(value, wpy_name.path, path);
            PyObject_SetAttrString(value, "message", message);
            PyObject_SetAttrString(value, "args", arguments);
        }
        Py_XDECREF(arguments);
        Py_XDECREF(message);
        Py_XDECREF(old);
        Py_XDECREF(path);
        wherry_free(text);
    }
    Py_XDECREF(known);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}
