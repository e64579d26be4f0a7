/* What a received state would become is asked about before its first byte is moved, so that a refusal touches nothing. */
#include "core.h"

static bool check(PyObject *codec, const wherry_value *value, const wpy_step *step);

static bool check_children(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    bool is_dict = wherry_value_kind(value) == WHERRY_KIND_DICT;
    size_t count = is_dict ? wherry_dict_count(value) : wherry_sequence_count(value);
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        wpy_step below = {.up = step, .value_key = is_dict ? wherry_dict_key_at(value, i) : NULL, .index = i};
        ok = check(codec, is_dict ? wherry_dict_at(value, i) : wherry_sequence_at(value, i), &below);
    }
    return ok;
}

static bool check_object(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    PyObject *name = PyUnicode_FromString(wherry_object_type(value));
    PyObject *answer = name ? PyObject_CallMethodObjArgs(codec, wpy_name.check, name, NULL) : NULL;
    if (name && !answer) {
        wpy_add_path(step);
    }
    bool ok = answer != NULL;
    Py_XDECREF(answer);
    Py_XDECREF(name);
    return ok && check(codec, wherry_object_payload(value), step);
}

static bool check(PyObject *codec, const wherry_value *value, const wpy_step *step) {
    switch (wherry_value_kind(value)) {
    case WHERRY_KIND_OBJECT:
    case WHERRY_KIND_LIST:
    case WHERRY_KIND_TUPLE:
    case WHERRY_KIND_DICT: {
        if (Py_EnterRecursiveCall(" while a state was checked")) {
            return false;
        }
        bool ok = wherry_value_kind(value) == WHERRY_KIND_OBJECT ? check_object(codec, value, step)
                                                                 : check_children(codec, value, step);
        Py_LeaveRecursiveCall();
        return ok;
    }
    default:
        return true;
    }
}

bool wpy_check_objects(PyObject *codec, const wherry_value *state) {
    wpy_step root = {0};
    return check(codec, state, &root);
}
