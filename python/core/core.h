/**
 * @file core.h  Shared by the files of the extension wherry._core.
 *
 * The extension uses CPython's stable ABI (3.11 and later) and the library's public headers only.
 * Start with build_state.c (Python values become a state), restore.c (and back) and
 * transport_type.c (sending and receiving).
 *
 * Invariants:
 * 1. Code runs with the GIL held, except between Py_BEGIN_ALLOW_THREADS and Py_END_ALLOW_THREADS
 *    and in callbacks of the library before PyGILState_Ensure.
 * 2. A function that returns NULL, false or -1 has set an exception, unless its comment says
 *    otherwise.
 * 3. Storages never own memory of Python objects: a wpy_state keeps the owners alive.
 */
#ifndef WPY_CORE_H
#define WPY_CORE_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* ---- names and exceptions (module.c) ---- */

/** X(NAME): attributes and methods that are looked up often, interned once. */
/* clang-format off */
#define WPY_NAME_LIST(X) \
    X(__dlpack_c_exchange_api__) X(_cdata) X(abandon) X(allocate) X(check) X(data_ptr) X(decode) \
    X(destroy) X(device) X(dtensor) X(dtype) X(dtypes) X(encode) X(fill_host) X(get) X(is_conj) \
    X(is_neg) X(path) X(put) X(report) X(requires_grad) X(shape) X(sharded) X(stats) \
    X(storage_offset) X(stride) X(tensor) X(tensor_types) X(to_host) X(untyped_storage)
/* clang-format on */

typedef struct wpy_names {
#define WPY_X(name) PyObject *name;
    WPY_NAME_LIST(WPY_X)
#undef WPY_X
} wpy_names;

extern wpy_names wpy_name;

/** The classes of wherry._nodes. */
typedef struct wpy_nodes {
    PyObject *object;
    PyObject *memory;
    PyObject *mesh;
    PyObject *placement;
    PyObject *dtensor;
    PyObject *place;
    PyObject *box;
    PyObject *sharding;
    PyObject *sharded;
} wpy_nodes;

extern wpy_nodes wpy_node;

/** Imports wherry._nodes on the first call. */
bool wpy_nodes_ready(void);

/** Creates the exception for an error record; a new reference. */
PyObject *wpy_error_new(const wherry_error *error);

/** Raises an error record. Always returns NULL. */
void *wpy_raise(const wherry_error *error);

/** Sets the Python function that creates exceptions. */
PyObject *wpy_set_error_class(PyObject *module, PyObject *make);

/**
 * The exception that was set when a destructor began. The destructor must neither see nor lose it.
 */
typedef struct wpy_pending {
    PyObject *type, *value, *traceback;
} wpy_pending;

wpy_pending wpy_set_aside(void);
void wpy_put_back(wpy_pending pending);

/**
 * A step on the path to the current value, on the stack: a dict key, or `index` if both keys are
 * NULL.
 */
typedef struct wpy_step {
    const struct wpy_step *up;
    PyObject *key;                 /**< While a state is built. */
    const wherry_value *value_key; /**< While a state is restored. */
    uint64_t index;
} wpy_step;

/** Adds the path to the exception that is set, if it is one of Wherry's and has none yet. */
void wpy_add_path(const wpy_step *step);

/* ---- scalars, devices and integers (build_state.c, restore.c) ---- */

/**
 * Creates a scalar. NULL without an exception if the type is none of the library's scalar types.
 */
wherry_value *wpy_scalar_new(PyObject *value);

/** Reads a device from its text. */
bool wpy_read_device(PyObject *text, wherry_device *device_p);

/** Reads a tuple of at most `capacity` integers. Returns their number, or -1. */
Py_ssize_t wpy_read_integers(PyObject *tuple, int64_t *items, size_t capacity);

/** A tuple of integers; a new reference. */
PyObject *wpy_integers(const int64_t *items, size_t count);

/* ---- states (state_type.c) ---- */

typedef struct wpy_map_slot {
    uintptr_t address;
    uint64_t detail;
    size_t number; /**< Plus 1; 0 if the slot is free. */
} wpy_map_slot;

/** A hash map from (address, detail) to a number. All zero: empty. */
typedef struct wpy_map {
    wpy_map_slot *slots;
    size_t size; /**< A power of two, or 0. */
    size_t count;
} wpy_map;

#define WPY_MAP_NONE SIZE_MAX

/** Adds a key that is not in the map. */
bool wpy_map_add(wpy_map *map, uintptr_t address, uint64_t detail, size_t number);

/** The number, or WPY_MAP_NONE. */
size_t wpy_map_find(const wpy_map *map, uintptr_t address, uint64_t detail);
void wpy_map_clear(wpy_map *map);

/** A leaf with tensors, and the Python object that it was made from. */
typedef struct wpy_leaf {
    const wherry_value *value;
    PyObject *object;
} wpy_leaf;

/** The type State: a value tree and everything that its tensors need. */
typedef struct wpy_state {
    PyObject_HEAD wherry_value *root;
    PyObject *owners; /**< A list: whatever keeps the memory of the storages alive. */
    wpy_leaf *leaves;
    size_t leaf_count;
    size_t leaf_capacity;
    wpy_map index;         /**< From the address of a leaf to its number; filled on first use. */
    uint64_t cuda_devices; /**< One bit per CUDA device that holds memory of this state. */
} wpy_state;

extern PyTypeObject *wpy_state_type;
PyTypeObject *wpy_state_type_new(void);

/** An empty state; a new reference. */
wpy_state *wpy_state_new(void);

/** Records which object a leaf was made from. */
bool wpy_state_add_leaf(wpy_state *state, const wherry_value *value, PyObject *object);

/**
 * The object that a leaf was made from, borrowed; NULL without an exception if it is not in the
 * state.
 */
PyObject *wpy_state_find(wpy_state *state, const wherry_value *value);

/* ---- from Python to a state (build_state.c, node.c, tensors.c) ---- */

/** DLPack's function that describes a tensor. Its fields are in tensors.c. */
struct wpy_dl_tensor;
typedef int (*wpy_dl_read_fn)(void *object, struct wpy_dl_tensor *tensor);

typedef struct wpy_builder {
    wpy_state *state;
    PyObject *codec;
    /** Of the codec: a dict from type to the name of the wrapping object, or None. */
    PyObject *tensor_types;
    PyObject *dtypes; /**< Of the codec: a dict from torch.dtype to wherry_dtype. */
    wherry_storage **storages;
    size_t storage_capacity;
    wpy_map storage_numbers; /**< From a wpy_storage_key to the index in `storages`. */
    /* Most tensors have the type and the device of the previous one. */
    PyTypeObject *tensor_type;
    PyObject *wrapping;    /**< Borrowed; NULL if tensors of that type are not wrapped. */
    wpy_dl_read_fn read;   /**< NULL if that type has no DLPack table. */
    PyObject *device_seen; /**< NULL: none yet. */
    wherry_device device;
    bool staged; /**< codec.to_host() was called, so codec.fill_host() must follow. */
} wpy_builder;

/** build(value, codec) -> State */
PyObject *wpy_build(PyObject *module, PyObject *arguments);

/** Builds the value of any object. */
wherry_value *wpy_build_value(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** Builds the value of an object that only the codec understands. */
wherry_value *wpy_build_encoded(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** Builds the value of a node of wherry._nodes. The codec made the node from `original`. */
wherry_value *wpy_build_node(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step);

/** Builds a torch tensor. If `plain`, it is never wrapped in an object. */
wherry_value *wpy_build_torch(wpy_builder *builder, PyObject *object, bool plain, const wpy_step *step);

/** 1 if wpy_build_torch reads objects of this type, 0 if not, -1 on failure. */
int wpy_is_torch(wpy_builder *builder, PyTypeObject *type);

/** Identifies a storage: two views with the same key share it. */
typedef struct wpy_storage_key {
    uintptr_t address;
    uint64_t nbytes;
} wpy_storage_key;

/** The storage with this key, owned by the builder; NULL without an exception if there is none. */
wherry_storage *wpy_storage_find(const wpy_builder *builder, wpy_storage_key key);

/** Wraps memory as a new storage, owned by the builder. The state keeps `owner` alive. */
wherry_storage *wpy_storage_add(wpy_builder *builder, wpy_storage_key key, void *data, uint64_t nbytes,
                                wherry_device device, PyObject *owner);

/** buffer_range(object) -> (address, nbytes), or None if it has no buffer protocol */
PyObject *wpy_buffer_range(PyObject *module, PyObject *object);

/** read_dlpack(capsule) -> (address, dtype or None, code, bits, shape, strides or None, flags) */
PyObject *wpy_read_dlpack(PyObject *module, PyObject *capsule);

/* ---- from a state to Python (restore.c) ---- */

/** Allocates storages for a received state, and turns it into Python values. */
typedef struct wpy_restorer {
    PyObject *codec;
    PyObject *owners;  /**< A dict from the address of a new storage to its owner. */
    wpy_state *target; /**< NULL if nothing is received in place. */
    PyObject *devices; /**< A dict from kind and index of a device, as one number, to its text. */
} wpy_restorer;

bool wpy_restorer_init(wpy_restorer *restorer, PyObject *codec, wpy_state *target);
void wpy_restorer_clear(wpy_restorer *restorer);

/**
 * Allocates a storage through the codec. Call it with the GIL held. Sets an exception on failure.
 */
wherry_status wpy_restorer_allocate(wpy_restorer *restorer, uint64_t nbytes, wherry_device device,
                                    wherry_storage **storage_p);

/**
 * Asks the codec about every object of a state, so that a refusal comes before the first byte
 * moves.
 */
bool wpy_check_objects(PyObject *codec, const wherry_value *state);

/** The Python value of a received state; a new reference. */
PyObject *wpy_restore(wpy_restorer *restorer, const wherry_value *state);

/* ---- calls that run without the GIL (call.c) ---- */

typedef struct wpy_call {
    PyObject *progress;                     /**< Borrowed; NULL if there is none. */
    wpy_restorer *restorer;                 /**< Of a receive. */
    bool failed;                            /**< A callback or a signal handler raised */
    PyObject *type, *exception, *traceback; /**< this exception. */
} wpy_call;

/** The call that this thread is inside; NULL if none. */
extern _Thread_local wpy_call *wpy_current_call;

/**
 * Enters a call. Returns the outer one, to be put back at the end: callbacks may make calls too.
 */
wpy_call *wpy_enter_call(wpy_call *call);

/** Keeps the exception that is set until the end of the call. */
void wpy_call_fail(wpy_call *call);

/** Raises the exception that was kept. Returns false if there is none. */
bool wpy_call_raise(wpy_call *call);

/** Fills options from a dict, which the options borrow from, and sets the callbacks. */
bool wpy_transfer_options(PyObject *dict, wherry_transfer_options *options, wpy_call *call);
bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call);

/** The figures of a transfer as a dict; a new reference. */
PyObject *wpy_stats(const wherry_stats *stats);

/* ---- types (group_type.c, transport_type.c) ---- */

/** Allocates an object of a type, filled with zeros; a new reference. */
void *wpy_object_new(PyTypeObject *type);

/** Frees an object, at the end of its destructor. */
void wpy_object_free(PyObject *self);

/** Creates a type. `slots` must live as long as the process. */
PyTypeObject *wpy_type_new(const char *name, size_t size, bool can_be_called, PyType_Slot *slots);

typedef struct wpy_cancel {
    PyObject_HEAD wherry_cancel *cancel;
} wpy_cancel;

typedef struct wpy_group {
    PyObject_HEAD wherry_group *group; /**< NULL after leave(). */
    int users;                         /**< Transports and calls that use it. */
    int process;                       /**< The process that joined. */
} wpy_group;

extern PyTypeObject *wpy_cancel_type;
extern PyTypeObject *wpy_group_type;
PyTypeObject *wpy_cancel_type_new(void);
PyTypeObject *wpy_group_type_new(void);
PyTypeObject *wpy_transport_type_new(void);

#endif
