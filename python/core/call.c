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

typedef enum option_kind {
    AS_BOOL,   /**< uint32_t, 0 or 1 */
    AS_I64,    /**< int64_t */
    AS_U32,    /**< uint32_t */
    AS_FLAG,   /**< a bit of a uint32_t */
    AS_TEXT,   /**< const char *, borrowed; None: NULL */
    AS_STEP,   /**< int64_t; None: WHERRY_STEP_ANY */
    AS_VERIFY, /**< wherry_verify, from True, False or None */
    AS_CANCEL, /**< wherry_cancel *; None: NULL */
    AS_CALL,   /**< PyObject *, borrowed; None: NULL */
    AS_STREAM, /**< void *, from an address */
    AS_SECRET, /**< secret and secret_size of wherry_group_options; None: no secret */
} option_kind;

typedef struct option_row {
    const char *name;
    option_kind kind;
    size_t at; /**< Offset in the struct. */
    uint32_t flag;
} option_row;

static bool take_integer(PyObject *value, long long least, long long most, const char *name, long long *number_p) {
    *number_p = PyLong_AsLongLong(value);
    if (*number_p == -1 && PyErr_Occurred()) {
        return false;
    }
    if (*number_p < least || *number_p > most) {
        PyErr_Format(PyExc_ValueError, "%s is %lld, but must be from %lld to %lld", name, *number_p, least, most);
        return false;
    }
    return true;
}

static bool take_truth(PyObject *value, bool *truth_p) {
    int truth = PyObject_IsTrue(value);
    *truth_p = truth > 0;
    return truth >= 0;
}

static bool take_cancel(PyObject *value, wherry_cancel **cancel) {
    if (value != Py_None && Py_TYPE(value) != wpy_cancel_type) {
        PyErr_SetString(PyExc_TypeError, "cancel must be a wherry.Cancel or None");
        return false;
    }
    *cancel = value == Py_None ? NULL : ((wpy_cancel *)value)->cancel;
    return true;
}

static bool take_secret(PyObject *value, wherry_group_options *options) {
    char *bytes;
    Py_ssize_t size;
    if (value == Py_None) {
        return true;
    }
    if (PyBytes_AsStringAndSize(value, &bytes, &size) != 0) {
        return false;
    }
    options->secret = bytes;
    options->secret_size = (size_t)size;
    return true;
}

static bool take(const option_row *row, PyObject *value, void *options) {
    void *place = (char *)options + row->at;
    long long number = WHERRY_STEP_ANY;
    bool truth = false;
    bool ok = true;
    switch (row->kind) {
    case AS_BOOL:
    case AS_FLAG:
        ok = take_truth(value, &truth);
        if (row->kind == AS_BOOL) {
            *(uint32_t *)place = truth;
        } else if (truth) {
            *(uint32_t *)place |= row->flag;
        }
        return ok;
    case AS_I64:
        ok = take_integer(value, INT64_MIN, INT64_MAX, row->name, &number);
        *(int64_t *)place = number;
        return ok;
    case AS_U32:
        ok = take_integer(value, 0, UINT32_MAX, row->name, &number);
        *(uint32_t *)place = (uint32_t)number;
        return ok;
    case AS_STEP:
        ok = value == Py_None || take_integer(value, 0, INT64_MAX, row->name, &number);
        *(int64_t *)place = number;
        return ok;
    case AS_VERIFY:
        ok = value == Py_None || take_truth(value, &truth);
        *(wherry_verify *)place = value == Py_None ? WHERRY_VERIFY_DEFAULT
                                  : truth          ? WHERRY_VERIFY_ON
                                                   : WHERRY_VERIFY_OFF;
        return ok;
    case AS_TEXT:
        *(const char **)place = value == Py_None ? NULL : PyUnicode_AsUTF8AndSize(value, NULL);
        return value == Py_None || *(const char **)place;
    case AS_CANCEL:
        return take_cancel(value, place);
    case AS_STREAM:
        *(void **)place = PyLong_AsVoidPtr(value);
        return !PyErr_Occurred();
    case AS_CALL:
        *(PyObject **)place = value == Py_None ? NULL : value;
        return true;
    default:
        return take_secret(value, options);
    }
}

static bool take_all(PyObject *dict, const option_row *rows, size_t count, void *options) {
    PyObject *key;
    PyObject *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
        size_t i = 0;
        while (name && i < count && strcmp(rows[i].name, name) != 0) {
            i++;
        }
        if (!name || i == count) {
            PyErr_Format(PyExc_TypeError, "unknown option %R", key);
            return false;
        }
        if (!take(rows + i, value, options)) {
            return false;
        }
    }
    return true;
}

/** The options of a transfer, and one that only Python has. */
typedef struct transfer_extra {
    wherry_transfer_options options;
    PyObject *progress;
} transfer_extra;

#define IN(member) offsetof(transfer_extra, options) + offsetof(wherry_transfer_options, member)

bool wpy_transfer_options(PyObject *dict, wherry_transfer_options *options, wpy_call *call) {
    static const option_row rows[] = {
        {"timeout_ms", AS_I64, IN(timeout_ms), 0},
        {"no_progress_ms", AS_I64, IN(no_progress_ms), 0},
        {"step", AS_STEP, IN(step), 0},
        {"lanes", AS_TEXT, IN(lanes), 0},
        {"threads", AS_U32, IN(threads), 0},
        {"verify", AS_VERIFY, IN(verify), 0},
        {"partial", AS_FLAG, IN(flags), WHERRY_RECV_PARTIAL},
        {"new", AS_FLAG, IN(flags), WHERRY_RECV_NEW},
        {"any_device", AS_FLAG, IN(flags), WHERRY_RECV_ANY_DEVICE},
        {"any_box", AS_FLAG, IN(flags), WHERRY_RECV_ANY_BOX},
        {"keep_ptracer", AS_FLAG, IN(flags), WHERRY_KEEP_PTRACER},
        {"keep_open", AS_FLAG, IN(flags), WHERRY_KEEPS_MEMORY},
        {"stream", AS_STREAM, IN(stream), 0},
        {"mesh_rank", AS_I64, IN(rank), 0},
        {"progress", AS_CALL, offsetof(transfer_extra, progress), 0},
        {"cancel", AS_CANCEL, IN(cancel), 0},
    };
    transfer_extra extra = {0};
    wherry_transfer_options_init(&extra.options);
    if (!take_all(dict, rows, sizeof(rows) / sizeof(*rows), &extra)) {
        return false;
    }
    *options = extra.options;
    options->interrupt = on_interrupt;
    options->interrupt_context = call;
    call->progress = extra.progress;
    if (call->progress) {
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

#undef IN
#define IN(member) offsetof(wherry_group_options, member)

bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call) {
    static const option_row rows[] = {
        {"timeout_ms", AS_U32, IN(timeout_ms), 0},          {"secret", AS_SECRET, IN(secret), 0},
        {"allow_insecure", AS_BOOL, IN(allow_insecure), 0}, {"wait_for", AS_U32, IN(wait_for), 0},
        {"client", AS_FLAG, IN(flags), WHERRY_JOIN_CLIENT}, {"heartbeat_ms", AS_U32, IN(heartbeat_ms), 0},
        {"dead_after_ms", AS_U32, IN(dead_after_ms), 0},
    };
    wherry_group_options_init(options);
    options->interrupt = on_interrupt;
    options->interrupt_context = call;
    return take_all(dict, rows, sizeof(rows) / sizeof(*rows), options);
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
