/*
 * The type State: a value tree, the owners of its memory, and the objects that its leaves were made
 * from.
 */
#include <stdlib.h>

#include "core.h"

/* ---- a hash map from addresses to numbers: open addressing, at most half full ---- */

enum { MAP_SIZE_MIN = 64 };

/** Returns the slot of a key, or the free slot in which to store it. */
static wpy_map_slot *find_slot(const wpy_map *map, uintptr_t address, uint64_t detail) {
    uint64_t hash = ((uint64_t)address ^ detail << 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = (size_t)(hash >> 20) & (map->size - 1);; i = (i + 1) & (map->size - 1)) {
        wpy_map_slot *slot = map->slots + i;
        if (!slot->number || (slot->address == address && slot->detail == detail)) {
            return slot;
        }
    }
}

/** Makes room for `count` keys. */
static bool map_reserve(wpy_map *map, size_t count) {
    wpy_map larger = {.size = map->size ? map->size : MAP_SIZE_MIN, .count = map->count};
    while (larger.size / 2 < count) {
        larger.size *= 2;
    }
    if (larger.size == map->size) {
        return true;
    }
    larger.slots = calloc(larger.size, sizeof(*larger.slots));
    if (!larger.slots) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < map->size; i++) {
        const wpy_map_slot *slot = map->slots + i;
        if (slot->number) {
            *find_slot(&larger, slot->address, slot->detail) = *slot;
        }
    }
    free(map->slots);
    *map = larger;
    return true;
}

bool wpy_map_add(wpy_map *map, uintptr_t address, uint64_t detail, size_t number) {
    if (!map_reserve(map, map->count + 1)) {
        return false;
    }
    *find_slot(map, address, detail) = (wpy_map_slot){address, detail, number + 1};
    map->count++;
    return true;
}

size_t wpy_map_find(const wpy_map *map, uintptr_t address, uint64_t detail) {
    const wpy_map_slot *slot = map->count ? find_slot(map, address, detail) : NULL;
    return slot && slot->number ? slot->number - 1 : WPY_MAP_NONE;
}

void wpy_map_clear(wpy_map *map) {
    free(map->slots);
    *map = (wpy_map){0};
}

/* ---- states ---- */

wpy_state *wpy_state_new(void) {
    wpy_state *state = wpy_object_new(wpy_state_type);
    if (state) {
        state->owners = PyList_New(0);
        if (!state->owners) {
            Py_CLEAR(state);
        }
    }
    return state;
}

static void state_dealloc(PyObject *self) {
    wpy_state *state = (wpy_state *)self;
    wpy_pending pending = wpy_set_aside();
    wherry_value_destroy(state->root);
    for (size_t i = 0; i < state->leaf_count; i++) {
        Py_DECREF(state->leaves[i].object);
    }
    free(state->leaves);
    wpy_map_clear(&state->index);
    Py_XDECREF(state->owners);
    wpy_put_back(pending);
    wpy_object_free(self);
}

bool wpy_state_add_leaf(wpy_state *state, const wherry_value *value, PyObject *object) {
    if (state->leaf_count == state->leaf_capacity) {
        size_t capacity = state->leaf_capacity ? 2 * state->leaf_capacity : 64;
        wpy_leaf *leaves = realloc(state->leaves, capacity * sizeof(*leaves));
        if (!leaves) {
            PyErr_NoMemory();
            return false;
        }
        state->leaves = leaves;
        state->leaf_capacity = capacity;
    }
    state->leaves[state->leaf_count++] = (wpy_leaf){value, Py_NewRef(object)};
    return true;
}

static bool make_index(wpy_state *state) {
    bool ok = map_reserve(&state->index, state->leaf_count);
    for (size_t i = 0; ok && i < state->leaf_count; i++) {
        ok = wpy_map_add(&state->index, (uintptr_t)state->leaves[i].value, 0, i);
    }
    return ok;
}

PyObject *wpy_state_find(wpy_state *state, const wherry_value *value) {
    if (!state->index.count && !make_index(state)) {
        return NULL;
    }
    size_t number = wpy_map_find(&state->index, (uintptr_t)value, 0);
    return number == WPY_MAP_NONE ? NULL : state->leaves[number].object;
}

static PyObject *state_cuda_devices(PyObject *self, PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < 64; i++) {
        PyObject *number = ((wpy_state *)self)->cuda_devices >> i & 1 ? PyLong_FromLong(i) : NULL;
        if (PyErr_Occurred() || (number && PyList_Append(list, number) != 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}

static PyMethodDef state_methods[] = {
    {"cuda_devices", state_cuda_devices, METH_NOARGS,
     "The indices of the CUDA devices that have memory of this state."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject *wpy_state_type_new(void) {
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, state_dealloc},
        {Py_tp_methods, state_methods},
        {Py_tp_doc, (char *)"A value tree and the owners of its memory."},
        {0, NULL},
    };
    return wpy_type_new("wherry._core.State", sizeof(wpy_state), false, slots);
}
