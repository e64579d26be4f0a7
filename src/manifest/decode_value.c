/* The tree of a manifest: tensors, DTensors, ShardedTensors, scalars, containers and objects. */
#include "manifest/decode.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "manifest/manifest.h"
#include "range/copy.h"

/* Tensors */

static wherry_status read_reference(wh_decoder *decoder, size_t count, size_t *next, const char *wanted,
                                    size_t *number_p) {
    uint64_t number = 0;
    WH_TRY(wh_read_uint(&decoder->in, INT64_MAX, wanted, &number));
    if (number >= count) {
        return wh_read_fault(&decoder->in, WHERRY_OUT_OF_BOUNDS, "%s is %llu, but must be below %zu", wanted,
                             (unsigned long long)number, count);
    }
    if (number > *next) {
        return wh_read_fault(&decoder->in, WHERRY_NOT_CANONICAL,
                             "%s is %llu, but the next new number must be %zu (numbers are assigned in order of use)",
                             wanted, (unsigned long long)number, *next);
    }
    *next += number == *next;
    *number_p = number;
    return WHERRY_OK;
}

static wherry_status read_dtype(wh_decoder *decoder, wherry_dtype *dtype_p) {
    uint64_t number = 0;
    WH_TRY(wh_read_uint(&decoder->in, INT64_MAX, "a dtype", &number));
    if (number > INT32_MAX || !wherry_dtype_describe((wherry_dtype)number)) {
        return wh_read_fault(&decoder->in, WHERRY_MALFORMED, "unknown dtype %llu", (unsigned long long)number);
    }
    *dtype_p = (wherry_dtype)number;
    return WHERRY_OK;
}

static wherry_status check_sizes(const wh_decoder *decoder, wherry_dtype dtype, uint32_t ndim, const int64_t *shape) {
    uint64_t bytes = wherry_dtype_describe(dtype)->bytes;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] > 1 && !wh_mul(bytes, (uint64_t)shape[d], &bytes)) {
            return wh_read_fault(&decoder->in, WHERRY_OUT_OF_BOUNDS, "a tensor of this shape has more than 2^63 bytes");
        }
    }
    return WHERRY_OK;
}

static wherry_status read_strides(wh_decoder *decoder, uint32_t ndim, const int64_t *shape, int64_t *strides) {
    int64_t contiguous[WHERRY_NDIM_MAX];
    wh_item item;
    size_t begin = decoder->in.at;
    WH_TRY(wh_read_item(&decoder->in, &item));
    bool fits = wh_contiguous_strides(ndim, shape, contiguous);
    if (item.type == WH_ITEM_NULL) {
        if (!fits) {
            return wh_read_fault(&decoder->in, WHERRY_OUT_OF_BOUNDS,
                                 "a tensor of this shape has more than 2^63 elements");
        }
        memcpy(strides, contiguous, ndim * sizeof(*strides));
        return WHERRY_OK;
    }
    uint32_t count = 0;
    decoder->in.at = begin;
    WH_TRY(wh_read_uints(&decoder->in, WHERRY_NDIM_MAX, "strides", strides, &count));
    if (count != ndim) {
        return wh_read_fault(&decoder->in, WHERRY_MALFORMED, "a tensor has %u strides, but %u sizes", count, ndim);
    }
    if (fits && memcmp(strides, contiguous, ndim * sizeof(*strides)) == 0) {
        return wh_read_fault(&decoder->in, WHERRY_NOT_CANONICAL, "a contiguous tensor has strides; expected null");
    }
    return WHERRY_OK;
}

/** Reads the rest of a tensor, after its kind. */
static wherry_status read_tensor(wh_decoder *d, wherry_value **value_p) {
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    wherry_tensor tensor = {.shape = shape, .strides = strides};
    size_t storage = 0;
    uint64_t number = 0;
    WH_TRY(read_reference(d, d->prepared->storage_count, &d->next_storage, "the number of a storage", &storage));
    WH_TRY(read_dtype(d, &tensor.dtype));
    WH_TRY(wh_read_uint(&d->in, WHERRY_TENSOR_FLAGS, "the flags of a tensor", &number));
    tensor.flags = (uint32_t)number;
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the offset of a tensor", &number));
    tensor.offset = (int64_t)number;
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a tensor", shape, &tensor.ndim));
    WH_TRY(read_strides(d, tensor.ndim, shape, strides));
    tensor.storage = d->prepared->storages[storage];
    WH_TRY_ALLOC(wh_prepared_add_tensor(d->prepared, &tensor, storage), d->in.error, "a tensor");
    return wh_decode_created(d, wh_tensor_build(&d->pool, &tensor, WHERRY_OUT_OF_BOUNDS, value_p, d->in.error));
}

static wherry_status read_local(wh_decoder *decoder, wherry_value **value_p) {
    uint64_t kind = 0;
    WH_TRY(wh_read_array_of(&decoder->in, WH_TENSOR_ITEMS, "a tensor"));
    WH_TRY(wh_read_uint(&decoder->in, INT64_MAX, "the kind of a tensor", &kind));
    if (kind != WHERRY_KIND_TENSOR) {
        return wh_read_fault(&decoder->in, WHERRY_MALFORMED, "expected a tensor, but the kind is %llu",
                             (unsigned long long)kind);
    }
    return read_tensor(decoder, value_p);
}

/* DTensor */

static wherry_status read_placement(wh_decoder *d, wherry_placement *placement, char **text_p) {
    static const uint8_t items[] = {
        [WHERRY_REPLICATE] = 1, [WHERRY_SHARD] = 2, [WHERRY_STRIDED_SHARD] = 3, [WHERRY_PARTIAL] = 2};
    uint64_t count = 0;
    uint64_t number = 0;
    WH_TRY(wh_read_array(&d->in, "a placement", &count));
    if (count == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a placement is empty");
    }
    WH_TRY(wh_read_uint(&d->in, WHERRY_PARTIAL, "the kind of a placement", &number));
    if (count != items[number]) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a placement of kind %llu has %llu items",
                             (unsigned long long)number, (unsigned long long)count);
    }
    *placement = (wherry_placement){.kind = (wherry_placement_kind)number};
    if (placement->kind == WHERRY_PARTIAL) {
        WH_TRY(wh_read_name(&d->in, "the name of a reduction", text_p));
        placement->reduce_op = *text_p;
    } else if (placement->kind != WHERRY_REPLICATE) {
        WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the dimension of a placement", &number));
        placement->dim = (uint32_t)wh_min(number, UINT32_MAX);
    }
    if (placement->kind == WHERRY_STRIDED_SHARD) {
        WH_TRY(wh_read_int(&d->in, 1, "the split factor of a placement", &placement->split_factor));
    }
    return WHERRY_OK;
}

static wherry_status read_placements(wh_decoder *d, const wherry_mesh *mesh, wherry_placement *placements,
                                     char **texts) {
    uint32_t ndim = wherry_mesh_get(mesh)->ndim;
    WH_TRY(wh_read_array_of(&d->in, ndim, "the placements of a DTensor"));
    for (uint32_t i = 0; i < ndim; i++) {
        WH_TRY(read_placement(d, placements + i, texts + i));
    }
    return WHERRY_OK;
}

/** Reads the rest of a DTensor, after its placements. */
static wherry_status read_global(wh_decoder *d, wherry_dtensor *dtensor, int64_t *shape, int64_t *strides) {
    uint64_t flags = 0;
    WH_TRY(read_dtype(d, &dtensor->dtype));
    WH_TRY(wh_read_uint(&d->in, WHERRY_TENSOR_REQUIRES_GRAD, "the flags of a DTensor", &flags));
    dtensor->flags = (uint32_t)flags;
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a DTensor", shape, &dtensor->ndim));
    WH_TRY(check_sizes(d, dtensor->dtype, dtensor->ndim, shape));
    for (uint32_t i = 0; i < wherry_mesh_get(dtensor->mesh)->ndim; i++) {
        const wherry_placement *placement = dtensor->placements + i;
        bool shard = placement->kind == WHERRY_SHARD || placement->kind == WHERRY_STRIDED_SHARD;
        if (shard && placement->dim >= dtensor->ndim) {
            return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS,
                                 "a placement shards dimension %u of a tensor with %u dimensions", placement->dim,
                                 dtensor->ndim);
        }
    }
    WH_TRY(read_strides(d, dtensor->ndim, shape, strides));
    return read_local(d, &dtensor->local);
}

static wherry_status read_dtensor(wh_decoder *decoder, wherry_value **value_p) {
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    wherry_placement placements[WHERRY_NDIM_MAX];
    char *texts[WHERRY_NDIM_MAX] = {NULL};
    wherry_dtensor dtensor = {.placements = placements, .shape = shape, .strides = strides};
    size_t mesh = 0;
    wherry_status status =
        read_reference(decoder, decoder->prepared->mesh_count, &decoder->next_mesh, "the number of a mesh", &mesh);
    if (status == WHERRY_OK && !wh_prepared_add_dtensor(decoder->prepared, mesh)) {
        status = wh_fail_memory(decoder->in.error, "a DTensor");
    }
    if (status == WHERRY_OK) {
        dtensor.mesh = decoder->prepared->meshes[mesh];
        status = read_placements(decoder, dtensor.mesh, placements, texts);
    }
    WH_THEN(status, read_global(decoder, &dtensor, shape, strides));
    WH_THEN(status, wh_decode_created(decoder, wherry_dtensor_create(&dtensor, value_p, decoder->in.error)));
    if (status != WHERRY_OK) {
        wherry_value_destroy(dtensor.local);
    }
    for (size_t i = 0; i < WHERRY_NDIM_MAX; i++) {
        wh_free(texts[i]);
    }
    return status;
}

/* ShardedTensor */

static wherry_status read_place(wh_decoder *d, wherry_shard_place *place) {
    WH_TRY(wh_read_int(&d->in, -1, "the rank of a place", &place->rank));
    return wh_decode_device(d, &place->device);
}

/** Reads the box and the place of a shard. `numbers` is a buffer for the numbers of the box. */
static wherry_status read_info(wh_decoder *d, uint32_t ndim, const int64_t *shape, int64_t *numbers,
                               wherry_shard_info *info) {
    wh_box box = {.ndim = ndim};
    uint32_t offsets = 0;
    uint32_t sizes = 0;
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the offsets of a shard", box.offsets, &offsets));
    if (offsets != ndim) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a shard has %u offsets, but %u dimensions", offsets, ndim);
    }
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a shard", box.sizes, &sizes));
    if (sizes != ndim) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a shard has %u sizes, but %u dimensions", sizes, ndim);
    }
    if (!wh_box_within(&box, shape)) {
        return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS, "a shard is outside its global tensor");
    }
    memcpy(numbers, box.offsets, ndim * sizeof(*numbers));
    memcpy(numbers + ndim, box.sizes, ndim * sizeof(*numbers));
    info->offsets = numbers;
    info->sizes = numbers + ndim;
    return read_place(d, &info->place);
}

/**
 * Reads the head of an array with one box per item. Fails if there are not enough bytes left: each
 * item takes at least 2 * ndim + 1 bytes.
 */
static wherry_status read_box_count(wh_decoder *d, uint32_t ndim, const char *wanted, uint32_t *count_p) {
    uint64_t count = 0;
    WH_TRY(wh_read_array(&d->in, wanted, &count));
    if (count > UINT32_MAX || count * (2 * ndim + 1) > wh_reader_left(&d->in)) {
        return wh_read_fault(&d->in, WHERRY_TRUNCATED, "%s claim %llu boxes, but only %zu bytes are left", wanted,
                             (unsigned long long)count, wh_reader_left(&d->in));
    }
    *count_p = (uint32_t)count;
    return WHERRY_OK;
}

/** Reads an array of shard infos. The caller frees *infos_p and *numbers_p, also on failure. */
static wherry_status read_infos(wh_decoder *d, const wherry_sharded *sharded, const char *wanted, uint32_t *count_p,
                                wherry_shard_info **infos_p, int64_t **numbers_p) {
    WH_TRY(read_box_count(d, sharded->ndim, wanted, count_p));
    *infos_p = wh_alloc_array(*count_p, sizeof(**infos_p));
    *numbers_p = wh_alloc_array(*count_p, 2 * sizeof(**numbers_p) * sharded->ndim);
    WH_TRY_ALLOC(*infos_p && *numbers_p, d->in.error, wanted);
    for (uint32_t i = 0; i < *count_p; i++) {
        WH_TRY(wh_read_array_of(&d->in, WH_INFO_ITEMS, "the info of a shard"));
        int64_t *numbers = *numbers_p + 2 * (size_t)i * sharded->ndim;
        WH_TRY(read_info(d, sharded->ndim, sharded->shape, numbers, *infos_p + i));
    }
    return WHERRY_OK;
}

/**
 * The parts of a ShardedTensor while it is being read. The arrays are always freed at the end. The
 * tensors are freed only on failure.
 */
typedef struct sharded_parts {
    wherry_sharded sharded;
    int64_t shape[WHERRY_NDIM_MAX];
    wherry_shard *shards;
    int64_t *shard_numbers;
    wherry_shard_info *global;
    int64_t *global_numbers;
    wherry_shard_info *boxes;
    int64_t *box_numbers;
    wherry_shard_place *places;
} sharded_parts;

static wherry_status read_shards(wh_decoder *d, sharded_parts *parts) {
    uint32_t ndim = parts->sharded.ndim;
    uint32_t count = 0;
    WH_TRY(read_box_count(d, ndim, "the local shards", &count));
    parts->shards = wh_alloc_array(count, sizeof(*parts->shards));
    parts->shard_numbers = wh_alloc_array(count, 2 * sizeof(*parts->shard_numbers) * ndim);
    WH_TRY_ALLOC(parts->shards && parts->shard_numbers, d->in.error, "the shards of a sharded tensor");
    parts->sharded.shards = parts->shards;
    for (uint32_t i = 0; i < count; i++) {
        wherry_shard *shard = parts->shards + i;
        WH_TRY(wh_read_array_of(&d->in, WH_INFO_ITEMS + 1, "a shard"));
        WH_TRY(read_info(d, ndim, parts->shape, parts->shard_numbers + 2 * (size_t)i * ndim, &shard->info));
        WH_TRY(read_local(d, &shard->tensor));
        parts->sharded.shard_count++;
    }
    return WHERRY_OK;
}

static wherry_status read_places(wh_decoder *d, sharded_parts *parts) {
    uint64_t count = 0;
    wherry_sharding *sharding = &parts->sharded.sharding;
    WH_TRY(wh_read_int(&d->in, INT64_MIN, "the dimension of a sharding", &sharding->dim));
    WH_TRY(wh_read_array(&d->in, "the places of a sharding", &count));
    parts->places = count <= UINT32_MAX ? wh_alloc_array(count, sizeof(*parts->places)) : NULL;
    WH_TRY_ALLOC(parts->places, d->in.error, "the places of a sharding");
    for (uint64_t i = 0; i < count; i++) {
        WH_TRY(wh_read_array_of(&d->in, WH_PLACE_ITEMS, "a place"));
        WH_TRY(read_place(d, parts->places + i));
    }
    sharding->count = (uint32_t)count;
    sharding->places = parts->places;
    return WHERRY_OK;
}

static wherry_status read_sharding(wh_decoder *d, sharded_parts *parts) {
    wherry_sharding *sharding = &parts->sharded.sharding;
    wh_item item;
    uint64_t kind = 0;
    WH_TRY(wh_read_item(&d->in, &item));
    if (item.type == WH_ITEM_NULL) {
        return WHERRY_OK;
    }
    if (item.type != WH_ITEM_ARRAY || item.number == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a sharding is neither null nor an array");
    }
    if (item.number > wh_reader_left(&d->in)) {
        return wh_read_fault(&d->in, WHERRY_TRUNCATED, "the manifest ends within a sharding");
    }
    WH_TRY(wh_read_uint(&d->in, WHERRY_SHARDING_ENUMERABLE, "the kind of a sharding", &kind));
    sharding->kind = (wherry_sharding_kind)kind;
    if (item.number != (kind == WHERRY_SHARDING_CHUNK ? 3U : kind == WHERRY_SHARDING_ENUMERABLE ? 2U : 0U)) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a sharding of kind %llu has %llu items, which is not allowed",
                             (unsigned long long)kind, (unsigned long long)item.number);
    }
    if (kind == WHERRY_SHARDING_CHUNK) {
        return read_places(d, parts);
    }
    WH_TRY(read_infos(d, &parts->sharded, "the boxes of a sharding", &sharding->count, &parts->boxes,
                      &parts->box_numbers));
    sharding->boxes = parts->boxes;
    return WHERRY_OK;
}

static wherry_status read_sharded_fields(wh_decoder *d, sharded_parts *parts) {
    wherry_sharded *sharded = &parts->sharded;
    uint64_t flags = 0;
    uint64_t format = 0;
    WH_TRY(read_dtype(d, &sharded->dtype));
    WH_TRY(wh_read_uint(&d->in, WH_SHARDED_FLAGS, "the flags of a sharded tensor", &flags));
    WH_TRY(wh_read_uint(&d->in, WHERRY_FORMAT_PRESERVE, "a memory format", &format));
    WH_TRY(wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a sharded tensor", parts->shape, &sharded->ndim));
    WH_TRY(check_sizes(d, sharded->dtype, sharded->ndim, parts->shape));
    sharded->shape = parts->shape;
    sharded->requires_grad = flags & WH_SHARDED_REQUIRES_GRAD;
    sharded->pin_memory = flags & WH_SHARDED_PIN_MEMORY;
    sharded->format = (wherry_memory_format)format;
    WH_TRY(read_shards(d, parts));
    WH_TRY(read_infos(d, sharded, "the shards", &sharded->global_count, &parts->global, &parts->global_numbers));
    sharded->global = parts->global;
    return read_sharding(d, parts);
}

static wherry_status read_sharded(wh_decoder *decoder, wherry_value **value_p) {
    sharded_parts parts = {0};
    wherry_status status = read_sharded_fields(decoder, &parts);
    WH_THEN(status, wh_decode_created(decoder, wherry_sharded_create(&parts.sharded, value_p, decoder->in.error)));
    for (uint32_t i = 0; i < parts.sharded.shard_count && status != WHERRY_OK; i++) {
        wherry_value_destroy(parts.shards[i].tensor);
    }
    wh_free(parts.shards);
    wh_free(parts.shard_numbers);
    wh_free(parts.global);
    wh_free(parts.global_numbers);
    wh_free(parts.boxes);
    wh_free(parts.box_numbers);
    wh_free(parts.places);
    return status;
}

/* The tree */

/**
 * RESERVE_MAX: a dict reserves memory for this many entries if its count cannot be trusted.
 * ENTRY_BYTES: minimum size of an encoded entry in bytes.
 */
enum { RESERVE_MAX = 256, ENTRY_BYTES = 2 };

static wherry_status read_doubles(wh_decoder *d, wherry_kind kind, wherry_value **value_p) {
    wh_item item;
    size_t size = kind == WHERRY_KIND_FLOAT ? 8 : 16;
    const char *wanted = kind == WHERRY_KIND_FLOAT ? "the bytes of a float" : "the bytes of a complex number";
    WH_TRY(wh_read_typed(&d->in, WH_ITEM_BYTES, wanted, &item));
    if (item.number != size) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a %s has %llu bytes, which is not allowed",
                             wherry_kind_name(kind), (unsigned long long)item.number);
    }
    double real = wh_bits_double(wh_load_be64(item.bytes));
    if (kind == WHERRY_KIND_FLOAT) {
        return wherry_float_create(real, value_p, d->in.error);
    }
    return wherry_complex_create(real, wh_bits_double(wh_load_be64(item.bytes + 8)), value_p, d->in.error);
}

/**
 * Reads the unsigned number n of a big integer, after its tag. With tag 2 the value is n. With tag
 * 3 the value is -1-n, so its magnitude is n+1.
 */
static wherry_status read_bigint(wh_decoder *d, uint64_t tag, wherry_value **value_p) {
    if (tag != WH_TAG_POSITIVE && tag != WH_TAG_NEGATIVE) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "unknown tag %llu", (unsigned long long)tag);
    }
    wh_item item;
    WH_TRY(wh_read_typed(&d->in, WH_ITEM_BYTES, "a big integer", &item));
    bool small = item.number < 8 || (item.number == 8 && item.bytes[0] < 0x80);
    if (small || item.bytes[0] == 0) {
        return wh_read_fault(&d->in, WHERRY_NOT_CANONICAL,
                             "a big integer fits in int64, or has a leading zero; neither is canonical");
    }
    if (tag == WH_TAG_POSITIVE) {
        return wherry_bigint_create(false, item.bytes, item.number, value_p, d->in.error);
    }
    uint8_t *magnitude = wh_alloc(item.number + 1);
    WH_TRY_ALLOC(magnitude, d->in.error, "a big integer");
    magnitude[0] = 0;
    memcpy(magnitude + 1, item.bytes, item.number);
    size_t at = item.number;
    while (++magnitude[at] == 0) {
        at--;
    }
    wherry_status status = wherry_bigint_create(true, magnitude, item.number + 1, value_p, d->in.error);
    wh_free(magnitude);
    return status;
}

static wherry_status read_items(wh_decoder *d, uint32_t depth, wherry_value *list, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        wherry_value *item = NULL;
        WH_TRY(wh_decode_value(d, depth, &item));
        wherry_status status = wh_decode_created(d, wherry_sequence_append(list, item, d->in.error));
        if (status != WHERRY_OK) {
            wherry_value_destroy(item);
            return status;
        }
    }
    return WHERRY_OK;
}

static wherry_status read_entry(wh_decoder *d, uint32_t depth, wherry_value *dict) {
    wherry_value *key = NULL;
    wherry_value *item = NULL;
    size_t begin = d->in.at;
    WH_TRY(wh_decode_value(d, depth, &key));
    wherry_status status;
    uint64_t hash = 0;
    if (!wh_value_is_scalar(key)) {
        d->in.item = begin;
        status = wh_read_fault(&d->in, WHERRY_MALFORMED, "the key of a dict is a %s, not a scalar",
                               wherry_kind_name(key->kind));
    } else if (wh_dict_has(dict, key, &hash)) {
        d->in.item = begin;
        status = wh_read_fault(&d->in, WHERRY_REPEATED_KEY, "a key occurs twice in a dict");
    } else {
        status = wh_decode_value(d, depth, &item);
    }
    WH_THEN(status, wh_dict_add(dict, key, hash, item, d->in.error));
    if (status != WHERRY_OK) {
        wherry_value_destroy(item);
        wherry_value_destroy(key);
    }
    return status;
}

/**
 * Reserves memory for the entries of a dict. Without a check, each of many nested dicts could claim
 * that all remaining bytes are its entries. So each byte of the manifest counts for at most one
 * dict.
 */
static bool reserve_entries(wh_decoder *d, wh_dict *dict, uint64_t count) {
    bool believed = count <= (d->in.size - d->claimed) / ENTRY_BYTES;
    d->claimed += believed ? count * ENTRY_BYTES : 0;
    return wh_dict_reserve(dict, believed ? count : RESERVE_MAX);
}

/** Reads the items of a list, tuple or dict. `count` is the number of items left in its array. */
static wherry_status read_container(wh_decoder *d, uint32_t depth, wherry_kind kind, uint64_t count,
                                    wherry_value **value_p) {
    wherry_value *value;
    WH_TRY(kind == WHERRY_KIND_DICT   ? wherry_dict_create(&value, d->in.error)
           : kind == WHERRY_KIND_LIST ? wherry_list_create(&value, d->in.error)
                                      : wherry_tuple_create(&value, d->in.error));
    wherry_status status = WHERRY_OK;
    if (kind != WHERRY_KIND_DICT) {
        status = read_items(d, depth, value, count);
    } else if (!reserve_entries(d, value->as.dict, count / 2)) {
        status = wh_fail_memory(d->in.error, "a dict");
    }
    for (uint64_t i = 0; kind == WHERRY_KIND_DICT && i < count / 2 && status == WHERRY_OK; i++) {
        status = read_entry(d, depth, value);
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(value);
        return status;
    }
    *value_p = value;
    return WHERRY_OK;
}

static wherry_status read_object(wh_decoder *d, uint32_t depth, wherry_value **value_p) {
    char *name = NULL;
    wherry_value *payload = NULL;
    wherry_status status = wh_read_name(&d->in, "the type of an object", &name);
    if (status == WHERRY_OK && !*name) {
        status = wh_read_fault(&d->in, WHERRY_MALFORMED, "an object has no type name");
    }
    WH_THEN(status, wh_decode_value(d, depth, &payload));
    WH_THEN(status, wh_decode_created(d, wherry_object_create(name, payload, value_p, d->in.error)));
    if (status != WHERRY_OK) {
        wherry_value_destroy(payload);
    }
    wh_free(name);
    return status;
}

/**
 * Checks the number of items that follow the kind of a value: an even number for a dict, any number
 * for a list or tuple, a fixed number for other kinds.
 */
static wherry_status check_count(wh_decoder *d, wherry_kind kind, uint64_t count) {
    bool list = kind == WHERRY_KIND_LIST || kind == WHERRY_KIND_TUPLE;
    bool dict = kind == WHERRY_KIND_DICT;
    if ((list || dict) && count > d->limits.values - d->values) {
        return wh_read_fault(&d->in, WHERRY_LIMIT, "the manifest has more than %llu values",
                             (unsigned long long)d->limits.values);
    }
    if (count > wh_reader_left(&d->in)) {
        return wh_read_fault(&d->in, WHERRY_TRUNCATED, "a %s claims %llu items, but only %zu bytes are left",
                             wherry_kind_name(kind), (unsigned long long)count, wh_reader_left(&d->in));
    }
    static const uint8_t items[] = {
        [WHERRY_KIND_FLOAT] = 1,
        [WHERRY_KIND_COMPLEX] = 1,
        [WHERRY_KIND_OBJECT] = 2,
        [WHERRY_KIND_TENSOR] = WH_TENSOR_ITEMS - 1,
        [WHERRY_KIND_DTENSOR] = WH_DTENSOR_ITEMS - 1,
        [WHERRY_KIND_SHARDED] = WH_SHARDED_ITEMS - 1,
    };
    if (dict ? count % 2 != 0 : !list && count != items[kind]) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a %s has %llu items, which is not allowed",
                             wherry_kind_name(kind), (unsigned long long)count);
    }
    return WHERRY_OK;
}

/** Reads a value that is encoded as an array, after the head of the array. */
static wherry_status read_compound(wh_decoder *d, uint32_t depth, uint64_t count, wherry_value **value_p) {
    uint64_t number = 0;
    if (count == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "expected a value, but the array is empty");
    }
    WH_TRY(wh_read_uint(&d->in, INT64_MAX, "the kind of a value", &number));
    bool known = number == WHERRY_KIND_FLOAT || number == WHERRY_KIND_COMPLEX ||
                 (number >= WHERRY_KIND_LIST && number <= WHERRY_KIND_SHARDED);
    if (!known) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "unknown kind %llu", (unsigned long long)number);
    }
    wherry_kind kind = (wherry_kind)number;
    WH_TRY(check_count(d, kind, count - 1));
    if (kind >= WHERRY_KIND_LIST && kind <= WHERRY_KIND_OBJECT && depth >= d->limits.depth) {
        return wh_read_fault(&d->in, WHERRY_LIMIT, "containers nest deeper than %u", d->limits.depth);
    }
    switch (kind) {
    case WHERRY_KIND_FLOAT:
    case WHERRY_KIND_COMPLEX:
        return read_doubles(d, kind, value_p);
    case WHERRY_KIND_OBJECT:
        return read_object(d, depth + 1, value_p);
    case WHERRY_KIND_TENSOR:
        return read_tensor(d, value_p);
    case WHERRY_KIND_DTENSOR:
        return read_dtensor(d, value_p);
    case WHERRY_KIND_SHARDED:
        return read_sharded(d, value_p);
    default:
        return read_container(d, depth + 1, kind, count - 1, value_p);
    }
}

static wherry_status read_integer(wh_decoder *d, const wh_item *item, wherry_value **value_p) {
    if (item->number > INT64_MAX) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED,
                             "an integer does not fit in int64; expected a tagged big integer");
    }
    int64_t number = item->type == WH_ITEM_NEGINT ? -1 - (int64_t)item->number : (int64_t)item->number;
    return wherry_int_create(number, value_p, d->in.error);
}

wherry_status wh_decode_value(wh_decoder *decoder, uint32_t depth, wherry_value **value_p) {
    wh_item item;
    wherry_error *error = decoder->in.error;
    WH_TRY(wh_read_item(&decoder->in, &item));
    if (decoder->values++ >= decoder->limits.values) {
        return wh_read_fault(&decoder->in, WHERRY_LIMIT, "the manifest has more than %llu values",
                             (unsigned long long)decoder->limits.values);
    }
    switch (item.type) {
    case WH_ITEM_NULL:
        return wherry_none_create(value_p, error);
    case WH_ITEM_BOOL:
        return wherry_bool_create(item.number != 0, value_p, error);
    case WH_ITEM_UINT:
    case WH_ITEM_NEGINT:
        return read_integer(decoder, &item, value_p);
    case WH_ITEM_TAG:
        return read_bigint(decoder, item.number, value_p);
    case WH_ITEM_TEXT:
        return wh_decode_created(
            decoder, wh_string_build(&decoder->pool, (const char *)item.bytes, item.number, value_p, error));
    case WH_ITEM_BYTES:
        return wherry_bytes_create(item.bytes, item.number, value_p, error);
    case WH_ITEM_ARRAY:
        return read_compound(decoder, depth, item.number, value_p);
    default:
        return wh_read_fault(&decoder->in, WHERRY_MALFORMED, "expected a value");
    }
}
