/*
 * The types Group and Cancel.
 *
 * A process joins a group at an address, or makes one from a Python object, called a table. The
 * table has methods that move blocks of bytes between ranks:
 *
 *     send(rank, block: bytes, timeout_ms) -> bool      False: timed out, no byte was sent
 *     receive(timeout_ms) -> list of (rank, bytes)      returns the blocks that have arrived
 *     destroy()                                         called after the process has left
 *
 * A table that can move blocks without copies also has all of these:
 *
 *     put(rank, channel, pointer, size) -> operation    starts to send memory
 *     get(rank, channel, pointer, size) -> operation    starts to receive into memory
 *     finish(operation, timeout_ms) -> bool             False: not finished yet
 *     abandon(operation)                                stops using the memory
 *
 * The thread that is inside a call of the library calls these methods, with the GIL held. If a
 * method raises PeerLost, the call fails with PeerLost and the same rank. If it raises any other
 * Exception, the call fails with Closed. Exceptions of destroy() and abandon() are only printed.
 */
#include <string.h>
#include <unistd.h>

#include "core.h"

/* ---- Group ---- */

/** Allocates a Group object without a group. Returns a new reference. */
static wpy_group *group_new(void) {
    wpy_group *self = wpy_object_new(wpy_group_type);
    if (self) {
        self->process = (int)getpid();
    }
    return self;
}

static PyObject *group_join(PyObject *Py_UNUSED(type), PyObject *arguments) {
    const char *address;
    PyObject *dict;
    wpy_call call = {0};
    wherry_group_options options;
    wherry_error error;
    if (!PyArg_ParseTuple(arguments, "sO!:join", &address, &PyDict_Type, &dict) ||
        !wpy_group_options(dict, &options, &call)) {
        return NULL;
    }
    wpy_group *self = group_new();
    if (!self) {
        return NULL;
    }
    wherry_status status;
    WPY_WITHOUT_GIL(status = wherry_group_join(address, &options, &self->group, &error));
    if (status == WHERRY_OK && !call.failed) {
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return wpy_call_raise(&call) ? NULL : wpy_raise(&error);
}

/**
 * Leaves the group. In a forked child, does nothing: the group's thread does not exist there, and
 * the sockets are closed. Releases the GIL, because leaving may wait for threads that need it.
 */
static void leave(wpy_group *self) {
    wherry_group *group = self->group;
    self->group = NULL;
    if (group && self->process == (int)getpid()) {
        WPY_WITHOUT_GIL(wherry_group_leave(group));
    }
}

static void group_dealloc(PyObject *self) {
    wpy_pending pending = wpy_set_aside();
    leave((wpy_group *)self);
    wpy_put_back(pending);
    wpy_object_free(self);
}

wherry_group *wpy_group_get(PyObject *self) {
    wherry_group *group = ((wpy_group *)self)->group;
    if (group && ((wpy_group *)self)->process == (int)getpid()) {
        return group;
    }
    return wpy_raise_status(WHERRY_CLOSED,
                            group ? "this process is a forked child of the one that joined: join again here"
                                  : "this process has left the group: join again");
}

static PyObject *group_leave(PyObject *self, PyObject *Py_UNUSED(unused)) {
    leave((wpy_group *)self);
    Py_RETURN_NONE;
}

/** The attributes `rank` and `size`. */
static PyObject *group_number(PyObject *self, void *is_size) {
    wherry_group *group = wpy_group_get(self);
    return group ? PyLong_FromLong(is_size ? wherry_group_size(group) : wherry_group_rank(group)) : NULL;
}

static PyObject *group_meeting(PyObject *self, void *Py_UNUSED(unused)) {
    char text[WHERRY_GROUP_MEETING_MAX];
    wherry_error error;
    wherry_group *group = wpy_group_get(self);
    if (!group) {
        return NULL;
    }
    return wherry_group_meeting(group, text, &error) == WHERRY_OK ? PyUnicode_FromString(text) : wpy_raise(&error);
}

static PyObject *group_alive(PyObject *self, PyObject *rank) {
    wherry_group *group = wpy_group_get(self);
    long number = group ? PyLong_AsLong(rank) : -1;
    if (!group || (number == -1 && PyErr_Occurred())) {
        return NULL;
    }
    return PyBool_FromLong(number >= 0 && number <= INT32_MAX && wherry_group_alive(group, (int32_t)number));
}

static PyObject *group_send(PyObject *self, PyObject *arguments) {
    int rank;
    unsigned tag, timeout;
    const char *bytes;
    Py_ssize_t size;
    wherry_error error;
    wherry_group *group = wpy_group_get(self);
    if (!group || !PyArg_ParseTuple(arguments, "iIy#I:send", &rank, &tag, &bytes, &size, &timeout)) {
        return NULL;
    }
    wherry_status status;
    WPY_WITHOUT_GIL(status = wherry_group_send(group, rank, tag, bytes, (size_t)size, timeout, &error));
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
}

static PyObject *group_receive(PyObject *self, PyObject *arguments) {
    int rank;
    int32_t from;
    unsigned tag, timeout;
    void *bytes;
    size_t size;
    wherry_error error;
    wherry_group *group = wpy_group_get(self);
    if (!group || !PyArg_ParseTuple(arguments, "iII:receive", &rank, &tag, &timeout)) {
        return NULL;
    }
    wherry_status status;
    WPY_WITHOUT_GIL(status = wherry_group_receive(group, rank, tag, timeout, &bytes, &size, &from, &error));
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
    wherry_group *group = wpy_group_get(self);
    if (!group || !PyArg_ParseTuple(arguments, "KI:barrier", &number, &timeout)) {
        return NULL;
    }
    wherry_status status;
    WPY_WITHOUT_GIL(status = wherry_group_barrier(group, number, timeout, &error));
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
}

/* ---- groups made from a table ---- */

/** Returns an attribute, a new reference; NULL without an exception if there is none. */
static PyObject *attribute_of(PyObject *value, const char *name) {
    PyObject *found = value ? PyObject_GetAttrString(value, name) : NULL;
    PyErr_Clear();
    return found;
}

/**
 * Turns the current exception into a wherry_error. During a transfer, a KeyboardInterrupt or
 * SystemExit is moved into the wpy_call, which ends the transfer. The status is then TIMED_OUT.
 */
static wherry_status take_exception(wherry_error *error) {
    if (wpy_current_call && !PyErr_ExceptionMatches(PyExc_Exception)) {
        wpy_call_fail(wpy_current_call);
        *error = (wherry_error){.status = WHERRY_TIMED_OUT, .rank = -1, .offset = UINT64_MAX};
        return WHERRY_TIMED_OUT;
    }
    wpy_pending raised = wpy_set_aside();
    PyErr_NormalizeException(&raised.type, &raised.value, &raised.traceback);
    PyObject *text = raised.value ? PyObject_Str(raised.value) : NULL;
    const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    PyObject *rank = attribute_of(raised.value, "rank");
    PyObject *status = attribute_of(raised.value, "status");
    const char *name = status && PyUnicode_Check(status) ? PyUnicode_AsUTF8AndSize(status, NULL) : NULL;
    *error = (wherry_error){.status = WHERRY_CLOSED, .rank = -1, .offset = UINT64_MAX};
    if (name && strcmp(name, "PEER_LOST") == 0) {
        error->status = WHERRY_PEER_LOST;
    }
    if (rank && PyLong_Check(rank)) {
        error->rank = (int32_t)PyLong_AsLong(rank);
    }
    PyOS_snprintf(error->message, sizeof(error->message), "%.600s", message ? message : "a method of the table failed");
    Py_XDECREF(status);
    Py_XDECREF(rank);
    Py_XDECREF(text);
    wpy_put_back(raised);
    PyErr_Clear();
    return error->status;
}

/** The status for the result of a method: True is OK, False is TIMED_OUT. Takes the reference. */
static wherry_status truth_status(PyObject *answer, wherry_error *error) {
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth < 0 ? take_exception(error) : truth ? WHERRY_OK : WHERRY_TIMED_OUT;
}

static wherry_status table_send(void *context, int32_t rank, const void *bytes, size_t size, uint32_t timeout_ms,
                                wherry_error *error) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallMethod(context, "send", "iy#I", (int)rank, (const char *)bytes, (Py_ssize_t)size,
                                           (unsigned)timeout_ms);
    wherry_status status = truth_status(answer, error);
    PyGILState_Release(gil);
    return status;
}

static wherry_status table_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                   wherry_error *error) {
    int rank;
    const char *bytes;
    Py_ssize_t size;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *rows = PyObject_CallMethod(context, "receive", "I", (unsigned)timeout_ms);
    bool ok = rows && PyList_Check(rows);
    if (rows && !ok) {
        PyErr_SetString(PyExc_TypeError, "the method receive() of a table must return a list of (rank, bytes)");
    }
    for (Py_ssize_t i = 0; ok && i < PyList_Size(rows); i++) {
        ok = PyArg_ParseTuple(PyList_GetItem(rows, i), "iy#:receive", &rank, &bytes, &size);
        if (ok) {
            deliver(sink, rank, bytes, (size_t)size);
        }
    }
    Py_XDECREF(rows);
    wherry_status status = ok ? WHERRY_OK : take_exception(error);
    PyGILState_Release(gil);
    return status;
}

/**
 * Calls destroy(), or abandon() with an operation. Then drops the reference to the table or to the
 * operation. An exception of the method is only printed, because the library cannot report it.
 */
static void end(PyObject *table, PyObject *method, PyObject *operation) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallMethodObjArgs(table, method, operation, NULL);
    if (!answer) {
        PyErr_WriteUnraisable(table);
    }
    Py_XDECREF(answer);
    Py_DECREF(operation ? operation : table);
    PyGILState_Release(gil);
}

static void table_destroy(void *context) {
    end(context, wpy_name.destroy, NULL);
}

static wherry_status begin(void *context, PyObject *method, int32_t rank, uint32_t channel, const void *bytes,
                           size_t size, void **operation_p, wherry_error *error) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *function = PyObject_GetAttr(context, method);
    *operation_p = function ? PyObject_CallFunction(function, "iIKK", (int)rank, (unsigned)channel,
                                                    (unsigned long long)(uintptr_t)bytes, (unsigned long long)size)
                            : NULL;
    Py_XDECREF(function);
    wherry_status status = *operation_p ? WHERRY_OK : take_exception(error);
    PyGILState_Release(gil);
    return status;
}

static wherry_status table_put(void *context, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                               void **operation_p, wherry_error *error) {
    return begin(context, wpy_name.put, rank, channel, bytes, size, operation_p, error);
}

static wherry_status table_get(void *context, int32_t rank, uint32_t channel, void *bytes, size_t size,
                               void **operation_p, wherry_error *error) {
    return begin(context, wpy_name.get, rank, channel, bytes, size, operation_p, error);
}

static wherry_status table_finish(void *context, void *operation, uint32_t timeout_ms, wherry_error *error) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallMethod(context, "finish", "OI", (PyObject *)operation, (unsigned)timeout_ms);
    wherry_status status = truth_status(answer, error);
    if (status != WHERRY_TIMED_OUT) {
        Py_DECREF((PyObject *)operation);
    }
    PyGILState_Release(gil);
    return status;
}

static bool table_abandon(void *context, void *operation) {
    end(context, wpy_name.abandon, operation);
    /* If this returned false, the library would keep the memory, but Python objects own it. */
    return true;
}

static PyObject *group_from_table(PyObject *Py_UNUSED(type), PyObject *arguments) {
    PyObject *table;
    int death;
    unsigned long long max_block;
    wherry_group_ops ops;
    wherry_error error;
    wherry_status status;
    wherry_group_ops_init(&ops);
    if (!PyArg_ParseTuple(arguments, "OsiiKp:from_table", &table, &ops.name, &ops.rank, &ops.size, &max_block,
                          &death)) {
        return NULL;
    }
    wpy_group *self = group_new();
    if (!self) {
        return NULL;
    }
    ops.max_block = max_block;
    ops.flags = death ? WHERRY_GROUP_OPS_DEATH : 0;
    ops.send = table_send;
    ops.receive = table_receive;
    ops.destroy = table_destroy;
    if (PyObject_HasAttr(table, wpy_name.put)) {
        ops.put = table_put;
        ops.get = table_get;
        ops.finish = table_finish;
        ops.abandon = table_abandon;
    }
    Py_INCREF(table);
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_group_from_ops(&ops, table, &self->group, &error);
    Py_END_ALLOW_THREADS;
    if (status == WHERRY_OK) {
        return (PyObject *)self;
    }
    Py_DECREF(table);
    Py_DECREF(self);
    return wpy_raise(&error);
}

/* ---- the type Group ---- */

static PyMethodDef group_methods[] = {
    {"join", group_join, METH_VARARGS | METH_STATIC, "join(address, options) -> Group"},
    {"from_table", group_from_table, METH_VARARGS | METH_STATIC,
     "from_table(table, name, rank, size, max_block, death) -> Group"},
    {"leave", group_leave, METH_NOARGS, "Leaves the group."},
    {"alive", group_alive, METH_O, "alive(rank) -> bool"},
    {"send", group_send, METH_VARARGS, "send(rank, tag, data, timeout_ms)"},
    {"receive", group_receive, METH_VARARGS, "receive(rank, tag, timeout_ms) -> (rank, data)"},
    {"barrier", group_barrier, METH_VARARGS, "barrier(number, timeout_ms)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef group_attributes[] = {
    {"rank", group_number, NULL, "The rank of this process.", NULL},
    {"size", group_number, NULL, "The number of ranks.", (void *)1},
    {"meeting", group_meeting, NULL, "The address at which other ranks can join.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject *wpy_group_type_new(void) {
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, group_dealloc},
        {Py_tp_methods, group_methods},
        {Py_tp_getset, group_attributes},
        {Py_tp_doc, (char *)"A group that this process has joined."},
        {0, NULL},
    };
    return wpy_type_new("wherry._core.Group", sizeof(wpy_group), false, slots);
}

/* ---- Cancel ---- */

static PyObject *cancel_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    wherry_error error;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":Cancel", names)) {
        return NULL;
    }
    wpy_cancel *self = wpy_object_new(type);
    if (self && wherry_cancel_create(&self->cancel, &error) != WHERRY_OK) {
        Py_CLEAR(self);
        wpy_raise(&error);
    }
    return (PyObject *)self;
}

static void cancel_dealloc(PyObject *self) {
    wherry_cancel_destroy(((wpy_cancel *)self)->cancel);
    wpy_object_free(self);
}

static PyObject *cancel_request(PyObject *self, PyObject *Py_UNUSED(unused)) {
    wherry_cancel_request(((wpy_cancel *)self)->cancel);
    Py_RETURN_NONE;
}

static PyObject *cancel_requested(PyObject *self, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(wherry_cancel_requested(((wpy_cancel *)self)->cancel));
}

PyTypeObject *wpy_cancel_type_new(void) {
    static PyMethodDef methods[] = {
        {"request", cancel_request, METH_NOARGS, "Cancels all current and future calls that use this object."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef attributes[] = {
        {"requested", cancel_requested, NULL, "True after request().", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, cancel_new},
        {Py_tp_dealloc, cancel_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_getset, attributes},
        {Py_tp_doc, (char *)"Cancels calls: pass it to them as cancel=, and call request() in another thread."},
        {0, NULL},
    };
    return wpy_type_new("wherry.Cancel", sizeof(wpy_cancel), true, slots);
}
