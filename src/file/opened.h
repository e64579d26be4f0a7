/** @file opened.h  What an open file is made of; see wherry/file.h. */
#ifndef WH_FILE_OPENED_H
#define WH_FILE_OPENED_H

#include <wherry/file.h>
#include <wherry/tensor.h>

#include "file/mapping.h"

struct wherry_file {
    wherry_value *state;
    wh_mapping **mappings; /**< The file that was named, then those that it names. */
    size_t mapping_count;
    size_t mapping_capacity;
    wherry_file_summary summary;
    wherry_limits limits;
    wh_access access;
    wherry_status (*verify)(const wherry_file *file,
                            wherry_error *error); /**< NULL where there is nothing to compare. */
};

/** Opens one more file, which `file` keeps: the new one is the last of its mappings. */
wherry_status wh_opened_add(wherry_file *file, const char *path, wherry_error *error);

/** Makes a dense tensor of bytes of a mapping; `tensor` lacks its storage alone. */
wherry_status wh_opened_tensor(wh_mapping *mapping, uint64_t offset, uint64_t nbytes, wherry_tensor tensor,
                               wherry_value **value_p, wherry_error *error);

/** Makes one and puts it into a dict. */
wherry_status wh_opened_put(wh_mapping *mapping, wherry_value *dict, const char *name, uint64_t offset, uint64_t nbytes,
                            wherry_tensor tensor, wherry_error *error);

#endif
