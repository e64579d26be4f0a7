/*
 * The module wherry._core: its constants and types, and the library's errors as Python exceptions.
 */
#include <string.h>

#include "core.h"

wpy_names wpy_name;
wpy_nodes wpy_node;
PyTypeObject *wpy_state_type;
PyTypeObject *wpy_cancel_type;
PyTypeObject *wpy_group_type;

/* ---- exceptions ---- */

static PyObject *make_error;

PyObject *wpy_set_error_class(PyObject *Py_UNUSED(module), PyObject *make) {
    PyObject *before = make_error;
    make_error = Py_NewRef(make);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/** Converts text from any process: escapes bytes that are not UTF-8. Returns None for "". */
static PyObject *text_or_none(const char *text) {
    return *text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace") : Py_NewRef(Py_None);
}

PyObject *wpy_error_new(const wherry_error *error) {
    if (!make_error) {
        return PyObject_CallFunction(PyExc_RuntimeError, "s", error->message);
    }
    const char *message = *error->message ? error->message : wherry_status_text(error->status);
    PyObject *rank = error->rank >= 0 ? PyLong_FromLong(error->rank) : Py_NewRef(Py_None);
    return PyObject_CallFunction(make_error, "iNNNi", (int)error->status, text_or_none(message), rank,
                                 text_or_none(error->path), (int)error->errnum);
}

void *wpy_raise(const wherry_error *error) {
    PyObject *exception = wpy_error_new(error);
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

void *wpy_raise_status(wherry_status status, const char *message) {
    wherry_error error = {.status = status, .rank = -1, .offset = UINT64_MAX};
    PyOS_snprintf(error.message, sizeof(error.message), "%s", message);
    return wpy_raise(&error);
}

wpy_pending wpy_set_aside(void) {
    wpy_pending pending;
    PyErr_Fetch(&pending.type, &pending.value, &pending.traceback);
    return pending;
}

void wpy_put_back(wpy_pending pending) {
    PyErr_Restore(pending.type, pending.value, pending.traceback);
}

/** Returns a path as text. Free it with wherry_free(). NULL without an exception on failure. */
static char *path_text(const wpy_step *last) {
    wherry_step steps[WHERRY_PATH_STEPS_MAX];
    wherry_value *keys[WHERRY_PATH_STEPS_MAX] = {0};
    size_t count = 0;
    for (const wpy_step *at = last; at && at->up; at = at->up) {
        count++;
    }
    if (count > WHERRY_PATH_STEPS_MAX) {
        return NULL;
    }
    bool ok = true;
    size_t number = count;
    for (const wpy_step *at = last; at && at->up && ok; at = at->up) {
        number--;
        keys[number] = at->key ? wpy_scalar_new(at->key) : NULL;
        ok = !at->key || keys[number];
        steps[number] = (wherry_step){at->key ? keys[number] : at->value_key, at->index};
    }
    wherry_path *path = NULL;
    char *text = NULL;
    if (ok && wherry_path_create(steps, count, &path, NULL) == WHERRY_OK) {
        wherry_path_format(path, &text, NULL);
    }
    wherry_path_destroy(path);
    for (size_t i = 0; i < count; i++) {
        wherry_value_destroy(keys[i]);
    }
    PyErr_Clear();
    return text;
}

void wpy_add_path(const wpy_step *step) {
    wpy_pending raised = wpy_set_aside();
    PyErr_NormalizeException(&raised.type, &raised.value, &raised.traceback);
    PyObject *known = raised.value ? PyObject_GetAttr(raised.value, wpy_name.path) : NULL;
    if (known == Py_None) {
        char *text = path_text(step);
        PyObject *path = text ? PyUnicode_FromString(text) : NULL;
        PyObject *message = path ? PyUnicode_FromFormat("at '%U': %S", path, raised.value) : NULL;
        PyObject *arguments = message ? PyTuple_Pack(1, message) : NULL;
        if (arguments) {
            PyObject_SetAttr(raised.value, wpy_name.path, path);
            PyObject_SetAttrString(raised.value, "message", message);
            PyObject_SetAttrString(raised.value, "args", arguments);
        }
        Py_XDECREF(arguments);
        Py_XDECREF(message);
        Py_XDECREF(path);
        wherry_free(text);
    }
    Py_XDECREF(known);
    PyErr_Clear();
    wpy_put_back(raised);
}

/* ---- types ---- */

void *wpy_object_new(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

void wpy_object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyTypeObject *wpy_type_new(const char *name, size_t size, bool can_be_called, PyType_Slot *slots) {
    unsigned flags = Py_TPFLAGS_DEFAULT | (can_be_called ? 0 : Py_TPFLAGS_DISALLOW_INSTANTIATION);
    PyType_Spec spec = {.name = name, .basicsize = (int)size, .flags = flags, .slots = slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

/* ---- the module ---- */

bool wpy_nodes_ready(void) {
    if (wpy_node.Sharded) {
        return true;
    }
    PyObject *module = PyImport_ImportModule("wherry._nodes");
#define WPY_X(name) wpy_node.name = module && !PyErr_Occurred() ? PyObject_GetAttrString(module, #name) : NULL;
    WPY_NODE_LIST(WPY_X)
#undef WPY_X
    Py_XDECREF(module);
    return wpy_node.Sharded != NULL;
}

static bool intern_names(void) {
#define WPY_X(name)                                                                                                    \
    wpy_name.name = PyUnicode_InternFromString(#name);                                                                 \
    if (!wpy_name.name) {                                                                                              \
        return false;                                                                                                  \
    }
    WPY_NAME_LIST(WPY_X)
#undef WPY_X
    return true;
}

static PyObject *statuses(void) {
#define WPY_X(name, value, group, text) 1 +
    PyObject *all = PyTuple_New(WHERRY_STATUS_LIST(WPY_X) 0);
#undef WPY_X
    size_t next = 0;
#define WPY_X(name, value, group, text)                                                                                \
    if (all) {                                                                                                         \
        wpy_set_item(&all, next++, Py_BuildValue("(siss)", #name, (value), #group, (text)));                           \
    }
    WHERRY_STATUS_LIST(WPY_X)
#undef WPY_X
    return all;
}

static PyObject *dtypes(void) {
    PyObject *all = PyDict_New();
#define WPY_X(name, value, text, bits, class_)                                                                         \
    if (all) {                                                                                                         \
        PyObject *row = Py_BuildValue("(ii)", (value), (bits) / 8);                                                    \
        if (!row || PyDict_SetItemString(all, (text), row) != 0) {                                                     \
            Py_CLEAR(all);                                                                                             \
        }                                                                                                              \
        Py_XDECREF(row);                                                                                               \
    }
    WHERRY_DTYPE_LIST(WPY_X)
#undef WPY_X
    return all;
}

/** Adds an object to a module. Takes the reference, even on failure. */
static bool add(PyObject *module, const char *name, PyObject *value) {
    bool ok = value && PyModule_AddObjectRef(module, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static PyMethodDef functions[] = {
    {"build", wpy_build, METH_VARARGS, "build(value, codec) -> State"},
    {"buffer_range", wpy_buffer_range, METH_O, "buffer_range(object) -> (address, nbytes), or None"},
    {"read_dlpack", wpy_read_dlpack, METH_O,
     "read_dlpack(capsule) -> (address, dtype or None, code, bits, shape, strides or None, flags)"},
    {"set_log_function", wpy_set_log_function, METH_O, "Sets a function that gets (level, line) of the log, or None."},
    {"set_error_class", wpy_set_error_class, METH_O, "Sets the function that creates exceptions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "wherry._core", .m_doc = "Calls the C library. Not a public interface.",
    .m_size = -1,          .m_methods = functions,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    wpy_state_type = wpy_state_type_new();
    wpy_cancel_type = wpy_cancel_type_new();
    wpy_group_type = wpy_group_type_new();
    if (module && intern_names() && add(module, "__version__", PyUnicode_FromString(WHERRY_VERSION_STRING)) &&
        add(module, "STATUSES", statuses()) && add(module, "DTYPES", dtypes()) &&
        add(module, "State", Py_XNewRef((PyObject *)wpy_state_type)) &&
        add(module, "Cancel", Py_XNewRef((PyObject *)wpy_cancel_type)) &&
        add(module, "Group", Py_XNewRef((PyObject *)wpy_group_type)) &&
        add(module, "Transport", (PyObject *)wpy_transport_type_new())) {
        return module;
    }
    Py_XDECREF(module);
    return NULL;
}
