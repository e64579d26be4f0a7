/* Preparing: which storages a state has, and which of their bytes its views cover. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "range/region.h"
#include "state/mesh.h"
#include "state/path.h"
#include "state/prepare.h"

enum { DEFAULT_CHUNK_BYTES = 4 << 20, DEFAULT_MAX_GAP = 4095 };

void wherry_prepare_options_init(wherry_prepare_options *options) {
    *options = (wherry_prepare_options){
        .struct_size = sizeof(*options),
        .chunk_bytes = DEFAULT_CHUNK_BYTES,
        .max_gap = DEFAULT_MAX_GAP,
        .rank = -1,
    };
}

/** Two storages are the same where they are the same memory or, without memory, the same handle. */
static const void *identity(const wherry_storage *storage) {
    const void *data = wherry_storage_data(storage);
    return data ? data : storage;
}

static bool is_storage(const void *owner, size_t element, const void *key) {
    const wherry_storage *one = ((const wherry_prepared *)owner)->storages[element];
    const wherry_storage *other = key;
    wherry_device a = wherry_storage_device(one);
    wherry_device b = wherry_storage_device(other);
    return identity(one) == identity(other) && wherry_storage_nbytes(one) == wherry_storage_nbytes(other) &&
           a.kind == b.kind && a.index == b.index;
}

/** Puts those into the index that are not in it. */
static bool index_all(wh_preparing *g) {
    const wherry_prepared *prepared = g->prepared;
    bool ok = wh_index_reserve(&g->storages, prepared->storage_count);
    for (; g->indexed < prepared->storage_count && ok; g->indexed++) {
        const void *data = prepared->holdings[g->indexed].memory;
        ok = wh_index_add(&g->storages, wh_hash_pointer(data ? data : prepared->storages[g->indexed]), g->indexed);
    }
    return ok;
}

/** The number of a storage, which is added where it is new. Memory behind all other is new for certain: nothing has to be looked up as long as addresses ascend. */
static bool gather_storage(wh_preparing *g, wherry_storage *storage, size_t *at_p) {
    uintptr_t data = (uintptr_t)wherry_storage_data(storage);
    bool behind = data && data >= g->top;
    size_t at = WH_INDEX_NONE;
    if (!behind) {
        if (!index_all(g)) {
            return false;
        }
        at = wh_index_find(&g->storages, wh_hash_pointer(identity(storage)), is_storage, g->prepared, storage);
    }
    if (at == WH_INDEX_NONE) {
        at = g->prepared->storage_count;
        uintptr_t end = data + wherry_storage_nbytes(storage);
        g->top = end > g->top ? end : g->top;
        if (!wh_prepared_take_storage(g->prepared, storage)) {
            return false;
        }
    }
    *at_p = at;
    return true;
}

/** Whether a view is one run of bytes, each of them once; of how many. */
static bool is_contiguous(const wh_view *view, uint64_t *bytes_p) {
    uint64_t count = 1;
    for (uint32_t d = view->ndim; d-- > 0;) {
        if (view->shape[d] != 1 && (uint64_t)view->strides[d] != count) {
            return false;
        }
        count *= (uint64_t)view->shape[d];
    }
    *bytes_p = count * view->item;
    return count > 0;
}

/** Covers the last storage, which has this tensor only, where it is contiguous; else nothing is added. @return false where there is no memory. */
static bool cover_solid(wherry_prepared *prepared, const wherry_tensor *tensor, bool *solid_p) {
    uint64_t bytes;
    uint64_t sum;
    wh_view view = wh_tensor_view(tensor);
    *solid_p = is_contiguous(&view, &bytes) && wh_add(prepared->space.bytes, bytes, &sum);
    return !*solid_p || wh_space_add_extent(&prepared->space, &(wherry_extent){.offset = view.offset, .length = bytes});
}

static bool gather_tensor(wh_preparing *g, const wherry_value *value) {
    wherry_prepared *prepared = g->prepared;
    const wherry_tensor *tensor = value->as.tensor;
    size_t before = prepared->storage_count;
    size_t at;
    if (!gather_storage(g, tensor->storage, &at) || !WH_GROW(g->tensors, g->capacity, prepared->tensor_count)) {
        return false;
    }
    prepared->solid = prepared->solid && at == before;
    if (prepared->solid &&
        (!wh_space_add_storage(&prepared->space) || !cover_solid(prepared, tensor, &prepared->solid))) {
        return false;
    }
    g->tensors[prepared->tensor_count] = tensor;
    return wh_prepared_add_tensor(prepared, tensor, at);
}

static bool gather_mesh(wh_preparing *g, wherry_mesh *mesh) {
    wherry_prepared *prepared = g->prepared;
    uint64_t hash = wh_mesh_hash(mesh);
    size_t at = wh_index_find(&g->meshes, hash, wh_prepared_has_mesh, prepared, mesh);
    if (at == WH_INDEX_NONE) {
        at = prepared->mesh_count;
        if (!wh_prepared_add_mesh(prepared, mesh) || !wh_index_add(&g->meshes, hash, at)) {
            return false;
        }
    }
    return wh_prepared_add_dtensor(prepared, at);
}

bool wh_preparing_leaf(void *preparing, wherry_value *leaf) {
    wh_preparing *g = preparing;
    if (leaf->kind == WHERRY_KIND_TENSOR) { /* nearly all of them */
        g->failed = g->failed || !gather_tensor(g, leaf);
        return !g->failed;
    }
    bool ok = leaf->kind != WHERRY_KIND_DTENSOR || gather_mesh(g, leaf->as.dtensor->mesh);
    size_t tensors = wh_value_tensor_count(leaf);
    for (size_t i = 0; i < tensors && ok; i++) {
        ok = gather_tensor(g, wh_value_tensor_at(leaf, i));
    }
    g->failed = g->failed || !ok;
    return !g->failed;
}

/** Moves the extents of a region to the end of the space; the region is empty afterwards. */
static wherry_status lay_out(wh_space *space, wh_region *region, wherry_error *error) {
    for (size_t i = 0; i < region->count; i++) {
        uint64_t bytes = space->bytes;
        if (!wh_add_product(region->extents[i].length, wh_extent_runs(region->extents + i), &bytes)) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the state's views cover more than 2^63 bytes");
        }
        if (!wh_space_add_extent(space, region->extents + i)) {
            return wh_fail_memory(error, "the extents of a state");
        }
        region->extents[i].levels = NULL;
    }
    region->count = 0;
    return WHERRY_OK;
}

/** Covers the views of each storage, whatever they are. */
static wherry_status cover(const wh_preparing *g, const wh_grouping *groups, uint64_t max_gap, wherry_error *error) {
    wh_space *space = &g->prepared->space;
    wh_region region = {0};
    wherry_status status = WHERRY_OK;
    bool ok = wh_space_reserve(space, g->prepared->storage_count);
    for (size_t s = 0; s < g->prepared->storage_count && status == WHERRY_OK; s++) {
        bool solid = false;
        ok = ok && wh_space_add_storage(space);
        if (ok && groups->starts[s + 1] - groups->starts[s] == 1) {
            ok = cover_solid(g->prepared, g->tensors[groups->order[groups->starts[s]]], &solid);
        }
        for (size_t i = groups->starts[s]; i < groups->starts[s + 1] && ok && !solid; i++) {
            wh_view view = wh_tensor_view(g->tensors[groups->order[i]]);
            ok = wh_region_add_view(&region, &view, max_gap);
        }
        ok = ok && wh_region_finish(&region, max_gap);
        status = ok ? lay_out(space, &region, error) : wh_fail_memory(error, "the extents of a state");
    }
    wh_region_destroy(&region);
    return status;
}

static wherry_status cover_anew(const wh_preparing *g, uint64_t max_gap, wherry_error *error) {
    wh_grouping groups = {0};
    wh_space_clear(&g->prepared->space);
    wherry_status status = wh_grouping_init(&groups, g->prepared) ? cover(g, &groups, max_gap, error)
                                                                  : wh_fail_memory(error, "the storages of a state");
    wh_grouping_destroy(&groups);
    return status;
}

/** How many tensors there are about: what the state holds or, where that is little, what its containers hold. */
static size_t count_about(const wherry_value *state) {
    enum { FEW = 64, MANY = 1 << 16 };
    const wherry_value *inside = wh_value_inside(state);
    size_t count = wh_child_count(inside);
    size_t below = 0;
    for (size_t i = 0; i < count && count < FEW; i++) {
        wherry_step step;
        below += wh_child_count(wh_child_at(inside, i, &step));
    }
    return wh_min(count + below, MANY);
}

/** Makes room in all tables, so that they need not be copied to grow. @return false where there is no memory. */
static bool reserve(wh_preparing *g, size_t tensors) {
    wherry_prepared *prepared = g->prepared;
    return WH_RESERVE(prepared->storages, prepared->storage_capacity, tensors) &&
           WH_RESERVE(prepared->holdings, prepared->holding_capacity, tensors) &&
           WH_RESERVE(prepared->places, prepared->place_capacity, tensors) &&
           WH_RESERVE(g->tensors, g->capacity, tensors) && wh_space_reserve(&prepared->space, tensors);
}

wherry_status wh_preparing_begin(wh_preparing *preparing, const wherry_value *state,
                                 const wherry_prepare_options *options, wherry_error *error) {
    wherry_prepare_options chosen;
    wherry_prepare_options_init(&chosen);
    if (!wh_options_take(&chosen, sizeof(chosen), options) || chosen.rank < -1 ||
        !wh_chunk_bytes_valid(chosen.chunk_bytes)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "fill the options by wherry_prepare_options_init; a chunk is a power of two from 4 KiB to "
                       "1 GiB, and a rank is -1 or more");
    }
    *preparing =
        (wh_preparing){.prepared = wh_prepared_new(chosen.chunk_bytes, chosen.rank), .max_gap = chosen.max_gap};
    if (!preparing->prepared) {
        return wh_fail_memory(error, "a prepared state");
    }
    preparing->expected = count_about(state);
    preparing->failed = !reserve(preparing, preparing->expected);
    preparing->prepared->state = state;
    preparing->prepared->solid = true; /* so far: each storage is covered as it is met, and nearly all states stay so */
    return WHERRY_OK;
}

/** What is known only when all leaves are there. */
static wherry_status finish(const wh_preparing *g, wherry_error *error) {
    wherry_prepared *prepared = g->prepared;
    if (g->failed) {
        return wh_fail_memory(error, "the storages of a state");
    }
    if (prepared->storage_bytes > INT64_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the state's storages have more than 2^63 bytes");
    }
    wherry_status status = prepared->solid ? WHERRY_OK : cover_anew(g, g->max_gap, error);
    return status != WHERRY_OK || wh_prepared_divide(prepared) ? status
                                                               : wh_fail_memory(error, "the extents of a state");
}

wherry_status wh_preparing_end(wh_preparing *preparing, wherry_prepared **prepared_p, wherry_error *error) {
    wherry_prepared *prepared = preparing->prepared;
    wherry_status status = finish(preparing, error);
    wh_free(preparing->tensors);
    wh_index_destroy(&preparing->storages);
    wh_index_destroy(&preparing->meshes);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
        return status;
    }
    wh_log(WHERRY_LOG_DEBUG, "prepared %zu tensors over %zu storages: %llu bytes in %llu chunks",
           prepared->tensor_count, prepared->storage_count, (unsigned long long)prepared->space.bytes,
           (unsigned long long)wh_space_chunk_count(&prepared->space));
    *prepared_p = prepared;
    return WHERRY_OK;
}

wherry_status wherry_prepare(const wherry_value *state, const wherry_prepare_options *options,
                             wherry_prepared **prepared_p, wherry_error *error) {
    wh_preparing preparing;
    if (!state || !prepared_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "state and prepared_p must not be NULL");
    }
    wherry_status status = wh_preparing_begin(&preparing, state, options, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_visit_tensor_leaves(state, wh_preparing_leaf, &preparing);
    return wh_preparing_end(&preparing, prepared_p, error);
}
