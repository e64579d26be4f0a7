/**
 * @file safetensors.h  The safetensors format. A file contains the length of the header (8 bytes,
 * little endian), a JSON header, and then the bytes of the tensors without gaps.
 */
#ifndef WH_FILE_SAFETENSORS_H
#define WH_FILE_SAFETENSORS_H

#include <wherry/tensor.h>

#include "file/names.h"
#include "file/open.h"

/** Size in bytes of the length field before the header. */
enum { WH_SAFETENSORS_LENGTH = 8 };

/** The maximum size of a header in bytes that the format allows. */
#define WH_SAFETENSORS_HEADER_MAX UINT64_C(100000000)

/**
 * The name of the header member that contains the metadata. In a state, the metadata has the same
 * key.
 */
#define WH_SAFETENSORS_METADATA "__metadata__"

/** An element type of the format. */
typedef struct wh_safetensors_dtype {
    const char *name;
    wherry_dtype dtype;
    /** Elements in the file per element of a Wherry tensor: 2 for 4-bit numbers, otherwise 1. */
    uint32_t packed;
} wh_safetensors_dtype;

/**
 * Finds the element type of the format for a wherry_dtype. @return NULL if the format has no such
 * type.
 */
const wh_safetensors_dtype *wh_safetensors_dtype_of(wherry_dtype dtype);

/**
 * Reads the header of one file. Adds its tensors to the dict `tensors`, and its metadata to the
 * dict `metadata`. Existing keys of `metadata` keep their values.
 * @param mapping   an open file of this format. This call maps it.
 * @param metadata  a dict.
 */
wherry_status wh_safetensors_read(const wherry_file *file, wh_mapping *mapping, wherry_value *tensors,
                                  wherry_value *metadata, uint64_t *header_bytes_p, wherry_error *error);

/**
 * Adds the metadata to a dict of tensors, unless the metadata is empty. On success, the function
 * owns the metadata.
 */
wherry_status wh_safetensors_add_metadata(wherry_value *tensors, wherry_value *metadata, wherry_error *error);

/** Implements wh_format.accepts. */
wherry_status wh_safetensors_accepts(const wherry_value *state, wherry_error *error);

/**
 * Adds an empty range per named tensor to the layout.
 * @return an array with the numbers 0 to names->count - 1, which the caller frees with wh_free;
 * NULL if out of memory.
 */
size_t *wh_safetensors_number(const wh_names *names, wh_layout *layout);

/**
 * Lays out the last file of the layout, and fills in the ranges of the tensors in it.
 * @param numbers  the numbers in `names` of the tensors that the file will contain.
 * @param count    the number of these tensors.
 */
wherry_status wh_safetensors_lay_out(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                     wherry_error *error);

#endif
