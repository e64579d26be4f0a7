#include <wherry/tensor.h>

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "state/value.h"

static wherry_status check_placement(const wherry_placement *placement, uint32_t ndim, wherry_error *error) {
    switch (placement->kind) {
    case WHERRY_REPLICATE:
        return WHERRY_OK;
    case WHERRY_SHARD:
    case WHERRY_STRIDED_SHARD:
        if (placement->dim >= ndim) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a placement shards dimension %u of a tensor that has %u",
                           placement->dim, ndim);
        }
        if (placement->kind == WHERRY_STRIDED_SHARD && placement->split_factor < 1) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the split factor %lld is below 1",
                           (long long)placement->split_factor);
        }
        return WHERRY_OK;
    case WHERRY_PARTIAL:
        if (!placement->reduce_op || !wh_utf8_valid(placement->reduce_op, strlen(placement->reduce_op))) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a partial placement needs the name of its reduction");
        }
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown kind of placement %d", (int)placement->kind);
}

static wherry_status check(const wherry_dtensor *dtensor, wherry_error *error) {
    if (!dtensor || !dtensor->mesh || !dtensor->placements || !dtensor->local ||
        (dtensor->ndim && (!dtensor->shape || !dtensor->strides))) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a DTensor needs a local tensor, a mesh, placements, a shape and strides");
    }
    const wherry_tensor *local = wherry_tensor_get(dtensor->local);
    if (!local || dtensor->local->parent || local->ndim != dtensor->ndim || local->dtype != dtensor->dtype) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the local part of a DTensor is a free tensor of its dtype and number of dimensions");
    }
    if (dtensor->flags & ~(uint32_t)WHERRY_TENSOR_REQUIRES_GRAD) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown flags 0x%x of a DTensor", dtensor->flags);
    }
    for (uint32_t d = 0; d < dtensor->ndim; d++) {
        if (dtensor->shape[d] < 0 || dtensor->strides[d] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "global size or stride %u is negative", d);
        }
    }
    for (uint32_t d = 0; d < wherry_mesh_get(dtensor->mesh)->ndim; d++) {
        wherry_status status = check_placement(dtensor->placements + d, dtensor->ndim, error);
        if (status != WHERRY_OK) {
            return status;
        }
    }
    return WHERRY_OK;
}

/** Copies the placements to `to` and their texts behind them; each field that does not apply becomes 0. */
static void copy_placements(wherry_placement *to, const wherry_placement *from, uint32_t count) {
    char *text = (char *)(to + count);
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (wherry_placement){.kind = from[i].kind};
        if (from[i].kind == WHERRY_SHARD || from[i].kind == WHERRY_STRIDED_SHARD) {
            to[i].dim = from[i].dim;
        }
        if (from[i].kind == WHERRY_STRIDED_SHARD) {
            to[i].split_factor = from[i].split_factor;
        }
        if (from[i].kind == WHERRY_PARTIAL) {
            size_t size = strlen(from[i].reduce_op) + 1;
            to[i].reduce_op = memcpy(text, from[i].reduce_op, size);
            text += size;
        }
    }
}

wherry_status wherry_dtensor_create(const wherry_dtensor *dtensor, wherry_value **value_p, wherry_error *error) {
    wherry_status status = check(dtensor, error);
    if (status != WHERRY_OK) {
        return status;
    }
    uint32_t mesh_ndim = wherry_mesh_get(dtensor->mesh)->ndim;
    size_t array = dtensor->ndim * sizeof(int64_t);
    size_t extra = sizeof(wherry_dtensor) + 2 * array + mesh_ndim * sizeof(wherry_placement);
    for (uint32_t d = 0; d < mesh_ndim; d++) {
        extra += dtensor->placements[d].kind == WHERRY_PARTIAL ? strlen(dtensor->placements[d].reduce_op) + 1 : 0;
    }
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_DTENSOR, extra);
    if (!value) {
        return wh_fail_memory(error, "a DTensor");
    }
    wherry_dtensor *kept = (wherry_dtensor *)(value + 1);
    int64_t *shape = (int64_t *)(kept + 1);
    int64_t *strides = shape + dtensor->ndim;
    wherry_placement *placements = (wherry_placement *)(strides + dtensor->ndim);
    if (array) {
        memcpy(shape, dtensor->shape, array);
        memcpy(strides, dtensor->strides, array);
    }
    copy_placements(placements, dtensor->placements, mesh_ndim);
    *kept = *dtensor;
    kept->shape = shape;
    kept->strides = strides;
    kept->placements = placements;
    wherry_mesh_ref(kept->mesh);
    kept->local->parent = value;
    value->as.dtensor = kept;
    *value_p = value;
    return WHERRY_OK;
}

const wherry_dtensor *wherry_dtensor_get(const wherry_value *value) {
    return value->kind == WHERRY_KIND_DTENSOR ? value->as.dtensor : NULL;
}

void wh_dtensor_clear(wherry_dtensor *dtensor) {
    wherry_value_destroy(dtensor->local);
    wherry_mesh_unref(dtensor->mesh);
}
