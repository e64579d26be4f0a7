/**
 * @file prepare.h  What a prepared state is made of; see wherry/expert.h.
 *
 * A depth-first walk over the tree, in the order of entries and items, meets the tensors in the
 * order of `tensor_storages` and the DTensors in the order of `dtensor_meshes`. The encoder, the
 * decoder and the plan rely on this order.
 */
#ifndef WH_STATE_PREPARE_H
#define WH_STATE_PREPARE_H

#include <wherry/expert.h>

#include "range/space.h"
#include "state/tensor.h"

/** Copies of some fields of a storage. */
typedef struct wh_storage_fields {
    void *memory; /**< NULL if the storage has no memory. */
    uint64_t nbytes;
    wherry_device device;
} wh_storage_fields;

struct wherry_prepared {
    const wherry_value *state;
    bool owns_state;
    /** True if the tensors are views of a target. The tables below then do not describe them. */
    bool adopted;
    int64_t rank;
    /**
     * True if this struct holds references to the storages. Otherwise the borrowed state keeps them
     * alive.
     */
    bool owns_storages;
    wherry_storage **storages; /**< The unique storages. */
    size_t storage_count;
    size_t storage_capacity;
    /**
     * The fields of each storage, copied into one array, because access to a storage itself is a
     * cache miss.
     */
    wh_storage_fields *storage_fields;
    size_t field_capacity;
    wh_storage_traits traits; /**< Common properties of the storages. */
    wherry_mesh **meshes;     /**< The unique meshes, each with a reference. */
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
     * True if each storage has exactly one tensor, and that tensor is contiguous and has elements.
     * Then every byte of the space belongs to a tensor. Always false for a decoded manifest.
     */
    bool solid;
    wh_space space;
};

/**
 * A state that is being prepared leaf by leaf. A walk that has another purpose, such as encoding,
 * can prepare the state at the same time.
 */
typedef struct wh_preparing {
    /** The result. Its tables contain the leaves that were added so far. */
    wherry_prepared *prepared;
    uint64_t max_gap;
    size_t expected; /**< Estimated number of tensors. */
    bool failed;     /**< True if an allocation has failed. */
    /** Finds the number of a storage. It contains the first `indexed` storages. */
    wh_index storages;
    size_t indexed;
    uintptr_t top;                 /**< The end address of the highest storage so far. */
    wh_index meshes;               /**< Finds the number of a mesh. */
    const wherry_tensor **tensors; /**< All tensors, in the order of the walk. */
    size_t capacity;
} wh_preparing;

/**
 * Starts to prepare a state. Same errors as wherry_prepare. On failure, do not call
 * wh_preparing_end.
 */
wherry_status wh_preparing_begin(wh_preparing *preparing, const wherry_value *state,
                                 const wherry_prepare_options *options, wherry_error *error);

/**
 * Adds the next TENSOR, DTENSOR or SHARDED leaf, in the order of wh_visit_tensor_leaves.
 * @return false if out of memory; then call wh_preparing_end.
 */
bool wh_preparing_leaf(void *preparing, wherry_value *leaf);

/** Ends the preparation, after all leaves or after a failed leaf. Same errors as wherry_prepare. */
wherry_status wh_preparing_end(wh_preparing *preparing, wherry_prepared **prepared_p, wherry_error *error);

/** Creates an empty prepared state. @return NULL if out of memory. */
wherry_prepared *wh_prepared_new(uint32_t chunk_bytes, int64_t rank);

/** True if a number is a valid chunk size. */
bool wh_chunk_bytes_valid(uint64_t chunk_bytes);

/**
 * Adds a storage without taking a reference. @return false if out of memory, or if there are
 * already UINT32_MAX storages.
 */
bool wh_prepared_take_storage(wherry_prepared *prepared, wherry_storage *storage);

/**
 * Divides the space into host memory and device memory. Call it after all storages and extents were
 * added. @return false if out of memory.
 */
bool wh_prepared_divide(wherry_prepared *prepared);

/**
 * Checks that this process can read all storages; looks for the tensor only if it cannot.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for a tensor on a device that cannot be read here, and
 * WHERRY_INVALID_ARGUMENT for one without memory, both with the path.
 */
wherry_status wh_prepared_check_readable(const wherry_prepared *prepared, wherry_error *error);

/**
 * True if the bytes of a chunk are in device memory; false if they are in host memory. No chunk has
 * both.
 */
static inline bool wh_prepared_chunk_on_device(const wherry_prepared *prepared, uint64_t chunk) {
    return chunk >= wh_space_second_part(&prepared->space);
}

/** The length of a chunk in bytes. */
static inline uint64_t wh_prepared_chunk_length(const wherry_prepared *prepared, uint64_t chunk) {
    uint64_t begin;
    uint64_t length;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    return length;
}

/** Adds a mesh and takes a reference. @return false if out of memory. */
bool wh_prepared_add_mesh(wherry_prepared *prepared, wherry_mesh *mesh);

/** True if mesh number `number` equals `mesh`. For a wh_index over the meshes. */
bool wh_prepared_has_mesh(const void *prepared, size_t number, const void *mesh);

/** Adds the next tensor, a view of storage number `storage`. @return false if out of memory. */
bool wh_prepared_add_tensor(wherry_prepared *prepared, const wherry_tensor *tensor, size_t storage);

/** Adds the next DTensor, which uses mesh number `mesh`. @return false if out of memory. */
bool wh_prepared_add_dtensor(wherry_prepared *prepared, size_t mesh);

/**
 * Tells whether a chunk continues the chunk before it. This is the case if each of the two chunks
 * is one contiguous run, both runs are in the same storage, and the second begins where the first
 * ends. A chunk in device memory never continues another, because such chunks are staged one by
 * one. The manifest alone determines the result, so the source and all receivers agree.
 * @return the length of the chunk if it continues the one before it; otherwise 0.
 */
uint64_t wh_prepared_chunk_continues(const wherry_prepared *prepared, uint64_t chunk);

/**
 * The numbers of the tensors, grouped by storage: the tensors of storage s are order[starts[s]] to
 * order[starts[s + 1] - 1].
 */
typedef struct wh_grouping {
    size_t *starts; /**< Has one entry more than there are storages. */
    size_t *order;
} wh_grouping;

/**
 * Groups the tensors by storage. @return false if out of memory. Call wh_grouping_destroy in either
 * case.
 */
bool wh_grouping_init(wh_grouping *groups, const wherry_prepared *prepared);

void wh_grouping_destroy(wh_grouping *groups);

#endif
