/**
 * @file wherry/tensor.h  Tensors: strided views of storages.
 *
 * No function here blocks; the rules of wherry/value.h for threads and ownership hold. All since 0.1.
 */
#ifndef WHERRY_TENSOR_H
#define WHERRY_TENSOR_H

#include <stdint.h>

#include <wherry/dtype.h>
#include <wherry/error.h>
#include <wherry/storage.h>
#include <wherry/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The most dimensions that a tensor may have. */
#define WHERRY_NDIM_MAX 64

/** Bits of wherry_tensor.flags. They travel on the wire and never change. */
enum {
    WHERRY_TENSOR_REQUIRES_GRAD = 1,
    WHERRY_TENSOR_CONJ = 2, /**< The elements are the conjugates of what is stored. */
    WHERRY_TENSOR_NEG = 4,  /**< The elements are the negatives of what is stored. */
    WHERRY_TENSOR_FLAGS = 7 /**< All of them. */
};

/**
 * A view of a storage: element (i, j, ...) lies (offset + i * strides[0] + j * strides[1] + ...) elements after the
 * storage's first byte. Strides are never negative; they may be 0 (an expanded tensor) and elements may overlap.
 */
typedef struct wherry_tensor {
    wherry_storage *storage; /**< What it is a view of; a tensor that was created has a reference of its own. */
    wherry_dtype dtype;      /**< Of its elements. */
    uint32_t flags;          /**< WHERRY_TENSOR_* */
    uint32_t ndim;           /**< 0 (a scalar) to WHERRY_NDIM_MAX. */
    int64_t offset;          /**< In elements. */
    const int64_t *shape;    /**< ndim sizes; may be NULL where ndim is 0. */
    const int64_t *strides; /**< ndim strides, in elements; NULL in wherry_tensor_create: contiguous, the last dimension
                                 fastest. */
} wherry_tensor;

/**
 * Makes a tensor.
 * @param tensor   borrowed; its arrays are copied, and a reference to its storage is taken.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for an unknown dtype or flag, too many dimensions, a
 * negative size, stride or offset, or an element outside the storage (a tensor without elements needs no bytes).
 */
WHERRY_API wherry_status wherry_tensor_create(const wherry_tensor *tensor, wherry_value **value_p, wherry_error *error);

/** The view that a TENSOR is, borrowed, its strides filled; NULL for any other kind. */
WHERRY_API const wherry_tensor *wherry_tensor_get(const wherry_value *value);

/** The number of elements. */
WHERRY_API uint64_t wherry_tensor_count(const wherry_tensor *tensor);

/**
 * The whole storage of a tensor as a one-dimensional tensor of another dtype, sharing that storage: "cast to bytes" with
 * WHERRY_U8. Offset and strides of the tensor do not matter.
 * @param value_p  belongs to the caller.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where the storage is not a whole number of elements.
 */
WHERRY_API wherry_status wherry_tensor_cast(const wherry_tensor *tensor, wherry_dtype dtype, wherry_value **value_p,
                                            wherry_error *error);

#ifdef __cplusplus
}
#endif
#endif
