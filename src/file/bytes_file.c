/* Any file, byte for byte: for those who carry files rather than read them. */
#include "base/alloc.h"
#include "base/error.h"
#include "file/file_fail.h"
#include "file/formats.h"

static wherry_status open_bytes(wherry_file *file, wherry_error *error) {
    wh_mapping *mapping = file->mappings[0];
    int64_t shape[] = {(int64_t)mapping->size};
    wherry_tensor tensor = {.dtype = WHERRY_U8, .ndim = 1, .shape = shape};
    wherry_status status = wh_mapping_map(mapping, file->access, error);
    if (status == WHERRY_OK) {
        status = wh_opened_tensor(mapping, 0, mapping->size, tensor, &file->state, error);
    }
    file->summary.tensors = 1;
    return status;
}

static wherry_status accepts(const wherry_value *state, wherry_error *error) {
    const wherry_tensor *tensor = wherry_tensor_get(state);
    if (!tensor || tensor->dtype != WHERRY_U8 || tensor->ndim != 1 || tensor->flags || !wh_tensor_is_dense(tensor)) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "a file of bytes is made of one contiguous tensor of uint8 with one dimension, and this is %s",
                       tensor ? "another tensor" : wherry_kind_name(wherry_value_kind(state)));
    }
    return WHERRY_OK;
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    (void)options;
    wherry_status status = accepts(state, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t size = wh_dense_bytes(wherry_tensor_get(state));
    if (!wh_layout_add_file(layout, layout->path) || !wh_layout_add_place(layout, 0, 0, size)) {
        return wh_fail_memory(error, "the layout of a file");
    }
    layout->files[0].size = size;
    return WHERRY_OK;
}

const wh_format wh_format_bytes = {
    .format = WHERRY_FILE_BYTES,
    .name = "bytes",
    .open = open_bytes,
    .accepts = accepts,
    .lay_out = lay_out,
};
