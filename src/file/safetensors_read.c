/* Reading safetensors. The rules are the format's own: tensors lie end to end, in any order, without gaps, up to the end of the file. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/index.h"
#include "file/formats.h"
#include "file/json_members.h"
#include "file/little.h"
#include "file/safetensors.h"

enum {
    LENGTH_BYTES = 8,
    ENTRY_MAX = 64 << 10, /**< Bytes of what a header says about one tensor. */
};

/** A tensor of the header. Names have no zeros in them: Jansson lets none through. */
typedef struct entry {
    const char *name;
    uint64_t begin;
    uint64_t end;
    const wh_safetensors_dtype *dtype;
    uint32_t ndim;
    int64_t *shape; /**< In a kept entry the shape and the name lie behind it, in the same block. */
} entry;

typedef struct reading {
    const wherry_file *file;
    wh_mapping *mapping;
    wherry_value *tensors;
    wherry_value *metadata;
    bool has_metadata; /**< This file's has been read. */
    uint64_t data;     /**< Where the tensors begin in the file. */
    uint64_t space;    /**< Bytes from there to its end. */
    entry **entries;   /**< In the header's order. */
    size_t count;
    size_t capacity;
    wh_index names; /**< Finds an entry by its name. */
} reading;

static wh_spot spot_of(const reading *r, const char *name, uint64_t offset) {
    return (wh_spot){r->mapping->path, name, strlen(name), offset};
}

/* ---- one tensor ---- */

static wherry_status read_dtype(const reading *r, const json_t *about, entry *e, uint64_t at, wherry_error *error) {
    const char *name = json_string_value(json_object_get(about, "dtype"));
    if (!name) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at), "the header gives it no dtype");
    }
    e->dtype = wh_safetensors_dtype_named(name);
    return e->dtype ? WHERRY_OK
                    : wh_file_fail(error, WHERRY_UNSUPPORTED, spot_of(r, e->name, at),
                                   "Wherry has no element type '%.40s'", name);
}

static wherry_status read_shape(const reading *r, const json_t *about, entry *e, uint64_t at, wherry_error *error) {
    const json_t *shape = json_object_get(about, "shape");
    if (!json_is_array(shape)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at), "the header gives it no shape");
    }
    if (json_array_size(shape) > WHERRY_NDIM_MAX) {
        return wh_file_fail(error, WHERRY_LIMIT, spot_of(r, e->name, at), "it has %zu dimensions; %d is the most",
                            json_array_size(shape), WHERRY_NDIM_MAX);
    }
    e->ndim = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < e->ndim; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, e->name, at), "size %u of its shape is no number",
                                (unsigned)i);
        }
        e->shape[i] = json_integer_value(size);
    }
    assert(e->dtype);
    if (e->dtype->packed > 1) {
        if (e->ndim == 0 || e->shape[e->ndim - 1] % e->dtype->packed != 0) {
            return wh_file_fail(error, WHERRY_UNSUPPORTED, spot_of(r, e->name, at),
                                "its last dimension is no whole number of bytes of %s", e->dtype->name);
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
                            "the header gives it no data_offsets of the form [begin, end]");
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
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, at), "its shape takes over 2^63 bytes");
    }
    if (e->end - e->begin != (empty ? 0 : needs)) {
        return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, r->data + e->begin),
                            "its shape takes %llu bytes and its data_offsets are %llu apart",
                            (unsigned long long)(empty ? 0 : needs), (unsigned long long)(e->end - e->begin));
    }
    return WHERRY_OK;
}

static bool has_name(const void *owner, size_t element, const void *key) {
    return strcmp(((const reading *)owner)->entries[element]->name, key) == 0;
}

/** Keeps what was read about a tensor. */
static wherry_status keep_entry(reading *r, const entry *read, uint64_t at, wherry_error *error) {
    size_t name_size = strlen(read->name);
    size_t shape_size = read->ndim * sizeof(*read->shape);
    uint64_t hash = wh_hash(read->name, name_size, 0);
    if (wh_index_find(&r->names, hash, has_name, r, read->name) != WH_INDEX_NONE) {
        return wh_file_fail(error, WHERRY_REPEATED_KEY, spot_of(r, read->name, at), "the header has it twice");
    }
    entry *kept =
        WH_GROW(r->entries, r->capacity, r->count) ? wh_alloc(sizeof(*kept) + shape_size + name_size + 1) : NULL;
    if (!kept || !wh_index_add(&r->names, hash, r->count)) {
        wh_free(kept);
        return wh_fail_memory(error, "the tensors of a file");
    }
    *kept = *read;
    kept->shape = (int64_t *)(kept + 1);
    char *name = (char *)(kept->shape + read->ndim);
    memcpy(kept->shape, read->shape, shape_size);
    memcpy(name, read->name, name_size + 1);
    kept->name = name;
    r->entries[r->count++] = kept;
    return WHERRY_OK;
}

static wherry_status read_tensor(reading *r, const json_t *name, const json_t *about, uint64_t at,
                                 wherry_error *error) {
    int64_t shape[WHERRY_NDIM_MAX] = {0};
    entry read = {.name = json_string_value(name), .shape = shape};
    if (!json_is_object(about)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot_of(r, read.name, at), "the header has no object for it");
    }
    wherry_status status = read_dtype(r, about, &read, at, error);
    if (status == WHERRY_OK) {
        status = read_shape(r, about, &read, at, error);
    }
    if (status == WHERRY_OK) {
        status = read_offsets(r, about, &read, at, error);
    }
    return status == WHERRY_OK ? keep_entry(r, &read, at, error) : status;
}

/* ---- all of them ---- */

static int compare_begins(const void *one, const void *other) {
    const entry *a = *(entry *const *)one;
    const entry *b = *(entry *const *)other;
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return a->end < b->end ? -1 : a->end > b->end;
}

/** End to end, from the first byte to the last. */
static wherry_status check_layout(reading *r, entry **sorted, wherry_error *error) {
    if (r->count > 0) {
        memcpy(sorted, r->entries, r->count * sizeof(*sorted));
        qsort(sorted, r->count, sizeof(*sorted), compare_begins);
    }
    uint64_t end = 0;
    for (size_t i = 0; i < r->count; i++) {
        const entry *e = sorted[i];
        if (e->begin != end) {
            return wh_file_fail(error, WHERRY_OUT_OF_BOUNDS, spot_of(r, e->name, r->data + e->begin),
                                "it begins at byte %llu of the data, and what lies before it ends at %llu: %s",
                                (unsigned long long)e->begin, (unsigned long long)end,
                                e->begin < end ? "they overlap" : "there is a hole");
        }
        end = e->end;
        if (end > r->space) {
            return wh_file_fail(error, WHERRY_TRUNCATED, spot_of(r, e->name, r->data + r->space),
                                "it ends at byte %llu of the file, which has %llu; get the file anew",
                                (unsigned long long)r->data + end, (unsigned long long)r->data + r->space);
        }
    }
    if (end < r->space) {
        return wh_file_fail(error, WHERRY_TRAILING_BYTES, wh_spot_byte(r->mapping->path, r->data + end),
                            "goes on for %llu bytes behind its last tensor", (unsigned long long)(r->space - end));
    }
    return WHERRY_OK;
}

static wherry_status put_tensors(reading *r, wherry_error *error) {
    entry **sorted = wh_alloc_array(r->count, sizeof(*sorted));
    if (!sorted) {
        return wh_fail_memory(error, "the tensors of a file");
    }
    wherry_status status = check_layout(r, sorted, error);
    wh_free(sorted);
    if (status == WHERRY_OK) {
        status = wh_mapping_map(r->mapping, r->file->access, error);
    }
    for (size_t i = 0; i < r->count && status == WHERRY_OK; i++) {
        const entry *e = r->entries[i];
        wherry_tensor tensor = {.dtype = e->dtype->dtype, .ndim = e->ndim, .shape = e->shape};
        status = wh_opened_put(r->mapping, r->tensors, e->name, r->data + e->begin, e->end - e->begin, tensor, error);
        wh_free(r->entries[i]); /* so that both are never there in full */
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

/** The metadata of one file. */
typedef struct metadata_reading {
    wherry_value *own; /**< So that a name twice in this file is seen, and one of an earlier shard is none. */
    wherry_value *all;
} metadata_reading;

static wherry_status read_text(void *context, wh_json *json, const json_t *name, wherry_error *error) {
    const metadata_reading *m = context;
    json_t *text = NULL;
    wherry_status status = wh_json_value(json, json->size, &text, error);
    if (status == WHERRY_OK && !json_is_string(text)) {
        status =
            wh_file_fail(error, WHERRY_MALFORMED, wh_json_spot(json), "its metadata has something that is no text");
    } else if (status == WHERRY_OK) {
        status = put_text(m->own, json_string_value(name), text, error);
        if (status == WHERRY_DUPLICATE_KEY) {
            status =
                wh_file_fail(error, WHERRY_REPEATED_KEY, wh_json_spot(json), "its metadata has the same name twice");
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
                                "has " WH_SAFETENSORS_METADATA " twice");
        }
        r->has_metadata = true;
        return wh_json_take_null(json) ? WHERRY_OK
                                       : read_metadata(r, json, error); /* the format's library reads null as none */
    }
    if (r->count >= r->file->limits.values) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_json_spot(json), "has more than %llu tensors",
                            (unsigned long long)r->file->limits.values);
    }
    json_t *about = NULL;
    wherry_status status = wh_json_value(json, ENTRY_MAX, &about, error);
    if (status == WHERRY_OK) {
        status = read_tensor(r, name, about, at, error);
    }
    json_decref(about);
    return status;
}

/** How long the header is, checked against the file and the limits. */
static wherry_status read_length(const wherry_file *file, const wh_mapping *mapping, uint64_t *length_p,
                                 wherry_error *error) {
    uint8_t bytes[LENGTH_BYTES];
    wherry_status status = wh_mapping_read(mapping, 0, bytes, sizeof(bytes), error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint64_t length = wh_load_little(bytes, LENGTH_BYTES);
    uint64_t most = wh_min(file->limits.manifest_bytes, WH_SAFETENSORS_HEADER_MAX);
    if (length > most) {
        return wh_file_fail(
            error, WHERRY_LIMIT, wh_spot_byte(mapping->path, 0),
            "says that its header has %llu bytes, more than %llu: it is no safetensors file, or damaged",
            (unsigned long long)length, (unsigned long long)most);
    }
    if (length > mapping->size - LENGTH_BYTES) {
        return wh_file_fail(error, WHERRY_TRUNCATED, wh_spot_byte(mapping->path, mapping->size),
                            "has %llu bytes, and its header alone has %llu; get it anew",
                            (unsigned long long)mapping->size, (unsigned long long)length);
    }
    *length_p = length;
    return WHERRY_OK;
}

wherry_status wh_safetensors_read(const wherry_file *file, wh_mapping *mapping, wherry_value *tensors,
                                  wherry_value *metadata, uint64_t *header_bytes_p, wherry_error *error) {
    uint64_t length = 0;
    char *text = NULL;
    wherry_status status = read_length(file, mapping, &length, error);
    if (status == WHERRY_OK) {
        status = wh_mapping_copy(mapping, LENGTH_BYTES, (size_t)length, &text, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    reading r = {.file = file, .mapping = mapping, .tensors = tensors, .metadata = metadata};
    r.data = LENGTH_BYTES + length;
    r.space = mapping->size - r.data;
    wh_json json = {mapping->path, LENGTH_BYTES, text, (size_t)length, 0};
    status = wh_json_members(&json, read_member, &r, error);
    if (status == WHERRY_OK) {
        status = wh_json_end(&json, error);
    }
    wh_free(text);
    if (status == WHERRY_OK) {
        status = put_tensors(&r, error);
    }
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

wherry_status wh_safetensors_open(wherry_file *file, wherry_error *error) {
    wherry_value *metadata = NULL;
    wherry_status status = wherry_dict_create(&file->state, error);
    if (status == WHERRY_OK) {
        status = wherry_dict_create(&metadata, error);
    }
    if (status == WHERRY_OK) {
        status =
            wh_safetensors_read(file, file->mappings[0], file->state, metadata, &file->summary.header_bytes, error);
    }
    if (status == WHERRY_OK) {
        file->summary.tensors = wherry_dict_count(file->state);
        status = wh_safetensors_add_metadata(file->state, metadata, error);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(metadata);
    }
    return status;
}
