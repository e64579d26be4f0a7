/* DTensors and ShardedTensors: local tensors that are parts of global ones. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "manifest/decoder.h"
#include "manifest/format.h"
#include "range/copy.h"

static wherry_status read_placement(wh_decoder *d, wherry_placement *placement, char **text_p) {
    static const uint8_t items[] = {
        [WHERRY_REPLICATE] = 1, [WHERRY_SHARD] = 2, [WHERRY_STRIDED_SHARD] = 3, [WHERRY_PARTIAL] = 2};
    uint64_t count = 0;
    uint64_t number = 0;
    wherry_status status = wh_read_array(&d->in, "a placement", &count);
    if (status == WHERRY_OK && count == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "an empty placement");
    }
    if (status == WHERRY_OK) {
        status = wh_read_uint(&d->in, WHERRY_PARTIAL, "the kind of a placement", &number);
    }
    if (status == WHERRY_OK && count != items[number]) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a placement of kind %llu has %llu items",
                             (unsigned long long)number, (unsigned long long)count);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    *placement = (wherry_placement){.kind = (wherry_placement_kind)number};
    if (placement->kind == WHERRY_PARTIAL) {
        status = wh_read_name(&d->in, "the name of a reduction", text_p);
        placement->reduce_op = *text_p;
        return status;
    }
    if (placement->kind != WHERRY_REPLICATE) {
        status = wh_read_uint(&d->in, INT64_MAX, "the dimension of a placement", &number);
        placement->dim = (uint32_t)wh_min(number, UINT32_MAX);
    }
    if (placement->kind == WHERRY_STRIDED_SHARD && status == WHERRY_OK) {
        status = wh_read_int(&d->in, 1, "the split factor of a placement", &placement->split_factor);
    }
    return status;
}

static wherry_status read_placements(wh_decoder *d, const wherry_mesh *mesh, wherry_placement *placements,
                                     char **texts) {
    uint32_t ndim = wherry_mesh_get(mesh)->ndim;
    wherry_status status = wh_read_array_of(&d->in, ndim, "the placements of a DTensor");
    for (uint32_t i = 0; i < ndim && status == WHERRY_OK; i++) {
        status = read_placement(d, placements + i, texts + i);
    }
    return status;
}

/** Everything of a DTensor behind its placements. */
static wherry_status read_global(wh_decoder *d, wherry_dtensor *dtensor, int64_t *shape, int64_t *strides) {
    uint64_t flags = 0;
    wherry_status status = wh_decode_dtype(d, &dtensor->dtype);
    if (status == WHERRY_OK) {
        status = wh_read_uint(&d->in, WHERRY_TENSOR_REQUIRES_GRAD, "the flags of a DTensor", &flags);
        dtensor->flags = (uint32_t)flags;
    }
    if (status == WHERRY_OK) {
        status = wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a DTensor", shape, &dtensor->ndim);
    }
    if (status == WHERRY_OK) {
        status = wh_decode_check_sizes(d, dtensor->dtype, dtensor->ndim, shape);
    }
    for (uint32_t i = 0; status == WHERRY_OK && i < wherry_mesh_get(dtensor->mesh)->ndim; i++) {
        const wherry_placement *placement = dtensor->placements + i;
        bool shard = placement->kind == WHERRY_SHARD || placement->kind == WHERRY_STRIDED_SHARD;
        if (shard && placement->dim >= dtensor->ndim) {
            return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS, "a placement shards dimension %u of %u", placement->dim,
                                 dtensor->ndim);
        }
    }
    if (status == WHERRY_OK) {
        status = wh_decode_strides(d, dtensor->ndim, shape, strides);
    }
    return status == WHERRY_OK ? wh_decode_tensor(d, &dtensor->local) : status;
}

wherry_status wh_decode_dtensor(wh_decoder *decoder, wherry_value **value_p) {
    int64_t shape[WHERRY_NDIM_MAX];
    int64_t strides[WHERRY_NDIM_MAX];
    wherry_placement placements[WHERRY_NDIM_MAX];
    char *texts[WHERRY_NDIM_MAX] = {NULL};
    wherry_dtensor dtensor = {.placements = placements, .shape = shape, .strides = strides};
    size_t mesh = 0;
    wherry_status status =
        wh_decode_reference(decoder, decoder->prepared->mesh_count, &decoder->next_mesh, "the number of a mesh", &mesh);
    if (status == WHERRY_OK && !wh_prepared_add_dtensor(decoder->prepared, mesh)) {
        status = wh_fail_memory(decoder->in.error, "a DTensor");
    }
    if (status == WHERRY_OK) {
        dtensor.mesh = decoder->prepared->meshes[mesh];
        status = read_placements(decoder, dtensor.mesh, placements, texts);
    }
    if (status == WHERRY_OK) {
        status = read_global(decoder, &dtensor, shape, strides);
    }
    if (status == WHERRY_OK) {
        status = wh_decode_created(decoder, wherry_dtensor_create(&dtensor, value_p, decoder->in.error));
    }
    if (status != WHERRY_OK) {
        wherry_value_destroy(dtensor.local);
    }
    for (size_t i = 0; i < WHERRY_NDIM_MAX; i++) {
        wh_free(texts[i]);
    }
    return status;
}

static wherry_status read_place(wh_decoder *d, wherry_shard_place *place) {
    wherry_status status = wh_read_int(&d->in, -1, "the rank of a place", &place->rank);
    return status == WHERRY_OK ? wh_decode_device(d, &place->device) : status;
}

/** The box and the place of a shard; numbers has room for the box. */
static wherry_status read_info(wh_decoder *d, uint32_t ndim, const int64_t *shape, int64_t *numbers,
                               wherry_shard_info *info) {
    wh_box box = {.ndim = ndim};
    uint32_t offsets = 0;
    uint32_t sizes = 0;
    wherry_status status = wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the offsets of a shard", box.offsets, &offsets);
    if (status == WHERRY_OK && offsets != ndim) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "%u offsets for %u dimensions", offsets, ndim);
    }
    if (status == WHERRY_OK) {
        status = wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a shard", box.sizes, &sizes);
    }
    if (status == WHERRY_OK && sizes != ndim) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "%u sizes for %u dimensions", sizes, ndim);
    }
    if (status == WHERRY_OK && !wh_box_within(&box, shape)) {
        return wh_read_fault(&d->in, WHERRY_OUT_OF_BOUNDS, "a shard lies outside its tensor");
    }
    if (status != WHERRY_OK) {
        return status;
    }
    memcpy(numbers, box.offsets, ndim * sizeof(*numbers));
    memcpy(numbers + ndim, box.sizes, ndim * sizeof(*numbers));
    info->offsets = numbers;
    info->sizes = numbers + ndim;
    return read_place(d, &info->place);
}

/** Reads the head of an array whose items hold a box each, so that at least 2 * ndim bytes must be left for each. */
static wherry_status read_box_count(wh_decoder *d, uint32_t ndim, const char *wanted, uint32_t *count_p) {
    uint64_t count = 0;
    wherry_status status = wh_read_array(&d->in, wanted, &count);
    if (status != WHERRY_OK) {
        return status;
    }
    if (count > UINT32_MAX || count * (2 * ndim + 1) > wh_reader_left(&d->in)) {
        return wh_read_fault(&d->in, WHERRY_TRUNCATED, "%s claim %llu boxes, but %zu bytes are left", wanted,
                             (unsigned long long)count, wh_reader_left(&d->in));
    }
    *count_p = (uint32_t)count;
    return WHERRY_OK;
}

/** An array of infos; *infos_p and *numbers_p are the caller's to release, also on failure. */
static wherry_status read_infos(wh_decoder *d, const wherry_sharded *sharded, const char *wanted, uint32_t *count_p,
                                wherry_shard_info **infos_p, int64_t **numbers_p) {
    wherry_status status = read_box_count(d, sharded->ndim, wanted, count_p);
    if (status != WHERRY_OK) {
        return status;
    }
    *infos_p = wh_alloc_array(*count_p, sizeof(**infos_p));
    *numbers_p = wh_alloc_array(*count_p, 2 * sizeof(**numbers_p) * sharded->ndim);
    if (!*infos_p || !*numbers_p) {
        return wh_fail_memory(d->in.error, wanted);
    }
    for (uint32_t i = 0; i < *count_p && status == WHERRY_OK; i++) {
        status = wh_read_array_of(&d->in, WH_INFO_ITEMS, "the info of a shard");
        if (status == WHERRY_OK) {
            status =
                read_info(d, sharded->ndim, sharded->shape, *numbers_p + 2 * (size_t)i * sharded->ndim, *infos_p + i);
        }
    }
    return status;
}

/** What a ShardedTensor is read into; all of it is released in the end, the local tensors only where they were not taken. */
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
    wherry_status status = read_box_count(d, ndim, "the local shards", &count);
    if (status != WHERRY_OK) {
        return status;
    }
    parts->shards = wh_alloc_array(count, sizeof(*parts->shards));
    parts->shard_numbers = wh_alloc_array(count, 2 * sizeof(*parts->shard_numbers) * ndim);
    if (!parts->shards || !parts->shard_numbers) {
        return wh_fail_memory(d->in.error, "the shards of a sharded tensor");
    }
    parts->sharded.shards = parts->shards;
    for (uint32_t i = 0; i < count && status == WHERRY_OK; i++) {
        wherry_shard *shard = parts->shards + i;
        status = wh_read_array_of(&d->in, WH_INFO_ITEMS + 1, "a shard");
        if (status == WHERRY_OK) {
            status = read_info(d, ndim, parts->shape, parts->shard_numbers + 2 * (size_t)i * ndim, &shard->info);
        }
        if (status == WHERRY_OK) {
            status = wh_decode_tensor(d, &shard->tensor);
        }
        parts->sharded.shard_count += status == WHERRY_OK;
    }
    return status;
}

static wherry_status read_places(wh_decoder *d, sharded_parts *parts) {
    uint64_t count = 0;
    wherry_sharding *sharding = &parts->sharded.sharding;
    wherry_status status = wh_read_int(&d->in, INT64_MIN, "the dimension of a sharding", &sharding->dim);
    if (status == WHERRY_OK) {
        status = wh_read_array(&d->in, "the places of a sharding", &count);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    parts->places = count <= UINT32_MAX ? wh_alloc_array(count, sizeof(*parts->places)) : NULL;
    if (!parts->places) {
        return wh_fail_memory(d->in.error, "the places of a sharding");
    }
    for (uint64_t i = 0; i < count && status == WHERRY_OK; i++) {
        status = wh_read_array_of(&d->in, WH_PLACE_ITEMS, "a place");
        if (status == WHERRY_OK) {
            status = read_place(d, parts->places + i);
        }
    }
    sharding->count = (uint32_t)count;
    sharding->places = parts->places;
    return status;
}

static wherry_status read_sharding(wh_decoder *d, sharded_parts *parts) {
    wherry_sharding *sharding = &parts->sharded.sharding;
    wh_item item;
    uint64_t kind = 0;
    wherry_status status = wh_read_item(&d->in, &item);
    if (status != WHERRY_OK || item.type == WH_ITEM_NULL) {
        return status;
    }
    if (item.type != WH_ITEM_ARRAY || item.number == 0) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a sharding is null or an array");
    }
    if (item.number > wh_reader_left(&d->in)) {
        return wh_read_fault(&d->in, WHERRY_TRUNCATED, "the manifest ends within a sharding");
    }
    status = wh_read_uint(&d->in, WHERRY_SHARDING_ENUMERABLE, "the kind of a sharding", &kind);
    if (status != WHERRY_OK) {
        return status;
    }
    sharding->kind = (wherry_sharding_kind)kind;
    if (item.number != (kind == WHERRY_SHARDING_CHUNK ? 3U : kind == WHERRY_SHARDING_ENUMERABLE ? 2U : 0U)) {
        return wh_read_fault(&d->in, WHERRY_MALFORMED, "a sharding of kind %llu with %llu items",
                             (unsigned long long)kind, (unsigned long long)item.number);
    }
    if (kind == WHERRY_SHARDING_CHUNK) {
        return read_places(d, parts);
    }
    status =
        read_infos(d, &parts->sharded, "the boxes of a sharding", &sharding->count, &parts->boxes, &parts->box_numbers);
    sharding->boxes = parts->boxes;
    return status;
}

static wherry_status read_sharded(wh_decoder *d, sharded_parts *parts) {
    wherry_sharded *sharded = &parts->sharded;
    uint64_t flags = 0;
    uint64_t format = 0;
    wherry_status status = wh_decode_dtype(d, &sharded->dtype);
    if (status == WHERRY_OK) {
        status = wh_read_uint(&d->in, WH_SHARDED_FLAGS, "the flags of a sharded tensor", &flags);
    }
    if (status == WHERRY_OK) {
        status = wh_read_uint(&d->in, WHERRY_FORMAT_PRESERVE, "a memory format", &format);
    }
    if (status == WHERRY_OK) {
        status = wh_read_uints(&d->in, WHERRY_NDIM_MAX, "the sizes of a sharded tensor", parts->shape, &sharded->ndim);
    }
    if (status == WHERRY_OK) {
        status = wh_decode_check_sizes(d, sharded->dtype, sharded->ndim, parts->shape);
    }
    sharded->shape = parts->shape;
    sharded->requires_grad = flags & WH_SHARDED_REQUIRES_GRAD;
    sharded->pin_memory = flags & WH_SHARDED_PIN_MEMORY;
    sharded->format = (wherry_memory_format)format;
    if (status == WHERRY_OK) {
        status = read_shards(d, parts);
    }
    if (status == WHERRY_OK) {
        status = read_infos(d, sharded, "the shards", &sharded->global_count, &parts->global, &parts->global_numbers);
        sharded->global = parts->global;
    }
    return status == WHERRY_OK ? read_sharding(d, parts) : status;
}

wherry_status wh_decode_sharded(wh_decoder *decoder, wherry_value **value_p) {
    sharded_parts parts = {0};
    wherry_status status = read_sharded(decoder, &parts);
    if (status == WHERRY_OK) {
        status = wh_decode_created(decoder, wherry_sharded_create(&parts.sharded, value_p, decoder->in.error));
    }
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
