/* The module: its names, its tables, its types. */
#include "core.h"

#include <wherry/base.h>

wpy_names wpy_name;
wpy_nodes wpy_node;
PyTypeObject *wpy_state_type;
PyTypeObject *wpy_cancel_type;
PyTypeObject *wpy_group_type;

bool wpy_nodes_ready(void) {
    static const struct {
        const char *name;
        PyObject **place;
    } classes[] = {
        {"Object", &wpy_node.object},   {"Memory", &wpy_node.memory},       {"Mesh", &wpy_node.mesh},
        {"DTensor", &wpy_node.dtensor}, {"Placement", &wpy_node.placement}, {"Place", &wpy_node.place},
        {"Box", &wpy_node.box},         {"Sharding", &wpy_node.sharding},   {"Sharded", &wpy_node.sharded},
    };
    if (wpy_node.sharded) {
        return true;
    }
    PyObject *module = PyImport_ImportModule("wherry._nodes");
    bool ok = module != NULL;
    for (size_t i = 0; ok && i < sizeof(classes) / sizeof(*classes); i++) {
        *classes[i].place = PyObject_GetAttrString(module, classes[i].name);
        ok = *classes[i].place != NULL;
    }
    Py_XDECREF(module);
    return ok;
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

/** Adds to a module, and takes the reference over in any case. */
static bool add(PyObject *module, const char *name, PyObject *value) {
    bool ok = value && PyModule_AddObjectRef(module, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static PyObject *statuses(void) {
#define WPY_X(name, value, group, text) 1 +
    PyObject *all = PyTuple_New(WHERRY_STATUS_LIST(WPY_X) 0);
#undef WPY_X
    Py_ssize_t next = 0;
#define WPY_X(name, value, group, text)                                                                                \
    if (all) {                                                                                                         \
        PyObject *row = Py_BuildValue("(siss)", #name, (value), #group, (text));                                       \
        if (!row || PyTuple_SetItem(all, next++, row) != 0) {                                                          \
            Py_CLEAR(all);                                                                                             \
        }                                                                                                              \
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

static bool add_type(PyObject *module, const char *name, PyTypeObject *type) {
    return type && PyModule_AddObjectRef(module, name, (PyObject *)type) == 0;
}

static PyMethodDef functions[] = {
    {"build", wpy_build, METH_VARARGS, "build(value, codec) -> State"},
    {"restore", wpy_restore_call, METH_VARARGS, "restore(state, codec, target=None) -> value"},
    {"set_error_class", wpy_set_error_class, METH_O, "Takes what makes the exceptions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "wherry._core", .m_doc = "libwherry's calls. Not part of the public interface.",
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
        add(module, "DLPACK_DTYPES", wpy_dl_dtypes()) && add_type(module, "State", wpy_state_type) &&
        add_type(module, "Cancel", wpy_cancel_type) && add_type(module, "Group", wpy_group_type) &&
        add(module, "Transport", (PyObject *)wpy_transport_type_new())) {
        return module;
    }
    Py_XDECREF(module);
    return NULL;
}
