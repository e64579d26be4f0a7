#include "file/fill.h"

#include <string.h>

#include <wherry/value.h>

#include "base/error.h"
#include "file/part_file.h"

/** From so many bytes on a run is written by a call, which does not have to touch new pages; fewer are copied into the mapping. */
enum { WRITE_FROM = 16 << 10 };

wherry_prepare_options wh_file_prepare_options(void) {
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.max_gap = 0;
    return options;
}

static wherry_status check_memory(const wherry_storage *storage, wherry_error *error) {
    if (wherry_storage_nbytes(storage) == 0 ||
        (wherry_storage_device(storage).kind == WHERRY_DEVICE_CPU && wherry_storage_data(storage))) {
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_UNSUPPORTED,
                   "a tensor of the state is in the memory of another device, or has none; copy it to the host first");
}

/** Writes bytes to `offset` of a place. */
static wherry_status write_run(const wh_layout *layout, const wh_place *place, uint64_t offset, const void *bytes,
                               uint64_t size, wherry_error *error) {
    const wh_mapping *mapping = layout->files[place->file].mapping;
    if (size >= WRITE_FROM) {
        return wh_part_write(mapping->path, mapping->fd, place->offset + offset, bytes, size, error);
    }
    memcpy(mapping->base + place->offset + offset, bytes, size);
    return WHERRY_OK;
}

/** Writes each run of an extent: its levels count like the digits of a number. */
static wherry_status write_extent(const wh_layout *layout, const wh_place *place, const char *data,
                                  const wherry_extent *extent, wherry_error *error) {
    uint64_t digits[WHERRY_NDIM_MAX] = {0};
    uint64_t offset = extent->offset;
    for (;;) {
        wherry_status status = write_run(layout, place, offset, data + offset, extent->length, error);
        if (status != WHERRY_OK) {
            return status;
        }
        uint32_t level = extent->level_count;
        while (level > 0) {
            const wherry_level *at = extent->levels + --level;
            offset += at->stride;
            if (++digits[level] < at->count) {
                break;
            }
            offset -= at->stride * at->count;
            digits[level] = 0;
            if (level == 0) {
                return WHERRY_OK;
            }
        }
        if (extent->level_count == 0) {
            return WHERRY_OK;
        }
    }
}

static wherry_status fill_storages(const wh_layout *layout, const wherry_value *state, wherry_error *error) {
    wherry_prepared *prepared;
    wherry_prepare_options options = wh_file_prepare_options();
    wherry_status status = wherry_prepare(state, &options, &prepared, error);
    if (status != WHERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < layout->place_count && status == WHERRY_OK; i++) {
        const wherry_storage *storage = wherry_prepared_storage(prepared, i);
        size_t count;
        const wherry_extent *extents = wherry_prepared_extents(prepared, i, &count);
        status = check_memory(storage, error);
        for (size_t k = 0; k < count && status == WHERRY_OK; k++) {
            status = write_extent(layout, layout->places + i, wherry_storage_data(storage), extents + k, error);
        }
    }
    wherry_prepared_destroy(prepared);
    return status;
}

static wherry_status fill_dense(const wh_layout *layout, const wherry_value *state, wherry_error *error) {
    wherry_flat *flat;
    wherry_status status = wherry_flatten(state, &flat, error);
    if (status != WHERRY_OK) {
        return status;
    }
    size_t leaves = wherry_flat_count(flat);
    size_t number = 0;
    for (size_t i = 0; i < leaves && status == WHERRY_OK; i++) {
        const wherry_tensor *tensor = wherry_tensor_get(wherry_flat_leaf(flat, i));
        if (!tensor) {
            continue;
        }
        const wh_place *place = layout->places + number++;
        status = check_memory(tensor->storage, error);
        if (status == WHERRY_OK && place->nbytes > 0) {
            const char *data = wherry_storage_data(tensor->storage);
            uint64_t begin = (uint64_t)tensor->offset * wherry_dtype_describe(tensor->dtype)->bytes;
            status = write_run(layout, place, 0, data + begin, place->nbytes, error);
        }
    }
    wherry_flat_destroy(flat);
    return status;
}

wherry_status wh_layout_fill(const wh_layout *layout, const wherry_value *state, wherry_error *error) {
    return (layout->storages ? fill_storages : fill_dense)(layout, state, error);
}
