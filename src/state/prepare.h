/**
 * @file prepare.h  What a prepared state is made of; see wherry/expert.h.
 *
 * Whoever walks the tree depth first, each container in its order, meets the tensors in the order of `places`, and the
 * DTensors in the order of `mesh_places`: the encoder, the decoder and the planner all do.
 */
#ifndef WH_STATE_PREPARE_H
#define WH_STATE_PREPARE_H

#include <wherry/expert.h>

#include "range/space.h"
#include "state/tensor.h"

/** What a storage has. */
typedef struct wh_holding {
    void *memory; /**< NULL: none. */
    uint64_t nbytes;
    wherry_device device;
} wh_holding;

struct wherry_prepared {
    const wherry_value *state;
    bool owns_state;
    bool adopted; /**< Its tensors are a target's by now, and no longer what the tables below describe. */
    int64_t rank;
    bool owns_storages;        /**< Else the state, which is borrowed, keeps them alive. */
    wherry_storage **storages; /**< Unique. */
    size_t storage_count;
    size_t storage_capacity;
    wh_holding *holdings; /**< Of each storage. Side by side here: the storages lie all over memory. */
    size_t holding_capacity;
    wh_census census;     /**< Of the storages. */
    wherry_mesh **meshes; /**< Unique, each with a reference. */
    size_t mesh_count;
    size_t mesh_capacity;
    uint32_t *places; /**< The number of the storage of each tensor. */
    size_t tensor_count;
    size_t place_capacity;
    uint32_t *mesh_places; /**< The number of the mesh of each DTensor. */
    size_t dtensor_count;
    size_t mesh_place_capacity;
    uint64_t storage_bytes;
    uint64_t view_bytes;
    bool
        solid; /**< By wherry_prepare: each storage has one tensor, contiguous, so that what is sent of it is its bytes, each once, and no others. */
    wh_space space;
};

/** A state that is being prepared, leaf by leaf: whoever walks it for another purpose prepares it on the way. */
typedef struct wh_preparing {
    wherry_prepared *prepared; /**< As far as it is: the tables of the leaves that were met are there. */
    uint64_t max_gap;
    size_t expected;   /**< So many tensors, about. */
    bool failed;       /**< There was no memory. */
    wh_index storages; /**< Finds a storage's number; of the first `indexed`. */
    size_t indexed;
    uintptr_t top;                 /**< Behind all memory so far. */
    wh_index meshes;               /**< Finds a mesh's number. */
    const wherry_tensor **tensors; /**< In the order of the walk. */
    size_t capacity;
} wh_preparing;

/** Errors as wherry_prepare; then there is nothing to end. */
wherry_status wh_preparing_begin(wh_preparing *preparing, const wherry_value *state,
                                 const wherry_prepare_options *options, wherry_error *error);

/** The next leaf that is or has tensors, in the order of wh_visit_tensor_leaves. @return false where there is no memory: then only the end comes. */
bool wh_preparing_leaf(void *preparing, wherry_value *leaf);

/** All leaves were met, or one failed. Errors as wherry_prepare. */
wherry_status wh_preparing_end(wh_preparing *preparing, wherry_prepared **prepared_p, wherry_error *error);

/** An empty one, or NULL where there is no memory. */
wherry_prepared *wh_prepared_new(uint32_t chunk_bytes, int64_t rank);

/** Whether a number may be the size of a chunk. */
bool wh_chunk_bytes_valid(uint64_t chunk_bytes);

/** Adds a storage; its reference is not counted. @return false where there is no memory. */
bool wh_prepared_take_storage(wherry_prepared *prepared, wherry_storage *storage);

/** Divides the space into host memory and that of devices, when all storages and extents are there. @return false where there is no memory. */
bool wh_prepared_divide(wherry_prepared *prepared);

/** Whether a chunk has bytes of device memory, and then of nothing else. */
static inline bool wh_prepared_chunk_on_device(const wherry_prepared *prepared, uint64_t chunk) {
    return prepared->space.order && chunk >= prepared->space.first_chunks;
}

/** Adds a mesh, taking a reference. @return false where there is no memory. */
bool wh_prepared_add_mesh(wherry_prepared *prepared, wherry_mesh *mesh);

/** Whether mesh number `number` equals one: what a wh_index over the meshes compares by. */
bool wh_prepared_has_mesh(const void *prepared, size_t number, const void *mesh);

/** Notes that the next tensor is over storage number `storage`. @return false where there is no memory. */
bool wh_prepared_add_tensor(wherry_prepared *prepared, const wherry_tensor *tensor, size_t storage);

/** Notes that the next DTensor is over mesh number `mesh`. @return false where there is no memory. */
bool wh_prepared_add_dtensor(wherry_prepared *prepared, size_t mesh);

/**
 * Whether a chunk goes on where the one before it ends: each of the two is one contiguous run (one piece, once) of the same storage, and this one begins
 * behind the last byte of that one. On a device none does, since such chunks are staged one by one. Follows from the manifest alone, so that the source and
 * every receiver say the same.
 * @return the bytes of the chunk; 0 where it does not, for the first one, and for a number that no chunk has.
 */
uint64_t wh_prepared_chunk_continues(const wherry_prepared *prepared, uint64_t chunk);

/** The tensors of each storage together: numbers of those of storage s are order[starts[s]] to order[starts[s + 1] - 1]. */
typedef struct wh_grouping {
    size_t *starts; /**< One more than there are storages. */
    size_t *order;
} wh_grouping;

/** @return false where there is no memory; destroy it in any case. */
bool wh_grouping_init(wh_grouping *groups, const wherry_prepared *prepared);

void wh_grouping_destroy(wh_grouping *groups);

#endif
