/**
 * @file wherry/value.h  The value tree: everything that a state dict holds.
 *
 * A value is a node of a tree. It is created alone and belongs to its creator; put into a container it belongs to that,
 * and is destroyed with it. Each function that takes a value over says so: on success it is the container's, on failure
 * it is still the caller's. Pointers that a function returns into a tree are borrowed and live as long as that tree.
 *
 * No function here blocks. A tree may be read by several threads at once, and changed by one while no other uses it.
 * Functions that create return WHERRY_OK or WHERRY_NO_MEMORY and what they name besides. All since 0.1.
 */
#ifndef WHERRY_VALUE_H
#define WHERRY_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
