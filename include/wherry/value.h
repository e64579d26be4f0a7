/**
 * @file wherry/value.h  Value trees: everything that a state dict can hold, paths into a tree, and
 * operations on trees.
 *
 * A value is a node of a tree. The caller that creates a value owns it. A value that is put into a
 * container belongs to the container and is destroyed with it. If a parameter is "taken over on
 * success", the container owns it after success, and the caller still owns it after a failure.
 * Pointers into a tree that a function returns are borrowed and stay valid as long as the tree.
 *
 * Several threads may read a tree at the same time. A thread may change it only while no other
 * thread uses it. No function here blocks, except wherry_value_dump while it writes. Functions that
 * create something return WHERRY_OK, WHERRY_NO_MEMORY, or a status that their comment lists.
 * Available since version 0.1.
 */
#ifndef WHERRY_VALUE_H
#define WHERRY_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <wherry/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @name Values */
/** @{ */

/** A node of a tree. Opaque. */
typedef struct wherry_value wherry_value;

/** The kind of a value. The numbers are part of the wire format and never change. */
typedef enum wherry_kind {
    WHERRY_KIND_NONE = 0,
    WHERRY_KIND_BOOL = 1,
    WHERRY_KIND_INT = 2,     /**< An integer that fits in int64_t. */
    WHERRY_KIND_BIGINT = 3,  /**< An integer that does not fit in int64_t. */
    WHERRY_KIND_FLOAT = 4,   /**< A double. Every bit is kept, including NaN payloads and -0.0. */
    WHERRY_KIND_COMPLEX = 5, /**< Two doubles. */
    WHERRY_KIND_STRING = 6,  /**< UTF-8. */
    WHERRY_KIND_BYTES = 7,
    WHERRY_KIND_LIST = 8,
    WHERRY_KIND_TUPLE = 9,
    WHERRY_KIND_DICT = 10, /**< A dict. Entries stay in insertion order. */
    /**
     * A type name and a payload. Only a binding, such as the Python package, understands the type.
     */
    WHERRY_KIND_OBJECT = 11,
    WHERRY_KIND_TENSOR = 12,
    WHERRY_KIND_DTENSOR = 13,
    WHERRY_KIND_SHARDED = 14,
} wherry_kind;

/**
 * The maximum nesting depth of containers and objects. Deeper nesting is WHERRY_INVALID_ARGUMENT.
 */
#define WHERRY_DEPTH_MAX 1000

/** The kind of a value. */
WHERRY_API wherry_kind wherry_value_kind(const wherry_value *value);

/** The name of a kind, such as "dict"; "?" for an unknown number. The text is valid forever. */
WHERRY_API const char *wherry_kind_name(wherry_kind kind);

/** Destroys a value and everything in it. The caller must own it. value may be NULL. */
WHERRY_API void wherry_value_destroy(wherry_value *value);

/**
 * Copies a tree. The bytes of tensors are not copied: the tensors of the copy are views of the same
 * storages and hold their own references.
 * @param copy_p  owned by the caller.
 */
WHERRY_API wherry_status wherry_value_copy(const wherry_value *value, wherry_value **copy_p, wherry_error *error);

/** @} */
/** @name Creating scalars. The new value belongs to the caller. */
/** @{ */

/** Creates a value of kind NONE. */
WHERRY_API wherry_status wherry_none_create(wherry_value **value_p, wherry_error *error);

/** Creates a boolean. */
WHERRY_API wherry_status wherry_bool_create(bool content, wherry_value **value_p, wherry_error *error);

/** Creates a 64-bit integer. For larger integers, see wherry_bigint_create. */
WHERRY_API wherry_status wherry_int_create(int64_t content, wherry_value **value_p, wherry_error *error);

/** Creates a floating-point number. All 64 bits are kept. */
WHERRY_API wherry_status wherry_float_create(double content, wherry_value **value_p, wherry_error *error);

/** Creates a complex number. */
WHERRY_API wherry_status wherry_complex_create(double real, double imaginary, wherry_value **value_p,
                                               wherry_error *error);

/**
 * Creates an integer of any size. If it fits in int64_t, the value has kind INT.
 * @param negative   true for -magnitude.
 * @param magnitude  the absolute value, most significant byte first. Leading zeros are allowed. The
 *                   bytes are copied.
 * @param size       number of bytes of magnitude.
 */
WHERRY_API wherry_status wherry_bigint_create(bool negative, const void *magnitude, size_t size, wherry_value **value_p,
                                              wherry_error *error);

/**
 * Creates a string.
 * @param text  UTF-8. It is copied and may contain zero bytes.
 * @param size  number of bytes, without a final zero.
 * @return also WHERRY_INVALID_ARGUMENT if text is not UTF-8.
 */
WHERRY_API wherry_status wherry_string_create(const char *text, size_t size, wherry_value **value_p,
                                              wherry_error *error);

/** Creates a byte string. @param bytes  copied; may be NULL if size is 0. */
WHERRY_API wherry_status wherry_bytes_create(const void *bytes, size_t size, wherry_value **value_p,
                                             wherry_error *error);

/** @} */
/** @name Reading scalars. For a value of another kind, the result is 0, false or NULL. */
/** @{ */

/** The content of a BOOL. */
WHERRY_API bool wherry_bool_get(const wherry_value *value);

/** The content of an INT. */
WHERRY_API int64_t wherry_int_get(const wherry_value *value);

/** The content of a FLOAT. */
WHERRY_API double wherry_float_get(const wherry_value *value);

/** The parts of a COMPLEX; both are 0 for another kind. */
WHERRY_API void wherry_complex_get(const wherry_value *value, double *real_p, double *imaginary_p);

/** The magnitude of a BIGINT, most significant byte first, without leading zeros; borrowed. */
WHERRY_API const uint8_t *wherry_bigint_get(const wherry_value *value, bool *negative_p, size_t *size_p);

/** The text of a STRING, zero-terminated and borrowed. size_p may be NULL. */
WHERRY_API const char *wherry_string_get(const wherry_value *value, size_t *size_p);

/** The content of BYTES, borrowed; never NULL for that kind. */
WHERRY_API const void *wherry_bytes_get(const wherry_value *value, size_t *size_p);

/** @} */
/** @name Lists and tuples */
/** @{ */

/** Creates an empty list, owned by the caller. */
WHERRY_API wherry_status wherry_list_create(wherry_value **value_p, wherry_error *error);

/** Creates an empty tuple, owned by the caller. */
WHERRY_API wherry_status wherry_tuple_create(wherry_value **value_p, wherry_error *error);

/**
 * Appends an item to a list or a tuple.
 * @param item  taken over on success.
 * @return also WHERRY_INVALID_ARGUMENT if sequence is neither a list nor a tuple, if item already
 * belongs to a container or contains sequence, or if the tree would be deeper than
 * WHERRY_DEPTH_MAX.
 */
WHERRY_API wherry_status wherry_sequence_append(wherry_value *sequence, wherry_value *item, wherry_error *error);

/** The number of items of a list or a tuple; 0 for any other kind. */
WHERRY_API size_t wherry_sequence_count(const wherry_value *sequence);

/** The item at an index, borrowed; NULL if index is out of range. */
WHERRY_API wherry_value *wherry_sequence_at(const wherry_value *sequence, size_t index);

/** @} */
/** @name Dicts */
/** @{ */

/** Creates an empty dict, owned by the caller. */
WHERRY_API wherry_status wherry_dict_create(wherry_value **value_p, wherry_error *error);

/**
 * Adds an entry at the end of a dict.
 * @param key   a scalar: none, bool, int, bigint, float, complex, string or bytes; taken over on
 *              success. Keys of different kinds are different (1 is not 1.0). Floats are compared
 *              bit by bit.
 * @param item  taken over on success.
 * @return also WHERRY_DUPLICATE_KEY; WHERRY_INVALID_ARGUMENT if key is not a scalar, or for the
 * reasons that wherry_sequence_append lists.
 */
WHERRY_API wherry_status wherry_dict_set(wherry_value *dict, wherry_value *key, wherry_value *item,
                                         wherry_error *error);

/** Like wherry_dict_set, with a string key. name is zero-terminated UTF-8 and is copied. */
WHERRY_API wherry_status wherry_dict_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error);

/** The number of entries of a dict; 0 for any other kind. */
WHERRY_API size_t wherry_dict_count(const wherry_value *dict);

/** The key of the entry at an index, borrowed; NULL if index is out of range. */
WHERRY_API const wherry_value *wherry_dict_key_at(const wherry_value *dict, size_t index);

/** The value of the entry at an index, borrowed; NULL if index is out of range. */
WHERRY_API wherry_value *wherry_dict_at(const wherry_value *dict, size_t index);

/** The value of a key, borrowed; NULL if the dict does not have the key. */
WHERRY_API wherry_value *wherry_dict_find(const wherry_value *dict, const wherry_value *key);

/** The value of a string key, borrowed; NULL if the dict does not have the key. */
WHERRY_API wherry_value *wherry_dict_get(const wherry_value *dict, const char *name);

/** @} */
/**
 * @name Objects
 *
 * An object is a value that a binding restores to a type of its host language: a namedtuple, an
 * OrderedDict, torch.Size. The library transports the type name and never interprets it. An object
 * has no step of its own in a path: the path continues with the steps inside its payload.
 */
/** @{ */

/**
 * Creates an object, owned by the caller.
 * @param type_name  UTF-8, zero-terminated, not empty; copied.
 * @param payload    any value; taken over on success.
 * @return also WHERRY_INVALID_ARGUMENT, for the reasons that wherry_sequence_append lists.
 */
WHERRY_API wherry_status wherry_object_create(const char *type_name, wherry_value *payload, wherry_value **value_p,
                                              wherry_error *error);

/** The type name of an OBJECT, borrowed; NULL for any other kind. */
WHERRY_API const char *wherry_object_type(const wherry_value *value);

/** The payload of an OBJECT, borrowed; NULL for any other kind. */
WHERRY_API wherry_value *wherry_object_payload(const wherry_value *value);

/** @} */
/**
 * @name Paths
 *
 * A path is the list of steps from the root of a tree to a value. As text it is, for example,
 * `layers[3].attn["q.weight"]` or `optimizer.state{0}.exp_avg`:
 *
 *     .name       a string key that is a C identifier; the first step has no dot
 *     ["text"]    any other string key; escapes: \" \\ \n \r \t \xHH
 *     [3]         an item of a list or a tuple
 *     {7}         any other dict key: {none} {true} {-12} {0x1ffffffffffffffff} {1.5} {-inf}
 *                 {nan:7ff8000000000001} {c(1.0,-0.0)} {b"bytes"}
 *
 * The empty text is the root. Objects have no step of their own. Each path has exactly one text,
 * and parsing that text gives the same path again.
 *
 * Paths never change, so any thread may use them.
 */
/** @{ */

/** A path. Opaque. */
typedef struct wherry_path wherry_path;

/** One step: into a dict by key, or into a list or tuple by index. */
typedef struct wherry_step {
    const wherry_value *key; /**< The key, a scalar; NULL if the step is by index. */
    uint64_t index;          /**< The index, if key is NULL. */
} wherry_step;

/** The maximum number of steps of a path. */
#define WHERRY_PATH_STEPS_MAX WHERRY_DEPTH_MAX

/**
 * Creates a path.
 * @param steps   borrowed; the keys are copied. May be NULL if count is 0.
 * @param path_p  owned by the caller. Destroy it with wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if a key is not a scalar or there
 * are too many steps.
 */
WHERRY_API wherry_status wherry_path_create(const wherry_step *steps, size_t count, wherry_path **path_p,
                                            wherry_error *error);

/**
 * Parses the text of a path.
 * @param text    borrowed; need not be zero-terminated.
 * @param path_p  owned by the caller. Destroy it with wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_BAD_PATH if it is not a path; error->offset is the
 * byte offset of the fault.
 */
WHERRY_API wherry_status wherry_path_parse(const char *text, size_t size, wherry_path **path_p, wherry_error *error);

/**
 * Formats a path as text.
 * @param text_p  zero-terminated text, owned by the caller. Free it with wherry_free.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_path_format(const wherry_path *path, char **text_p, wherry_error *error);

/** Destroys a path that the caller owns. path may be NULL. */
WHERRY_API void wherry_path_destroy(wherry_path *path);

/** The number of steps. */
WHERRY_API size_t wherry_path_count(const wherry_path *path);

/** The step at an index, borrowed; NULL if index is out of range. */
WHERRY_API const wherry_step *wherry_path_at(const wherry_path *path, size_t index);

/** True if two paths have the same steps. */
WHERRY_API bool wherry_path_equal(const wherry_path *one, const wherry_path *other);

/**
 * The value at a path below root, borrowed; NULL if there is none. If it is an object, the result
 * is the payload of the object.
 */
WHERRY_API wherry_value *wherry_value_at(const wherry_value *root, const wherry_path *path);

/**
 * Finds the value at a path that is given as text.
 * @param text     zero-terminated.
 * @param value_p  borrowed from the tree.
 * @return WHERRY_OK; WHERRY_NOT_FOUND; WHERRY_BAD_PATH; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_find(const wherry_value *root, const char *text, wherry_value **value_p,
                                           wherry_error *error);

/** @} */
/**
 * @name Flatten and unflatten
 *
 * A leaf is a value that is not a container: a scalar, a tensor, a DTensor or a ShardedTensor. An
 * empty container is a leaf too. The leaves of an object are the leaves of its payload.
 */
/** @{ */

/** The leaves of a tree with their paths. Opaque. */
typedef struct wherry_flat wherry_flat;

/**
 * Lists the leaves of a tree, depth first, in the order of the entries and items.
 * @param state   borrowed until the list is destroyed. It must not change before that.
 * @param flat_p  owned by the caller. Destroy it with wherry_flat_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_flatten(const wherry_value *state, wherry_flat **flat_p, wherry_error *error);

/** Destroys the list, not the tree. flat may be NULL. */
WHERRY_API void wherry_flat_destroy(wherry_flat *flat);

/** The number of leaves. */
WHERRY_API size_t wherry_flat_count(const wherry_flat *flat);

/** The path of the leaf at an index, borrowed; NULL if index is out of range. */
WHERRY_API const wherry_path *wherry_flat_path(const wherry_flat *flat, size_t index);

/** The leaf at an index, borrowed from the tree; NULL if index is out of range. */
WHERRY_API const wherry_value *wherry_flat_leaf(const wherry_flat *flat, size_t index);

/**
 * Builds a tree with the same containers, keys and objects, but with different leaves.
 * @param flat     a result of wherry_flatten.
 * @param leaves   one value per leaf of flat, in the same order. The caller owns each of them; they
 *                 are taken over on success.
 * @param state_p  owned by the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if the number of leaves is wrong, or
 * if a leaf is NULL, occurs twice, belongs to a container, or makes the tree deeper than
 * WHERRY_DEPTH_MAX.
 */
WHERRY_API wherry_status wherry_unflatten(const wherry_flat *flat, wherry_value *const *leaves, size_t count,
                                          wherry_value **state_p, wherry_error *error);

/** @} */
/** @name Compare and print */
/** @{ */

/** Flags of wherry_value_compare: what to skip. */
enum {
    WHERRY_COMPARE_ALL = 0,        /**< Skip nothing. */
    WHERRY_COMPARE_NO_CONTENT = 1, /**< Do not compare the bytes of tensors. */
    /** Ignore which tensors share a storage, and the sizes of storages. */
    WHERRY_COMPARE_NO_SHARING = 2,
};

/**
 * Compares two trees: kinds, order, keys, scalars (bit by bit), layout, device and flags of
 * tensors, which tensors share a storage, and the bytes of their elements.
 * @param flags  WHERRY_COMPARE_*
 * @return WHERRY_OK if the trees are equal; WHERRY_MISMATCH if not: the error has the path of the
 * first difference and both sides; WHERRY_UNSUPPORTED if bytes to compare are not in host memory;
 * WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT.
 */
WHERRY_API wherry_status wherry_value_compare(const wherry_value *one, const wherry_value *other, unsigned flags,
                                              wherry_error *error);

/**
 * Prints a tree as text for people, one line per value. Tensors that share a storage show the same
 * storage number. The format may change between versions.
 * @return WHERRY_OK; WHERRY_SYSTEM if writing failed; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT.
 */
WHERRY_API wherry_status wherry_value_dump(const wherry_value *value, FILE *out, wherry_error *error);

/** @} */
/** @name Limits for decoding */
/** @{ */

/**
 * Limits for what a decoder accepts. Initialize them with wherry_limits_init, then change what you
 * need.
 */
typedef struct wherry_limits {
    uint32_t struct_size; /**< sizeof(wherry_limits). */
    /** Nesting depth of containers and objects. Default 256, at most WHERRY_DEPTH_MAX. */
    uint32_t depth;
    uint64_t manifest_bytes; /**< Size of the manifest in bytes. Default 1 GiB. */
    uint64_t values;         /**< Number of values, including containers and keys. Default 2^26. */
    uint64_t string_bytes;   /**< Size of one string, byte string or big integer. Default 64 MiB. */
    /**
     * Total size of the storages. It also limits the total number of covered bytes. Default 64 TiB.
     */
    uint64_t total_bytes;
} wherry_limits;

/** Fills in the defaults. */
WHERRY_API void wherry_limits_init(wherry_limits *limits);

/** @} */

#ifdef __cplusplus
}
#endif
#endif
