#include <wherry/tensor.h>

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "range/copy.h"
#include "state/value.h"

static wherry_status check_info(const wherry_shard_info *info, uint32_t ndim, const int64_t *shape, const char *what,
                                uint32_t number, wherry_error *error) {
    bool fine = info->place.rank >= -1 && (ndim == 0 || (info->offsets && info->sizes));
    wh_box box = {.ndim = ndim};
    if (fine && ndim) {
        memcpy(box.offsets, info->offsets, ndim * sizeof(*box.offsets));
        memcpy(box.sizes, info->sizes, ndim * sizeof(*box.sizes));
    }
    if (!fine || !wh_box_within(&box, shape)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%s %u lies outside the global tensor, or has no place", what,
                       number);
    }
    return WHERRY_OK;
}

static wherry_status check_shard(const wherry_sharded *sharded, uint32_t number, wherry_error *error) {
    const wherry_shard *shard = sharded->shards + number;
    wherry_status status = check_info(&shard->info, sharded->ndim, sharded->shape, "local shard", number, error);
    if (status != WHERRY_OK) {
        return status;
    }
    const wherry_tensor *tensor = shard->tensor ? wherry_tensor_get(shard->tensor) : NULL;
    if (!tensor || shard->tensor->parent || tensor->dtype != sharded->dtype || tensor->ndim != sharded->ndim ||
        (tensor->ndim && memcmp(tensor->shape, shard->info.sizes, tensor->ndim * sizeof(*tensor->shape)) != 0)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "local shard %u is not a free tensor of the sharded tensor's dtype and of its box's shape",
                       number);
    }
    return WHERRY_OK;
}

/** Whether two local shards are the same value. */
static bool has_twins(const wherry_sharded *sharded) {
    uint32_t seen = 0;
    while (seen < sharded->shard_count && wh_value_claim(sharded->shards[seen].tensor)) {
        seen++;
    }
    for (uint32_t i = 0; i < seen; i++) {
        sharded->shards[i].tensor->parent = NULL;
    }
    return seen < sharded->shard_count;
}

static wherry_status check_sharding(const wherry_sharded *sharded, wherry_error *error) {
    const wherry_sharding *sharding = &sharded->sharding;
    switch (sharding->kind) {
    case WHERRY_SHARDING_NONE:
        return WHERRY_OK;
    case WHERRY_SHARDING_CHUNK:
        for (uint32_t i = 0; i < sharding->count; i++) {
            if (!sharding->places || sharding->places[i].rank < -1) {
                return wh_fail(error, WHERRY_INVALID_ARGUMENT, "place %u of the sharding has no rank", i);
            }
        }
        return WHERRY_OK;
    case WHERRY_SHARDING_ENUMERABLE:
        if (sharding->count && !sharding->boxes) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the sharding has no boxes");
        }
        for (uint32_t i = 0; i < sharding->count; i++) {
            wherry_status status = check_info(sharding->boxes + i, sharded->ndim, sharded->shape, "box", i, error);
            if (status != WHERRY_OK) {
                return status;
            }
        }
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown kind of sharding %d", (int)sharding->kind);
}

static wherry_status check(const wherry_sharded *sharded, wherry_error *error) {
    if (!sharded || !wherry_dtype_describe(sharded->dtype) || sharded->ndim > WHERRY_NDIM_MAX ||
        (sharded->ndim && !sharded->shape) || (unsigned)sharded->format > WHERRY_FORMAT_PRESERVE ||
        (sharded->shard_count && !sharded->shards) || (sharded->global_count && !sharded->global)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a sharded tensor needs a dtype, a format, a shape of at most %d dimensions and its shards",
                       WHERRY_NDIM_MAX);
    }
    wherry_status status = WHERRY_OK;
    for (uint32_t d = 0; d < sharded->ndim; d++) {
        if (sharded->shape[d] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "global size %u is negative", d);
        }
    }
    for (uint32_t i = 0; i < sharded->shard_count && status == WHERRY_OK; i++) {
        status = check_shard(sharded, i, error);
    }
    for (uint32_t i = 0; i < sharded->global_count && status == WHERRY_OK; i++) {
        status = check_info(sharded->global + i, sharded->ndim, sharded->shape, "shard", i, error);
    }
    if (status == WHERRY_OK && has_twins(sharded)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "two local shards are the same value; each needs its own");
    }
    return status == WHERRY_OK ? check_sharding(sharded, error) : status;
}

/** Copies an info; its numbers go to *numbers, which moves on. */
static wherry_shard_info copy_info(const wherry_shard_info *from, uint32_t ndim, int64_t **numbers) {
    wherry_shard_info info = {*numbers, *numbers + ndim, from->place};
    if (ndim) {
        memcpy(*numbers, from->offsets, ndim * sizeof(**numbers));
        memcpy(*numbers + ndim, from->sizes, ndim * sizeof(**numbers));
    }
    *numbers += 2 * (size_t)ndim;
    return info;
}

static const wherry_shard_info *copy_infos(wherry_shard_info *to, const wherry_shard_info *from, uint32_t count,
                                           uint32_t ndim, int64_t **numbers) {
    for (uint32_t i = 0; i < count; i++) {
        to[i] = copy_info(from + i, ndim, numbers);
    }
    return to;
}

/** Fills the block: structs first, then places, then all numbers. */
static void fill(wherry_value *value, const wherry_sharded *from, uint32_t places, uint32_t boxes) {
    wherry_sharded *kept = (wherry_sharded *)(value + 1);
    wherry_shard *shards = (wherry_shard *)(kept + 1);
    wherry_shard_info *infos = (wherry_shard_info *)(shards + from->shard_count);
    wherry_shard_place *to_places = (wherry_shard_place *)(infos + from->global_count + boxes);
    int64_t *numbers = (int64_t *)(to_places + places);
    *kept = *from;
    kept->shape = numbers;
    if (from->ndim) {
        memcpy(numbers, from->shape, from->ndim * sizeof(*numbers));
        numbers += from->ndim;
    }
    for (uint32_t i = 0; i < from->shard_count; i++) {
        shards[i] = (wherry_shard){from->shards[i].tensor, copy_info(&from->shards[i].info, from->ndim, &numbers)};
        shards[i].tensor->parent = value;
    }
    kept->shards = shards;
    kept->global = copy_infos(infos, from->global, from->global_count, from->ndim, &numbers);
    kept->sharding = (wherry_sharding){.kind = from->sharding.kind};
    if (from->sharding.kind == WHERRY_SHARDING_CHUNK) {
        kept->sharding.dim = from->sharding.dim;
        kept->sharding.count = places;
        if (places) {
            memcpy(to_places, from->sharding.places, places * sizeof(*to_places));
        }
        kept->sharding.places = to_places;
    } else if (from->sharding.kind == WHERRY_SHARDING_ENUMERABLE) {
        kept->sharding.count = boxes;
        kept->sharding.boxes =
            copy_infos(infos + from->global_count, from->sharding.boxes, boxes, from->ndim, &numbers);
    }
    value->as.sharded = kept;
}

wherry_status wherry_sharded_create(const wherry_sharded *sharded, wherry_value **value_p, wherry_error *error) {
    wherry_status status = check(sharded, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint32_t places = sharded->sharding.kind == WHERRY_SHARDING_CHUNK ? sharded->sharding.count : 0;
    uint32_t boxes = sharded->sharding.kind == WHERRY_SHARDING_ENUMERABLE ? sharded->sharding.count : 0;
    uint64_t infos = (uint64_t)sharded->shard_count + sharded->global_count + boxes;
    uint64_t extra = sizeof(wherry_sharded);
    wherry_value *value = NULL;
    if (wh_add_product(infos, sizeof(wherry_shard) + 2 * sizeof(int64_t) * sharded->ndim, &extra) &&
        wh_add_product(places, sizeof(wherry_shard_place), &extra) &&
        wh_add_product(sharded->ndim, sizeof(int64_t), &extra)) {
        value = wh_value_new(NULL, WHERRY_KIND_SHARDED, extra);
    }
    if (!value) {
        return wh_fail_memory(error, "a sharded tensor");
    }
    fill(value, sharded, places, boxes);
    *value_p = value;
    return WHERRY_OK;
}

const wherry_sharded *wherry_sharded_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_SHARDED ? value->as.sharded : NULL;
}

void wh_sharded_clear(wherry_sharded *sharded) {
    for (uint32_t i = 0; i < sharded->shard_count; i++) {
        wherry_value_destroy(sharded->shards[i].tensor);
    }
}
