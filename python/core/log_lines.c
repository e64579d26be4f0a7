/*
 * Passes the library's log lines on to Python.
 *
 * A thread of the library may log while it holds a lock for which a thread with the GIL waits. So a
 * line is only queued, without the GIL. The main thread passes queued lines on between two of its
 * bytecodes, and every thread does so at the end of a call, and while a call waits.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct line {
    struct line *next; /**< The line that was logged before this one. */
    wherry_log_level level;
    char text[];
} line;

static _Atomic(line *) newest;
static PyObject *log_function; /* Guarded by the GIL. */

static int pass_on(void *Py_UNUSED(unused)) {
    wpy_log_flush();
    return 0;
}

static void on_line(void *Py_UNUSED(context), wherry_log_level level, const char *text) {
    size_t size = strlen(text) + 1;
    line *one = malloc(sizeof(*one) + size);
    if (!one) {
        return;
    }
    one->level = level;
    memcpy(one->text, text, size);
    one->next = atomic_load(&newest);
    while (!atomic_compare_exchange_weak(&newest, &one->next, one)) {
    }
    if (!one->next) {
        /* If this fails, the end of the next call does it. */
        (void)Py_AddPendingCall(pass_on, NULL);
    }
}

void wpy_log_flush(void) {
    line *taken = atomic_load(&newest) ? atomic_exchange(&newest, NULL) : NULL;
    line *oldest = NULL;
    while (taken) {
        line *before = taken->next;
        taken->next = oldest;
        oldest = taken;
        taken = before;
    }
    if (!oldest) {
        return;
    }
    wpy_pending raised = wpy_set_aside();
    PyObject *function = Py_XNewRef(log_function);
    while (oldest) {
        line *one = oldest;
        oldest = one->next;
        PyObject *text = PyUnicode_DecodeUTF8(one->text, (Py_ssize_t)strlen(one->text), "backslashreplace");
        PyObject *answer = function && text ? PyObject_CallFunction(function, "iO", (int)one->level, text) : NULL;
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(function);
        }
        Py_XDECREF(answer);
        Py_XDECREF(text);
        free(one);
    }
    Py_XDECREF(function);
    wpy_put_back(raised);
}

PyObject *wpy_set_log_function(PyObject *Py_UNUSED(module), PyObject *function) {
    wpy_log_flush();
    PyObject *before = log_function;
    bool on = function != Py_None;
    log_function = on ? Py_NewRef(function) : NULL;
    Py_XDECREF(before);
    wherry_log_to(on ? on_line : NULL, NULL);
    if (!getenv("WHERRY_LOG")) {
        wherry_log_set_level(on ? WHERRY_LOG_INFO : WHERRY_LOG_WARN);
    }
    Py_RETURN_NONE;
}
