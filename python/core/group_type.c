/*
 * The types Group and Cancel.
 *
 * A group is joined at an address, or made from a Python object, called a table, that can send
 * blocks of bytes between ranks:
 *
 *     send(rank, block: bytes, timeout_ms) -> bool         False: nothing of it was sent in time
 *     receive(timeout_ms) -> list of (rank, bytes)         the blocks that have arrived
 *     destroy()                                            the group was left
 *
 * A table that can move blocks without copies also has all of these:
 *
 *     put(rank, channel, pointer, size) -> operation       starts to send memory get(rank, channel,
 *     pointer, size) -> operation       starts to receive into memory finish(operation, timeout_ms)
 *     -> bool                False: not finished yet abandon(operation)
 *     after it, the memory is no longer accessed
 *
 * The thread that is inside a call of the library calls the table, with the GIL held. If a method
 * raises, the call fails: with PeerLost and its rank if that was raised, else with Closed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

/* ---- Group ---- */

/** A group that has not joined yet; a new reference. */
static wpy_group *group_new(void) {
    wpy_group *self = wpy_object_new(wpy_group_type);
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
    wpy_group *self = group_new();
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
 * Leaves the group. A child of the process that joined has nothing to leave: the group's thread
 * does not exist there, and the sockets are closed. Leaving may wait for the table's thread, which
 * may need the GIL: it is released.
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
    wpy_pending pending = wpy_set_aside();
    leave((wpy_group *)self);
    wpy_put_back(pending);
    wpy_object_free(self);
}

/** The group; raises Closed if it was left. */
static wherry_group *group_of(PyObject *self) {
    wherry_group *group = ((wpy_group *)self)->group;
    if (group && ((wpy_group *)self)->process == (int)getpid()) {
        return group;
    }
    wherry_error error = {.status = WHERRY_CLOSED, .rank = -1};
    PyOS_snprintf(error.message, sizeof(error.message), "%s",
                  group ? "this process is a fork of the one that joined the group: join again here"
                        : "this process has left the group: join again");
    wpy_raise(&error);
    return NULL;
}

static PyObject *group_leave(PyObject *self, PyObject *unused) {
    (void)unused;
    if (((wpy_group *)self)->users) {
        PyErr_SetString(PyExc_RuntimeError, "the group is in use: first close its transports and end all calls");
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

/** Runs a statement that uses the group without the GIL. The group is not left meanwhile. */
#define WITHOUT_GIL(self, statement)                                                                                   \
    do {                                                                                                               \
        ((wpy_group *)(self))->users++;                                                                                \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        statement;                                                                                                     \
        Py_END_ALLOW_THREADS;                                                                                          \
        ((wpy_group *)(self))->users--;                                                                                \
    } while (0)

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
    WITHOUT_GIL(self, status = wherry_group_send(group, rank, tag, bytes, (size_t)size, timeout, &error));
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
    WITHOUT_GIL(self, status = wherry_group_receive(group, rank, tag, timeout, &bytes, &size, &from, &error));
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
    WITHOUT_GIL(self, status = wherry_group_barrier(group, number, timeout, &error));
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
}

/* ---- groups made from a table ---- */

/** An attribute; NULL without an exception if there is none. */
static PyObject *attribute_of(PyObject *value, const char *name) {
    PyObject *found = value ? PyObject_GetAttrString(value, name) : NULL;
    PyErr_Clear();
    return found;
}

/**
 * Turns the exception that is set into an error record. An exception that is not the table's, such
 * as KeyboardInterrupt, is kept until the end of the call, which it will end soon; the record says
 * only that the table was too slow.
 */
static wherry_status take_exception(wherry_error *error) {
    if (wpy_current_call && !PyErr_ExceptionMatches(PyExc_Exception)) {
        wpy_call_fail(wpy_current_call);
        *error = (wherry_error){.status = WHERRY_TIMED_OUT, .rank = -1, .offset = UINT64_MAX};
        return WHERRY_TIMED_OUT;
    }
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    PyObject *rank = attribute_of(value, "rank");
    PyObject *status = attribute_of(value, "status");
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
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Clear();
    return error->status;
}

/** The status for the answer of a method that returns True or False. Takes the reference. */
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

static bool deliver_one(PyObject *row, wherry_group_deliver_fn deliver, void *sink) {
    int rank;
    const char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(row, "iy#:receive", &rank, &bytes, &size)) {
        return false;
    }
    deliver(sink, rank, bytes, (size_t)size);
    return true;
}

static wherry_status table_receive(void *context, uint32_t timeout_ms, wherry_group_deliver_fn deliver, void *sink,
                                   wherry_error *error) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *rows = PyObject_CallMethod(context, "receive", "I", (unsigned)timeout_ms);
    bool ok = rows && PyList_Check(rows);
    if (rows && !ok) {
        PyErr_SetString(PyExc_TypeError, "receive() of a table must return a list of (rank, bytes)");
    }
    for (Py_ssize_t i = 0; ok && i < PyList_Size(rows); i++) {
        ok = deliver_one(PyList_GetItem(rows, i), deliver, sink);
    }
    Py_XDECREF(rows);
    wherry_status status = ok ? WHERRY_OK : take_exception(error);
    PyGILState_Release(gil);
    return status;
}

static void table_destroy(void *context) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallMethodObjArgs(context, wpy_name.destroy, NULL);
    if (!answer) {
        PyErr_WriteUnraisable(context);
    }
    Py_XDECREF(answer);
    Py_DECREF((PyObject *)context);
    PyGILState_Release(gil);
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
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *answer = PyObject_CallMethodObjArgs(context, wpy_name.abandon, (PyObject *)operation, NULL);
    if (!answer) {
        PyErr_WriteUnraisable(context);
    }
    Py_XDECREF(answer);
    Py_DECREF((PyObject *)operation);
    PyGILState_Release(gil);
    /* false would mean that storages must keep the memory, but they do not own Python's */
    return true;
}

static PyObject *group_from_table(PyObject *type, PyObject *arguments) {
    (void)type;
    PyObject *table;
    const char *name;
    int rank;
    int size;
    int death;
    unsigned long long max_block;
    wherry_group_ops ops;
    wherry_error error;
    wherry_status status;
    if (!PyArg_ParseTuple(arguments, "OsiiKp:from_table", &table, &name, &rank, &size, &max_block, &death)) {
        return NULL;
    }
    wpy_group *self = group_new();
    if (!self) {
        return NULL;
    }
    wherry_group_ops_init(&ops);
    ops.name = name;
    ops.rank = rank;
    ops.size = size;
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
    {"rank", group_rank, NULL, "The rank of this process.", NULL},
    {"size", group_size, NULL, "The number of ranks.", NULL},
    {"meeting", group_meeting, NULL, "The address at which others can join.", NULL},
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
        {"request", cancel_request, METH_NOARGS, "Ends all calls that were given this object, now and later."},
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
        {Py_tp_doc, (char *)"Ends calls from another thread: pass it to them, then call request()."},
        {0, NULL},
    };
    return wpy_type_new("wherry.Cancel", sizeof(wpy_cancel), true, slots);
}
