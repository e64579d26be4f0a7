/* restore(): a state goes through manifest and plan within this process, as it would between two. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/** Where the next piece of a chunk goes. */
typedef struct gathering {
    uint8_t *at;
} gathering;

static int gather(void *context, const wherry_piece *piece) {
    gathering *g = context;
    const uint8_t *from = (const uint8_t *)wherry_storage_data(piece->storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count; i++) {
        memcpy(g->at, from + i * piece->stride, piece->length);
        g->at += piece->length;
    }
    return 0;
}

static wherry_status copy_chunk(const wherry_prepared *source, const wherry_plan *plan, uint64_t chunk,
                                wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(source, chunk, &begin, &length);
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes) {
        *error = (wherry_error){.status = WHERRY_NO_MEMORY, .rank = -1};
        return WHERRY_NO_MEMORY;
    }
    gathering g = {bytes};
    wherry_prepared_visit_chunk(source, chunk, gather, &g);
    wherry_status status = wherry_plan_place(plan, chunk, bytes, length, error);
    free(bytes);
    return status;
}

static wherry_status copy_chunks(const wherry_prepared *source, const wherry_plan *plan, wherry_error *error) {
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(plan, &count);
    wherry_status status = WHERRY_OK;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t c = 0; c < intervals[i].count && status == WHERRY_OK; c++) {
            status = copy_chunk(source, plan, intervals[i].first + c, error);
        }
    }
    return status;
}

static wherry_status allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p) {
    return wpy_restorer_allocate(context, nbytes, device, storage_p);
}

/** The plan for what a manifest says. */
static wherry_status make_plan(const wherry_prepared *source, wpy_restorer *restorer, wherry_plan **plan_p,
                               wherry_error *error) {
    void *bytes;
    size_t size;
    wherry_prepared *received = NULL;
    wherry_status status = wherry_manifest_encode(source, &bytes, &size, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_manifest_decode(bytes, size, NULL, &received, error);
    wherry_free(bytes);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.allocate = allocate;
    options.context = restorer;
    if (!wpy_check_objects(restorer->codec, wherry_prepared_state(received))) {
        status = WHERRY_UNSUPPORTED;
    } else {
        status =
            wherry_plan_create(received, restorer->target ? restorer->target->root : NULL, &options, plan_p, error);
    }
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(received);
    }
    return status;
}

static PyObject *rehearse(const wherry_prepared *source, wpy_restorer *restorer) {
    wherry_plan *plan = NULL;
    wherry_value *state = NULL;
    wherry_error error;
    wherry_status status = make_plan(source, restorer, &plan, &error);
    if (status == WHERRY_OK) {
        status = copy_chunks(source, plan, &error);
    }
    if (status == WHERRY_OK) {
        status = wherry_plan_take_state(plan, &state, &error);
    }
    PyObject *value = NULL;
    if (status == WHERRY_OK) {
        value = wpy_restore(restorer, state);
    } else if (!PyErr_Occurred()) {
        wpy_raise(&error);
    }
    wherry_value_destroy(state);
    wherry_plan_destroy(plan);
    return value;
}

PyObject *wpy_restore_call(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *state;
    PyObject *codec;
    PyObject *target = Py_None;
    wpy_restorer restorer = {0};
    wherry_prepared *prepared;
    wherry_error error;
    if (!PyArg_ParseTuple(arguments, "O!O|O:restore", wpy_state_type, &state, &codec, &target)) {
        return NULL;
    }
    if (target != Py_None && Py_TYPE(target) != wpy_state_type) {
        PyErr_SetString(PyExc_TypeError, "target is a State or None");
        return NULL;
    }
    PyObject *value = NULL;
    if (wpy_restorer_init(&restorer, codec, target == Py_None ? NULL : (wpy_state *)target)) {
        if (wherry_prepare(((wpy_state *)state)->root, NULL, &prepared, &error) == WHERRY_OK) {
            value = rehearse(prepared, &restorer);
            wherry_prepared_destroy(prepared);
        } else {
            wpy_raise(&error);
        }
    }
    wpy_restorer_clear(&restorer);
    return value;
}
