/*
 * Writing safetensors. The header keeps the order of the state. The tensors are sorted by the size
 * of their elements, so that each tensor is aligned to its element size.
 */
#include "file/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "file/json.h"

/** Alignment of the first tensor in the file, in bytes. */
enum { ALIGNMENT = 64 };

/** The sort key of a tensor: the widest elements come first, then the lowest number. */
typedef struct width_rank {
    uint32_t width;
    size_t number;
} width_rank;

static int compare_ranks(const void *one, const void *other) {
    const width_rank *a = one;
    const width_rank *b = other;
    if (a->width != b->width) {
        return a->width > b->width ? -1 : 1;
    }
    return a->number < b->number ? -1 : a->number > b->number;
}

/** Computes the offset of each tensor, relative to the first tensor in the file. */
static wherry_status set_offsets(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                 uint64_t *end_p, wherry_error *error) {
    width_rank *ranks = wh_alloc_array(count, sizeof(*ranks));
    WH_TRY_ALLOC(ranks, error, "the layout of a file");
    for (size_t i = 0; i < count; i++) {
        ranks[i] = (width_rank){wherry_dtype_describe(names->items[numbers[i]].tensor->dtype)->bytes, numbers[i]};
    }
    if (count > 0) {
        qsort(ranks, count, sizeof(*ranks), compare_ranks);
    }
    uint64_t end = 0;
    bool fits = true;
    for (size_t i = 0; i < count && fits; i++) {
        wh_file_range *range = layout->ranges + ranks[i].number;
        *range = (wh_file_range){layout->file_count - 1, end, wh_dense_bytes(names->items[ranks[i].number].tensor)};
        fits = wh_add(end, range->nbytes, &end);
    }
    wh_free(ranks);
    *end_p = end;
    return fits ? WHERRY_OK : wh_fail(error, WHERRY_UNSUPPORTED, "the tensors take more than 2^63 bytes");
}

static void append_metadata(wh_string *header, const wherry_value *metadata) {
    wh_string_format(header, "\"" WH_SAFETENSORS_METADATA "\":{");
    for (size_t i = 0; i < wherry_dict_count(metadata); i++) {
        const wherry_value *texts[] = {wherry_dict_key_at(metadata, i), wherry_dict_at(metadata, i)};
        for (int k = 0; k < 2; k++) {
            size_t size;
            const char *text = wherry_string_get(texts[k], &size);
            wh_string_append(header, k ? ":" : ",", k || i ? 1 : 0);
            wh_json_append(header, text, size);
        }
    }
    wh_string_append(header, "}", 1);
}

static void append_tensor(wh_string *header, const wh_named *named, const wh_file_range *range) {
    const wherry_tensor *tensor = named->tensor;
    const wh_safetensors_dtype *dtype = wh_safetensors_dtype_of(tensor->dtype);
    wh_json_append(header, named->name, named->size);
    wh_string_format(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype->name);
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        int64_t packed = i == tensor->ndim - 1 ? dtype->packed : 1;
        wh_string_format(header, "%s%" PRId64, i ? "," : "", tensor->shape[i] * packed);
    }
    wh_string_format(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", range->offset,
                     range->offset + range->nbytes);
}

wherry_status wh_safetensors_lay_out(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                     wherry_error *error) {
    uint64_t end = 0;
    WH_TRY(set_offsets(names, numbers, count, layout, &end, error));
    wh_string header = {0};
    wh_string_append(&header, "\0\0\0\0\0\0\0\0{", WH_SAFETENSORS_LENGTH + 1);
    if (names->metadata) {
        append_metadata(&header, names->metadata);
    }
    for (size_t i = 0; i < count; i++) {
        wh_string_append(&header, ",", i > 0 || names->metadata ? 1 : 0);
        append_tensor(&header, names->items + numbers[i], layout->ranges + numbers[i]);
    }
    wh_string_append(&header, "}", 1);
    while (!header.failed && header.size % ALIGNMENT != 0) {
        wh_string_append(&header, " ", 1);
    }
    uint64_t length = header.size - WH_SAFETENSORS_LENGTH;
    if (!header.failed) {
        wh_store_le64((uint8_t *)header.bytes, length);
    }
    if (!header.failed && length > WH_SAFETENSORS_HEADER_MAX) {
        wh_free(header.bytes);
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "the header would have %llu bytes, but safetensors allows %llu; write shards or a .wherry file",
                       (unsigned long long)length, (unsigned long long)WH_SAFETENSORS_HEADER_MAX);
    }
    uint64_t data = header.size;
    for (size_t i = 0; i < count; i++) {
        layout->ranges[numbers[i]].offset += data;
    }
    layout->files[layout->file_count - 1].size = data + end;
    return wh_layout_add_header(layout, layout->file_count - 1, 0, &header)
               ? WHERRY_OK
               : wh_fail_memory(error, "the header of a file");
}

size_t *wh_safetensors_number(const wh_names *names, wh_layout *layout) {
    size_t *numbers = wh_alloc_array(names->count, sizeof(*numbers));
    if (!numbers) {
        return NULL;
    }
    for (size_t i = 0; i < names->count; i++) {
        numbers[i] = i;
        if (!wh_layout_add_range(layout, 0, 0, 0)) {
            wh_free(numbers);
            return NULL;
        }
    }
    return numbers;
}

wherry_status wh_safetensors_accepts(const wherry_value *state, wherry_error *error) {
    wh_names names = {0};
    wherry_status status = wh_names_of(state, &names, error);
    wh_names_destroy(&names);
    return status;
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    (void)options;
    wh_names names = {0};
    wherry_status status = wh_names_of(state, &names, error);
    if (status == WHERRY_OK) {
        size_t *numbers = wh_safetensors_number(&names, layout);
        status = numbers && wh_layout_add_file(layout, layout->path)
                     ? wh_safetensors_lay_out(&names, numbers, names.count, layout, error)
                     : wh_fail_memory(error, "the layout of a file");
        wh_free(numbers);
    }
    wh_names_destroy(&names);
    return status;
}

static bool matches(const uint8_t *head, size_t size) {
    return size > WH_SAFETENSORS_LENGTH && head[WH_SAFETENSORS_LENGTH] == '{';
}

const wh_format wh_format_safetensors = {
    .format = WHERRY_FILE_SAFETENSORS,
    .name = "safetensors",
    .suffix = ".safetensors",
    .matches = matches,
    .open = wh_safetensors_open,
    .accepts = wh_safetensors_accepts,
    .lay_out = lay_out,
};
