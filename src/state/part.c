#include "state/part.h"

#include <string.h>

#include "base/alloc.h"
#include "state/mesh.h"

/** A local tensor of more boxes than this is treated as if its boxes were not known. */
enum { BOXES_MAX = 65536 };

/** Global indices begin .. begin + size - 1 of a dimension. */
typedef struct interval {
    int64_t begin;
    int64_t size;
} interval;

/** What a rank holds of one dimension: intervals in the order in which they lie in the local tensor. */
typedef struct axis {
    interval *intervals;
    size_t count;
    size_t capacity;
} axis;

static bool axis_append(axis *to, int64_t begin, int64_t size) {
    if (size <= 0) {
        return true;
    }
    if (to->count && to->intervals[to->count - 1].begin + to->intervals[to->count - 1].size == begin) {
        to->intervals[to->count - 1].size += size;
        return true;
    }
    if (!WH_GROW(to->intervals, to->capacity, to->count)) {
        return false;
    }
    to->intervals[to->count++] = (interval){begin, size};
    return true;
}

static int64_t axis_size(const axis *of) {
    int64_t size = 0;
    for (size_t i = 0; i < of->count; i++) {
        size += of->intervals[i].size;
    }
    return size;
}

/** Appends elements begin .. end - 1 of one axis, counted along it, to another. */
static bool axis_slice(const axis *from, int64_t begin, int64_t end, axis *to) {
    int64_t at = 0;
    for (size_t i = 0; i < from->count && at < end; i++) {
        int64_t size = from->intervals[i].size;
        int64_t first = begin > at ? begin - at : 0;
        int64_t behind = end - at < size ? end - at : size;
        if (first < behind && !axis_append(to, from->intervals[i].begin + first, behind - first)) {
            return false;
        }
        at += size;
    }
    return true;
}

/**
 * Keeps of an axis what falls to one of `ways` when it is cut into `factor` times as many equal pieces (the last ones
 * smaller or empty) that are dealt out in turn. A plain shard has a factor of 1.
 */
static wh_parts axis_deal(axis *of, int64_t ways, int64_t mine, int64_t factor) {
    int64_t size = axis_size(of);
    int64_t pieces = ways > INT64_MAX / factor ? INT64_MAX : ways * factor;
    int64_t piece = size / pieces + (size % pieces != 0);
    axis kept = {0};
    if (piece > 0 && factor > BOXES_MAX && size / piece / ways > BOXES_MAX) {
        return WH_PARTS_UNKNOWN;
    }
    for (int64_t turn = 0; turn < factor && piece > 0; turn++) {
        int64_t number = turn * ways + mine;
        if (number > size / piece) {
            break;
        }
        int64_t begin = number * piece;
        int64_t end = size - begin < piece ? size : begin + piece;
        if (!axis_slice(of, begin, end, &kept)) {
            wh_free(kept.intervals);
            return WH_PARTS_NO_MEMORY;
        }
    }
    wh_free(of->intervals);
    *of = kept;
    return WH_PARTS_KNOWN;
}

static void axes_destroy(axis *axes, uint32_t ndim) {
    for (uint32_t d = 0; d < ndim; d++) {
        wh_free(axes[d].intervals);
    }
}

/** What the rank at a coordinate of the mesh holds of each dimension. */
static wh_parts axes_of(const wherry_dtensor *dtensor, int64_t rank, axis *axes) {
    const wherry_mesh_info *mesh = wherry_mesh_get(dtensor->mesh);
    int64_t coordinate[WHERRY_NDIM_MAX];
    if (rank < 0 || !wh_mesh_find(dtensor->mesh, rank, coordinate)) {
        return WH_PARTS_UNKNOWN;
    }
    for (uint32_t d = 0; d < dtensor->ndim; d++) {
        if (!axis_append(axes + d, 0, dtensor->shape[d])) {
            return WH_PARTS_NO_MEMORY;
        }
    }
    for (uint32_t m = 0; m < mesh->ndim; m++) {
        const wherry_placement *placement = dtensor->placements + m;
        bool strided = placement->kind == WHERRY_STRIDED_SHARD;
        if (strided || placement->kind == WHERRY_SHARD) {
            wh_parts parts =
                axis_deal(axes + placement->dim, mesh->shape[m], coordinate[m], strided ? placement->split_factor : 1);
            if (parts != WH_PARTS_KNOWN) {
                return parts;
            }
        }
    }
    const wherry_tensor *local = wherry_tensor_get(dtensor->local);
    size_t boxes = 1;
    for (uint32_t d = 0; d < dtensor->ndim; d++) {
        if (axis_size(axes + d) != local->shape[d] || axes[d].count > BOXES_MAX / boxes) {
            return WH_PARTS_UNKNOWN;
        }
        boxes *= axes[d].count ? axes[d].count : 1;
    }
    return WH_PARTS_KNOWN;
}

/** Visits every combination of intervals, a dimension at a time. */
static int visit_boxes(const axis *axes, uint32_t dim, wh_part *part, wh_part_fn visit, void *context) {
    if (dim == part->global.ndim) {
        return visit(context, part);
    }
    int64_t at = 0;
    int result = 0;
    for (size_t i = 0; i < axes[dim].count && !result; i++) {
        part->global.offsets[dim] = axes[dim].intervals[i].begin;
        part->local.offsets[dim] = at;
        part->global.sizes[dim] = part->local.sizes[dim] = axes[dim].intervals[i].size;
        at += axes[dim].intervals[i].size;
        result = visit_boxes(axes, dim + 1, part, visit, context);
    }
    return result;
}

static wh_parts visit_dtensor(const wherry_dtensor *dtensor, int64_t rank, wh_part_fn visit, void *context) {
    axis axes[WHERRY_NDIM_MAX] = {{0}};
    wh_parts parts = axes_of(dtensor, rank, axes);
    if (parts == WH_PARTS_KNOWN) {
        wh_part part = {.global.ndim = dtensor->ndim, .local.ndim = dtensor->ndim};
        parts = visit_boxes(axes, 0, &part, visit, context) ? WH_PARTS_STOPPED : WH_PARTS_KNOWN;
    }
    axes_destroy(axes, dtensor->ndim);
    return parts;
}

/** One box whose local tensor is all of it. */
static wh_parts visit_one(uint32_t ndim, const int64_t *offsets, const int64_t *sizes, wh_part_fn visit,
                          void *context) {
    wh_part part = {.global.ndim = ndim, .local.ndim = ndim};
    for (uint32_t d = 0; d < ndim; d++) {
        if (sizes[d] == 0) {
            return WH_PARTS_KNOWN;
        }
        part.global.offsets[d] = offsets ? offsets[d] : 0;
        part.global.sizes[d] = part.local.sizes[d] = sizes[d];
    }
    return visit(context, &part) ? WH_PARTS_STOPPED : WH_PARTS_KNOWN;
}

wh_parts wh_value_visit_parts(const wherry_value *value, size_t index, int64_t rank, wh_part_fn visit, void *context) {
    const wherry_tensor *tensor = wherry_tensor_get(value);
    if (tensor) {
        return visit_one(tensor->ndim, NULL, tensor->shape, visit, context);
    }
    const wherry_sharded *sharded = wherry_sharded_get(value);
    if (sharded) {
        const wherry_shard_info *info = &sharded->shards[index].info;
        return visit_one(sharded->ndim, info->offsets, info->sizes, visit, context);
    }
    return visit_dtensor(wherry_dtensor_get(value), rank, visit, context);
}
