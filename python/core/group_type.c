/* The types Group and Cancel. */
#include <unistd.h>

#include "core.h"

wpy_group *wpy_group_new(void) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(wpy_group_type, Py_tp_alloc);
    wpy_group *self = (wpy_group *)allocate(wpy_group_type, 0);
    if (self) {
        self->process = (int)getpid();
    }
    return self;
}

static PyObject *group_join(PyObject *type, PyObject *arguments) {
    (void)type;
    const char *address;
    PyObject *dict;
    wpy_call call = {0};
    wherry_group_options options;
    wherry_error error;
    if (!PyArg_ParseTuple(arguments, "sO!:join", &address, &PyDict_Type, &dict) ||
        !wpy_group_options(dict, &options, &call)) {
        return NULL;
    }
    wpy_group *self = wpy_group_new();
    if (!self) {
        return NULL;
    }
    wherry_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_group_join(address, &options, &self->group, &error);
    Py_END_ALLOW_THREADS;
    if (status == WHERRY_OK && !call.failed) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return wpy_call_raise(&call) ? NULL : wpy_raise(&error);
}

/**
 * Leaves a group. In a child of the process that joined it there is nothing to leave: its thread is not there, and its sockets are closed.
 * Whoever waits on a lock of Python's meanwhile may be the table's own thread, so that the GIL is released.
 */
static void leave(wpy_group *self) {
    wherry_group *group = self->group;
    self->group = NULL;
    if (group && self->process == (int)getpid()) {
        Py_BEGIN_ALLOW_THREADS;
        wherry_group_leave(group);
        Py_END_ALLOW_THREADS;
    }
}

static void group_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    wpy_pending pending = wpy_set_aside();
    leave((wpy_group *)self);
    wpy_put_back(pending);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/** The group behind an object; NULL with an exception where it was left. */
static wherry_group *group_of(PyObject *self) {
    wherry_group *group = ((wpy_group *)self)->group;
    if (group && ((wpy_group *)self)->process == (int)getpid()) {
        return group;
    }
    wherry_error error = {.status = WHERRY_CLOSED, .rank = -1};
    PyOS_snprintf(error.message, sizeof(error.message), "%s",
                  group ? "the group belongs to the process that joined it, not to its child; join again"
                        : "the group was left; join again");
    wpy_raise(&error);
    return NULL;
}

static PyObject *group_leave(PyObject *self, PyObject *unused) {
    (void)unused;
    if (((wpy_group *)self)->users) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the group is in use: close its transports, and end the calls on it, first");
        return NULL;
    }
    leave((wpy_group *)self);
    Py_RETURN_NONE;
}

static PyObject *group_rank(PyObject *self, void *unused) {
    (void)unused;
    wherry_group *group = group_of(self);
    return group ? PyLong_FromLong(wherry_group_rank(group)) : NULL;
}

static PyObject *group_size(PyObject *self, void *unused) {
    (void)unused;
    wherry_group *group = group_of(self);
    return group ? PyLong_FromLong(wherry_group_size(group)) : NULL;
}

static PyObject *group_meeting(PyObject *self, void *unused) {
    (void)unused;
    char text[WHERRY_GROUP_MEETING_MAX];
    wherry_error error;
    wherry_group *group = group_of(self);
    if (!group) {
        return NULL;
    }
    return wherry_group_meeting(group, text, &error) == WHERRY_OK ? PyUnicode_FromString(text) : wpy_raise(&error);
}

static PyObject *group_alive(PyObject *self, PyObject *rank) {
    wherry_group *group = group_of(self);
    long number = group ? PyLong_AsLong(rank) : -1;
    if (!group || (number == -1 && PyErr_Occurred())) {
        return NULL;
    }
    return PyBool_FromLong(number >= 0 && number <= INT32_MAX && wherry_group_alive(group, (int32_t)number));
}

static PyObject *group_send(PyObject *self, PyObject *arguments) {
    int rank;
    unsigned tag;
    unsigned timeout;
    const char *bytes;
    Py_ssize_t size;
    wherry_error error;
    wherry_group *group = group_of(self);
    if (!group || !PyArg_ParseTuple(arguments, "iIy#I:send", &rank, &tag, &bytes, &size, &timeout)) {
        return NULL;
    }
    wherry_status status;
    ((wpy_group *)self)->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_group_send(group, rank, tag, bytes, (size_t)size, timeout, &error);
    Py_END_ALLOW_THREADS;
    ((wpy_group *)self)->users--;
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
}

static PyObject *group_receive(PyObject *self, PyObject *arguments) {
    int rank;
    int32_t from;
    unsigned tag;
    unsigned timeout;
    void *bytes;
    size_t size;
    wherry_error error;
    wherry_group *group = group_of(self);
    if (!group || !PyArg_ParseTuple(arguments, "iII:receive", &rank, &tag, &timeout)) {
        return NULL;
    }
    wherry_status status;
    ((wpy_group *)self)->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_group_receive(group, rank, tag, timeout, &bytes, &size, &from, &error);
    Py_END_ALLOW_THREADS;
    ((wpy_group *)self)->users--;
    if (status != WHERRY_OK) {
        return wpy_raise(&error);
    }
    PyObject *result = Py_BuildValue("(iy#)", (int)from, bytes ? bytes : "", (Py_ssize_t)size);
    wherry_free(bytes);
    return result;
}

static PyObject *group_barrier(PyObject *self, PyObject *arguments) {
    unsigned long long number;
    unsigned timeout;
    wherry_error error;
    wherry_group *group = group_of(self);
    if (!group || !PyArg_ParseTuple(arguments, "KI:barrier", &number, &timeout)) {
        return NULL;
    }
    wherry_status status;
    ((wpy_group *)self)->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_group_barrier(group, number, timeout, &error);
    Py_END_ALLOW_THREADS;
    ((wpy_group *)self)->users--;
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
}

static PyMethodDef group_methods[] = {
    {"join", group_join, METH_VARARGS | METH_STATIC, "join(address, options) -> Group"},
    {"from_table", wpy_group_from_table, METH_VARARGS | METH_STATIC,
     "from_table(table, name, rank, size, max_block, death) -> Group"},
    {"leave", group_leave, METH_NOARGS, "Leaves the group."},
    {"alive", group_alive, METH_O, "alive(rank) -> bool"},
    {"send", group_send, METH_VARARGS, "send(rank, tag, data, timeout_ms)"},
    {"receive", group_receive, METH_VARARGS, "receive(rank, tag, timeout_ms) -> (rank, data)"},
    {"barrier", group_barrier, METH_VARARGS, "barrier(number, timeout_ms)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef group_attributes[] = {
    {"rank", group_rank, NULL, "The rank of this process.", NULL},
    {"size", group_size, NULL, "How many ranks there are.", NULL},
    {"meeting", group_meeting, NULL, "Where others can join.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject *wpy_group_type_new(void) {
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, group_dealloc},
        {Py_tp_methods, group_methods},
        {Py_tp_getset, group_attributes},
        {Py_tp_doc, (char *)"A process's membership of a group."},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "wherry._core.Group",
        .basicsize = sizeof(wpy_group),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

/* ---- Cancel ---- */

static PyObject *cancel_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    wherry_error error;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":Cancel", names)) {
        return NULL;
    }
    wpy_cancel *self = (wpy_cancel *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self && wherry_cancel_create(&self->cancel, &error) != WHERRY_OK) {
        Py_CLEAR(self);
        wpy_raise(&error);
    }
    return (PyObject *)self;
}

static void cancel_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    wherry_cancel_destroy(((wpy_cancel *)self)->cancel);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *cancel_request(PyObject *self, PyObject *unused) {
    (void)unused;
    wherry_cancel_request(((wpy_cancel *)self)->cancel);
    Py_RETURN_NONE;
}

static PyObject *cancel_requested(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(wherry_cancel_requested(((wpy_cancel *)self)->cancel));
}

PyTypeObject *wpy_cancel_type_new(void) {
    static PyMethodDef methods[] = {
        {"request", cancel_request, METH_NOARGS, "Ends the calls that have it, now and later."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef attributes[] = {
        {"requested", cancel_requested, NULL, "Whether it was requested.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, cancel_new},
        {Py_tp_dealloc, cancel_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_getset, attributes},
        {Py_tp_doc, (char *)"Ends calls from another thread: hand it to them, then request()."},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "wherry.Cancel",
        .basicsize = sizeof(wpy_cancel),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
