/*
 * Calls into the library that run without the GIL: their options, their callbacks into Python, and
 * the exceptions that these raise. An exception ends the call when the library next checks for an
 * interrupt, and is raised when the call returns.
 */
#include <string.h>

#include "core.h"

_Thread_local wpy_call *wpy_current_call;

wpy_call *wpy_enter_call(wpy_call *call) {
    wpy_call *outer = wpy_current_call;
    wpy_current_call = call;
    return outer;
}

void wpy_call_fail(wpy_call *call) {
    if (call->failed) {
        PyErr_Clear();
        return;
    }
    call->failed = true;
    PyErr_Fetch(&call->type, &call->exception, &call->traceback);
}

bool wpy_call_raise(wpy_call *call) {
    if (!call->failed) {
        return false;
    }
    PyErr_Restore(call->type, call->exception, call->traceback);
    call->type = call->exception = call->traceback = NULL;
    return true;
}

/* ---- callbacks; the context is a wpy_call ---- */

static bool on_interrupt(void *context) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed && PyErr_CheckSignals() != 0) {
        wpy_call_fail(call);
    }
    PyGILState_Release(gil);
    return call->failed;
}

static void on_progress(void *context, const wherry_progress *progress) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed) {
        PyObject *answer =
            PyObject_CallFunction(call->progress, "iKKdss", (int)progress->peer, (unsigned long long)progress->bytes,
                                  (unsigned long long)progress->total, progress->rate, progress->path, progress->lane);
        if (!answer) {
            wpy_call_fail(call);
        }
        Py_XDECREF(answer);
    }
    PyGILState_Release(gil);
}

static wherry_status on_allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    wherry_status status = WHERRY_CANCELLED;
    if (!call->failed) {
        status = wpy_restorer_allocate(call->restorer, nbytes, device, storage_p);
        if (status != WHERRY_OK) {
            wpy_call_fail(call);
        }
    }
    PyGILState_Release(gil);
    return status;
}

static wherry_status on_inspect(void *context, const wherry_value *state) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    wherry_status status = WHERRY_CANCELLED;
    if (!call->failed) {
        status = wpy_check_objects(call->restorer->codec, state) ? WHERRY_OK : WHERRY_UNSUPPORTED;
        if (status != WHERRY_OK) {
            wpy_call_fail(call);
        }
    }
    PyGILState_Release(gil);
    return status;
}

static wherry_status on_target(void *context, const wherry_value **target_p) {
    const wpy_call *call = context;
    *target_p = call->restorer->target->root;
    return WHERRY_OK;
}

/* ---- options ---- */

/**
 * Reads options from a dict by the format of PyArg_ParseTupleAndKeywords. Unknown names are errors.
 */
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
    static const char *const names[] = {
        "timeout_ms", "no_progress_ms", "step",    "lanes",     "threads",      "verify", "partial",
        "new",        "any_device",     "any_box", "keep_open", "keep_ptracer", "stream", "mesh_rank",
        "progress",   "cancel",         NULL};
    static const uint32_t flags[] = {WHERRY_RECV_PARTIAL, WHERRY_RECV_NEW,     WHERRY_RECV_ANY_DEVICE,
                                     WHERRY_RECV_ANY_BOX, WHERRY_KEEPS_MEMORY, WHERRY_KEEP_PTRACER};
    enum { FLAGS = sizeof(flags) / sizeof(*flags) };
    int set[FLAGS] = {0};
    PyObject *step = Py_None, *verify = Py_None, *progress = Py_None, *cancel = Py_None, *empty;
    unsigned long long stream = 0;
    wherry_transfer_options_init(options);
    long long timeout_ms = options->timeout_ms, no_progress_ms = options->no_progress_ms, rank = options->rank;
    unsigned threads = options->threads;
    bool ok = READ_OPTIONS(empty, dict, "|LLOzIOppppppKLOO:options", names, &timeout_ms, &no_progress_ms, &step,
                           &options->lanes, &threads, &verify, set, set + 1, set + 2, set + 3, set + 4, set + 5,
                           &stream, &rank, &progress, &cancel);
    Py_XDECREF(empty);
    options->step = ok && step != Py_None ? PyLong_AsLongLong(step) : WHERRY_STEP_ANY;
    if (!ok || PyErr_Occurred() || !read_cancel(cancel, &options->cancel)) {
        return false;
    }
    options->timeout_ms = timeout_ms;
    options->no_progress_ms = no_progress_ms;
    options->rank = rank;
    options->threads = threads;
    options->stream = (void *)(uintptr_t)stream;
    options->verify = verify == Py_None             ? WHERRY_VERIFY_DEFAULT
                      : PyObject_IsTrue(verify) > 0 ? WHERRY_VERIFY_ON
                                                    : WHERRY_VERIFY_OFF;
    for (size_t i = 0; i < FLAGS; i++) {
        options->flags |= set[i] ? flags[i] : 0;
    }
    options->interrupt = on_interrupt;
    options->interrupt_context = call;
    if (progress != Py_None) {
        call->progress = progress;
        options->progress = on_progress;
        options->progress_context = call;
    }
    if (call->restorer) {
        options->allocate = on_allocate;
        options->allocate_context = call;
        options->inspect = on_inspect;
        options->inspect_context = call;
    }
    if (call->restorer && call->restorer->target) {
        options->target = on_target;
        options->target_context = call;
    }
    return true;
}

bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call) {
    static const char *const names[] = {"timeout_ms", "secret",       "allow_insecure", "wait_for",
                                        "client",     "heartbeat_ms", "dead_after_ms",  NULL};
    int allow_insecure = 0, client = 0;
    const char *secret = NULL;
    Py_ssize_t secret_size = 0;
    PyObject *empty;
    wherry_group_options_init(options);
    bool ok =
        READ_OPTIONS(empty, dict, "|Iz#pIpII:options", names, &options->timeout_ms, &secret, &secret_size,
                     &allow_insecure, &options->wait_for, &client, &options->heartbeat_ms, &options->dead_after_ms);
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

/** (lane, reason, text) per lane that was not used. */
static PyObject *skipped_lanes(const wherry_stats *stats) {
    PyObject *all = PyTuple_New((Py_ssize_t)stats->skipped_count);
    for (uint32_t i = 0; all && i < stats->skipped_count; i++) {
        const wherry_skipped_lane *one = stats->skipped + i;
        PyObject *text = PyUnicode_DecodeUTF8(one->text, (Py_ssize_t)strlen(one->text), "backslashreplace");
        PyObject *row = text ? Py_BuildValue("(siN)", one->lane, (int)one->reason, text) : NULL;
        if (!row || PyTuple_SetItem(all, (Py_ssize_t)i, row) != 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}

PyObject *wpy_stats(const wherry_stats *stats) {
    PyObject *reasons = PyUnicode_DecodeUTF8(stats->reasons, (Py_ssize_t)strlen(stats->reasons), "backslashreplace");
    PyObject *skipped = reasons ? skipped_lanes(stats) : NULL;
    if (!skipped) {
        Py_XDECREF(reasons);
        return NULL;
    }
    return Py_BuildValue("{s:I,s:d,s:d,s:d,s:d,s:d,s:d,s:d,s:K,s:K,s:K,s:K,s:K,s:I,s:O,s:s,s:N,s:s,s:N}", "retries",
                         (unsigned)stats->retries, "prepare_seconds", stats->prepare_seconds, "offer_seconds",
                         stats->offer_seconds, "plan_seconds", stats->plan_seconds, "data_seconds", stats->data_seconds,
                         "verify_seconds", stats->verify_seconds, "release_seconds", stats->release_seconds,
                         "total_seconds", stats->total_seconds, "tensors", (unsigned long long)stats->tensors,
                         "bytes_wanted", (unsigned long long)stats->bytes_wanted, "bytes_moved",
                         (unsigned long long)stats->bytes_moved, "chunks", (unsigned long long)stats->chunks,
                         "messages", (unsigned long long)stats->messages, "workers", (unsigned)stats->workers,
                         "verified", stats->verified ? Py_True : Py_False, "lane", stats->lane, "reasons", reasons,
                         "detail", stats->detail, "lanes_not_used", skipped);
}
