/**
 * @file safetensors.h  The safetensors format: 8 bytes of length (little endian), a JSON header of
 * that length, then the bytes of the tensors, end to end.
 */
#ifndef WH_FILE_SAFETENSORS_H
#define WH_FILE_SAFETENSORS_H

#include <wherry/tensor.h>

#include "file/names.h"
#include "file/open.h"

/** Bytes of the length in front of the header. */
enum { WH_SAFETENSORS_LENGTH = 8 };

/** The longest header that the format allows. */
#define WH_SAFETENSORS_HEADER_MAX UINT64_C(100000000)

/** The member of a header that holds the metadata, and the key of a state that does. */
#define WH_SAFETENSORS_METADATA "__metadata__"

/** An element type of the format. */
typedef struct wh_safetensors_dtype {
    const char *name;
    wherry_dtype dtype;
    uint32_t packed; /**< Elements of the format per element of ours: 2 for 4-bit numbers. */
} wh_safetensors_dtype;

/** @return the format's type for one of ours; NULL if it has none. */
const wh_safetensors_dtype *wh_safetensors_dtype_of(wherry_dtype dtype);

/**
 * Reads the header of one file. Adds its tensors to a dict, and its metadata to another one, in
 * which existing keys stay as they are.
 * @param mapping   of a file of this format; this call maps it.
 * @param metadata  a dict.
 */
wherry_status wh_safetensors_read(const wherry_file *file, wh_mapping *mapping, wherry_value *tensors,
                                  wherry_value *metadata, uint64_t *header_bytes_p, wherry_error *error);

/** Adds metadata to a dict of tensors, unless it is empty. Takes it over on success. */
wherry_status wh_safetensors_add_metadata(wherry_value *tensors, wherry_value *metadata, wherry_error *error);

/** wh_format.open. */
wherry_status wh_safetensors_open(wherry_file *file, wherry_error *error);

/** wh_format.accepts. */
wherry_status wh_safetensors_accepts(const wherry_value *state, wherry_error *error);

/**
 * Adds an empty range per named tensor.
 * @return their numbers; free with wh_free. NULL if out of memory.
 */
size_t *wh_safetensors_number(const wh_names *names, wh_layout *layout);

/**
 * Lays out the last file of the layout with some of the named tensors, and fills their ranges.
 * @param numbers  of the tensors.
 */
wherry_status wh_safetensors_lay_out(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                     wherry_error *error);

#endif
