/*
 * Calls into the library that run without the GIL: their options, and their callbacks into Python.
 * If a callback raises an exception, the call ends when the library next checks for an interrupt,
 * or earlier. The exception is raised when the call has returned.
 */
#include <string.h>

#include "core.h"

_Thread_local wpy_call *wpy_current_call;

void wpy_call_fail(wpy_call *call) {
    if (call->failed) {
        PyErr_Clear();
        return;
    }
    call->failed = true;
    call->exception = wpy_set_aside();
}

bool wpy_call_raise(wpy_call *call) {
    if (call->failed) {
        wpy_put_back(call->exception);
    }
    return call->failed;
}

/* ---- callbacks; the context is a wpy_call ---- */

/** Ends a callback: moves the current exception, if any, into the call, and releases the GIL. */
static void leave_callback(wpy_call *call, PyGILState_STATE gil) {
    if (PyErr_Occurred()) {
        wpy_call_fail(call);
    }
    PyGILState_Release(gil);
}

static bool on_interrupt(void *context) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed) {
        (void)PyErr_CheckSignals();
    }
    wpy_log_flush();
    leave_callback(call, gil);
    return call->failed;
}

static void on_progress(void *context, const wherry_progress *progress) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed) {
        PyObject *answer =
            PyObject_CallFunction(call->progress, "iKKdss", (int)progress->peer, (unsigned long long)progress->bytes,
                                  (unsigned long long)progress->total, progress->rate, progress->path, progress->lane);
        Py_XDECREF(answer);
    }
    leave_callback(call, gil);
}

static wherry_status on_allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    wherry_status status =
        call->failed ? WHERRY_CANCELLED : wpy_restorer_allocate(call->restorer, nbytes, device, storage_p);
    leave_callback(call, gil);
    return status;
}

static wherry_status on_inspect(void *context, const wherry_value *state) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    wherry_status status = WHERRY_CANCELLED;
    if (!call->failed) {
        status = wpy_check_objects(call->restorer->codec, state) ? WHERRY_OK : WHERRY_UNSUPPORTED;
    }
    leave_callback(call, gil);
    return status;
}

static wherry_status on_target(void *context, const wherry_value **target_p) {
    const wpy_call *call = context;
    *target_p = call->restorer->target->root;
    return WHERRY_OK;
}

/* ---- options ---- */

/** Reads options from a dict by PyArg_ParseTupleAndKeywords. The caller must release `empty`. */
#define READ_OPTIONS(empty, dict, format, names, ...)                                                                  \
    ((empty = PyTuple_New(0)) && PyArg_ParseTupleAndKeywords(empty, dict, format, (char **)(names), __VA_ARGS__))

static bool read_cancel(PyObject *value, wherry_cancel **cancel_p) {
    if (value != Py_None && Py_TYPE(value) != wpy_cancel_type) {
        PyErr_SetString(PyExc_TypeError, "cancel must be a wherry.Cancel or None");
        return false;
    }
    *cancel_p = value == Py_None ? NULL : ((wpy_cancel *)value)->cancel;
    return true;
}

bool wpy_transfer_options(PyObject *dict, wherry_transfer_options *options, wpy_call *call) {
    static const char *const names[] = {"timeout_ms", "step",      "lanes",  "threads",   "verify",
                                        "partial",    "keep_open", "stream", "mesh_rank", "progress",
                                        "cancel",     "require",   NULL};
    int partial = 0, keep_open = 0, verify = WHERRY_VERIFY_DEFAULT, require = WHERRY_REQUIRE_ANY;
    PyObject *step = Py_None, *progress = Py_None, *cancel = Py_None, *empty;
    unsigned long long stream = 0;
    wherry_transfer_options_init(options);
    long long timeout_ms = options->timeout_ms, rank = options->rank;
    unsigned threads = options->threads;
    bool ok = READ_OPTIONS(empty, dict, "|LOzIippKLOOi:options", names, &timeout_ms, &step, &options->lanes, &threads,
                           &verify, &partial, &keep_open, &stream, &rank, &progress, &cancel, &require);
    Py_XDECREF(empty);
    options->step = ok && step != Py_None ? PyLong_AsLongLong(step) : WHERRY_STEP_ANY;
    if (!ok || PyErr_Occurred() || !read_cancel(cancel, &options->cancel)) {
        return false;
    }
    options->timeout_ms = timeout_ms;
    options->rank = rank;
    options->threads = threads;
    options->stream = (void *)(uintptr_t)stream;
    options->verify = (wherry_verify)verify;
    options->require = (wherry_require)require;
    options->flags |= (partial ? WHERRY_RECV_PARTIAL : 0) | (keep_open ? WHERRY_SEND_MEMORY_STAYS : 0);
    options->interrupt = on_interrupt;
    options->interrupt_context = call;
    if (progress != Py_None) {
        call->progress = progress;
        options->progress = on_progress;
        options->progress_context = call;
    }
    if (call->restorer) {
        options->flags |= WHERRY_RECV_ANY_DEVICE;
        options->allocate = on_allocate;
        options->allocate_context = call;
        options->inspect = on_inspect;
        options->inspect_context = call;
    }
    if (call->restorer && call->restorer->target) {
        options->flags |= WHERRY_RECV_NEW;
        options->target = on_target;
        options->target_context = call;
    }
    return true;
}

bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call) {
    static const char *const names[] = {"timeout_ms",      "secret",  "allow_insecure", "wait_for", "client", "encrypt",
                                        "tls_certificate", "tls_key", "tls_ca",         "tls_name", NULL};
    int allow_insecure = 0, client = 0;
    const char *secret = NULL;
    Py_ssize_t secret_size = 0;
    PyObject *empty;
    wherry_group_options_init(options);
    bool ok = READ_OPTIONS(empty, dict, "|Iz#pIpIzzzz:options", names, &options->timeout_ms, &secret, &secret_size,
                           &allow_insecure, &options->wait_for, &client, &options->encrypt, &options->tls_certificate,
                           &options->tls_key, &options->tls_ca, &options->tls_name);
    Py_XDECREF(empty);
    options->secret = secret;
    options->secret_size = (size_t)secret_size;
    options->allow_insecure = (uint32_t)allow_insecure;
    options->flags |= client ? WHERRY_JOIN_CLIENT : 0;
    options->interrupt = on_interrupt;
    options->interrupt_context = call;
    return ok;
}

/* ---- statistics ---- */

static PyObject *as_text(const char *bytes) {
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strlen(bytes), "backslashreplace");
}

/** Returns a tuple of (lane, reason, text), one for each lane that was not used. */
static PyObject *skipped_lanes(const wherry_stats *stats) {
    PyObject *all = PyTuple_New((Py_ssize_t)stats->skipped_count);
    for (uint32_t i = 0; all && i < stats->skipped_count; i++) {
        const wherry_skipped_lane *one = stats->skipped + i;
        wpy_set_item(&all, i, Py_BuildValue("(siN)", one->lane, (int)one->reason, as_text(one->text)));
    }
    return all;
}

/** Returns a tuple of (rank, bytes, chunks, rate, lane, status, reason), one for each source. */
static PyObject *sources(const wherry_stats *stats) {
    PyObject *all = PyTuple_New((Py_ssize_t)stats->source_count);
    for (uint32_t i = 0; all && i < stats->source_count; i++) {
        const wherry_source_stats *one = stats->sources + i;
        wpy_set_item(&all, i,
                     Py_BuildValue("(iKKdsiN)", (int)one->rank, (unsigned long long)one->bytes,
                                   (unsigned long long)one->chunks, one->rate, one->lane, (int)one->status,
                                   as_text(one->reason)));
    }
    return all;
}

PyObject *wpy_stats(const wherry_stats *stats) {
    return Py_BuildValue("{s:I,s:d,s:d,s:d,s:d,s:d,s:d,s:d,s:K,s:K,s:K,s:K,s:K,s:I,s:O,s:O,s:s,s:N,s:s,s:N,s:N}",
                         "retries", (unsigned)stats->retries, "prepare_seconds", stats->prepare_seconds,
                         "offer_seconds", stats->offer_seconds, "plan_seconds", stats->plan_seconds, "data_seconds",
                         stats->data_seconds, "check_seconds", stats->check_seconds, "release_seconds",
                         stats->release_seconds, "total_seconds", stats->total_seconds, "tensors",
                         (unsigned long long)stats->tensors, "bytes_wanted", (unsigned long long)stats->bytes_wanted,
                         "bytes_moved", (unsigned long long)stats->bytes_moved, "chunks",
                         (unsigned long long)stats->chunks, "messages", (unsigned long long)stats->messages, "workers",
                         (unsigned)stats->workers, "checked", stats->checked ? Py_True : Py_False, "verified",
                         stats->verified ? Py_True : Py_False, "lane", stats->lane, "reasons", as_text(stats->reasons),
                         "detail", stats->detail, "lanes_not_used", skipped_lanes(stats), "sources", sources(stats));
}
