/**
 * @file report.h  Which tensors a chunk belongs to, for progress and messages; and what a failed
 * receive has left behind, tensor by tensor.
 *
 * Threads: only the thread inside the call uses these. A wherry_report belongs to the user and is
 * read-only.
 */
#ifndef WH_TRANSFER_REPORT_H
#define WH_TRANSFER_REPORT_H

#include <wherry/checkpoint.h>
#include <wherry/expert.h>

#include "base/text.h"
#include "transfer/chunks.h"

/** The memory of a tensor, or of the local part of one. */
typedef struct wh_placed_tensor {
    const wherry_storage *storage;
    uint64_t begin; /**< Its first byte in the storage. */
    uint64_t end;   /**< The byte after its last one. */
    /** The largest end of all entries of this storage up to and including this one. */
    uint64_t reach;
    const wherry_value *leaf; /**< The tensor, or the value that it is a part of. */
    bool landed;              /**< For the report: some of its bytes may have landed. */
    bool missing;             /**< For the report: some of its bytes may be missing. */
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

/**
 * Lists which tensors are complete, partly written and untouched after a failure, and appends the
 * numbers to the message of the error. Does nothing if there is no memory.
 * @param table     of chunks->plan; its marks are changed.
 * @param in_place  the tensors are those of the user's target.
 * @param report_p  receives the report, for wherry_report_destroy; NULL: nobody wants it.
 */
void wh_report_failure(wh_tensor_table *table, const wh_chunks *chunks, bool in_place, wherry_report **report_p,
                       wherry_error *error);

#endif
