/**
 * @file core.h  What the files of the extension share.
 *
 * The extension is written against CPython's stable ABI (3.10 and later) and the public headers of the library. Read builder.c and restore.c for how Python
 * values become a state and come back, transport.c for sending and receiving.
 */
#ifndef WPY_CORE_H
#define WPY_CORE_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* ---- names ---- */

/** X(NAME): attributes and methods that are asked for again and again, interned once. */
#define WPY_NAME_LIST(X)                                                                                               \
    X(__dlpack_c_exchange_api__)                                                                                       \
    X(_cdata)                                                                                                          \
    X(abandon)                                                                                                         \
    X(allocate)                                                                                                        \
    X(check)                                                                                                           \
    X(data_ptr)                                                                                                        \
    X(decode)                                                                                                          \
    X(destroy)                                                                                                         \
    X(device)                                                                                                          \
    X(dtensor)                                                                                                         \
    X(dtype)                                                                                                           \
    X(dtypes)                                                                                                          \
    X(encode)                                                                                                          \
    X(fill_host)                                                                                                       \
    X(get)                                                                                                             \
    X(is_conj)                                                                                                         \
    X(is_neg)                                                                                                          \
    X(path)                                                                                                            \
    X(put)                                                                                                             \
    X(report)                                                                                                          \
    X(requires_grad)                                                                                                   \
    X(shape)                                                                                                           \
    X(sharded)                                                                                                         \
    X(stats)                                                                                                           \
    X(storage_offset)                                                                                                  \
    X(stride)                                                                                                          \
    X(tensor)                                                                                                          \
    X(tensor_types)                                                                                                    \
    X(to_host)                                                                                                         \
    X(untyped_storage)

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

/** Imports wherry._nodes at the first call. @return false with an exception set. */
bool wpy_nodes_ready(void);

/* ---- errors ---- */

/** An exception for an error record; a new reference, NULL with another exception set. */
PyObject *wpy_error_new(const wherry_error *error);

/** Raises an error record. @return NULL. */
PyObject *wpy_raise(const wherry_error *error);

/** Takes the function that makes exceptions. */
PyObject *wpy_set_error_class(PyObject *module, PyObject *make);

/** An exception that was set when an object was freed: freeing runs code that must neither see nor lose it. */
typedef struct wpy_pending {
    PyObject *type, *value, *traceback;
} wpy_pending;

/** Takes the exception that is set, if there is one, until wpy_put_back(). */
wpy_pending wpy_set_aside(void);
void wpy_put_back(wpy_pending pending);

/** One step of the way to a value that is being walked: into a dict by `key`, or by `index` where that is NULL. Lives on the stack. */
typedef struct wpy_step {
    const struct wpy_step *up;
    PyObject *key;
    const wherry_value *value_key; /**< The same while a state is restored. */
    uint64_t index;
} wpy_step;

/** Adds the path to the exception that is set, where it is one of Wherry's and has none yet. */
void wpy_add_path(const wpy_step *step);

/* ---- Python values ---- */

/** A scalar of an exact type that the library has; NULL without an exception for any other value, with one on failure. */
wherry_value *wpy_scalar_new(PyObject *value);

/** The Python value of a scalar; a new reference. */
PyObject *wpy_scalar_get(const wherry_value *value);

/** Reads the text of a device. @return false with an exception set. */
bool wpy_read_device(PyObject *text, wherry_device *device_p);

/** A tuple of integers; a new reference. */
PyObject *wpy_integers(const int64_t *items, size_t count);

/** Reads a tuple of at most `capacity` integers. @return their number, or -1 with an exception set. */
Py_ssize_t wpy_read_integers(PyObject *tuple, int64_t *items, size_t capacity);

/* ---- numbers by address ---- */

/** A place of a map. */
typedef struct wpy_map_slot {
    uintptr_t address;
    uint64_t detail;
    size_t number; /**< Plus 1; 0: the place is free. */
} wpy_map_slot;

/** Numbers by an address and what tells apart those that have the same. All zero: empty. */
typedef struct wpy_map {
    wpy_map_slot *slots;
    size_t size; /**< A power of two, or 0. */
    size_t count;
} wpy_map;

#define WPY_MAP_NONE SIZE_MAX

/** Room for so many in all. @return false with an exception set. */
bool wpy_map_reserve(wpy_map *map, size_t count);

/** Adds one that is not there yet. @return false with an exception set. */
bool wpy_map_add(wpy_map *map, uintptr_t address, uint64_t detail, size_t number);

/** The number, or WPY_MAP_NONE. */
size_t wpy_map_find(const wpy_map *map, uintptr_t address, uint64_t detail);
void wpy_map_clear(wpy_map *map);

/* ---- states ---- */

/** A leaf that holds tensors, and the Python object that it was made of. */
typedef struct wpy_leaf {
    const wherry_value *value;
    PyObject *object;
} wpy_leaf;

/** The type State. */
typedef struct wpy_state {
    PyObject_HEAD wherry_value *root;
    PyObject *keep; /**< A list of what owns the memory. */
    wpy_leaf *leaves;
    size_t leaf_count;
    size_t leaf_capacity;
    wpy_map index;         /**< Leaf numbers by the address of the value; made when first asked for. */
    uint64_t cuda_devices; /**< A bit for each CUDA device that memory of it lies on. */
} wpy_state;

extern PyTypeObject *wpy_state_type;
PyTypeObject *wpy_state_type_new(void);

/** An empty state. */
wpy_state *wpy_state_new(void);

/** Notes what a leaf was made of. @return false with an exception set. */
bool wpy_state_note(wpy_state *state, const wherry_value *value, PyObject *object);

/** What a leaf was made of, borrowed; NULL where it is none of the state's, without an exception unless memory lacked. */
PyObject *wpy_state_find(wpy_state *state, const wherry_value *value);

/** build(value, codec) */
PyObject *wpy_build(PyObject *module, PyObject *arguments);

/** restore(state, codec, target=None) */
PyObject *wpy_restore_call(PyObject *module, PyObject *arguments);

/* ---- DLPack (dlpack.c) ---- */

/** A tensor as version 1 of DLPack lays it out. */
typedef struct wpy_dl_tensor {
    void *data;
    int32_t device_kind; /**< WPY_DL_CPU ... */
    int32_t device_index;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    const int64_t *shape;
    const int64_t *strides;
    uint64_t byte_offset;
} wpy_dl_tensor;

enum { WPY_DL_CPU = 1, WPY_DL_CUDA = 2 };

/** Describes a Python object of the type that the function was found for, as long as that is not changed. @return not 0 with an exception set. */
typedef int (*wpy_dl_read_fn)(void *object, wpy_dl_tensor *tensor);

/** What describes the objects of a type; NULL where the type says nothing, or in a version that is not known here. */
wpy_dl_read_fn wpy_dl_find(PyTypeObject *type);

/** The element type. @return false where the library has none like it. */
bool wpy_dl_dtype(const wpy_dl_tensor *tensor, wherry_dtype *dtype_p);

/** A dict of all element types: (code, bits) to the library's; a new reference. */
PyObject *wpy_dl_dtypes(void);

/* ---- walking (builder.c, node.c, torch_tensor.c) ---- */

typedef struct wpy_builder {
    wpy_state *state;
    PyObject *codec;
    PyObject *tensor_types;
    PyObject *dtypes;
    wherry_storage **storages; /**< That were met, and */
    size_t storage_capacity;
    wpy_map storage_numbers;   /**< their numbers by their keys. */
    PyTypeObject *tensor_type; /**< The last type that was found to be a tensor's, */
    PyObject *wrapping;        /**< its name, or NULL, both borrowed, and */
    wpy_dl_read_fn read;       /**< what reads its tensors at once, or NULL. */
    PyObject *device_seen;     /**< The last device of a tensor; NULL: none yet, and */
    wherry_device device;      /**< what it is. */
    bool staged;               /**< codec.to_host() was called: codec.fill_host() must follow. */
} wpy_builder;

/** A value below `step`; NULL with an exception set. */
wherry_value *wpy_build_value(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** A value of what the codec makes of an object. */
wherry_value *wpy_build_encoded(wpy_builder *builder, PyObject *object, const wpy_step *step);

/** A value of a node of wherry._nodes; `original` is what the codec was given. */
wherry_value *wpy_build_node(wpy_builder *builder, PyObject *node, PyObject *original, const wpy_step *step);

/** A tensor of torch, read by its attributes. `plain`: never within an object. */
wherry_value *wpy_build_torch(wpy_builder *builder, PyObject *object, bool plain, const wpy_step *step);

/** Whether objects of that type are read by wpy_build_torch. -1 with an exception set. */
int wpy_is_torch(wpy_builder *builder, PyTypeObject *type);

/** What tells one storage from another: where its memory begins, and its size. Whoever says the same has the same storage. */
typedef struct wpy_storage_key {
    uintptr_t address;
    uint64_t nbytes;
} wpy_storage_key;

/** The storage under a key, borrowed from the builder; NULL where there is none. */
wherry_storage *wpy_storage_find(const wpy_builder *builder, wpy_storage_key key);

/** Wraps memory as a storage under a key, and keeps its owner. Borrowed from the builder; NULL with an exception set. */
wherry_storage *wpy_storage_add(wpy_builder *builder, wpy_storage_key key, void *data, uint64_t nbytes,
                                wherry_device device, PyObject *owner);

/* ---- restoring ---- */

/** Memory for new storages, and the way from a received state to Python values. Used under the GIL but for `allocate`. */
typedef struct wpy_restorer {
    PyObject *codec;
    PyObject *owners;  /**< A dict: the address of a new storage, to its owner. */
    wpy_state *target; /**< NULL: nothing is received in place. */
    PyObject *devices; /**< A dict: kind and index of a device as one number, to its text. */
} wpy_restorer;

bool wpy_restorer_init(wpy_restorer *restorer, PyObject *codec, wpy_state *target);
void wpy_restorer_clear(wpy_restorer *restorer);

/** A wherry_allocate_fn; the context is a wpy_restorer. To be called with the GIL held. On failure an exception is set. */
wherry_status wpy_restorer_allocate(wpy_restorer *restorer, uint64_t nbytes, wherry_device device,
                                    wherry_storage **storage_p);

/** The Python value of a received state. */
PyObject *wpy_restore(wpy_restorer *restorer, const wherry_value *state);

/** Asks the codec about every object of a state that is about to be received. @return false with an exception set. */
bool wpy_check_objects(PyObject *codec, const wherry_value *state);

/* ---- calls that take long ---- */

/** A call of the library that runs without the GIL, and what happened in Python meanwhile. */
typedef struct wpy_call {
    PyObject *progress; /**< Borrowed; NULL: nobody is told. */
    wpy_restorer *restorer;
    bool failed;                            /**< An exception was raised by a callback or a signal: */
    PyObject *type, *exception, *traceback; /**< this one. */
} wpy_call;

/** The call that this thread is inside of; NULL: none. */
extern _Thread_local wpy_call *wpy_current_call;

/** Makes a call the one that this thread is inside of. @return the one before, which takes its place again at the end: a callback may call. */
wpy_call *wpy_enter_call(wpy_call *call);

/** Notes the exception that is set, for the end of the call. */
void wpy_call_fail(wpy_call *call);

/** Raises what was noted. @return false where nothing was. */
bool wpy_call_raise(wpy_call *call);

/** A wherry_interrupt_fn: looks for signals; the context is a wpy_call. */
bool wpy_call_interrupt(void *context);

/** A wherry_progress_fn and a wherry_allocate_fn with a wpy_call as the context. */
void wpy_call_progress(void *context, const wherry_progress *progress);
wherry_status wpy_call_allocate(void *context, uint64_t nbytes, wherry_device device, wherry_storage **storage_p);
wherry_status wpy_call_inspect(void *context, const wherry_value *state);

/** Options from a dict. The text of `lanes` is borrowed from it. @return false with an exception set. */
bool wpy_transfer_options(PyObject *dict, wherry_transfer_options *options, wpy_call *call);
bool wpy_group_options(PyObject *dict, wherry_group_options *options, wpy_call *call);

/** The figures of a transfer as a dict; a new reference. */
PyObject *wpy_stats(const wherry_stats *stats);

/* ---- types ---- */

typedef struct wpy_cancel {
    PyObject_HEAD wherry_cancel *cancel;
} wpy_cancel;

typedef struct wpy_group {
    PyObject_HEAD wherry_group *group; /**< NULL: it was left. */
    PyObject *table;                   /**< Of a group made of one; else NULL. */
    int users;                         /**< Transports and calls that use it. */
    int process;                       /**< That made it. */
} wpy_group;

extern PyTypeObject *wpy_cancel_type;
extern PyTypeObject *wpy_group_type;
PyTypeObject *wpy_cancel_type_new(void);
PyTypeObject *wpy_group_type_new(void);
PyTypeObject *wpy_transport_type_new(void);

/** A group that is not joined yet; a new reference. */
wpy_group *wpy_group_new(void);

/** Group.from_table */
PyObject *wpy_group_from_table(PyObject *type, PyObject *arguments);

#endif
