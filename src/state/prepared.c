/* A prepared state as a thing: built piece by piece by whoever prepares or decodes, then only read. */
#include "base/alloc.h"
#include "base/checked.h"
#include "state/mesh.h"
#include "state/prepare.h"

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
    wh_free(prepared->holdings);
    wh_free(prepared->meshes);
    wh_free(prepared->places);
    wh_free(prepared->mesh_places);
    wh_space_destroy(&prepared->space);
    wh_free(prepared);
}

/** Sums stop at the largest number rather than wrap. */
static void add_saturating(uint64_t *sum, uint64_t number) {
    if (__builtin_add_overflow(*sum, number, sum)) {
        *sum = UINT64_MAX;
    }
}

bool wh_prepared_take_storage(wherry_prepared *prepared, wherry_storage *storage) {
    if (prepared->storage_count == UINT32_MAX ||
        !WH_GROW(prepared->storages, prepared->storage_capacity, prepared->storage_count) ||
        !WH_GROW(prepared->holdings, prepared->holding_capacity, prepared->storage_count)) {
        return false;
    }
    prepared->holdings[prepared->storage_count] =
        (wh_holding){wherry_storage_data(storage), wherry_storage_nbytes(storage), wherry_storage_device(storage)};
    prepared->storages[prepared->storage_count++] = storage;
    wh_census_add(&prepared->census, storage);
    add_saturating(&prepared->storage_bytes, wherry_storage_nbytes(storage));
    return true;
}

bool wh_prepared_divide(wherry_prepared *prepared) {
    if (!prepared->census.devices) {
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
    if (!WH_GROW(prepared->places, prepared->place_capacity, prepared->tensor_count)) {
        return false;
    }
    prepared->places[prepared->tensor_count++] = (uint32_t)storage;
    add_saturating(&prepared->view_bytes, wherry_tensor_count(tensor) * wherry_dtype_describe(tensor->dtype)->bytes);
    return true;
}

bool wh_prepared_add_dtensor(wherry_prepared *prepared, size_t mesh) {
    if (!WH_GROW(prepared->mesh_places, prepared->mesh_place_capacity, prepared->dtensor_count)) {
        return false;
    }
    prepared->mesh_places[prepared->dtensor_count++] = (uint32_t)mesh;
    return true;
}

const wherry_value *wherry_prepared_state(const wherry_prepared *prepared) {
    return prepared->state;
}

int64_t wherry_prepared_rank(const wherry_prepared *prepared) {
    return prepared->rank;
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

/** The first piece of a chunk, and whether there are others. */
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

/** Whether a chunk is one contiguous run, and which. */
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
        starts[prepared->places[i] + 2]++;
    }
    for (size_t s = 2; s < prepared->storage_count + 2; s++) {
        starts[s] += starts[s - 1];
    }
    for (size_t i = 0; i < prepared->tensor_count; i++) {
        order[starts[prepared->places[i] + 1]++] = i;
    }
    return true;
}

void wh_grouping_destroy(wh_grouping *groups) {
    wh_free(groups->starts);
    wh_free(groups->order);
}
