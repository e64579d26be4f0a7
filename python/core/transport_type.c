/* The type Transport: sending and receiving. */
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

typedef struct wpy_transport {
    PyObject_HEAD wpy_group *group; /**< NULL after close(). */
    wherry_transport *transport;
} wpy_transport;

static PyTypeObject *transport_type; /* The module owns this object. */

static PyObject *transport_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *object;
    wherry_error error;
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
        Py_DECREF(group);
    }
}

static void transport_dealloc(PyObject *self) {
    wpy_pending pending = wpy_set_aside();
    close_transport((wpy_transport *)self);
    wpy_put_back(pending);
    wpy_object_free(self);
}

static PyObject *transport_close(PyObject *self, PyObject *Py_UNUSED(unused)) {
    close_transport((wpy_transport *)self);
    Py_RETURN_NONE;
}

/** True if the transport can be used. Otherwise raises Closed. */
static bool is_open(const wpy_transport *self) {
    if (!self->group) {
        wpy_raise_status(WHERRY_CLOSED, "the transport was closed: create a new one");
    }
    return self->group && wpy_group_get((PyObject *)self->group);
}

/**
 * Reads a list of ranks, which check_ranks() has checked, into a new array. Free it with free().
 */
static int32_t *read_ranks(PyObject *list, size_t *count_p) {
    *count_p = (size_t)PyList_Size(list);
    int32_t *ranks = malloc((*count_p + 1) * sizeof(*ranks));
    for (size_t i = 0; ranks && i < *count_p; i++) {
        ranks[i] = (int32_t)PyLong_AsLong(PyList_GetItem(list, (Py_ssize_t)i));
    }
    if (!ranks) {
        PyErr_NoMemory();
    } else if (PyErr_Occurred()) {
        free(ranks);
        ranks = NULL;
    }
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
    WPY_RUN(call,
            status = wherry_checkpoint_send(self->transport, ranks, count, state->root, options, outcomes, &error));
    PyObject *result = NULL;
    if (!wpy_call_raise(call)) {
        result = status == WHERRY_INVALID_ARGUMENT ? wpy_raise(&error) : outcome_rows(outcomes, count);
    }
    free(outcomes);
    return result;
}

static PyObject *transport_send(PyObject *self, PyObject *arguments) {
    PyObject *list, *state, *dict;
    size_t count;
    wpy_call call = {0};
    wherry_transfer_options options;
    if (!is_open((wpy_transport *)self) ||
        !PyArg_ParseTuple(arguments, "O!O!O!:send", &PyList_Type, &list, wpy_state_type, &state, &PyDict_Type, &dict) ||
        !wpy_transfer_options(dict, &options, &call)) {
        return NULL;
    }
    int32_t *ranks = read_ranks(list, &count);
    PyObject *result = ranks ? send_to((wpy_transport *)self, ranks, count, (wpy_state *)state, &options, &call) : NULL;
    free(ranks);
    return result;
}

static PyObject *transport_serve(PyObject *self, PyObject *arguments) {
    wpy_transport *own = (wpy_transport *)self;
    PyObject *state, *withdraw, *dict;
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
    WPY_RUN(&call, status = wherry_checkpoint_serve(own->transport, ((wpy_state *)state)->root,
                                                    ((wpy_cancel *)withdraw)->cancel, &options, NULL, NULL, &error));
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
    WPY_RUN(call, status = wherry_checkpoint_recv_sources(sources, count, options, &state, &error));
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
static Py_ssize_t read_sources(PyObject *rows, wherry_source *sources) {
    Py_ssize_t count = PyTuple_Size(rows);
    if (count > WHERRY_SOURCES_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd sources, but at most %d are possible", count, WHERRY_SOURCES_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        wpy_transport *transport;
        int rank;
        const char *name;
        if (!PyArg_ParseTuple(PyTuple_GetItem(rows, i), "O!iz:source", transport_type, &transport, &rank, &name) ||
            !is_open(transport)) {
            return -1;
        }
        sources[i] = (wherry_source){.transport = transport->transport, .rank = rank, .name = name};
    }
    return count;
}

static PyObject *transport_recv(PyObject *Py_UNUSED(type), PyObject *arguments) {
    PyObject *rows, *target, *codec, *dict;
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
    Py_ssize_t count = read_sources(rows, sources);
    PyObject *result = NULL;
    if (count >= 0 && wpy_restorer_init(&restorer, codec, target == Py_None ? NULL : (wpy_state *)target) &&
        wpy_transfer_options(dict, &options, &call)) {
        result = receive(sources, (size_t)count, &options, &call);
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
