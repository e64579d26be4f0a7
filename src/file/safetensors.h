/**
 * @file safetensors.h  The safetensors format: 8 bytes of length (little endian), so many of JSON, then the bytes of the tensors end to end.
 */
#ifndef WH_FILE_SAFETENSORS_H
#define WH_FILE_SAFETENSORS_H

#include <wherry/tensor.h>

#include "file/layout.h"
#include "file/named.h"
#include "file/opened.h"

/** The longest header that the format allows. */
#define WH_SAFETENSORS_HEADER_MAX UINT64_C(100000000)

/** The name under which a header has its metadata, and a state keeps it. */
#define WH_SAFETENSORS_METADATA "__metadata__"

/** An element type of the format. */
typedef struct wh_safetensors_dtype {
    const char *name;
    wherry_dtype dtype;
    uint32_t packed; /**< Elements of the format in one of ours: 2 for 4-bit numbers. */
} wh_safetensors_dtype;

/** By the format's name; NULL where Wherry has no such type. */
const wh_safetensors_dtype *wh_safetensors_dtype_named(const char *name);

/** By ours; NULL where the format has no such type. */
const wh_safetensors_dtype *wh_safetensors_dtype_of(wherry_dtype dtype);

/**
 * Reads the header of one file and puts its tensors into a dict, and its metadata into another, where names that are there already stay.
 * @param mapping   of a file of this format; mapped by this call.
 * @param metadata  a dict.
 */
wherry_status wh_safetensors_read(const wherry_file *file, wh_mapping *mapping, wherry_value *tensors,
                                  wherry_value *metadata, uint64_t *header_bytes_p, wherry_error *error);

/** wh_format.open. */
wherry_status wh_safetensors_open(wherry_file *file, wherry_error *error);

/** What the format can hold. */
extern const wh_naming wh_safetensors_naming;

/**
 * Lays out one file, the last of the layout, with some of the named tensors; fills the places of those.
 * @param numbers  of the tensors.
 */
wherry_status wh_safetensors_lay_out(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                     wherry_error *error);

/** Makes places for all named tensors, and lists their numbers, to wh_free. @return NULL where there is no memory. */
size_t *wh_safetensors_number(const wh_names *names, wh_layout *layout);

/** Puts metadata, where there is any, into a state of tensors; takes it over on success. */
wherry_status wh_safetensors_add_metadata(wherry_value *tensors, wherry_value *metadata, wherry_error *error);

#endif
