/*
 * Preparing a state: finding its storages, and the bytes that its tensors cover in them.
 *
 * 1. Storages are unique and numbered in the order in which the walk first meets them.
 * 2. `tensor_storages` has one entry per tensor, in the order of the walk.
 * 3. While `solid` is true, the space already has one extent per storage. The first tensor that is
 *    empty, is not contiguous or shares a storage makes `solid` false. wh_preparing_end then
 *    computes the extents of all storages again.
 */
#include "state/prepare.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "memory/memory.h"
#include "range/region.h"
#include "state/path.h"
#include "state/sharded.h"
#include "state/value.h"

enum { DEFAULT_CHUNK_BYTES = 4 << 20, DEFAULT_MAX_GAP = 4095 };

void wherry_prepare_options_init(wherry_prepare_options *options) {
    *options = (wherry_prepare_options){
        .struct_size = sizeof(*options),
        .chunk_bytes = DEFAULT_CHUNK_BYTES,
        .max_gap = DEFAULT_MAX_GAP,
        .rank = -1,
    };
}

/** The address of the memory of a storage or, if it has no memory, of the wherry_storage itself. */
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

/** Adds the storages that the index does not have yet. */
static bool index_all(wh_preparing *g) {
    const wherry_prepared *prepared = g->prepared;
    bool ok = wh_index_reserve(&g->storages, prepared->storage_count);
    for (; g->indexed < prepared->storage_count && ok; g->indexed++) {
        const void *data = prepared->storage_fields[g->indexed].memory;
        ok = wh_index_add(&g->storages, wh_hash_pointer(data ? data : prepared->storages[g->indexed]), g->indexed);
    }
    return ok;
}

/**
 * Finds the number of a storage, and adds the storage if it is new. Memory at a higher address than
 * all storages so far is certainly new. So no lookup is needed while addresses ascend.
 */
static bool gather_storage(wh_preparing *g, wherry_storage *storage, size_t *at_p) {
    uintptr_t data = (uintptr_t)wherry_storage_data(storage);
    bool is_above = data && data >= g->top;
    size_t at = WH_INDEX_NONE;
    if (!is_above) {
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

/**
 * True if a view has elements and they are one contiguous run, whose length is stored in *bytes_p.
 */
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

/**
 * Adds the extent of the last storage, which has only this tensor. If the tensor is empty or not
 * contiguous, or the space would become too long, adds nothing and sets *solid_p to false.
 * @return false if out of memory.
 */
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
    if (leaf->kind == WHERRY_KIND_TENSOR) { /* This is true for nearly all leaves. */
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

/** Moves the extents of a region to the end of the space and leaves the region empty. */
static wherry_status lay_out(wh_space *space, wh_region *region, wherry_error *error) {
    for (size_t i = 0; i < region->count; i++) {
        uint64_t bytes = space->bytes;
        if (!wh_add_product(region->extents[i].length, wh_extent_runs(region->extents + i), &bytes)) {
            return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the tensors of the state cover more than 2^63 bytes");
        }
        WH_TRY_ALLOC(wh_space_add_extent(space, region->extents + i), error, "the extents of a state");
        region->extents[i].levels = NULL;
    }
    region->count = 0;
    return WHERRY_OK;
}

/** Adds, for each storage, the extents that its tensors cover. */
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

/**
 * Estimates the number of tensors: counts the children of the state and, if there are few children,
 * also their children.
 */
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

/**
 * Reserves room in the tables of tensors, storages and extents, so that they rarely have to grow.
 * @return false if out of memory.
 */
static bool reserve(wh_preparing *g, size_t tensors) {
    wherry_prepared *prepared = g->prepared;
    return WH_RESERVE(prepared->storages, prepared->storage_capacity, tensors) &&
           WH_RESERVE(prepared->storage_fields, prepared->field_capacity, tensors) &&
           WH_RESERVE(prepared->tensor_storages, prepared->tensor_storage_capacity, tensors) &&
           WH_RESERVE(g->tensors, g->capacity, tensors) && wh_space_reserve(&prepared->space, tensors);
}

wherry_status wh_preparing_begin(wh_preparing *preparing, const wherry_value *state,
                                 const wherry_prepare_options *options, wherry_error *error) {
    wherry_prepare_options chosen;
    wherry_prepare_options_init(&chosen);
    if (!wh_options_take(&chosen, sizeof(chosen), options) || chosen.rank < -1 ||
        !wh_chunk_bytes_valid(chosen.chunk_bytes)) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "initialize the options with wherry_prepare_options_init; chunk_bytes must be a power of two from 4 KiB to "
            "1 GiB, and rank must be at least -1");
    }
    *preparing =
        (wh_preparing){.prepared = wh_prepared_new(chosen.chunk_bytes, chosen.rank), .max_gap = chosen.max_gap};
    WH_TRY_ALLOC(preparing->prepared, error, "a prepared state");
    preparing->expected = count_about(state);
    preparing->failed = !reserve(preparing, preparing->expected);
    preparing->prepared->state = state;
    /* Most states stay solid, so each tensor also adds the extent of its storage. */
    preparing->prepared->solid = true;
    return WHERRY_OK;
}

/** Does the checks that need all leaves, and computes the extents. */
static wherry_status finish(const wh_preparing *g, wherry_error *error) {
    wherry_prepared *prepared = g->prepared;
    WH_TRY_ALLOC(!g->failed, error, "the storages of a state");
    if (prepared->storage_bytes > INT64_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the storages of the state have more than 2^63 bytes");
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
    wh_log(WHERRY_LOG_DEBUG, "prepared %zu tensors in %zu storages: %llu bytes in %llu chunks", prepared->tensor_count,
           prepared->storage_count, (unsigned long long)prepared->space.bytes,
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
    WH_TRY(wh_preparing_begin(&preparing, state, options, error));
    wh_visit_tensor_leaves(state, wh_preparing_leaf, &preparing);
    return wh_preparing_end(&preparing, prepared_p, error);
}

/* The prepared state, which wh_preparing or the decoder fills */

enum { CHUNK_BYTES_MIN = 1 << 12, CHUNK_BYTES_MAX = 1 << 30 };

bool wh_chunk_bytes_valid(uint64_t chunk_bytes) {
    return chunk_bytes >= CHUNK_BYTES_MIN && chunk_bytes <= CHUNK_BYTES_MAX && (chunk_bytes & (chunk_bytes - 1)) == 0;
}

wherry_prepared *wh_prepared_new(uint32_t chunk_bytes, int64_t rank) {
    wherry_prepared *prepared = wh_alloc_zeroed(1, sizeof(*prepared));
    if (prepared) {
        prepared->rank = rank;
        prepared->space.chunk_bytes = chunk_bytes;
    }
    return prepared;
}

void wherry_prepared_destroy(wherry_prepared *prepared) {
    if (!prepared) {
        return;
    }
    if (prepared->owns_state) {
        wherry_value_destroy((wherry_value *)prepared->state);
    }
    for (size_t i = 0; i < prepared->storage_count && prepared->owns_storages; i++) {
        wherry_storage_unref(prepared->storages[i]);
    }
    for (size_t i = 0; i < prepared->mesh_count; i++) {
        wherry_mesh_unref(prepared->meshes[i]);
    }
    wh_free(prepared->storages);
    wh_free(prepared->storage_fields);
    wh_free(prepared->meshes);
    wh_free(prepared->tensor_storages);
    wh_free(prepared->dtensor_meshes);
    wh_space_destroy(&prepared->space);
    wh_free(prepared);
}

bool wh_prepared_take_storage(wherry_prepared *prepared, wherry_storage *storage) {
    if (prepared->storage_count == UINT32_MAX ||
        !WH_GROW(prepared->storages, prepared->storage_capacity, prepared->storage_count) ||
        !WH_GROW(prepared->storage_fields, prepared->field_capacity, prepared->storage_count)) {
        return false;
    }
    prepared->storage_fields[prepared->storage_count] = (wh_storage_fields){
        wherry_storage_data(storage), wherry_storage_nbytes(storage), wherry_storage_device(storage)};
    prepared->storages[prepared->storage_count++] = storage;
    wh_storage_traits_add(&prepared->traits, storage);
    prepared->storage_bytes = wh_add_saturating(prepared->storage_bytes, wherry_storage_nbytes(storage));
    return true;
}

bool wh_prepared_divide(wherry_prepared *prepared) {
    if (!prepared->traits.devices) {
        return true;
    }
    bool *second = wh_alloc_array(prepared->storage_count, sizeof(*second));
    if (!second) {
        return false;
    }
    for (size_t i = 0; i < prepared->storage_count; i++) {
        second[i] = wherry_storage_device(prepared->storages[i]).kind != WHERRY_DEVICE_CPU;
    }
    bool divided = wh_space_divide(&prepared->space, second);
    wh_free(second);
    return divided;
}

bool wh_prepared_add_mesh(wherry_prepared *prepared, wherry_mesh *mesh) {
    if (!WH_GROW(prepared->meshes, prepared->mesh_capacity, prepared->mesh_count)) {
        return false;
    }
    prepared->meshes[prepared->mesh_count++] = wherry_mesh_ref(mesh);
    return true;
}

bool wh_prepared_has_mesh(const void *prepared, size_t number, const void *mesh) {
    return wh_mesh_equal(((const wherry_prepared *)prepared)->meshes[number], mesh);
}

bool wh_prepared_add_tensor(wherry_prepared *prepared, const wherry_tensor *tensor, size_t storage) {
    if (!WH_GROW(prepared->tensor_storages, prepared->tensor_storage_capacity, prepared->tensor_count)) {
        return false;
    }
    prepared->tensor_storages[prepared->tensor_count++] = (uint32_t)storage;
    uint64_t bytes = wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes;
    prepared->view_bytes = wh_add_saturating(prepared->view_bytes, bytes);
    return true;
}

bool wh_prepared_add_dtensor(wherry_prepared *prepared, size_t mesh) {
    if (!WH_GROW(prepared->dtensor_meshes, prepared->dtensor_mesh_capacity, prepared->dtensor_count)) {
        return false;
    }
    prepared->dtensor_meshes[prepared->dtensor_count++] = (uint32_t)mesh;
    return true;
}

const wherry_value *wherry_prepared_state(const wherry_prepared *prepared) {
    return prepared->state;
}

void wherry_prepared_summarize(const wherry_prepared *prepared, wherry_prepared_summary *summary_p) {
    *summary_p = (wherry_prepared_summary){
        .tensors = prepared->tensor_count,
        .storages = prepared->storage_count,
        .extents = prepared->space.extent_count,
        .storage_bytes = prepared->storage_bytes,
        .view_bytes = prepared->view_bytes,
        .bytes = prepared->space.bytes,
        .chunks = wh_space_chunk_count(&prepared->space),
        .chunk_bytes = prepared->space.chunk_bytes,
    };
}

wherry_storage *wherry_prepared_storage(const wherry_prepared *prepared, size_t index) {
    return index < prepared->storage_count ? prepared->storages[index] : NULL;
}

const wherry_extent *wherry_prepared_extents(const wherry_prepared *prepared, size_t storage, size_t *count_p) {
    *count_p = 0;
    return storage < prepared->storage_count ? wh_space_extents(&prepared->space, storage, count_p) : NULL;
}

void wherry_prepared_chunk(const wherry_prepared *prepared, uint64_t chunk, uint64_t *begin_p, uint64_t *length_p) {
    *begin_p = *length_p = 0;
    if (chunk < wh_space_chunk_count(&prepared->space)) {
        *begin_p = wh_space_chunk_begin(&prepared->space, chunk);
        *length_p = wh_space_chunk_begin(&prepared->space, chunk + 1) - *begin_p;
    }
}

typedef struct visit {
    const wherry_prepared *prepared;
    wherry_piece_fn fn;
    void *context;
} visit;

static int visit_piece(void *context, const wh_piece *piece) {
    const visit *v = context;
    wherry_piece named = {v->prepared->storages[piece->storage], piece->offset, piece->length, piece->count,
                          piece->stride};
    return v->fn(v->context, &named);
}

int wherry_prepared_visit_chunk(const wherry_prepared *prepared, uint64_t chunk, wherry_piece_fn visit_fn,
                                void *context) {
    visit v = {prepared, visit_fn, context};
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    return wh_space_visit(&prepared->space, begin, begin + length, visit_piece, &v);
}

/** The first piece of a chunk. `count` is 2 if the chunk has several pieces. */
typedef struct first_piece {
    wh_piece piece;
    size_t count;
} first_piece;

static int note_first(void *context, const wh_piece *piece) {
    first_piece *first = context;
    first->piece = first->count ? first->piece : *piece;
    first->count++;
    return first->count > 1;
}

/** True if a chunk is one contiguous run, which is then stored in *run_p. */
static bool chunk_run(const wherry_prepared *prepared, uint64_t chunk, wh_piece *run_p) {
    first_piece first = {.count = 0};
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    wh_space_visit(&prepared->space, begin, begin + length, note_first, &first);
    *run_p = first.piece;
    return first.count == 1 && first.piece.count == 1;
}

uint64_t wh_prepared_chunk_continues(const wherry_prepared *prepared, uint64_t chunk) {
    wh_piece before;
    wh_piece run;
    bool continues = chunk > 0 && !wh_prepared_chunk_on_device(prepared, chunk) &&
                     chunk_run(prepared, chunk - 1, &before) && chunk_run(prepared, chunk, &run) &&
                     before.storage == run.storage && before.offset + before.length == run.offset;
    return continues ? run.length : 0;
}

bool wh_grouping_init(wh_grouping *groups, const wherry_prepared *prepared) {
    size_t *starts = wh_alloc_zeroed(prepared->storage_count + 2, sizeof(*starts));
    size_t *order = wh_alloc_array(prepared->tensor_count, sizeof(*order));
    *groups = (wh_grouping){starts, order};
    if (!starts || !order) {
        return false;
    }
    for (size_t i = 0; i < prepared->tensor_count; i++) {
        starts[prepared->tensor_storages[i] + 2]++;
    }
    for (size_t s = 2; s < prepared->storage_count + 2; s++) {
        starts[s] += starts[s - 1];
    }
    for (size_t i = 0; i < prepared->tensor_count; i++) {
        order[starts[prepared->tensor_storages[i] + 1]++] = i;
    }
    return true;
}

void wh_grouping_destroy(wh_grouping *groups) {
    wh_free(groups->starts);
    wh_free(groups->order);
}

/* ---- readable by this process ---- */

static bool is_readable(const wherry_storage *storage) {
    wherry_device device = wherry_storage_device(storage);
    return wh_memory_of(device.kind) && (device.kind != WHERRY_DEVICE_CUDA || device.index >= 0);
}

/** Stops at the first tensor that cannot be read, and fills the error. */
static bool check_leaf(void *context, wherry_value *leaf) {
    wherry_error *error = context;
    for (size_t i = 0; i < wh_value_tensor_count(leaf); i++) {
        const wherry_storage *storage = wh_value_tensor_at(leaf, i)->as.tensor->storage;
        char device[WHERRY_DEVICE_TEXT_MAX];
        if (!is_readable(storage)) {
            wh_fail(error, WHERRY_UNSUPPORTED, "a tensor of the state is on %s, which cannot be read here",
                    wherry_device_text(wherry_storage_device(storage), device));
        } else if (wh_storage_is_bare(storage)) {
            wh_fail(error, WHERRY_INVALID_ARGUMENT, "a tensor of the state has no memory");
        } else {
            continue;
        }
        wh_fail_value(error, leaf);
        return false;
    }
    return true;
}

wherry_status wh_prepared_check_readable(const wherry_prepared *prepared, wherry_error *error) {
    bool all = true;
    const wh_storage_traits *traits = &prepared->traits;
    for (size_t i = 0; i < prepared->storage_count && all && (traits->devices || traits->bare); i++) {
        all = is_readable(prepared->storages[i]) && !wh_storage_is_bare(prepared->storages[i]);
    }
    wherry_error found;
    if (all || wh_visit_tensor_leaves(prepared->state, check_leaf, &found)) {
        return WHERRY_OK;
    }
    if (error) {
        *error = found;
    }
    return found.status;
}
