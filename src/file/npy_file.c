/* Single arrays. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/fail.h"
#include "file/formats.h"
#include "file/little.h"
#include "file/npy.h"

enum {
    MAGIC_BYTES = 6,
    PREFIX = 8,          /**< The magic and the version. */
    DICT_MAX = 64 << 10, /**< Bytes of a dict: NumPy itself reads 10,000 of one that it does not trust. */
};

bool wh_npy_matches(const uint8_t *head, size_t size) {
    return size >= MAGIC_BYTES && memcmp(head, "\x93NUMPY", MAGIC_BYTES) == 0;
}

/** The bytes and strides that follow from the shape. @return false where they do not fit 63 bits. */
static bool measure(wh_npy *npy) {
    uint64_t bytes = wherry_dtype_describe(npy->dtype)->bytes;
    uint64_t stride = 1;
    bool empty = false;
    for (uint32_t i = 0; i < npy->ndim; i++) {
        uint32_t at = npy->columns ? i : npy->ndim - 1 - i;
        npy->strides[at] = (int64_t)stride;
        empty = empty || npy->shape[at] == 0;
        uint64_t size = npy->shape[at] > 0 ? (uint64_t)npy->shape[at] : 1;
        if (!wh_mul(stride, size, &stride)) {
            return false;
        }
    }
    npy->data_bytes = 0;
    return empty || wh_mul(stride, bytes, &npy->data_bytes);
}

/** How long the dict is, by the version of the format. */
static wherry_status read_prefix(const wh_mapping *mapping, uint64_t offset, uint64_t size, wh_spot spot, wh_npy *npy,
                                 uint64_t *dict_p, wherry_error *error) {
    uint8_t prefix[PREFIX + 4] = {0};
    uint64_t have = size < sizeof(prefix) ? size : sizeof(prefix);
    wherry_status status = wh_mapping_read(mapping, offset, prefix, (size_t)have, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (!wh_npy_matches(prefix, have)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot, "it is no npy array");
    }
    int width = prefix[6] == 1 ? 2 : 4;
    if (have >= PREFIX && (prefix[6] < 1 || prefix[6] > 3 || prefix[7] != 0)) {
        spot.offset += MAGIC_BYTES;
        return wh_file_fail(error, WHERRY_BAD_VERSION, spot,
                            "it is of version %d.%d of npy; this library reads 1.0 to 3.0", prefix[6], prefix[7]);
    }
    uint64_t dict = wh_load_little(prefix + PREFIX, width);
    npy->header_bytes = PREFIX + (uint64_t)width + dict;
    if (have < PREFIX + (uint64_t)width || npy->header_bytes > size) {
        spot.offset += size;
        return wh_file_fail(error, WHERRY_TRUNCATED, spot, "it ends at byte %llu, within its npy header",
                            (unsigned long long)spot.offset);
    }
    if (dict > DICT_MAX) {
        return wh_file_fail(error, WHERRY_LIMIT, spot, "its npy header has %llu bytes, more than %d",
                            (unsigned long long)dict, DICT_MAX);
    }
    *dict_p = dict;
    return WHERRY_OK;
}

wherry_status wh_npy_read(const wh_mapping *mapping, uint64_t offset, uint64_t size, const char *name, wh_npy *npy,
                          wherry_error *error) {
    wh_spot spot = {mapping->path, name, name ? strlen(name) : 0, offset};
    *npy = (wh_npy){0};
    uint64_t dict = 0;
    char *text = NULL;
    wherry_status status = read_prefix(mapping, offset, size, spot, npy, &dict, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_copy(mapping, offset + npy->header_bytes - dict, (size_t)dict, &text, error);
    }
    if (status == WHERRY_OK) {
        wh_spot inside = spot;
        inside.offset += npy->header_bytes - dict;
        status = wh_npy_parse(text, (size_t)dict, inside, npy, error);
    }
    wh_free(text);
    if (status != WHERRY_OK) {
        return status;
    }
    if (!measure(npy)) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot, "its shape takes over 2^63 bytes");
    }
    uint64_t have = size - npy->header_bytes;
    if (have != npy->data_bytes) {
        spot.offset += npy->header_bytes + wh_min(have, npy->data_bytes);
        return wh_file_fail(error, have < npy->data_bytes ? WHERRY_TRUNCATED : WHERRY_TRAILING_BYTES, spot,
                            "its elements take %llu bytes, and it has %llu", (unsigned long long)npy->data_bytes,
                            (unsigned long long)have);
    }
    return WHERRY_OK;
}

static wherry_status open_array(wherry_file *file, wherry_error *error) {
    wh_mapping *mapping = file->mappings[0];
    wh_npy npy;
    wherry_status status = wh_npy_read(mapping, 0, mapping->size, NULL, &npy, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_map(mapping, file->access, error);
    }
    if (status == WHERRY_OK) {
        status = wh_opened_tensor(mapping, npy.header_bytes, npy.data_bytes, wh_npy_tensor(&npy), &file->state, error);
    }
    if (status == WHERRY_OK) {
        file->summary.tensors = 1;
        file->summary.header_bytes = npy.header_bytes;
    }
    return status;
}

static wherry_status accepts(const wherry_value *state, wherry_error *error) {
    const wherry_tensor *tensor = wherry_tensor_get(state);
    if (!tensor) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "npy holds one tensor, and this is a %s; write an .npz or a .wherry file",
                       wherry_kind_name(wherry_value_kind(state)));
    }
    return wh_naming_check(&wh_npy_naming, tensor, NULL, error);
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    (void)options;
    wherry_status status = accepts(state, error);
    if (status != WHERRY_OK) {
        return status;
    }
    const wherry_tensor *tensor = wherry_tensor_get(state);
    wh_string header = {0};
    wh_npy_append(&header, tensor);
    uint64_t data = header.size;
    layout->columns = wh_alloc_zeroed(1, sizeof(*layout->columns));
    if (!wh_layout_add_file(layout, layout->path) || !layout->columns ||
        !wh_layout_add_place(layout, 0, data, wh_dense_bytes(tensor)) || !wh_layout_add_block(layout, 0, 0, &header)) {
        wh_free(header.bytes);
        return wh_fail_memory(error, "the layout of a file");
    }
    layout->columns[0] = !wh_tensor_is_dense(tensor, false);
    layout->files[0].size = data + layout->places[0].nbytes;
    return WHERRY_OK;
}

const wh_format wh_format_npy = {
    .format = WHERRY_FILE_NPY,
    .name = "npy",
    .ending = ".npy",
    .matches = wh_npy_matches,
    .open = open_array,
    .accepts = accepts,
    .lay_out = lay_out,
};
