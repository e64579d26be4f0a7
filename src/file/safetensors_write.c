/* Writing safetensors: the header in the order of the state, the bytes sorted so that each tensor is aligned to its elements. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "file/file_fail.h"
#include "file/formats.h"
#include "file/json_members.h"
#include "file/little.h"
#include "file/safetensors.h"

enum {
    LENGTH_BYTES = 8,
    ALIGNMENT = 64, /**< Of the first tensor, in the file. */
};

static bool has_dtype(wherry_dtype dtype) {
    return wh_safetensors_dtype_of(dtype) != NULL;
}

const wh_naming wh_safetensors_naming = {"safetensors", WH_SAFETENSORS_METADATA, has_dtype};

/** What is sorted: wide elements first, and otherwise as they come. */
typedef struct rank {
    uint32_t width;
    size_t number;
} rank;

static int compare_ranks(const void *one, const void *other) {
    const rank *a = one;
    const rank *b = other;
    if (a->width != b->width) {
        return a->width > b->width ? -1 : 1;
    }
    return a->number < b->number ? -1 : a->number > b->number;
}

/** Gives the tensors their offsets from the first of them on. */
static wherry_status place_tensors(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                   uint64_t *end_p, wherry_error *error) {
    rank *ranks = wh_alloc_array(count, sizeof(*ranks));
    if (!ranks) {
        return wh_fail_memory(error, "the layout of a file");
    }
    for (size_t i = 0; i < count; i++) {
        ranks[i] = (rank){wherry_dtype_describe(names->items[numbers[i]].tensor->dtype)->bytes, numbers[i]};
    }
    if (count > 0) {
        qsort(ranks, count, sizeof(*ranks), compare_ranks);
    }
    uint64_t end = 0;
    bool fits = true;
    for (size_t i = 0; i < count && fits; i++) {
        wh_place *place = layout->places + ranks[i].number;
        *place = (wh_place){layout->file_count - 1, end, wh_dense_bytes(names->items[ranks[i].number].tensor)};
        fits = wh_add(end, place->nbytes, &end);
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

static void append_tensor(wh_string *header, const wh_named *named, const wh_place *place) {
    const wherry_tensor *tensor = named->tensor;
    const wh_safetensors_dtype *dtype = wh_safetensors_dtype_of(tensor->dtype);
    wh_json_append(header, named->name, named->size);
    wh_string_format(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype->name);
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        int64_t packed = i == tensor->ndim - 1 ? dtype->packed : 1;
        wh_string_format(header, "%s%" PRId64, i ? "," : "", tensor->shape[i] * packed);
    }
    wh_string_format(header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", place->offset,
                     place->offset + place->nbytes);
}

wherry_status wh_safetensors_lay_out(const wh_names *names, const size_t *numbers, size_t count, wh_layout *layout,
                                     wherry_error *error) {
    uint64_t end = 0;
    wherry_status status = place_tensors(names, numbers, count, layout, &end, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_string header = {0};
    wh_string_append(&header, "\0\0\0\0\0\0\0\0{", LENGTH_BYTES + 1);
    if (names->metadata) {
        append_metadata(&header, names->metadata);
    }
    for (size_t i = 0; i < count; i++) {
        wh_string_append(&header, ",", i > 0 || names->metadata ? 1 : 0);
        append_tensor(&header, names->items + numbers[i], layout->places + numbers[i]);
    }
    wh_string_append(&header, "}", 1);
    while (!header.failed && header.size % ALIGNMENT != 0) {
        wh_string_append(&header, " ", 1);
    }
    uint64_t length = header.size - LENGTH_BYTES;
    if (!header.failed) {
        wh_store_little(header.bytes, length, LENGTH_BYTES);
    }
    if (!header.failed && length > WH_SAFETENSORS_HEADER_MAX) {
        wh_free(header.bytes);
        return wh_fail(
            error, WHERRY_UNSUPPORTED,
            "the header would have %llu bytes and safetensors allows %llu; write several files, or a .wherry file",
            (unsigned long long)length, (unsigned long long)WH_SAFETENSORS_HEADER_MAX);
    }
    uint64_t data = header.size;
    for (size_t i = 0; i < count; i++) {
        layout->places[numbers[i]].offset += data;
    }
    layout->files[layout->file_count - 1].size = data + end;
    return wh_layout_add_block(layout, layout->file_count - 1, 0, &header)
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
        if (!wh_layout_add_place(layout, 0, 0, 0)) {
            wh_free(numbers);
            return NULL;
        }
    }
    return numbers;
}

static wherry_status accepts(const wherry_value *state, wherry_error *error) {
    wh_names names = {0};
    wherry_status status = wh_names_of(state, &wh_safetensors_naming, &names, error);
    wh_names_destroy(&names);
    return status;
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    (void)options;
    wh_names names = {0};
    wherry_status status = wh_names_of(state, &wh_safetensors_naming, &names, error);
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
    return size > LENGTH_BYTES && head[LENGTH_BYTES] == '{';
}

const wh_format wh_format_safetensors = {
    .format = WHERRY_FILE_SAFETENSORS,
    .name = "safetensors",
    .ending = ".safetensors",
    .matches = matches,
    .open = wh_safetensors_open,
    .accepts = accepts,
    .lay_out = lay_out,
};
