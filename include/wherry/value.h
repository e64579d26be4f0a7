/** @file wherry/value.h  The value tree: everything that a state dict holds, paths into it, and operations on whole trees. */
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

/*
 * The value tree: everything that a state dict holds.
 *
 * A value is a node of a tree. It is created alone and belongs to its creator; put into a container it belongs to that,
 * and is destroyed with it. Each function that takes a value over says so: on success it is the container's, on failure
 * it is still the caller's. Pointers that a function returns into a tree are borrowed and live as long as that tree.
 *
 * No function here blocks. A tree may be read by several threads at once, and changed by one while no other uses it.
 * Functions that create return WHERRY_OK or WHERRY_NO_MEMORY and what they name besides. All since 0.1.
 */

/** A node of a tree. Opaque. */
typedef struct wherry_value wherry_value;

/** What a value is. The values travel on the wire and never change. */
typedef enum wherry_kind {
    WHERRY_KIND_NONE = 0,
    WHERRY_KIND_BOOL = 1,
    WHERRY_KIND_INT = 2,     /**< An integer that fits int64_t. */
    WHERRY_KIND_BIGINT = 3,  /**< An integer that does not. */
    WHERRY_KIND_FLOAT = 4,   /**< A double, every bit of it kept: NaN payloads and -0.0 too. */
    WHERRY_KIND_COMPLEX = 5, /**< Two doubles. */
    WHERRY_KIND_STRING = 6,  /**< UTF-8. */
    WHERRY_KIND_BYTES = 7,
    WHERRY_KIND_LIST = 8,
    WHERRY_KIND_TUPLE = 9,
    WHERRY_KIND_DICT = 10,   /**< Keys in the order in which they were put in. */
    WHERRY_KIND_OBJECT = 11, /**< A type name and a payload: what only a binding understands. */
    WHERRY_KIND_TENSOR = 12,
    WHERRY_KIND_DTENSOR = 13,
    WHERRY_KIND_SHARDED = 14,
} wherry_kind;

/** Containers nest to this depth at most; one more is WHERRY_INVALID_ARGUMENT. */
#define WHERRY_DEPTH_MAX 1000

/** The kind of a value. */
WHERRY_API wherry_kind wherry_value_kind(const wherry_value *value);

/** The name of a kind, such as "dict"; lives for ever; "?" for a value that is none. */
WHERRY_API const char *wherry_kind_name(wherry_kind kind);

/** Destroys a value and all below it. Only for a value that no container owns. value may be NULL. */
WHERRY_API void wherry_value_destroy(wherry_value *value);

/**
 * Copies a tree. Tensors of the copy are views of the same storages, each with a reference of its own.
 * @param copy_p  belongs to the caller.
 */
WHERRY_API wherry_status wherry_value_copy(const wherry_value *value, wherry_value **copy_p, wherry_error *error);

/** @name Scalars: the new value belongs to the caller. */
/** @{ */
/** None. */
WHERRY_API wherry_status wherry_none_create(wherry_value **value_p, wherry_error *error);

/** A truth value. */
WHERRY_API wherry_status wherry_bool_create(bool content, wherry_value **value_p, wherry_error *error);

/** An integer of 64 bits; wherry_bigint_create makes larger ones. */
WHERRY_API wherry_status wherry_int_create(int64_t content, wherry_value **value_p, wherry_error *error);

/** A number with a fraction: its 64 bits are kept, whatever they are. */
WHERRY_API wherry_status wherry_float_create(double content, wherry_value **value_p, wherry_error *error);

/** A complex number. */
WHERRY_API wherry_status wherry_complex_create(double real, double imaginary, wherry_value **value_p,
                                               wherry_error *error);

/**
 * An integer of any size; one that fits int64_t becomes a value of kind INT.
 * @param negative   whether the integer is -magnitude.
 * @param magnitude  its absolute value, most significant byte first, leading zeros allowed; copied.
 * @param size       bytes of magnitude.
 */
WHERRY_API wherry_status wherry_bigint_create(bool negative, const void *magnitude, size_t size, wherry_value **value_p,
                                              wherry_error *error);

/**
 * @param text  UTF-8, copied; zero bytes within are allowed.
 * @param size  its bytes without a final zero.
 * @return also WHERRY_INVALID_ARGUMENT where text is not UTF-8.
 */
WHERRY_API wherry_status wherry_string_create(const char *text, size_t size, wherry_value **value_p,
                                              wherry_error *error);

/** @param bytes  copied; may be NULL where size is 0. */
WHERRY_API wherry_status wherry_bytes_create(const void *bytes, size_t size, wherry_value **value_p,
                                             wherry_error *error);
/** @} */

/** @name Reading scalars: a value of another kind gives 0, false or NULL. */
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

/** The text of a STRING, zero-terminated; borrowed. size_p may be NULL. */
WHERRY_API const char *wherry_string_get(const wherry_value *value, size_t *size_p);

/** The content of BYTES, never NULL for that kind; borrowed. */
WHERRY_API const void *wherry_bytes_get(const wherry_value *value, size_t *size_p);
/** @} */

/** @name Lists and tuples. */
/** @{ */
/** An empty list; it belongs to the caller. */
WHERRY_API wherry_status wherry_list_create(wherry_value **value_p, wherry_error *error);

/** An empty tuple; it belongs to the caller. */
WHERRY_API wherry_status wherry_tuple_create(wherry_value **value_p, wherry_error *error);

/**
 * Appends to a list or a tuple.
 * @param item  taken over on success.
 * @return also WHERRY_INVALID_ARGUMENT where sequence is neither, item belongs to a container already or contains
 * sequence, or the tree would be deeper than WHERRY_DEPTH_MAX.
 */
WHERRY_API wherry_status wherry_sequence_append(wherry_value *sequence, wherry_value *item, wherry_error *error);

/** The number of items of a list or a tuple; 0 for any other kind. */
WHERRY_API size_t wherry_sequence_count(const wherry_value *sequence);

/** An item, borrowed; NULL where there is none of that number. */
WHERRY_API wherry_value *wherry_sequence_at(const wherry_value *sequence, size_t index);
/** @} */

/** @name Dicts. */
/** @{ */
/** An empty dict; it belongs to the caller. */
WHERRY_API wherry_status wherry_dict_create(wherry_value **value_p, wherry_error *error);

/**
 * Adds an entry at the end.
 * @param key   a scalar: none, bool, int, bigint, float, complex, string or bytes; taken over on success. Keys of
 *              different kinds differ (1 is not 1.0), and floats are compared by their bits.
 * @param item  taken over on success.
 * @return also WHERRY_INVALID_ARGUMENT as for wherry_sequence_append and where key is not a scalar;
 * WHERRY_DUPLICATE_KEY.
 */
WHERRY_API wherry_status wherry_dict_set(wherry_value *dict, wherry_value *key, wherry_value *item,
                                         wherry_error *error);

/** The same with a string as the key: zero-terminated UTF-8, copied. */
WHERRY_API wherry_status wherry_dict_put(wherry_value *dict, const char *name, wherry_value *item, wherry_error *error);

/** The number of entries; 0 for any other kind. */
WHERRY_API size_t wherry_dict_count(const wherry_value *dict);

/** The key of an entry, borrowed; NULL where there is none of that number. */
WHERRY_API const wherry_value *wherry_dict_key_at(const wherry_value *dict, size_t index);

/** The value of an entry, borrowed; NULL where there is none of that number. */
WHERRY_API wherry_value *wherry_dict_at(const wherry_value *dict, size_t index);

/** The value under a key, borrowed; NULL where there is none. */
WHERRY_API wherry_value *wherry_dict_find(const wherry_value *dict, const wherry_value *key);

/** The value under a string key, borrowed; NULL where there is none. */
WHERRY_API wherry_value *wherry_dict_get(const wherry_value *dict, const char *name);
/** @} */

/** @name Objects. */
/** @{ */
/**
 * A value that a binding restores to a type of its own: a namedtuple, an OrderedDict, torch.Size. The library carries it
 * and never interprets the name. Paths lead through an object as if its payload stood in its place.
 * @param type_name  UTF-8, zero-terminated, not empty; copied.
 * @param payload    any value; taken over on success.
 * @return also WHERRY_INVALID_ARGUMENT as for wherry_sequence_append.
 */
WHERRY_API wherry_status wherry_object_create(const char *type_name, wherry_value *payload, wherry_value **value_p,
                                              wherry_error *error);

/** The type name, borrowed; NULL for any other kind. */
WHERRY_API const char *wherry_object_type(const wherry_value *value);

/** The payload, borrowed; NULL for any other kind. */
WHERRY_API wherry_value *wherry_object_payload(const wherry_value *value);
/** @} */

/*
 * Paths: where in a tree a value is.
 *
 * A path is a list of steps from the root. As text: `layers[3].attn["q.weight"]`, `optimizer.state{0}.exp_avg`.
 *
 *     .name       a string key that is a C identifier (the first step is written without the dot)
 *     ["text"]    any other string key; escapes: \" \\ \n \r \t \xHH
 *     [3]         an item of a list or a tuple
 *     {7}         a dict key of another kind: {none} {true} {-12} {0x1ffffffffffffffff} {1.5} {-inf}
 *                 {nan:7ff8000000000001} {c(1.0,-0.0)} {b"bytes"}
 *
 * The empty text is the root. Objects have no step of their own. The same path always gives the same text, and the text
 * gives the same path back.
 *
 * No function here blocks. Paths are never changed: any thread. All since 0.1.
 */

/** A path. Opaque. */
typedef struct wherry_path wherry_path;

/** One step: into a dict by a key, or into a list or tuple by a number. */
typedef struct wherry_step {
    const wherry_value *key; /**< The key, a scalar; NULL where the step is by number. */
    uint64_t index;          /**< The number, where key is NULL. */
} wherry_step;

/** The most steps that a path may have. */
#define WHERRY_PATH_STEPS_MAX WHERRY_DEPTH_MAX

/**
 * Makes a path.
 * @param steps   borrowed; the keys are copied. May be NULL where count is 0.
 * @param path_p  belongs to the caller: wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where a key is not a scalar or there are too many steps.
 */
WHERRY_API wherry_status wherry_path_create(const wherry_step *steps, size_t count, wherry_path **path_p,
                                            wherry_error *error);

/**
 * Reads the text of a path.
 * @param text    borrowed, need not be zero-terminated.
 * @param path_p  belongs to the caller: wherry_path_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_BAD_PATH, where error->offset tells at which byte.
 */
WHERRY_API wherry_status wherry_path_parse(const char *text, size_t size, wherry_path **path_p, wherry_error *error);

/**
 * Writes the text of a path.
 * @param text_p  zero-terminated; release with wherry_free.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_path_format(const wherry_path *path, char **text_p, wherry_error *error);

/** Destroys a path that its creator owns. path may be NULL. */
WHERRY_API void wherry_path_destroy(wherry_path *path);

/** The number of steps. */
WHERRY_API size_t wherry_path_count(const wherry_path *path);

/** A step, borrowed; NULL where there is none of that number. */
WHERRY_API const wherry_step *wherry_path_at(const wherry_path *path, size_t index);

/** Whether two paths have the same steps. */
WHERRY_API bool wherry_path_equal(const wherry_path *one, const wherry_path *other);

/** The value at a path below root, borrowed; NULL where there is none. An object is passed through to its payload. */
WHERRY_API wherry_value *wherry_value_at(const wherry_value *root, const wherry_path *path);

/**
 * The value at a path given as text.
 * @param text     zero-terminated.
 * @param value_p  borrowed from the tree.
 * @return WHERRY_OK; WHERRY_NOT_FOUND; WHERRY_BAD_PATH; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_find(const wherry_value *root, const char *text, wherry_value **value_p,
                                           wherry_error *error);

/*
 * Whole trees: flatten and unflatten, compare, print.
 *
 * A state is a value tree; nothing more is needed to be one. A leaf is a value that is not a container: a scalar, a
 * tensor, a DTensor, a ShardedTensor; also a container or an object without anything in it.
 *
 * No function here blocks, but for writing to a file. The rules of wherry/value.h for threads hold. All since 0.1.
 */

/** The leaves of a tree with their paths. Opaque. */
typedef struct wherry_flat wherry_flat;

/**
 * Lists the leaves of a tree: dict entries in their order, items by number, depth first.
 * @param state   borrowed until the flat is destroyed, and not to be changed before.
 * @param flat_p  belongs to the caller: wherry_flat_destroy.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_flatten(const wherry_value *state, wherry_flat **flat_p, wherry_error *error);

/** Destroys it; the tree stays. flat may be NULL. */
WHERRY_API void wherry_flat_destroy(wherry_flat *flat);

/** The number of leaves. */
WHERRY_API size_t wherry_flat_count(const wherry_flat *flat);

/** The path of a leaf, borrowed; NULL where there is none of that number. */
WHERRY_API const wherry_path *wherry_flat_path(const wherry_flat *flat, size_t index);

/** A leaf, borrowed from the tree; NULL where there is none of that number. */
WHERRY_API const wherry_value *wherry_flat_leaf(const wherry_flat *flat, size_t index);

/**
 * Builds a tree of the same containers, keys and objects, with other leaves.
 * @param flat     from wherry_flatten.
 * @param leaves   as many as the flat has, in its order, each belonging to the caller; taken over on success.
 * @param state_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for another number of leaves, or a leaf that is NULL or
 * belongs to a container or makes the tree deeper than WHERRY_DEPTH_MAX.
 */
WHERRY_API wherry_status wherry_unflatten(const wherry_flat *flat, wherry_value *const *leaves, size_t count,
                                          wherry_value **state_p, wherry_error *error);

/** What wherry_value_compare leaves out. */
enum {
    WHERRY_COMPARE_ALL = 0,
    WHERRY_COMPARE_NO_CONTENT = 1, /**< Do not compare the bytes of tensors. */
    WHERRY_COMPARE_NO_SHARING = 2, /**< Tensors may share storages differently, and storages may differ in size. */
};

/**
 * Compares two trees: kinds, order, keys, scalars bit by bit, geometry and flags of tensors, which tensors share a
 * storage, and the bytes of their elements.
 * @param flags  WHERRY_COMPARE_*
 * @return WHERRY_OK where they are equal; WHERRY_MISMATCH where not, with the path of the first difference and both sides
 * in the error; WHERRY_UNSUPPORTED where bytes are not in host memory; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_compare(const wherry_value *one, const wherry_value *other, unsigned flags,
                                              wherry_error *error);

/**
 * Prints a tree for people, a line a value; tensors that share a storage have its number in common. The form may change from
 * version to version.
 * @return WHERRY_OK; WHERRY_SYSTEM where writing failed; WHERRY_NO_MEMORY.
 */
WHERRY_API wherry_status wherry_value_dump(const wherry_value *value, FILE *out, wherry_error *error);

/** What a decoder accepts. Fill it by wherry_limits_init, then change what you need. */
typedef struct wherry_limits {
    uint32_t struct_size;    /**< sizeof(wherry_limits). */
    uint32_t depth;          /**< Containers within each other. Default 256; at most WHERRY_DEPTH_MAX. */
    uint64_t manifest_bytes; /**< The manifest itself. Default 1 GiB. */
    uint64_t values;         /**< Values, containers and keys included. Default 64 Mi. */
    uint64_t string_bytes;   /**< One string, byte string or big integer. Default 64 MiB. */
    uint64_t total_bytes;    /**< All storages added up, and the space too. Default 64 TiB. */
} wherry_limits;

/** Fills the defaults. */
WHERRY_API void wherry_limits_init(wherry_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
