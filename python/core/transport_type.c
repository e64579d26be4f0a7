/* The type Transport: sending and receiving. */
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

typedef struct wpy_transport {
    PyObject_HEAD wpy_group *group; /**< NULL after close(). */
    wherry_transport *transport;
    int calls; /**< Number of running calls. */
} wpy_transport;

static PyObject *transport_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *object;
    static char *names[] = {(char *)"group", (char *)"number", NULL};
    wherry_transport_options options;
    wherry_error error;
    wherry_transport_options_init(&options);
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|I:Transport", names, wpy_group_type, &object,
                                     &options.number)) {
        return NULL;
    }
    wherry_group *group = wpy_group_get(object);
    wpy_transport *self = group ? wpy_object_new(type) : NULL;
    if (self && wherry_transport_create(group, &options, &self->transport, &error) != WHERRY_OK) {
        Py_CLEAR(self);
        wpy_raise(&error);
    }
    if (self) {
        self->group = (wpy_group *)Py_NewRef(object);
        self->group->users++;
    }
    return (PyObject *)self;
}

static void close_transport(wpy_transport *self) {
    wpy_group *group = self->group;
    wherry_transport *transport = self->transport;
    self->group = NULL;
    self->transport = NULL;
    if (group) {
        if (group->process == (int)getpid()) {
            Py_BEGIN_ALLOW_THREADS;
            wherry_transport_destroy(transport);
            Py_END_ALLOW_THREADS;
        }
        group->users--;
        Py_DECREF(group);
    }
}

static void transport_dealloc(PyObject *self) {
    wpy_pending pending = wpy_set_aside();
    close_transport((wpy_transport *)self);
    wpy_put_back(pending);
    wpy_object_free(self);
}

static PyObject *transport_close(PyObject *self, PyObject *unused) {
    (void)unused;
    if (((wpy_transport *)self)->calls) {
        PyErr_SetString(PyExc_RuntimeError, "the transport is in use: end all calls first");
        return NULL;
    }
    close_transport((wpy_transport *)self);
    Py_RETURN_NONE;
}

/** True if the transport can be used. Otherwise raises Closed. */
static bool is_open(const wpy_transport *self) {
    if (!self->group) {
        wpy_raise_status(WHERRY_CLOSED, "the transport was closed: create a new one");
        return false;
    }
    if (self->group->process != (int)getpid()) {
        wpy_raise_status(WHERRY_CLOSED,
                         "this is a forked child of the process that made the transport: create one here");
        return false;
    }
    return true;
}

static PyObject *transport_waiting(PyObject *self, PyObject *unused) {
    (void)unused;
    wpy_transport *own = (wpy_transport *)self;
    int32_t ranks[256];
    if (!is_open(own)) {
        return NULL;
    }
    size_t count = wherry_transport_waiting(own->transport, ranks, sizeof(ranks) / sizeof(*ranks));
    size_t shown = count < sizeof(ranks) / sizeof(*ranks) ? count : sizeof(ranks) / sizeof(*ranks);
    PyObject *list = PyList_New((Py_ssize_t)shown);
    for (size_t i = 0; list && i < shown; i++) {
        wpy_set_item(&list, i, PyLong_FromLong(ranks[i]));
    }
    return list;
}

/** Reads a sequence of ranks into a new array. Free it with free(). */
static int32_t *read_ranks(PyObject *sequence, size_t *count_p) {
    Py_ssize_t count = PySequence_Size(sequence);
    int32_t *ranks = count >= 0 ? malloc(((size_t)count + 1) * sizeof(*ranks)) : NULL;
    for (Py_ssize_t i = 0; ranks && i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        long rank = item ? PyLong_AsLong(item) : -1;
        Py_XDECREF(item);
        if (PyErr_Occurred() || rank < INT32_MIN || rank > INT32_MAX) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "%ld is not a rank", rank);
            }
            free(ranks);
            return NULL;
        }
        ranks[i] = (int32_t)rank;
    }
    if (!ranks && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    *count_p = (size_t)count;
    return ranks;
}

/* ---- sending ---- */

static PyObject *outcome_row(const wherry_outcome *outcome) {
    PyObject *error = outcome->status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_error_new(&outcome->error);
    return error ? Py_BuildValue("(iNNO)", (int)outcome->rank, error, wpy_stats(&outcome->stats),
                                 outcome->not_needed ? Py_True : Py_False)
                 : NULL;
}

static PyObject *outcome_rows(const wherry_outcome *outcomes, size_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        wpy_set_item(&list, i, outcome_row(outcomes + i));
    }
    return list;
}

static PyObject *send_to(wpy_transport *self, const int32_t *ranks, size_t count, const wpy_state *state,
                         const wherry_transfer_options *options, wpy_call *call) {
    wherry_error error;
    wherry_status status;
    wherry_outcome *outcomes = calloc(count + 1, sizeof(*outcomes));
    if (!outcomes) {
        return PyErr_NoMemory();
    }
    wpy_call *outer = wpy_current_call;
    wpy_current_call = call;
    WPY_WITHOUT_GIL(self->calls, status = wherry_checkpoint_send(self->transport, ranks, count, state->root, options,
                                                                 outcomes, &error));
    wpy_current_call = outer;
    PyObject *result = NULL;
    if (!wpy_call_raise(call)) {
        result = status == WHERRY_INVALID_ARGUMENT ? wpy_raise(&error) : outcome_rows(outcomes, count);
    }
    free(outcomes);
    return result;
}

static PyObject *transport_send(PyObject *self, PyObject *arguments) {
    PyObject *sequence;
    PyObject *state;
    PyObject *dict;
    size_t count;
    wpy_call call = {0};
    wherry_transfer_options options;
    if (!is_open((wpy_transport *)self) ||
        !PyArg_ParseTuple(arguments, "OO!O!:send", &sequence, wpy_state_type, &state, &PyDict_Type, &dict) ||
        !wpy_transfer_options(dict, &options, &call)) {
        return NULL;
    }
    int32_t *ranks = read_ranks(sequence, &count);
    PyObject *result = ranks ? send_to((wpy_transport *)self, ranks, count, (wpy_state *)state, &options, &call) : NULL;
    free(ranks);
    return result;
}

/* ---- receiving ---- */

static PyObject *report_paths(const wherry_report *report, wherry_tensor_state state) {
    size_t count = wherry_report_count(report, state);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        wpy_set_item(&list, i, PyUnicode_FromString(wherry_report_path(report, state, i)));
    }
    return list;
}

/** Raises the error of a receive. `report`, which may be NULL, and `stats` become attributes. */
static void raise_received(const wherry_error *error, const wherry_report *report, const wherry_stats *stats) {
    PyObject *exception = wpy_error_new(error);
    PyObject *figures = exception ? wpy_stats(stats) : NULL;
    if (!figures) {
        Py_XDECREF(exception);
        return;
    }
    PyObject_SetAttr(exception, wpy_name.stats, figures);
    if (report) {
        PyObject *paths = Py_BuildValue("{s:N,s:N,s:N}", "complete", report_paths(report, WHERRY_TENSOR_COMPLETE),
                                        "partial", report_paths(report, WHERRY_TENSOR_PARTIAL), "untouched",
                                        report_paths(report, WHERRY_TENSOR_UNTOUCHED));
        if (paths) {
            PyObject_SetAttr(exception, wpy_name.report, paths);
        }
        Py_XDECREF(paths);
    }
    PyErr_Clear();
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(figures);
    Py_DECREF(exception);
}

static PyObject *receive(wpy_transport *self, const int32_t *ranks, size_t count, wherry_transfer_options *options,
                         wpy_call *call) {
    wherry_stats stats = {0};
    wherry_report *report = NULL;
    wherry_value *state = NULL;
    wherry_error error;
    wherry_status status;
    options->stats = &stats;
    options->report_p = &report;
    wpy_call *outer = wpy_current_call;
    wpy_current_call = call;
    WPY_WITHOUT_GIL(self->calls,
                    status = wherry_checkpoint_recv_from(self->transport, ranks, count, options, &state, &error));
    wpy_current_call = outer;
    PyObject *result = NULL;
    if (!wpy_call_raise(call)) {
        if (status == WHERRY_OK) {
            PyObject *value = wpy_restore(call->restorer, state);
            result = value ? Py_BuildValue("(NN)", value, wpy_stats(&stats)) : NULL;
        } else {
            raise_received(&error, report, &stats);
        }
    }
    wherry_value_destroy(state);
    wherry_report_destroy(report);
    return result;
}

static PyObject *transport_recv(PyObject *self, PyObject *arguments) {
    PyObject *sequence;
    PyObject *target;
    PyObject *codec;
    PyObject *dict;
    size_t count;
    wpy_restorer restorer = {0};
    wpy_call call = {.restorer = &restorer};
    wherry_transfer_options options;
    if (!is_open((wpy_transport *)self) ||
        !PyArg_ParseTuple(arguments, "OOOO!:recv", &sequence, &target, &codec, &PyDict_Type, &dict)) {
        return NULL;
    }
    if (target != Py_None && Py_TYPE(target) != wpy_state_type) {
        PyErr_SetString(PyExc_TypeError, "target must be a State or None");
        return NULL;
    }
    PyObject *result = NULL;
    int32_t *ranks = read_ranks(sequence, &count);
    if (ranks && wpy_restorer_init(&restorer, codec, target == Py_None ? NULL : (wpy_state *)target) &&
        wpy_transfer_options(dict, &options, &call)) {
        result = receive((wpy_transport *)self, ranks, count, &options, &call);
    }
    free(ranks);
    wpy_restorer_clear(&restorer);
    return result;
}

PyTypeObject *wpy_transport_type_new(void) {
    static PyMethodDef methods[] = {
        {"waiting", transport_waiting, METH_NOARGS, "The ranks that wait for a send, at most 256."},
        {"send", transport_send, METH_VARARGS,
         "send(ranks, state, options) -> [(rank, error or None, stats, not needed)]"},
        {"recv", transport_recv, METH_VARARGS, "recv(ranks, target, codec, options) -> (value, stats)"},
        {"close", transport_close, METH_NOARGS, "Closes the transport."},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, transport_new},
        {Py_tp_dealloc, transport_dealloc},
        {Py_tp_methods, methods},
        {Py_tp_doc, (char *)"Sends and receives checkpoints over a group."},
        {0, NULL},
    };
    return wpy_type_new("wherry._core.Transport", sizeof(wpy_transport), true, slots);
}
