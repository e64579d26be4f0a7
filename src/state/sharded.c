#include "state/sharded.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include <wherry/tensor.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/index.h"
#include "base/text.h"
#include "range/copy.h"
#include "state/value.h"

/* Meshes */

/** A mesh. Its arrays and names follow it in the same block of memory. */
struct wherry_mesh {
    atomic_size_t references;
    wherry_mesh_info info;
};

bool wh_mesh_count(uint32_t ndim, const int64_t *shape, uint64_t *count_p) {
    uint64_t count = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] < 1 || !wh_mul(count, (uint64_t)shape[d], &count)) {
            return false;
        }
    }
    *count_p = count;
    return true;
}

static wherry_status check_mesh(const wherry_mesh_info *info, uint64_t *count_p, size_t *names_p, wherry_error *error) {
    if (!info || info->ndim < 1 || info->ndim > WHERRY_NDIM_MAX || !info->shape || !info->ranks) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a mesh needs 1 to %d dimensions, a shape and ranks",
                       WHERRY_NDIM_MAX);
    }
    if (!wh_mesh_count(info->ndim, info->shape, count_p) || *count_p > SIZE_MAX / sizeof(int64_t) / 2) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "a size of the mesh is below 1, or the mesh is too large");
    }
    for (uint64_t i = 0; i < *count_p; i++) {
        if (info->ranks[i] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %lld of the mesh is negative",
                           (long long)info->ranks[i]);
        }
    }
    *names_p = 0;
    for (uint32_t d = 0; d < info->ndim && info->dim_names; d++) {
        const char *name = info->dim_names[d];
        if (!name || !wh_utf8_valid(name, strlen(name))) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the name of mesh dimension %u is NULL or not UTF-8", d);
        }
        *names_p += sizeof(char *) + strlen(name) + 1;
    }
    return WHERRY_OK;
}

wherry_status wherry_mesh_create(const wherry_mesh_info *info, wherry_mesh **mesh_p, wherry_error *error) {
    uint64_t count = 0;
    size_t names = 0;
    WH_TRY(check_mesh(info, &count, &names, error));
    size_t numbers = info->ndim + count;
    wherry_mesh *mesh = wh_alloc(sizeof(*mesh) + numbers * sizeof(int64_t) + names);
    WH_TRY_ALLOC(mesh, error, "a mesh");
    int64_t *shape = (int64_t *)(mesh + 1);
    int64_t *ranks = shape + info->ndim;
    memcpy(shape, info->shape, info->ndim * sizeof(*shape));
    memcpy(ranks, info->ranks, count * sizeof(*ranks));
    *mesh = (wherry_mesh){.references = 1, .info = *info};
    mesh->info.shape = shape;
    mesh->info.ranks = ranks;
    if (info->dim_names) {
        const char **pointers = (const char **)(ranks + count);
        char *text = (char *)(pointers + info->ndim);
        for (uint32_t d = 0; d < info->ndim; d++) {
            size_t size = strlen(info->dim_names[d]) + 1;
            pointers[d] = memcpy(text, info->dim_names[d], size);
            text += size;
        }
        mesh->info.dim_names = pointers;
    }
    *mesh_p = mesh;
    return WHERRY_OK;
}

wherry_mesh *wherry_mesh_ref(wherry_mesh *mesh) {
    atomic_fetch_add_explicit(&mesh->references, 1, memory_order_relaxed);
    return mesh;
}

void wherry_mesh_unref(wherry_mesh *mesh) {
    if (mesh && atomic_fetch_sub_explicit(&mesh->references, 1, memory_order_acq_rel) == 1) {
        wh_free(mesh);
    }
}

const wherry_mesh_info *wherry_mesh_get(const wherry_mesh *mesh) {
    return &mesh->info;
}

bool wh_mesh_equal(const wherry_mesh *one, const wherry_mesh *other) {
    const wherry_mesh_info *a = &one->info;
    const wherry_mesh_info *b = &other->info;
    if (one == other) {
        return true;
    }
    if (a->device != b->device || a->ndim != b->ndim || !a->dim_names != !b->dim_names ||
        memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) != 0) {
        return false;
    }
    for (uint32_t d = 0; d < a->ndim && a->dim_names; d++) {
        if (strcmp(a->dim_names[d], b->dim_names[d]) != 0) {
            return false;
        }
    }
    uint64_t count;
    return wh_mesh_count(a->ndim, a->shape, &count) && memcmp(a->ranks, b->ranks, count * sizeof(*a->ranks)) == 0;
}

uint64_t wh_mesh_hash(const wherry_mesh *mesh) {
    const wherry_mesh_info *info = &mesh->info;
    uint64_t count = 0;
    wh_mesh_count(info->ndim, info->shape, &count);
    uint64_t hash = wh_hash(info->shape, info->ndim * sizeof(*info->shape), (uint64_t)info->device);
    return wh_hash(info->ranks, count * sizeof(*info->ranks), hash);
}

bool wh_mesh_find(const wherry_mesh *mesh, int64_t rank, int64_t coordinate[WHERRY_NDIM_MAX]) {
    const wherry_mesh_info *info = &mesh->info;
    uint64_t count;
    if (!wh_mesh_count(info->ndim, info->shape, &count)) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (info->ranks[i] == rank) {
            uint64_t rest = i;
            for (uint32_t d = info->ndim; d-- > 0;) {
                coordinate[d] = (int64_t)(rest % (uint64_t)info->shape[d]);
                rest /= (uint64_t)info->shape[d];
            }
            return true;
        }
    }
    return false;
}

/* DTensor */

static wherry_status check_placement(const wherry_placement *placement, uint32_t ndim, wherry_error *error) {
    switch (placement->kind) {
    case WHERRY_REPLICATE:
        return WHERRY_OK;
    case WHERRY_SHARD:
    case WHERRY_STRIDED_SHARD:
        if (placement->dim >= ndim) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                           "a placement shards dimension %u, but the tensor has %u dimensions", placement->dim, ndim);
        }
        if (placement->kind == WHERRY_STRIDED_SHARD && placement->split_factor < 1) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the split factor is %lld; it must be at least 1",
                           (long long)placement->split_factor);
        }
        return WHERRY_OK;
    case WHERRY_PARTIAL:
        if (!placement->reduce_op || !wh_utf8_valid(placement->reduce_op, strlen(placement->reduce_op))) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                           "a partial placement needs the name of its reduction (reduce_op), in UTF-8");
        }
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown placement kind %d", (int)placement->kind);
}

static wherry_status check_dtensor(const wherry_dtensor *dtensor, wherry_error *error) {
    if (!dtensor || !dtensor->mesh || !dtensor->placements || !dtensor->local ||
        (dtensor->ndim && (!dtensor->shape || !dtensor->strides))) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a DTensor needs a local tensor, a mesh, placements, a shape and strides");
    }
    const wherry_tensor *local = wherry_tensor_get(dtensor->local);
    if (!local || dtensor->local->parent || local->ndim != dtensor->ndim || local->dtype != dtensor->dtype) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the local tensor must have the dtype and the number of dimensions of its DTensor, and must "
                       "not belong to a container");
    }
    if (dtensor->flags & ~(uint32_t)WHERRY_TENSOR_REQUIRES_GRAD) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown flags 0x%x in a DTensor", dtensor->flags);
    }
    for (uint32_t d = 0; d < dtensor->ndim; d++) {
        if (dtensor->shape[d] < 0 || dtensor->strides[d] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the global size or stride of dimension %u is negative", d);
        }
    }
    for (uint32_t d = 0; d < wherry_mesh_get(dtensor->mesh)->ndim; d++) {
        WH_TRY(check_placement(dtensor->placements + d, dtensor->ndim, error));
    }
    return WHERRY_OK;
}

/**
 * Copies the placements to `to`, followed by their texts. Fields that a kind of placement does not
 * use become 0.
 */
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
    WH_TRY(check_dtensor(dtensor, error));
    uint32_t mesh_ndim = wherry_mesh_get(dtensor->mesh)->ndim;
    size_t array = dtensor->ndim * sizeof(int64_t);
    size_t extra = sizeof(wherry_dtensor) + 2 * array + mesh_ndim * sizeof(wherry_placement);
    for (uint32_t d = 0; d < mesh_ndim; d++) {
        extra += dtensor->placements[d].kind == WHERRY_PARTIAL ? strlen(dtensor->placements[d].reduce_op) + 1 : 0;
    }
    wherry_value *value = wh_value_new(NULL, WHERRY_KIND_DTENSOR, extra);
    WH_TRY_ALLOC(value, error, "a DTensor");
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

/* ShardedTensor */

static wherry_status check_info(const wherry_shard_info *info, uint32_t ndim, const int64_t *shape, const char *what,
                                uint32_t number, wherry_error *error) {
    bool fine = info->place.rank >= -1 && (ndim == 0 || (info->offsets && info->sizes));
    wh_box box = {.ndim = ndim};
    if (fine && ndim) {
        memcpy(box.offsets, info->offsets, ndim * sizeof(*box.offsets));
        memcpy(box.sizes, info->sizes, ndim * sizeof(*box.sizes));
    }
    if (!fine || !wh_box_within(&box, shape)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "%s %u is outside the global tensor, has no offsets or sizes, or has a rank below -1", what,
                       number);
    }
    return WHERRY_OK;
}

static wherry_status check_shard(const wherry_sharded *sharded, uint32_t number, wherry_error *error) {
    const wherry_shard *shard = sharded->shards + number;
    WH_TRY(check_info(&shard->info, sharded->ndim, sharded->shape, "local shard", number, error));
    const wherry_tensor *tensor = shard->tensor ? wherry_tensor_get(shard->tensor) : NULL;
    if (!tensor || shard->tensor->parent || tensor->dtype != sharded->dtype || tensor->ndim != sharded->ndim ||
        (tensor->ndim && memcmp(tensor->shape, shard->info.sizes, tensor->ndim * sizeof(*tensor->shape)) != 0)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "local shard %u must be a tensor with the dtype of the ShardedTensor and the shape of its box, "
                       "and must not belong to a container",
                       number);
    }
    return WHERRY_OK;
}

/** True if two local shards are the same value. */
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
                return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                               "place %u of the sharding is missing, or its rank is below -1", i);
            }
        }
        return WHERRY_OK;
    case WHERRY_SHARDING_ENUMERABLE:
        if (sharding->count && !sharding->boxes) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the sharding has no boxes");
        }
        for (uint32_t i = 0; i < sharding->count; i++) {
            WH_TRY(check_info(sharding->boxes + i, sharded->ndim, sharded->shape, "box", i, error));
        }
        return WHERRY_OK;
    }
    return wh_fail(error, WHERRY_INVALID_ARGUMENT, "unknown sharding kind %d", (int)sharding->kind);
}

static wherry_status check_sharded(const wherry_sharded *sharded, wherry_error *error) {
    if (!sharded || !wherry_dtype_describe(sharded->dtype) || sharded->ndim > WHERRY_NDIM_MAX ||
        (sharded->ndim && !sharded->shape) || (unsigned)sharded->format > WHERRY_FORMAT_PRESERVE ||
        (sharded->shard_count && !sharded->shards) || (sharded->global_count && !sharded->global)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "a ShardedTensor needs a dtype, a memory format, a shape of at most %d dimensions and its shards",
            WHERRY_NDIM_MAX);
    }
    for (uint32_t d = 0; d < sharded->ndim; d++) {
        if (sharded->shape[d] < 0) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the global size of dimension %u is negative", d);
        }
    }
    for (uint32_t i = 0; i < sharded->shard_count; i++) {
        WH_TRY(check_shard(sharded, i, error));
    }
    for (uint32_t i = 0; i < sharded->global_count; i++) {
        WH_TRY(check_info(sharded->global + i, sharded->ndim, sharded->shape, "shard", i, error));
    }
    if (has_twins(sharded)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "two local shards are the same value; each shard needs its own tensor");
    }
    return check_sharding(sharded, error);
}

/** Copies the info of a shard. Stores its numbers at *numbers, and advances *numbers past them. */
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

/**
 * Fills the memory block of a ShardedTensor: first the structs, then the places, then all numbers.
 */
static void fill_sharded(wherry_value *value, const wherry_sharded *from, uint32_t places, uint32_t boxes) {
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
    WH_TRY(check_sharded(sharded, error));
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
    WH_TRY_ALLOC(value, error, "a sharded tensor");
    fill_sharded(value, sharded, places, boxes);
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

/* Parts: finds the boxes of the global tensor that a local tensor consists of */

/** The maximum number of boxes of a local tensor. If it has more, its boxes count as unknown. */
enum { BOXES_MAX = 65536 };

/** A range of global indices in one dimension: begin to begin + size - 1. */
typedef struct interval {
    int64_t begin;
    int64_t size;
} interval;

/**
 * The part of one dimension that a rank has: intervals of global indices, in the order of the local
 * tensor.
 */
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

/**
 * Appends elements begin to end - 1 of the axis `from` to the axis `to`. The elements of `from` are
 * counted from 0.
 */
static bool axis_slice(const axis *from, int64_t begin, int64_t end, axis *to) {
    int64_t at = 0;
    for (size_t i = 0; i < from->count && at < end; i++) {
        int64_t size = from->intervals[i].size;
        int64_t first = begin > at ? begin - at : 0;
        int64_t slice_end = end - at < size ? end - at : size;
        if (first < slice_end && !axis_append(to, from->intervals[i].begin + first, slice_end - first)) {
            return false;
        }
        at += size;
    }
    return true;
}

/**
 * Reduces an axis to the share of one rank. There are `ways` ranks, and this one has number `mine`.
 * The axis is cut into ways * factor equal pieces, of which the last ones may be smaller or empty.
 * The ranks get the pieces in turn: the first rank gets the first piece, and so on. A plain shard
 * has factor 1.
 */
static wh_parts_result axis_deal(axis *of, int64_t ways, int64_t mine, int64_t factor) {
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

/** Computes the part of each dimension that a rank has. */
static wh_parts_result axes_of(const wherry_dtensor *dtensor, int64_t rank, axis *axes) {
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
            wh_parts_result parts =
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

/** Visits every combination of intervals, one dimension after the other. */
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

static wh_parts_result visit_dtensor(const wherry_dtensor *dtensor, int64_t rank, wh_part_fn visit, void *context) {
    axis axes[WHERRY_NDIM_MAX] = {{0}};
    wh_parts_result parts = axes_of(dtensor, rank, axes);
    if (parts == WH_PARTS_KNOWN) {
        wh_part part = {.global.ndim = dtensor->ndim, .local.ndim = dtensor->ndim};
        parts = visit_boxes(axes, 0, &part, visit, context) ? WH_PARTS_STOPPED : WH_PARTS_KNOWN;
    }
    for (uint32_t d = 0; d < dtensor->ndim; d++) {
        wh_free(axes[d].intervals);
    }
    return parts;
}

/** Visits the whole local tensor as one box. Does nothing if the tensor has no elements. */
static wh_parts_result visit_one(uint32_t ndim, const int64_t *offsets, const int64_t *sizes, wh_part_fn visit,
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

wh_parts_result wh_value_visit_parts(const wherry_value *value, size_t index, int64_t rank, wh_part_fn visit,
                                     void *context) {
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

/* ---- comparing boxes ---- */

typedef struct box_list {
    wh_part *parts;
    size_t count;
    size_t capacity;
} box_list;

static int add_part(void *context, const wh_part *part) {
    box_list *list = context;
    if (!WH_GROW(list->parts, list->capacity, list->count)) {
        return 1;
    }
    list->parts[list->count++] = *part;
    return 0;
}

static int append_part(void *context, const wh_part *part) {
    const wh_box *box = &part->global;
    wh_string *text = context;
    for (uint32_t i = 0; i < box->ndim; i++) {
        wh_string_format(text, "%s%" PRId64 ":%" PRId64, i ? ", " : "[", box->offsets[i],
                         box->offsets[i] + box->sizes[i]);
    }
    wh_string_append(text, box->ndim ? "] " : "[] ", box->ndim ? 2 : 3);
    return 0;
}

void wh_boxes_append(wh_string *text, const wherry_value *dtensor, int64_t rank) {
    size_t before = text->size;
    (void)wh_value_visit_parts(dtensor, 0, rank, append_part, text);
    if (text->size > before) {
        text->size--;
    } else {
        wh_string_append(text, "nothing", 7);
    }
}

wherry_status wh_boxes_equal(const wherry_value *source, int64_t source_rank, const wherry_value *target,
                             int64_t target_rank, bool *same_p, wherry_error *error) {
    box_list from = {0};
    box_list to = {0};
    wh_parts_result source_parts = wh_value_visit_parts(source, 0, source_rank, add_part, &from);
    wh_parts_result target_parts = wh_value_visit_parts(target, 0, target_rank, add_part, &to);
    bool memory = source_parts == WH_PARTS_STOPPED || source_parts == WH_PARTS_NO_MEMORY ||
                  target_parts == WH_PARTS_STOPPED || target_parts == WH_PARTS_NO_MEMORY;
    *same_p = true;
    if (source_parts == WH_PARTS_KNOWN && target_parts == WH_PARTS_KNOWN) {
        *same_p = from.count == to.count;
        for (size_t i = 0; i < from.count && *same_p; i++) {
            *same_p = wh_box_equal(&from.parts[i].global, &to.parts[i].global) &&
                      wh_box_equal(&from.parts[i].local, &to.parts[i].local);
        }
    }
    wh_free(from.parts);
    wh_free(to.parts);
    return memory ? wh_fail_memory(error, "the boxes of a DTensor") : WHERRY_OK;
}
