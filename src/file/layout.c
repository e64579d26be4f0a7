#include "file/layout.h"

#include <string.h>

#include <wherry/tensor.h>

#include "base/alloc.h"

void wh_layout_destroy(wh_layout *layout) {
    for (size_t i = 0; i < layout->file_count; i++) {
        wh_free(layout->files[i].path);
        wh_free(layout->files[i].part);
        wh_mapping_unref(layout->files[i].mapping);
    }
    for (size_t i = 0; i < layout->block_count; i++) {
        wh_free(layout->blocks[i].bytes);
    }
    wh_free(layout->files);
    wh_free(layout->blocks);
    wh_free(layout->places);
    wh_free(layout->covered);
    wh_free(layout->storages);
    *layout = (wh_layout){0};
}

bool wh_layout_add_file(wh_layout *layout, const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    wh_string text = {0};
    wh_string_append(&text, path, (size_t)(name - path));
    wh_string_format(&text, ".%s.part", name);
    wh_layout_file file = {.path = wh_copy_text(path, strlen(path)), .part = wh_string_take(&text)};
    if (!file.path || !file.part || !WH_GROW(layout->files, layout->file_capacity, layout->file_count)) {
        wh_free(file.path);
        wh_free(file.part);
        return false;
    }
    layout->files[layout->file_count++] = file;
    return true;
}

bool wh_layout_add_block(wh_layout *layout, size_t file, uint64_t offset, wh_string *text) {
    size_t size = text->size;
    char *bytes = wh_string_take(text);
    if (!bytes || !WH_GROW(layout->blocks, layout->block_capacity, layout->block_count)) {
        wh_free(bytes);
        return false;
    }
    layout->blocks[layout->block_count++] = (wh_block){file, offset, bytes, size};
    return true;
}

bool wh_layout_add_place(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes) {
    if (!WH_GROW(layout->places, layout->place_capacity, layout->place_count)) {
        return false;
    }
    layout->places[layout->place_count++] = (wh_place){file, offset, nbytes};
    return true;
}

uint64_t wh_dense_bytes(const wherry_tensor *tensor) {
    return wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes;
}

bool wh_tensor_is_dense(const wherry_tensor *tensor) {
    uint64_t expected = 1;
    if (wherry_tensor_count(tensor) == 0) {
        return true;
    }
    for (uint32_t at = tensor->ndim; at-- > 0;) {
        if (tensor->shape[at] != 1 && (uint64_t)tensor->strides[at] != expected) {
            return false;
        }
        expected *= (uint64_t)tensor->shape[at];
    }
    return true;
}
