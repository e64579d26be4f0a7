/* Options of calls, from a dict: each name once, in a table; an unknown name is an error. */
#include <string.h>

#include "core.h"

typedef enum option_kind {
    AS_BOOL,   /**< bool */
    AS_I64,    /**< int64_t */
    AS_U32,    /**< uint32_t */
    AS_FLAG,   /**< A bit of the uint32_t. */
    AS_TEXT,   /**< const char *, or None; borrowed. */
    AS_STEP,   /**< int64_t, None: any. */
    AS_VERIFY, /**< wherry_verify, from True, False and None. */
    AS_CANCEL, /**< A Cancel, or None. */
    AS_CALL,   /**< PyObject *, None: NULL; borrowed. */
    AS_STREAM, /**< void *, from an address; 0: NULL. */
    AS_SECRET, /**< Bytes, or None: pointer and size of wherry_group_options. */
} option_kind;

typedef struct option_row {
    const char *name;
    option_kind kind;
    size_t at; /**< In the struct. */
    uint32_t flag;
} option_row;

static bool take_integer(PyObject *value, long long least, long long most, const char *name, long long *number_p) {
    *number_p = PyLong_AsLongLong(value);
    if (*number_p == -1 && PyErr_Occurred()) {
        return false;
    }
    if (*number_p < least || *number_p > most) {
        PyErr_Format(PyExc_ValueError, "%s is %lld and must be %lld to %lld", name, *number_p, least, most);
        return false;
    }
    return true;
}

static bool take_text(PyObject *value, const char **text) {
    *text = value == Py_None ? NULL : PyUnicode_AsUTF8AndSize(value, NULL);
    return value == Py_None || *text;
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

static bool take_truth(PyObject *value, bool *truth_p) {
    int truth = PyObject_IsTrue(value);
    *truth_p = truth > 0;
    return truth >= 0;
}

static bool take_cancel(PyObject *value, wherry_cancel **cancel) {
    if (value != Py_None && Py_TYPE(value) != wpy_cancel_type) {
        PyErr_SetString(PyExc_TypeError, "cancel is a wherry.Cancel or None");
        return false;
    }
    *cancel = value == Py_None ? NULL : ((wpy_cancel *)value)->cancel;
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
        return take_text(value, place);
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
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "options are a dict");
        return false;
    }
    while (PyDict_Next(dict, &position, &key, &value)) {
        const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
        size_t i = 0;
        while (name && i < count && strcmp(rows[i].name, name) != 0) {
            i++;
        }
        if (!name || i == count) {
            PyErr_Format(PyExc_TypeError, "%R is not an option of this call", key);
            return false;
        }
        if (!take(rows + i, value, options)) {
            return false;
        }
    }
    return true;
}

/** The options of a transfer, and what only Python knows. */
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
    options->interrupt = wpy_call_interrupt;
    options->interrupt_context = call;
    call->progress = extra.progress;
    if (extra.progress) {
        options->progress = wpy_call_progress;
        options->progress_context = call;
    }
    return true;
}

#undef IN
#define IN(member) offsetof(wherry_group_options, member)

bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call) {
    static const option_row rows[] = {
        {"timeout_ms", AS_U32, IN(timeout_ms), 0},          {"secret", AS_SECRET, IN(secret), 0},
        {"allow_insecure", AS_BOOL, IN(allow_insecure), 0}, {"wait_for", AS_U32, IN(wait_for), 0},
        {"guest", AS_FLAG, IN(flags), WHERRY_JOIN_CLIENT},   {"heartbeat_ms", AS_U32, IN(heartbeat_ms), 0},
        {"dead_after_ms", AS_U32, IN(dead_after_ms), 0},
    };
    wherry_group_options_init(options);
    options->interrupt = wpy_call_interrupt;
    options->interrupt_context = call;
    return take_all(dict, rows, sizeof(rows) / sizeof(*rows), options);
}
