/*
 * Sharded safetensors. The index `NAME.safetensors.index.json` contains a weight_map, which maps
 * the name of each tensor to the file that contains it, in the same folder. Every tensor in the map
 * must be in its file, and every tensor in a file must be in the map.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "file/json.h"
#include "file/safetensors.h"

#define SUFFIX ".safetensors.index.json"

enum {
    SHARDS_MAX = 10000,
    SKIPPED_MAX = 16 << 20, /**< Maximum size in bytes of a member other than the weight_map. */
};

/* ---- reading ---- */

/** An open shard. */
typedef struct shard {
    char *name;
    wherry_value *tensors; /**< The tensors by name. */
    /** Number of tensors in this shard that the weight_map has named so far. */
    size_t used;
} shard;

typedef struct reading {
    wherry_file *file;
    const char *path; /**< The path of the index. */
    shard *shards;
    size_t count;
    size_t capacity;
    wherry_value *metadata;
    bool has_map; /**< True if the weight_map has been read. */
} reading;

/**
 * Builds the path of a file in the same folder as another file. @return the path, which the caller
 * frees with wh_free; NULL if out of memory.
 */
static char *sibling_path(const char *path, const char *name) {
    wh_string text = {0};
    const char *slash = strrchr(path, '/');
    wh_string_append(&text, path, slash ? (size_t)(slash - path) + 1 : 0);
    wh_string_append(&text, name, strlen(name));
    return wh_string_take(&text);
}

static wherry_status open_shard(reading *r, const char *name, wherry_error *error) {
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_file(r->path),
                            "the weight_map names the shard '%.100s', which is not a plain file name", name);
    }
    if (r->count >= SHARDS_MAX) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_spot_file(r->path), "the index has more than %d shards",
                            SHARDS_MAX);
    }
    char *path = sibling_path(r->path, name);
    shard opened = {.name = wh_text_copy(name, strlen(name))};
    wherry_status status = WHERRY_OK;
    if (!path || !opened.name || !WH_GROW(r->shards, r->capacity, r->count)) {
        status = wh_fail_memory(error, "the shards of a file");
    }
    WH_THEN(status, wherry_dict_create(&opened.tensors, error));
    WH_THEN(status, wh_opened_add(r->file, path, error));
    if (status == WHERRY_OK) {
        uint64_t header;
        wh_mapping *mapping = r->file->mappings[r->file->mapping_count - 1];
        status = wh_safetensors_read(r->file, mapping, opened.tensors, r->metadata, &header, error);
        r->file->summary.header_bytes += status == WHERRY_OK ? header : 0;
    }
    wh_free(path);
    if (status != WHERRY_OK) {
        wh_free(opened.name);
        wherry_value_destroy(opened.tensors);
        return status;
    }
    r->shards[r->count++] = opened;
    return WHERRY_OK;
}

/**
 * Finds a shard by name, or opens it. Searches backwards from the last shard, because neighbours in
 * the map are usually in the same shard.
 */
static wherry_status find_shard(reading *r, const char *name, shard **shard_p, wherry_error *error) {
    for (size_t i = r->count; i-- > 0;) {
        if (strcmp(r->shards[i].name, name) == 0) {
            *shard_p = r->shards + i;
            return WHERRY_OK;
        }
    }
    wherry_status status = open_shard(r, name, error);
    if (status == WHERRY_OK) {
        *shard_p = r->shards + r->count - 1;
    }
    return status;
}

static wherry_status add_entry(reading *r, const json_t *name, const json_t *where, wherry_error *error) {
    const char *text = json_string_value(name);
    wh_spot spot = {r->path, text, json_string_length(name), UINT64_MAX};
    if (!json_is_string(where)) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot, "the entry of the tensor in the weight_map is not a string");
    }
    shard *in = NULL;
    WH_TRY(find_shard(r, json_string_value(where), &in, error));
    const wherry_value *found = wherry_dict_get(in->tensors, text);
    if (!found) {
        return wh_file_fail(error, WHERRY_MALFORMED, spot,
                            "the weight_map says that the tensor is in %.100s, but that file does not contain it",
                            in->name);
    }
    wherry_value *copy;
    wherry_status status = wherry_value_copy(found, &copy, error);
    if (status == WHERRY_OK && (status = wherry_dict_put(r->file->state, text, copy, error)) != WHERRY_OK) {
        wherry_value_destroy(copy);
        if (status == WHERRY_DUPLICATE_KEY) {
            return wh_file_fail(error, WHERRY_REPEATED_KEY, spot, "the weight_map lists the tensor twice");
        }
    }
    in->used += status == WHERRY_OK;
    return status;
}

static wherry_status read_entry(void *context, wh_json *json, const json_t *name, wherry_error *error) {
    json_t *where = NULL;
    wherry_status status = wh_json_value(json, json->size, &where, error);
    WH_THEN(status, add_entry(context, name, where, error));
    json_decref(where);
    return status;
}

/** Reads the weight_map and skips other members. */
static wherry_status read_member(void *context, wh_json *json, const json_t *name, wherry_error *error) {
    reading *r = context;
    if (strcmp(json_string_value(name), "weight_map") == 0) {
        if (r->has_map) {
            return wh_file_fail(error, WHERRY_REPEATED_KEY, wh_json_spot(json), "the index has two weight_maps");
        }
        r->has_map = true;
        return wh_json_members(json, read_entry, r, error);
    }
    json_t *skipped = NULL;
    wherry_status status = wh_json_value(json, SKIPPED_MAX, &skipped, error);
    json_decref(skipped);
    return status;
}

static wherry_status read_index(reading *r, wh_json *json, wherry_error *error) {
    WH_TRY(wh_json_members(json, read_member, r, error));
    WH_TRY(wh_json_end(json, error));
    if (!r->has_map) {
        return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_file(r->path), "the index has no weight_map");
    }
    for (size_t i = 0; i < r->count; i++) {
        if (r->shards[i].used != wherry_dict_count(r->shards[i].tensors)) {
            return wh_file_fail(error, WHERRY_MALFORMED, wh_spot_file(r->path),
                                "the shard %.100s has %zu tensors, but the weight_map names %zu of them",
                                r->shards[i].name, wherry_dict_count(r->shards[i].tensors), r->shards[i].used);
        }
    }
    return WHERRY_OK;
}

static wherry_status open_index(wherry_file *file, wherry_error *error) {
    wh_mapping *index = file->mappings[0];
    reading r = {.file = file, .path = index->path};
    char *text = NULL;
    uint64_t most = wh_min(file->limits.manifest_bytes, WH_SAFETENSORS_HEADER_MAX);
    if (index->size > most) {
        return wh_file_fail(error, WHERRY_LIMIT, wh_spot_file(r.path), "the index has %llu bytes; the limit is %llu",
                            (unsigned long long)index->size, (unsigned long long)most);
    }
    wherry_status status = wh_mapping_copy(index, 0, (size_t)index->size, &text, error);
    WH_THEN(status, wherry_dict_create(&file->state, error));
    WH_THEN(status, wherry_dict_create(&r.metadata, error));
    if (status == WHERRY_OK) {
        file->summary.header_bytes = index->size;
        wh_json json = {r.path, 0, text, (size_t)index->size, 0};
        status = read_index(&r, &json, error);
    }
    if (status == WHERRY_OK) {
        file->summary.tensors = wherry_dict_count(file->state);
        status = wh_safetensors_add_metadata(file->state, r.metadata, error);
        r.metadata = status == WHERRY_OK ? NULL : r.metadata;
    }
    for (size_t i = 0; i < r.count; i++) {
        wh_free(r.shards[i].name);
        wherry_value_destroy(r.shards[i].tensors);
    }
    wh_free(r.shards);
    wherry_value_destroy(r.metadata);
    wh_free(text);
    file->summary.files = (uint32_t)(file->mapping_count - 1);
    return status;
}

/* ---- writing ---- */

/** How the tensors are split into shards: shard i has tensors begins[i] to begins[i + 1] - 1. */
typedef struct split {
    size_t *begins;
    size_t count; /**< Number of shards. */
} split;

static wherry_status split_shards(const wh_names *names, uint64_t most, split *split_p, wherry_error *error) {
    size_t *begins = wh_alloc_array(names->count + 2, sizeof(*begins));
    WH_TRY_ALLOC(begins, error, "the shards of a file");
    uint64_t filled = 0;
    size_t count = 1;
    begins[0] = 0;
    for (size_t i = 0; i < names->count; i++) {
        uint64_t nbytes = wh_dense_bytes(names->items[i].tensor);
        if (i > begins[count - 1] && (nbytes > most || filled > most - nbytes)) {
            begins[count++] = i;
            filled = 0;
        }
        filled = filled > INT64_MAX - nbytes ? INT64_MAX : filled + nbytes;
    }
    begins[count] = names->count;
    *split_p = (split){begins, count};
    if (count > SHARDS_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "shard_bytes is too small: there would be %zu shards; the limit is %d", count, SHARDS_MAX);
    }
    return WHERRY_OK;
}

/** Appends the name of a shard, such as NAME-00001-of-00003.safetensors. */
static void append_shard_name(wh_string *out, const char *stem, size_t stem_size, size_t number, size_t count) {
    wh_string_append(out, stem, stem_size);
    wh_string_format(out, "-%05zu-of-%05zu.safetensors", number + 1, count);
}

static wherry_status add_index(const wh_names *names, const split *shards, wh_layout *layout, const char *stem,
                               size_t stem_size, wherry_error *error) {
    wh_string text = {0};
    wh_string file = {0};
    uint64_t total = 0;
    for (size_t i = 0; i < layout->range_count; i++) {
        total += layout->ranges[i].nbytes;
    }
    wh_string_format(&text, "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{", total);
    for (size_t s = 0; s < shards->count; s++) {
        file.size = 0;
        append_shard_name(&file, stem, stem_size, s, shards->count);
        for (size_t i = shards->begins[s]; i < shards->begins[s + 1] && !file.failed; i++) {
            wh_string_append(&text, ",", i > 0 ? 1 : 0);
            wh_json_append(&text, names->items[i].name, names->items[i].size);
            wh_string_append(&text, ":", 1);
            wh_json_append(&text, file.bytes, file.size);
        }
    }
    wh_string_format(&text, "}}\n");
    text.failed = text.failed || file.failed;
    wh_free(file.bytes);
    uint64_t size = text.size;
    if (!wh_layout_add_file(layout, layout->path) || !wh_layout_add_header(layout, layout->file_count - 1, 0, &text)) {
        wh_free(text.bytes);
        return wh_fail_memory(error, "the index of a file");
    }
    layout->files[layout->file_count - 1].size = size;
    return WHERRY_OK;
}

static wherry_status add_shards(const wh_names *names, const split *shards, wh_layout *layout, size_t stem_size,
                                wherry_error *error) {
    wherry_status status = WHERRY_OK;
    size_t *numbers = wh_safetensors_number(names, layout);
    WH_TRY_ALLOC(numbers, error, "the shards of a file");
    for (size_t s = 0; s < shards->count && status == WHERRY_OK; s++) {
        wh_string path = {0};
        append_shard_name(&path, layout->path, stem_size, s, shards->count);
        if (path.failed || !wh_layout_add_file(layout, path.bytes)) {
            status = wh_fail_memory(error, "the shards of a file");
        } else {
            status = wh_safetensors_lay_out(names, numbers + shards->begins[s],
                                            shards->begins[s + 1] - shards->begins[s], layout, error);
        }
        wh_free(path.bytes);
    }
    wh_free(numbers);
    return status;
}

static wherry_status lay_out(const wherry_value *state, const wherry_file_write_options *options, wh_layout *layout,
                             wherry_error *error) {
    size_t length = strlen(layout->path);
    size_t suffix = strlen(SUFFIX);
    if (length <= suffix || strcmp(layout->path + length - suffix, SUFFIX) != 0) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%.200s: the name of an index must end with " SUFFIX,
                       layout->path);
    }
    wh_names names = {0};
    split shards = {0};
    const char *slash = strrchr(layout->path, '/');
    const char *stem = slash ? slash + 1 : layout->path;
    wherry_status status = wh_names_of(state, &names, error);
    WH_THEN(status, split_shards(&names, options->shard_bytes, &shards, error));
    WH_THEN(status, add_shards(&names, &shards, layout, length - suffix, error));
    WH_THEN(status, add_index(&names, &shards, layout, stem, (size_t)(layout->path + length - suffix - stem), error));
    wh_free(shards.begins);
    wh_names_destroy(&names);
    return status;
}

const wh_format wh_format_sharded = {
    .format = WHERRY_FILE_SHARDED,
    .name = "sharded safetensors",
    .suffix = SUFFIX,
    .open = open_index,
    .accepts = wh_safetensors_accepts,
    .lay_out = lay_out,
};
