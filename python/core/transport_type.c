/* The type Transport: sending and receiving. */
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

typedef struct wpy_transport {
    PyObject_HEAD wpy_group *group; /**< NULL after close(). */
    wherry_transport *transport;
    int calls; /**< Number of running calls. */
} wpy_transport;

static PyTypeObject *transport_type; /* The module owns this object. */

static PyObject *transport_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *object;
    wherry_error error;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!:Transport", wpy_group_type, &object)) {
        return NULL;
    }
    wherry_group *group = wpy_group_get(object);
    wpy_transport *self = group ? wpy_object_new(type) : NULL;
    if (self && wherry_transport_create(group, NULL, &self->transport, &error) != WHERRY_OK) {
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

static PyObject *transport_serve(PyObject *self, PyObject *arguments) {
    wpy_transport *own = (wpy_transport *)self;
    PyObject *state;
    PyObject *withdraw;
    PyObject *dict;
    wpy_call call = {0};
    wherry_transfer_options options;
    wherry_error error;
    wherry_status status;
    if (!is_open(own) ||
        !PyArg_ParseTuple(arguments, "O!O!O!:serve", wpy_state_type, &state, wpy_cancel_type, &withdraw, &PyDict_Type,
                          &dict) ||
        !wpy_transfer_options(dict, &options, &call)) {
        return NULL;
    }
    wpy_call *outer = wpy_current_call;
    wpy_current_call = &call;
    WPY_WITHOUT_GIL(own->calls,
                    status = wherry_checkpoint_serve(own->transport, ((wpy_state *)state)->root,
                                                     ((wpy_cancel *)withdraw)->cancel, &options, NULL, NULL, &error));
    wpy_current_call = outer;
    if (wpy_call_raise(&call)) {
        return NULL;
    }
    return status == WHERRY_OK ? Py_NewRef(Py_None) : wpy_raise(&error);
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

/** Sets the attributes `stats` and `report` of an exception; `report` is None if there is none. */
static void describe(PyObject *exception, const wherry_report *report, const wherry_stats *stats) {
    PyObject *figures = wpy_stats(stats);
    if (figures) {
        PyObject_SetAttr(exception, wpy_name.stats, figures);
    }
    PyErr_Clear(); /* An exception of the caller's own class may refuse attributes. */
    PyObject *paths = report ? Py_BuildValue("{s:N,s:N,s:N}", "complete", report_paths(report, WHERRY_TENSOR_COMPLETE),
                                             "partial", report_paths(report, WHERRY_TENSOR_PARTIAL), "untouched",
                                             report_paths(report, WHERRY_TENSOR_UNTOUCHED))
                             : Py_NewRef(Py_None);
    if (paths) {
        PyObject_SetAttr(exception, wpy_name.report, paths);
    }
    PyErr_Clear();
    Py_XDECREF(paths);
    Py_XDECREF(figures);
}

/** Raises the exception of a callback or, if none was raised, that of the library's error. */
static void raise_received(wpy_call *call, const wherry_error *error, const wherry_report *report,
                           const wherry_stats *stats) {
    if (!wpy_call_raise(call)) {
        wpy_raise(error);
    }
    wpy_pending raised = wpy_set_aside();
    PyErr_NormalizeException(&raised.type, &raised.value, &raised.traceback);
    describe(raised.value, report, stats);
    wpy_put_back(raised);
}

static PyObject *receive(const wherry_source *sources, size_t count, wherry_transfer_options *options, wpy_call *call) {
    wherry_stats stats = {0};
    wherry_report *report = NULL;
    wherry_value *state = NULL;
    wherry_error error;
    wherry_status status;
    options->stats = &stats;
    options->report_p = &report;
    wpy_call *outer = wpy_current_call;
    wpy_current_call = call;
    Py_BEGIN_ALLOW_THREADS;
    status = wherry_checkpoint_recv_sources(sources, count, options, &state, &error);
    Py_END_ALLOW_THREADS;
    wpy_log_flush();
    wpy_current_call = outer;
    PyObject *result = NULL;
    if (status != WHERRY_OK || call->failed) {
        raise_received(call, &error, report, &stats);
    } else {
        PyObject *value = wpy_restore(call->restorer, state);
        result = value ? Py_BuildValue("(NN)", value, wpy_stats(&stats)) : NULL;
    }
    wherry_value_destroy(state);
    wherry_report_destroy(report);
    return result;
}

/** Reads a tuple of (Transport, rank, name or None). Returns their number, or -1. */
static Py_ssize_t read_sources(PyObject *rows, wpy_transport **transports, wherry_source *sources) {
    Py_ssize_t count = PyTuple_Size(rows);
    if (count > WHERRY_SOURCES_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd sources, but at most %d are possible", count, WHERRY_SOURCES_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *transport;
        int rank;
        const char *name;
        if (!PyArg_ParseTuple(PyTuple_GetItem(rows, i), "Oiz:source", &transport, &rank, &name)) {
            return -1;
        }
        if (Py_TYPE(transport) != transport_type) {
            PyErr_SetString(PyExc_TypeError, "a source must be (Transport, rank, name or None)");
            return -1;
        }
        if (!is_open((wpy_transport *)transport)) {
            return -1;
        }
        transports[i] = (wpy_transport *)transport;
        sources[i] = (wherry_source){.transport = transports[i]->transport, .rank = rank, .name = name};
    }
    return count;
}

static PyObject *transport_recv(PyObject *type, PyObject *arguments) {
    (void)type;
    PyObject *rows;
    PyObject *target;
    PyObject *codec;
    PyObject *dict;
    wpy_transport *transports[WHERRY_SOURCES_MAX];
    wherry_source sources[WHERRY_SOURCES_MAX];
    wpy_restorer restorer = {0};
    wpy_call call = {.restorer = &restorer};
    wherry_transfer_options options;
    if (!PyArg_ParseTuple(arguments, "O!OOO!:recv", &PyTuple_Type, &rows, &target, &codec, &PyDict_Type, &dict)) {
        return NULL;
    }
    if (target != Py_None && Py_TYPE(target) != wpy_state_type) {
        PyErr_SetString(PyExc_TypeError, "target must be a State or None");
        return NULL;
    }
    Py_ssize_t count = read_sources(rows, transports, sources);
    for (Py_ssize_t i = 0; i < count; i++) {
        transports[i]->calls++;
    }
    PyObject *result = NULL;
    if (count >= 0 && wpy_restorer_init(&restorer, codec, target == Py_None ? NULL : (wpy_state *)target) &&
        wpy_transfer_options(dict, &options, &call)) {
        result = receive(sources, (size_t)count, &options, &call);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        transports[i]->calls--;
    }
    wpy_restorer_clear(&restorer);
    return result;
}

PyTypeObject *wpy_transport_type_new(void) {
    static PyMethodDef methods[] = {
        {"send", transport_send, METH_VARARGS,
         "send(ranks, state, options) -> [(rank, error or None, stats, not needed)]"},
        {"serve", transport_serve, METH_VARARGS,
         "serve(state, withdraw, options): serves the state until withdraw is requested."},
        {"recv", transport_recv, METH_VARARGS | METH_STATIC,
         "recv(sources, target, codec, options) -> (value, stats); a source is (Transport, rank, name or None)"},
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
    transport_type = wpy_type_new("wherry._core.Transport", sizeof(wpy_transport), true, slots);
    return transport_type;
}
