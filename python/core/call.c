/* Calls that run without the GIL: what they tell Python meanwhile, and what Python raised. */
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

bool wpy_call_interrupt(void *context) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed && PyErr_CheckSignals() != 0) {
        wpy_call_fail(call);
    }
    PyGILState_Release(gil);
    return call->failed;
}

void wpy_call_progress(void *context, const wherry_progress *progress) {
    wpy_call *call = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (!call->failed) {
        PyObject *answer =
            PyObject_CallFunction(call->progress, "iKKdss", (int)progress->peer, (unsigned long long)progress->bytes,
                                  (unsigned long long)progress->total, progress->rate, progress->path, progress->lane);
        if (!answer) {
            wpy_call_fail(call); /* ends the transfer, at the next look for signals */
        }
        Py_XDECREF(answer);
    }
    PyGILState_Release(gil);
}

wherry_status wpy_call_allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
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

wherry_status wpy_call_inspect(void *context, const wherry_value *state) {
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

PyObject *wpy_stats(const wherry_stats *stats) {
    return Py_BuildValue(
        "{s:I,s:d,s:d,s:d,s:d,s:d,s:d,s:d,s:K,s:K,s:K,s:K,s:K,s:I,s:O,s:s,s:s,s:s}", "retries",
        (unsigned)stats->retries, "prepare_seconds", stats->prepare_seconds, "offer_seconds", stats->offer_seconds,
        "plan_seconds", stats->plan_seconds, "data_seconds", stats->data_seconds, "verify_seconds",
        stats->verify_seconds, "release_seconds", stats->release_seconds, "total_seconds", stats->total_seconds,
        "tensors", (unsigned long long)stats->tensors, "bytes_wanted", (unsigned long long)stats->bytes_wanted,
        "bytes_moved", (unsigned long long)stats->bytes_moved, "chunks", (unsigned long long)stats->chunks, "messages",
        (unsigned long long)stats->messages, "workers", (unsigned)stats->workers, "verified",
        stats->verified ? Py_True : Py_False, "lane", stats->lane, "reasons", stats->reasons, "detail", stats->detail);
}
