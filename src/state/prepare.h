/**
 * @file prepare.h  What a prepared state is made of; see wherry/expert.h.
 *
 * A depth-first walk over the tree, in the order of entries and items, meets the tensors in the
 * order of `tensor_storages` and the DTensors in the order of `dtensor_meshes`. The encoder, the
 * decoder and the plan rely on it.
 */
#ifndef WH_STATE_PREPARE_H
#define WH_STATE_PREPARE_H

#include <wherry/expert.h>

#include "range/space.h"
#include "state/tensor.h"

/** A copy of the fields of a storage. */
typedef struct wh_storage_fields {
    void *memory; /**< NULL: none. */
    uint64_t nbytes;
    wherry_device device;
} wh_storage_fields;

struct wherry_prepared {
    const wherry_value *state;
    bool owns_state;
    /** The tensors are views of a target, so the tables below do not describe them. */
    bool adopted;
    int64_t rank;
    bool owns_storages;        /**< Otherwise the borrowed state keeps them alive. */
    wherry_storage **storages; /**< Unique. */
    size_t storage_count;
    size_t storage_capacity;
    /** Per storage. In one array, because each storage is a cache miss. */
    wh_storage_fields *storage_fields;
    size_t field_capacity;
    wh_storage_traits traits; /**< Of the storages. */
    wherry_mesh **meshes;     /**< Unique, each with a reference. */
    size_t mesh_count;
    size_t mesh_capacity;
    uint32_t *tensor_storages; /**< Per tensor: the number of its storage. */
    size_t tensor_count;
    size_t tensor_storage_capacity;
    uint32_t *dtensor_meshes; /**< Per DTensor: the number of its mesh. */
    size_t dtensor_count;
    size_t dtensor_mesh_capacity;
    uint64_t storage_bytes;
    uint64_t view_bytes;
    /**
     * By wherry_prepare: each storage has one tensor, and that is contiguous. So each byte of the
     * space is one of its bytes.
     */
    bool solid;
    wh_space space;
};

/** A state that is being prepared leaf by leaf, so that another walk over it can prepare it too. */
typedef struct wh_preparing {
    wherry_prepared *prepared; /**< Its tables have the leaves so far. */
    uint64_t max_gap;
    size_t expected;   /**< Estimated number of tensors. */
    bool failed;       /**< Out of memory. */
    wh_index storages; /**< Finds a storage's number, among the first `indexed`. */
    size_t indexed;
    uintptr_t top;                 /**< The end of the highest memory so far. */
    wh_index meshes;               /**< Finds a mesh's number. */
    const wherry_tensor **tensors; /**< In the order of the walk. */
    size_t capacity;
} wh_preparing;

/** Errors as wherry_prepare. On failure, do not call wh_preparing_end. */
wherry_status wh_preparing_begin(wh_preparing *preparing, const wherry_value *state,
                                 const wherry_prepare_options *options, wherry_error *error);

/**
 * Adds the next TENSOR, DTENSOR or SHARDED leaf, in the order of wh_visit_tensor_leaves.
 * @return false if out of memory; then call wh_preparing_end.
 */
bool wh_preparing_leaf(void *preparing, wherry_value *leaf);

/** Finishes after all leaves, or after a failed one. Errors as wherry_prepare. */
wherry_status wh_preparing_end(wh_preparing *preparing, wherry_prepared **prepared_p, wherry_error *error);

/** An empty prepared state; NULL if out of memory. */
wherry_prepared *wh_prepared_new(uint32_t chunk_bytes, int64_t rank);

/** True if a number is a valid chunk size. */
bool wh_chunk_bytes_valid(uint64_t chunk_bytes);

/** Adds a storage without taking a reference. @return false if out of memory. */
bool wh_prepared_take_storage(wherry_prepared *prepared, wherry_storage *storage);

/**
 * Divides the space into host and device memory, after all storages and extents were added. @return
 * false if out of memory.
 */
bool wh_prepared_divide(wherry_prepared *prepared);

/** True if a chunk has only bytes of device memory; otherwise it has only bytes of host memory. */
static inline bool wh_prepared_chunk_on_device(const wherry_prepared *prepared, uint64_t chunk) {
    return prepared->space.order && chunk >= prepared->space.first_chunks;
}

/** Adds a mesh and takes a reference. @return false if out of memory. */
bool wh_prepared_add_mesh(wherry_prepared *prepared, wherry_mesh *mesh);

/** True if mesh number `number` equals `mesh`. For a wh_index over the meshes. */
bool wh_prepared_has_mesh(const void *prepared, size_t number, const void *mesh);

/** Adds the next tensor, which is over storage number `storage`. @return false if out of memory. */
bool wh_prepared_add_tensor(wherry_prepared *prepared, const wherry_tensor *tensor, size_t storage);

/** Adds the next DTensor, which is over mesh number `mesh`. @return false if out of memory. */
bool wh_prepared_add_dtensor(wherry_prepared *prepared, size_t mesh);

/**
 * Tells whether a chunk continues the chunk before it: both are one contiguous run of the same
 * storage, and this one begins where that one ends. Never for device memory, because those chunks
 * are staged one by one. It follows from the manifest alone, so the source and all receivers agree.
 * @return the length of the chunk if it does; otherwise 0.
 */
uint64_t wh_prepared_chunk_continues(const wherry_prepared *prepared, uint64_t chunk);

/**
 * The tensors by storage: those of storage s have numbers order[starts[s]] to order[starts[s + 1] -
 * 1].
 */
typedef struct wh_grouping {
    size_t *starts; /**< One more than there are storages. */
    size_t *order;
} wh_grouping;

/** @return false if out of memory. Call wh_grouping_destroy in either case. */
bool wh_grouping_init(wh_grouping *groups, const wherry_prepared *prepared);

void wh_grouping_destroy(wh_grouping *groups);

#endif
