/*
 * Reading and writing safetensors. The format requires that the tensors fill the file after the
 * header without gaps, in any order.
 */
#include "file/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/index.h"
#include "file/json.h"

/** The maximum size in bytes of the description of one tensor in the header. */
enum { ENTRY_MAX = 64 << 10 };

/* ---- element types ---- */

static const wh_safetensors_dtype dtypes[] = {
    {"BOOL", WHERRY_BOOL, 1},
    {"U8", WHERRY_U8, 1},
    {"I8", WHERRY_I8, 1},
    {"U16", WHERRY_U16, 1},
    {"I16", WHERRY_I16, 1},
    {"U32", WHERRY_U32, 1},
    {"I32", WHERRY_I32, 1},
    {"U64", WHERRY_U64, 1},
    {"I64", WHERRY_I64, 1},
    {"F16", WHERRY_F16, 1},
    {"BF16", WHERRY_BF16, 1},
    {"F32", WHERRY_F32, 1},
    {"F64", WHERRY_F64, 1},
    {"C64", WHERRY_C64, 1},
    {"F8_E4M3", WHERRY_F8_E4M3FN, 1},
    {"F8_E5M2", WHERRY_F8_E5M2, 1},
    {"F8_E8M0", WHERRY_F8_E8M0FNU, 1},
    {"F8_E4M3FNUZ", WHERRY_F8_E4M3FNUZ, 1},
    {"F8_E5M2FNUZ", WHERRY_F8_E5M2FNUZ, 1},
    {"F4", WHERRY_F4_E2M1FN_X2, 2},
};

enum { DTYPES = sizeof(dtypes) / sizeof(*dtypes) };

static const wh_safetensors_dtype *find_dtype(const char *name) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return dtypes + i;
        }
    }
    return NULL;
}

const wh_safetensors_dtype *wh_safetensors_dtype_of(wherry_dtype dtype) {
    for (size_t i = 0; i < DTYPES; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes + i;
        }
    }
    return NULL;
}

/* ---- one tensor ---- */

/** A tensor in the header. Its name contains no zero byte, because Jansson refuses zero bytes. */
typedef struct entry {
    const char *name;
    uint64_t begin;
    uint64_t end;
    const wh_safetensors_dtype *dtype;
    uint32_t ndim;
    /** If the entry is in `entries`, its shape and name follow it in the same block of memory. */
    int64_t *shape;
} entry;

typedef struct reading {
    const wherry_file *file;
    wh_mapping *mapping;
    wherry_value *tensors;
    wherry_value *metadata;
    bool has_metadata;   /**< True if the metadata of this file has been read. */
    uint64_t data;       /**< Offset in the file at which the bytes of the tensors begin. */
    uint64_t data_bytes; /**< Number of bytes from `data` to the end of the file. */
    entry **entries;     /**< The tensors in the order of the header. */
    size_t count;
    size_t capacity;
    wh_index names; /**< Finds entries by name. */
} reading;

static wh_spot spot_of(const reading *r, const char *name, uint64_t offset) {
    return (wh_spot){r->mapping->path, name, strlen(name), offset};
}

static wherry_status read_dtype(const reading *r, const json_t *about, entry *e, uint64_t at, wherry_error *error) {
    const char *name = json_string_value(json_object_get(about, "dtype"));
    if (!name) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at), "its dtype is missing or not a string");
    }
    e->dtype = find_dtype(name);
    return e->dtype ? WHERRY_OK
                    : wh_file_fail(error, WHERRY_UNSUPPORTED, spot_of(r, e->name, at),
                                   "Wherry does not support the dtype '%.40s'", name);
}

static wherry_status read_shape(const reading *r, const json_t *about, entry *e, uint64_t at, wherry_error *error) {
    const json_t *shape = json_object_get(about, "shape");
    if (!json_is_array(shape)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at), "its shape is missing or not an array");
    }
    if (json_array_size(shape) > WHERRY_NDIM_MAX) {
        return wh_file_fail(error, WHERRY_LIMIT, spot_of(r, e->name, at),
                            "the tensor has %zu dimensions; the limit is %d", json_array_size(shape), WHERRY_NDIM_MAX);
    }
    e->ndim = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < e->ndim; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at),
                                "size %u of its shape must be an integer of 0 or more", (unsigned)i);
        }
        e->shape[i] = json_integer_value(size);
    }
    assert(e->dtype);
    if (e->dtype->packed > 1) {
        if (e->ndim == 0 || e->shape[e->ndim - 1] % e->dtype->packed != 0) {
            return wh_file_fail(error, WHERRY_UNSUPPORTED, spot_of(r, e->name, at),
                                "its last dimension must have an even size, because two %s elements share a byte",
                                e->dtype->name);
        }
        e->shape[e->ndim - 1] /= e->dtype->packed;
    }
    return WHERRY_OK;
}

static wherry_status read_offsets(const reading *r, const json_t *about, entry *e, uint64_t at, wherry_error *error) {
    const json_t *offsets = json_object_get(about, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at),
                            "its data_offsets must be two integers [begin, end] with 0 <= begin <= end");
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    assert(e->dtype);
    uint64_t needs = wherry_dtype_describe(e->dtype->dtype)->bytes;
    bool fits = true;
    bool empty = false;
    for (uint32_t i = 0; i < e->ndim; i++) {
        empty = empty || e->shape[i] == 0;
        fits = fits && (e->shape[i] == 0 || wh_mul(needs, (uint64_t)e->shape[i], &needs));
    }
    if (!fits) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, at),
                            "its shape takes more than 2^63 bytes");
    }
    if (e->end - e->begin != (empty ? 0 : needs)) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, r->data + e->begin),
                            "its shape takes %llu bytes, but its data_offsets span %llu",
                            (unsigned long long)(empty ? 0 : needs), (unsigned long long)(e->end - e->begin));
    }
    return WHERRY_OK;
}

static bool has_name(const void *owner, size_t element, const void *key) {
    return strcmp(((const reading *)owner)->entries[element]->name, key) == 0;
}

/** Adds a copy of an entry to the list. */
static wherry_status add_entry(reading *r, const entry *read, uint64_t at, wherry_error *error) {
    size_t name_size = strlen(read->name);
    size_t shape_size = read->ndim * sizeof(*read->shape);
    uint64_t hash = wh_hash(read->name, name_size, 0);
    if (wh_index_find(&r->names, hash, has_name, r, read->name) != WH_INDEX_NONE) {
        return wh_file_fail(error, WHERRY_REPEATED_KEY, spot_of(r, read->name, at),
                            "the header lists the tensor twice");
    }
    entry *copy =
        WH_GROW(r->entries, r->capacity, r->count) ? wh_alloc(sizeof(*copy) + shape_size + name_size + 1) : NULL;
    if (!copy || !wh_index_add(&r->names, hash, r->count)) {
        wh_free(copy);
        return wh_fail_memory(error, "the tensors of a file");
    }
    *copy = *read;
    copy->shape = (int64_t *)(copy + 1);
    char *name = (char *)(copy->shape + read->ndim);
    memcpy(copy->shape, read->shape, shape_size);
    memcpy(name, read->name, name_size + 1);
    copy->name = name;
    r->entries[r->count++] = copy;
    return WHERRY_OK;
}

static wherry_status read_tensor(reading *r, const json_t *name, const json_t *about, uint64_t at,
                                 wherry_error *error) {
    int64_t shape[WHERRY_NDIM_MAX] = {0};
    entry read = {.name = json_string_value(name), .shape = shape};
    if (!json_is_object(about)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, read.name, at), "its description is not a JSON object");
    }
    WH_TRY(read_dtype(r, about, &read, at, error));
    WH_TRY(read_shape(r, about, &read, at, error));
    WH_TRY(read_offsets(r, about, &read, at, error));
    return add_entry(r, &read, at, error);
}

/* ---- all tensors of a file ---- */

static int compare_begins(const void *one, const void *other) {
    const entry *a = *(entry *const *)one;
    const entry *b = *(entry *const *)other;
    int order = wh_order(a->begin, b->begin);
    return order ? order : wh_order(a->end, b->end);
}

/** Checks that the tensors fill the data of the file without gaps or overlaps. */
static wherry_status check_layout(reading *r, entry **sorted, wherry_error *error) {
    if (r->count > 0) {
        memcpy(sorted, r->entries, r->count * sizeof(*sorted));
        qsort(sorted, r->count, sizeof(*sorted), compare_begins);
    }
    uint64_t end = 0;
    for (size_t i = 0; i < r->count; i++) {
        const entry *e = sorted[i];
        if (e->begin != end) {
            return wh_file_fail(
                error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, r->data + e->begin),
                "the tensor starts at byte %llu of the data, but the tensors before it end at byte %llu: %s",
                (unsigned long long)e->begin, (unsigned long long)end,
                e->begin < end ? "they overlap" : "there is a gap");
        }
        end = e->end;
        if (end > r->data_bytes) {
            return wh_file_fail(
                error, WHERRY_TRUNCATED, spot_of(r, e->name, r->data + r->data_bytes),
                "the tensor ends at byte %llu, but the file has %llu bytes; copy or download the file again",
                (unsigned long long)r->data + end, (unsigned long long)r->data + r->data_bytes);
        }
    }
    if (end < r->data_bytes) {
        return wh_file_fail(error, WHERRY_TRAILING_BYTES, wh_spot_byte(r->mapping->path, r->data + end),
                            "%llu unexpected bytes after the last tensor", (unsigned long long)(r->data_bytes - end));
    }
    return WHERRY_OK;
}

static wherry_status put_tensors(reading *r, wherry_error *error) {
    entry **sorted = wh_alloc_array(r->count, sizeof(*sorted));
    WH_TRY_ALLOC(sorted, error, "the tensors of a file");
    wherry_status status = check_layout(r, sorted, error);
    wh_free(sorted);
    WH_THEN(status, wh_mapping_map(r->mapping, r->file->access, error));
    for (size_t i = 0; i < r->count && status == WHERRY_OK; i++) {
        const entry *e = r->entries[i];
        wherry_tensor tensor = {.dtype = e->dtype->dtype, .ndim = e->ndim, .shape = e->shape};
        wherry_value *value = NULL;
        status = wh_opened_tensor(r->mapping, r->data + e->begin, e->end - e->begin, tensor, &value, error);
        if (status == WHERRY_OK && (status = wherry_dict_put(r->tensors, e->name, value, error)) != WHERRY_OK) {
            wherry_value_destroy(value);
        }
        wh_free(r->entries[i]); /* Freeing each entry here halves the peak memory. */
        r->entries[i] = NULL;
    }
    return status;
}

/* ---- the header ---- */

static wherry_status put_text(wherry_value *dict, const char *name, const json_t *text, wherry_error *error) {
    wherry_value *item;
    wherry_status status = wherry_string_create(json_string_value(text), json_string_length(text), &item, error);
    if (status == WHERRY_OK && (status = wherry_dict_put(dict, name, item, error)) != WHERRY_OK) {
        wherry_value_destroy(item);
    }
    return status;
}

typedef struct metadata_reading {
    /**
     * The metadata of this file only. It is used to find repeated names; the same name in two
     * shards is allowed.
     */
    wherry_value *own;
    wherry_value *all; /**< The metadata of all files that were read so far. */
} metadata_reading;

static wherry_status read_text(void *context, wh_json *json, const json_t *name, wherry_error *error) {
    const metadata_reading *m = context;
    json_t *text = NULL;
    wherry_status status = wh_json_value(json, json->size, &text, error);
    if (status == WHERRY_OK && !json_is_string(text)) {
        status = wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "a value of the metadata is not a string");
    } else if (status == WHERRY_OK) {
        status = put_text(m->own, json_string_value(name), text, error);
        if (status == WHERRY_DUPLICATE_KEY) {
            status =
                wh_file_fail(error, WHERRY_REPEATED_KEY, wh_json_spot(json), "a name occurs twice in the metadata");
        } else if (status == WHERRY_OK && !wherry_dict_get(m->all, json_string_value(name))) {
            status = put_text(m->all, json_string_value(name), text, error);
        }
    }
    json_decref(text);
    return status;
}

static wherry_status read_metadata(const reading *r, wh_json *json, wherry_error *error) {
    metadata_reading m = {.all = r->metadata};
    wherry_status status = wherry_dict_create(&m.own, error);
    if (status == WHERRY_OK) {
        status = wh_json_members(json, read_text, &m, error);
        wherry_value_destroy(m.own);
    }
    return status;
}

static wherry_status read_member(void *context, wh_json *json, const json_t *name, wherry_error *error) {
    reading *r = context;
    uint64_t at = json->begin + json->at;
    if (strcmp(json_string_value(name), WH_SAFETENSORS_METADATA) == 0) {
        if (r->has_metadata) {
            return wh_file_fail(error, WHERRY_REPEATED_KEY, wh_json_spot(json),
                                "the header has " WH_SAFETENSORS_METADATA " twice");
        }
        r->has_metadata = true;
        return wh_json_take_null(json) ? WHERRY_OK
                                       /* Like the reference library, treat null as no metadata. */
                                       : read_metadata(r, json, error);
    }
    if (r->count >= r->file->limits.values) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_json_spot(json), "the file has more tensors than the limit of %llu",
                            (unsigned long long)r->file->limits.values);
    }
    json_t *about = NULL;
    wherry_status status = wh_json_value(json, ENTRY_MAX, &about, error);
    WH_THEN(status, read_tensor(r, name, about, at, error));
    json_decref(about);
    return status;
}

/** Reads the length of the header and checks it against the file and the limits. */
static wherry_status read_length(const wherry_file *file, const wh_mapping *mapping, uint64_t *length_p,
                                 wherry_error *error) {
    uint8_t bytes[WH_SAFETENSORS_LENGTH];
    WH_TRY(wh_mapping_read(mapping, 0, bytes, sizeof(bytes), error));
    uint64_t length = wh_load_le64(bytes);
    uint64_t most = wh_min(file->limits.manifest_bytes, WH_SAFETENSORS_HEADER_MAX);
    if (length > most) {
        return wh_file_fail(
            error, WHERRY_LIMIT, wh_spot_byte(mapping->path, 0),
            "the header has %llu bytes, but the limit is %llu; the file is damaged or not safetensors, or "
            "limits.manifest_bytes is too low",
            (unsigned long long)length, (unsigned long long)most);
    }
    if (length > mapping->size - WH_SAFETENSORS_LENGTH) {
        return wh_file_fail(
            error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, mapping->size),
            "the file has %llu bytes, but its header ends at byte %llu; copy or download the file again",
            (unsigned long long)mapping->size, (unsigned long long)length + WH_SAFETENSORS_LENGTH);
    }
    *length_p = length;
    return WHERRY_OK;
}

wherry_status wh_safetensors_read(const wherry_file *file, wh_mapping *mapping, wherry_value *tensors,
                                  wherry_value *metadata, uint64_t *header_bytes_p, wherry_error *error) {
    uint64_t length = 0;
    char *text = NULL;
    WH_TRY(read_length(file, mapping, &length, error));
    WH_TRY(wh_mapping_copy(mapping, WH_SAFETENSORS_LENGTH, (size_t)length, &text, error));
    reading r = {.file = file, .mapping = mapping, .tensors = tensors, .metadata = metadata};
    r.data = WH_SAFETENSORS_LENGTH + length;
    r.data_bytes = mapping->size - r.data;
    wh_json json = {mapping->path, WH_SAFETENSORS_LENGTH, text, (size_t)length, 0};
    wherry_status status = wh_json_members(&json, read_member, &r, error);
    WH_THEN(status, wh_json_end(&json, error));
    wh_free(text);
    WH_THEN(status, put_tensors(&r, error));
    for (size_t i = 0; i < r.count; i++) {
        wh_free(r.entries[i]);
    }
    wh_free(r.entries);
    wh_index_destroy(&r.names);
    if (status == WHERRY_OK) {
        *header_bytes_p = r.data;
    }
    return status;
}

wherry_status wh_safetensors_add_metadata(wherry_value *tensors, wherry_value *metadata, wherry_error *error) {
    if (wherry_dict_count(metadata) == 0) {
        wherry_value_destroy(metadata);
        return WHERRY_OK;
    }
    return wherry_dict_put(tensors, WH_SAFETENSORS_METADATA, metadata, error);
}

static wherry_status open_file(wherry_file *file, wherry_error *error) {
    wherry_value *metadata = NULL;
    wherry_status status = wherry_dict_create(&file->state, error);
    WH_THEN(status, wherry_dict_create(&metadata, error));
    WH_THEN(status,
            wh_safetensors_read(file, file->mappings[0], file->state, metadata, &file->summary.header_bytes, error));
    if (status == WHERRY_OK) {
        file->summary.tensors = wherry_dict_count(file->state);
        status = wh_safetensors_add_metadata(file->state, metadata, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(metadata);
    }
    return status;
}

/*
 * ---- writing ----
 *
 * The header keeps the order of the state. The tensors are sorted by the size of their elements, so
 * that each tensor is aligned to its element size.
 */

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
    int order = wh_order(b->width, a->width);
    return order ? order : wh_order(a->number, b->number);
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
    .open = open_file,
    .accepts = wh_safetensors_accepts,
    .lay_out = lay_out,
};
