/** @file npy.h  NumPy's arrays: a magic text, a version, a Python dict as text, and the elements. */
#ifndef WH_FILE_NPY_H
#define WH_FILE_NPY_H

#include <wherry/tensor.h>

#include "file/file_fail.h"
#include "file/mapping.h"
#include "file/named.h"

/** What a header says. */
typedef struct wh_npy {
    wherry_dtype dtype;
    bool columns; /**< Fortran order: the first dimension is the fastest. */
    uint32_t ndim;
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX]; /**< In elements. */
    uint64_t header_bytes;            /**< Everything before the elements. */
    uint64_t data_bytes;              /**< The elements. */
} wh_npy;

/** What the format can hold. */
extern const wh_naming wh_npy_naming;
extern const wh_naming wh_npz_naming;

/** Whether these are the first bytes of an array. */
bool wh_npy_matches(const uint8_t *head, size_t size);

/**
 * Reads the header of an array that takes `size` bytes of a file from `offset` on, all of them.
 * @param name  of the array, for errors; NULL: it has none.
 */
wherry_status wh_npy_read(const wh_mapping *mapping, uint64_t offset, uint64_t size, const char *name, wh_npy *npy,
                          wherry_error *error);

/** Appends the header of a tensor that is dense; its length is a multiple of 64. */
void wh_npy_append(wh_string *out, const wherry_tensor *tensor);

/** Reads the dict: fills dtype, columns, ndim and shape. at is where it begins in the file. */
wherry_status wh_npy_parse(const char *text, size_t size, wh_spot spot, wh_npy *npy, wherry_error *error);

/** A wherry_tensor of it, without a storage; borrows shape and strides. */
wherry_tensor wh_npy_tensor(const wh_npy *npy);

#endif
