/**
 * @file tensor_table.h  Which tensors the bytes of a chunk belong to, where they land: for
 * messages, progress and the report of a failure.
 */
#ifndef WH_TRANSFER_TENSOR_TABLE_H
#define WH_TRANSFER_TENSOR_TABLE_H

#include <wherry/expert.h>

#include "base/text.h"

/** A tensor, or the local part of one. */
typedef struct wh_placed_tensor {
    const wherry_storage *storage;
    uint64_t begin; /**< Bytes of the storage. */
    uint64_t end;
    /** The largest end of all entries of this storage up to and including this one. */
    uint64_t reach;
    const wherry_value *leaf; /**< That it is, or is a part of. */
    bool landed;              /**< For the report: some of its bytes did, */
    bool missing;             /**< and some did not. */
} wh_placed_tensor;

/** Starts as {0}. */
typedef struct wh_tensor_table {
    wh_placed_tensor *items; /**< By storage and begin. */
    size_t count;
    size_t capacity;
} wh_tensor_table;

/** Builds it from a plan whose state was not taken. @return false where there is no memory. */
bool wh_tensor_table_init(wh_tensor_table *table, const wherry_plan *plan);

void wh_tensor_table_destroy(wh_tensor_table *table);

/** Receives a tensor that a chunk has bytes of. */
typedef void (*wh_placed_fn)(void *context, wh_placed_tensor *tensor);

/** Visits the tensors that a chunk has bytes of; some more than once. */
void wh_tensor_table_visit(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_placed_fn visit,
                           void *context);

/** Writes the path of a tensor of the chunk; "" where there is none. */
void wh_tensor_table_path(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_string *path);

#endif
