/*
 * A group made of a Python object that can send blocks: Group.from_table. Its methods are called by the thread that is inside a call of the library, with the GIL.
 *
 *     send(rank, block: bytes, timeout_ms) -> bool           False: nothing of it was sent in time
 *     receive(timeout_ms) -> list of (rank, bytes)           what has come
 *     destroy()                                              the group was left
 *   and, all or none of them, blocks that move without copies:
 *     put(rank, channel, pointer, size) -> operation         begins to send memory
 *     get(rank, channel, pointer, size) -> operation         begins to receive into memory
 *     finish(operation, timeout_ms) -> bool                  False: not yet
 *     abandon(operation)                                     when it returns the memory is not touched any more
 *
 * An Exception that they raise ends the call: a wherry.PeerLost as that, with its rank; anything else as a group that is of no more use.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/** An attribute of an exception; NULL where it has none, and no exception set. */
static PyObject *attribute_of(PyObject *value, const char *name) {
    PyObject *found = value ? PyObject_GetAttrString(value, name) : NULL;
    PyErr_Clear();
    return found;
}

/**
 * Takes the exception that is set as an error record. What is no error of the table, such as a KeyboardInterrupt, is kept for the end of the call, which
 * ends at its next look for signals; until then the table has only been slow.
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
    PyOS_snprintf(error->message, sizeof(error->message), "%.600s", message ? message : "the group's table failed");
    Py_XDECREF(status);
    Py_XDECREF(rank);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Clear();
    return error->status;
}

/** What a method that answers True or False means. Takes the answer over. */
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
        PyErr_SetString(PyExc_TypeError, "receive of a table gives a list of (rank, bytes)");
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
    return true; /* false would have tensors kept by their storages, which in Python do not own the memory */
}

PyObject *wpy_group_from_table(PyObject *type, PyObject *arguments) {
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
    wpy_group *self = wpy_group_new();
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
