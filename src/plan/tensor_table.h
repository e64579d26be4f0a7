/**
 * @file tensor_table.h  Which tensors the bytes of a chunk belong to, for progress and messages;
 * and what a failed receive leaves behind, tensor by tensor (wherry_report). A report belongs to
 * the user and is read-only.
 */
#ifndef WH_PLAN_TENSOR_TABLE_H
#define WH_PLAN_TENSOR_TABLE_H

#include <stdbool.h>

#include <wherry/checkpoint.h>
#include <wherry/expert.h>

#include "base/text.h"

/** The memory of a tensor, or of the local part of one. */
typedef struct wh_placed_tensor {
    const wherry_storage *storage;
    uint64_t begin; /**< Its first byte in the storage. */
    uint64_t end;   /**< The byte after its last one. */
    /** The largest end of all entries of this storage up to and including this one. */
    uint64_t reach;
    const wherry_value *leaf; /**< The tensor, or the value that it is a part of. */
    bool landed;              /**< For the report: true if some of its bytes may have landed. */
    bool missing;             /**< For the report: true if some of its bytes may be missing. */
} wh_placed_tensor;

/** Starts as {0}. */
typedef struct wh_tensor_table {
    wh_placed_tensor *items; /**< Sorted by storage and begin. */
    size_t count;
    size_t capacity;
} wh_tensor_table;

/**
 * Fills the table with the tensors of a plan whose state has not been taken.
 * @return false if there is no memory; then the table is {0}.
 */
bool wh_tensor_table_init(wh_tensor_table *table, const wherry_plan *plan);

void wh_tensor_table_destroy(wh_tensor_table *table);

typedef void (*wh_placed_fn)(void *context, wh_placed_tensor *tensor);

/** Calls `visit` for each tensor that has bytes in a chunk, for some of them more than once. */
void wh_tensor_table_visit(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_placed_fn visit,
                           void *context);

/** Appends the path of one tensor that has bytes in a chunk; "" if there is none. */
void wh_tensor_table_path(const wh_tensor_table *table, const wherry_plan *plan, uint64_t chunk, wh_string *path);

/* ---- the report of a failure ---- */

/**
 * Lists which tensors are complete, partly written and untouched.
 * @param table  whose marks (landed, missing) are set.
 * @return for wherry_report_destroy; NULL if there is no memory.
 */
wherry_report *wh_report_create(const wh_tensor_table *table);

/**
 * Appends to the message of an error how many tensors are complete, partly written and untouched,
 * and the first names of partly written ones.
 * @param in_place  the tensors are those of the user's target.
 */
void wh_report_describe(const wherry_report *report, bool in_place, wherry_error *error);

#endif
