/**
 * @file core.h  Shared by the files of the extension wherry._core.
 *
 * The extension uses only CPython's stable ABI (3.11 and later) and the library's public headers.
 * Start with build_state.c (from Python values to a state), restore.c (from a state to Python
 * values) and transport_type.c (sending and receiving).
 *
 * Invariants:
 * 1. Code runs with the GIL held, except between Py_BEGIN_ALLOW_THREADS and Py_END_ALLOW_THREADS.
 *    Callbacks of the library run without the GIL, except after PyGILState_Ensure.
 * 2. A function that fails sets an exception and returns NULL, false or -1, unless its comment says
 *    otherwise.
 * 3. No call runs when a group is left or a transport closed: wherry._connection sees to it.
 * 4. Storages never own memory of Python objects. A wpy_state or wpy_restorer owns the objects.
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

/** X(NAME): names of attributes and methods that are looked up often. They are interned once. */
/* clang-format off */
#define WPY_NAME_LIST(X) \
    X(__dlpack_c_exchange_api__) X(_cdata) X(abandon) X(check) X(data_ptr) X(decode) X(destroy) \
    X(device) X(distributed) X(dtype) X(dtypes) X(encode) X(fill_host) X(get) X(is_conj) \
    X(is_neg) X(path) X(put) X(report) X(requires_grad) X(shape) X(stats) \
    X(storage_offset) X(stride) X(tensor) X(tensor_types) X(to_host) X(untyped_storage)
/* clang-format on */

typedef struct wpy_names {
#define WPY_X(name) PyObject *name;
    WPY_NAME_LIST(WPY_X)
#undef WPY_X
} wpy_names;

extern wpy_names wpy_name;

/** X(NAME): the classes of wherry._nodes. */
#define WPY_NODE_LIST(X) X(Object) X(Memory) X(Mesh) X(Placement) X(DTensor) X(Box) X(Sharded)

typedef struct wpy_nodes {
#define WPY_X(name) PyObject *name;
    WPY_NODE_LIST(WPY_X)
#undef WPY_X
} wpy_nodes;

extern wpy_nodes wpy_node;

/** Imports wherry._nodes on the first call, and sets wpy_node. */
bool wpy_nodes_ready(void);

/** Creates the exception for a wherry_error. Returns a new reference. */
PyObject *wpy_error_new(const wherry_error *error);

/** Raises the exception for a wherry_error. Always returns NULL. */
void *wpy_raise(const wherry_error *error);

/** Raises the exception for a status, with this message. Always returns NULL. */
void *wpy_raise_status(wherry_status status, const char *message);

/** Sets the Python function that creates exceptions. */
PyObject *wpy_set_error_class(PyObject *module, PyObject *make);

/** An exception that is not set at the moment. See wpy_set_aside. */
typedef struct wpy_pending {
    PyObject *type, *value, *traceback;
} wpy_pending;

/** Clears the current exception, if any, and returns it. */
wpy_pending wpy_set_aside(void);

/** Sets an exception from wpy_set_aside again. Takes its references. */
void wpy_put_back(wpy_pending pending);

/** A step on the path to the current value. Lives on the stack. */
typedef struct wpy_step {
    const struct wpy_step *up;     /**< The step before; NULL for the root. */
    PyObject *key;                 /**< The dict key while a state is built, or NULL. */
    const wherry_value *value_key; /**< The dict key while a state is restored, or NULL. */
    uint64_t index;                /**< Index in a sequence, if both keys are NULL. */
} wpy_step;

/** Adds the path to the current exception, if it is one of Wherry's and has no path yet. */
void wpy_add_path(const wpy_step *step);

/* ---- scalars, devices and integers (build_state.c, restore.c) ---- */

/** Creates a scalar. Returns NULL without an exception if the library has none for this object. */
wherry_value *wpy_scalar_new(PyObject *value);

/** Reads a device from its text. */
bool wpy_read_device(PyObject *text, wherry_device *device_p);

/** Reads a tuple of at most `capacity` integers. Returns their number, or -1. */
Py_ssize_t wpy_read_integers(PyObject *tuple, int64_t *items, size_t capacity);

/** Creates a tuple of integers. Returns a new reference. */
PyObject *wpy_integers(const int64_t *items, size_t count);

/** Sets an item of a new list or tuple. Takes the reference. If item is NULL, clears *sequence. */
void wpy_set_item(PyObject **sequence, size_t i, PyObject *item);

/* ---- states (state_type.c) ---- */

typedef struct wpy_map_slot {
    uintptr_t address;
    uint64_t detail;
    size_t number; /**< The number plus 1; 0 if the slot is free. */
} wpy_map_slot;

/** A hash map from (address, detail) to a number. Initialize it with zeros. */
typedef struct wpy_map {
    wpy_map_slot *slots;
    size_t size; /**< A power of two, or 0. */
    size_t count;
} wpy_map;

#define WPY_MAP_NONE SIZE_MAX

/** Adds a key, which must not be in the map yet. */
bool wpy_map_add(wpy_map *map, uintptr_t address, uint64_t detail, size_t number);

/** Returns the number of a key, or WPY_MAP_NONE. */
size_t wpy_map_find(const wpy_map *map, uintptr_t address, uint64_t detail);
void wpy_map_clear(wpy_map *map);

/** A tensor, DTensor or ShardedTensor, and the Python object that it was made from. */
typedef struct wpy_leaf {
    const wherry_value *value;
    PyObject *object;
} wpy_leaf;

/** The type State: a value tree, the owners of its memory, and the objects of its leaves. */
typedef struct wpy_state {
    PyObject_HEAD wherry_value *root;
    PyObject *owners; /**< A list of objects that keep the memory of the storages alive. */
    wpy_leaf *leaves;
    size_t leaf_count;
    size_t leaf_capacity;
    wpy_map index;         /**< From a leaf's address to its index in `leaves`; built lazily. */
    uint64_t cuda_devices; /**< Bit i is set if CUDA device i has memory of this state. */
} wpy_state;

extern PyTypeObject *wpy_state_type;
PyTypeObject *wpy_state_type_new(void);

/** Creates an empty state. Returns a new reference. */
wpy_state *wpy_state_new(void);

/** Adds a leaf, and the object that it was made from. */
bool wpy_state_add_leaf(wpy_state *state, const wherry_value *value, PyObject *object);

/** Returns a leaf's object, borrowed; NULL without an exception if the leaf is not in the state. */
PyObject *wpy_state_find(wpy_state *state, const wherry_value *value);

/* ---- from Python to a state (build_state.c, node.c, tensor_memory.c) ---- */

/** A function of DLPack that describes a tensor. wpy_dl_tensor is in tensor_memory.c. */
struct wpy_dl_tensor;
typedef int (*wpy_dl_read_fn)(void *object, struct wpy_dl_tensor *tensor);

typedef struct wpy_builder {
    wpy_state *state;
    PyObject *codec;
    /** codec.tensor_types: a dict from a type to the name of the type that wraps it, or None. */
    PyObject *tensor_types;
    PyObject *dtypes; /**< codec.dtypes: a dict from torch.dtype to wherry_dtype. */
    wherry_storage **storages;
    size_t storage_capacity;
    wpy_map storage_numbers; /**< From a wpy_storage_key to the index in `storages`. */
    /* A cache: most tensors have the type and the device of the previous one. */
    PyTypeObject *tensor_type;
    PyObject *wrapping;    /**< Borrowed; NULL if tensors of that type are not wrapped. */
    wpy_dl_read_fn read;   /**< NULL if that type has no DLPack table. */
    PyObject *device_seen; /**< The torch.device that `device` was read from; NULL at first. */
    wherry_device device;
    bool staged; /**< codec.to_host() was called, so codec.fill_host() must follow. */
} wpy_builder;

/** build(value, codec) -> State */
PyObject *wpy_build(PyObject *module, PyObject *arguments);

/** Builds the value of any object. */
wherry_value *wpy_build_value(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** Builds the value of an object that only the codec understands. */
wherry_value *wpy_build_encoded(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** Builds the value of a node of wherry._nodes, which the codec made from `original`. */
wherry_value *wpy_build_node(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step);

/** Builds the value of a torch tensor. If `plain`, it is not wrapped in an object. */
wherry_value *wpy_build_torch(wpy_builder *builder, PyObject *object, bool plain, const wpy_step *step);

/** 1 if this is a torch tensor type, 0 if not, -1 on failure. Call it before wpy_build_torch. */
int wpy_is_torch(wpy_builder *builder, PyTypeObject *type);

/** Identifies a storage. Tensors with the same key share the storage. */
typedef struct wpy_storage_key {
    uintptr_t address;
    uint64_t nbytes;
} wpy_storage_key;

/** The storage with this key, owned by the builder; NULL without an exception if there is none. */
wherry_storage *wpy_storage_find(const wpy_builder *builder, wpy_storage_key key);

/** Wraps memory in a new storage, owned by the builder. The state keeps `owner` alive. */
wherry_storage *wpy_storage_add(wpy_builder *builder, wpy_storage_key key, void *data, uint64_t nbytes,
                                wherry_device device, PyObject *owner);

/** buffer_range(object) -> (address, nbytes), or None if the object gives no buffer */
PyObject *wpy_buffer_range(PyObject *module, PyObject *object);

/** read_dlpack(capsule) -> (address, dtype or None, code, bits, shape, strides or None, flags) */
PyObject *wpy_read_dlpack(PyObject *module, PyObject *capsule);

/* ---- from a state to Python (restore.c) ---- */

/** Allocates storages for a received state, and turns it into Python values. */
typedef struct wpy_restorer {
    PyObject *codec;
    PyObject *owners;  /**< A dict from the address of each new wherry_storage to its owner. */
    wpy_state *target; /**< NULL if nothing is received in place. */
} wpy_restorer;

bool wpy_restorer_init(wpy_restorer *restorer, PyObject *codec, wpy_state *target);
void wpy_restorer_clear(wpy_restorer *restorer);

/** Allocates a storage through the codec. Sets an exception on failure. */
wherry_status wpy_restorer_allocate(wpy_restorer *restorer, uint64_t nbytes, wherry_device device,
                                    wherry_storage **storage_p);

/** Checks that the codec can rebuild every object of a state. Called before any byte moves. */
bool wpy_check_objects(PyObject *codec, const wherry_value *state);

/** Returns the Python value of a received state; a new reference. */
PyObject *wpy_restore(wpy_restorer *restorer, const wherry_value *state);

/* ---- log lines (log_lines.c) ---- */

/** Passes queued log lines to Python. Keeps the current exception. */
void wpy_log_flush(void);

/** set_log_function(function or None): the function gets (level, line). */
PyObject *wpy_set_log_function(PyObject *module, PyObject *function);

/* ---- calls that run without the GIL (call_options.c) ---- */

typedef struct wpy_call {
    PyObject *progress;     /**< Borrowed; NULL if there is none. */
    wpy_restorer *restorer; /**< NULL, except in a receive. */
    bool failed;            /**< True if a callback or a signal handler raised `exception`. */
    wpy_pending exception;
} wpy_call;

/**
 * The call that this thread is running, or NULL. A callback may make another call, which must
 * restore this variable at its end.
 */
extern _Thread_local wpy_call *wpy_current_call;

/** Runs a statement without the GIL. */
#define WPY_WITHOUT_GIL(statement)                                                                                     \
    do {                                                                                                               \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        statement;                                                                                                     \
        Py_END_ALLOW_THREADS;                                                                                          \
        wpy_log_flush();                                                                                               \
    } while (0)

/** Runs a statement without the GIL, as this thread's current call. */
#define WPY_RUN(call, statement)                                                                                       \
    do {                                                                                                               \
        wpy_call *outer = wpy_current_call;                                                                            \
        wpy_current_call = (call);                                                                                     \
        WPY_WITHOUT_GIL(statement);                                                                                    \
        wpy_current_call = outer;                                                                                      \
    } while (0)

/** Moves the current exception into the call, or drops it if the call already has one. */
void wpy_call_fail(wpy_call *call);

/** Raises the exception of the call. Returns false if there is none. */
bool wpy_call_raise(wpy_call *call);

/** Reads options from a dict, which must outlive them, and sets the callbacks. */
bool wpy_transfer_options(PyObject *dict, wherry_transfer_options *options, wpy_call *call);
bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call);

/** Returns the statistics of a transfer as a dict; a new reference. */
PyObject *wpy_stats(const wherry_stats *stats);

/* ---- types (group_type.c, transport_type.c) ---- */

/** Allocates an object, filled with zeros. Returns a new reference. */
void *wpy_object_new(PyTypeObject *type);

/** Frees an object. Call it at the end of its destructor. */
void wpy_object_free(PyObject *self);

/** Creates a type. `slots` must exist until the process ends. */
PyTypeObject *wpy_type_new(const char *name, size_t size, bool can_be_called, PyType_Slot *slots);

typedef struct wpy_cancel {
    PyObject_HEAD wherry_cancel *cancel;
} wpy_cancel;

typedef struct wpy_group {
    PyObject_HEAD wherry_group *group; /**< NULL after leave(). */
    int process;                       /**< The id of the process that joined. */
} wpy_group;

/** The group of a Group object. Raises Closed after leave(), and in a forked child. */
wherry_group *wpy_group_get(PyObject *self);

extern PyTypeObject *wpy_cancel_type;
extern PyTypeObject *wpy_group_type;
PyTypeObject *wpy_cancel_type_new(void);
PyTypeObject *wpy_group_type_new(void);
PyTypeObject *wpy_transport_type_new(void);

#endif
