/**
 * @file writer.h  Where everything of a state goes in the files that will hold it, before any file
 * exists.
 *
 * A format fills a wh_layout. writer.c creates the files, writes the headers, and returns a state
 * whose tensors lie in the files.
 */
#ifndef WH_FILE_WRITER_H
#define WH_FILE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/expert.h>
#include <wherry/tensor.h>
#include <wherry/value.h>

#include "base/text.h"

typedef struct wh_mapping wh_mapping;

/** One file of a layout. */
typedef struct wh_layout_file {
    char *path;
    char *part; /**< `.NAME.part` in the same folder: where it is written. */
    uint64_t size;
    wh_mapping *mapping; /**< NULL until the file exists. */
    bool resumed;        /**< The part existed and is continued. */
} wh_layout_file;

/** A header: bytes that are known before those of the tensors. */
typedef struct wh_header {
    size_t file;
    uint64_t offset;
    char *bytes;
    size_t size;
} wh_header;

/** A range of a file that holds bytes of tensors. */
typedef struct wh_file_range {
    size_t file;
    uint64_t offset;
    uint64_t nbytes;
} wh_file_range;

/** Starts as {0}. */
typedef struct wh_layout {
    const char *path;      /**< As the caller wrote it; borrowed. */
    wh_layout_file *files; /**< Renamed in this order, so a file that names others comes last. */
    size_t file_count;
    size_t file_capacity;
    wh_header *headers;
    size_t header_count;
    size_t header_capacity;
    wh_file_range *ranges; /**< One per tensor, or one per storage: see storage_of. */
    size_t range_count;
    size_t range_capacity;
    /** The parts of the ranges that are ever written, in any order. NULL: all. */
    wh_file_range *covered;
    size_t covered_count;
    size_t covered_capacity;

    /**
     * The range of each tensor, in the order of the walk: ranges are storages. NULL: each tensor
     * has the range of its own number and is dense there.
     */
    uint32_t *storage_of;
} wh_layout;

void wh_layout_destroy(wh_layout *layout);

/** Adds a file. @param path  copied. @return false if out of memory. */
bool wh_layout_add_file(wh_layout *layout, const char *path);

/** Adds a header; takes the text over even on failure. @return false if out of memory. */
bool wh_layout_add_header(wh_layout *layout, size_t file, uint64_t offset, wh_string *text);

/** Adds a range. @return false if out of memory. */
bool wh_layout_add_range(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes);

/** Adds a range to `covered`. @return false if out of memory. */
bool wh_layout_add_covered(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes);

/** Bytes of a dense tensor. */
uint64_t wh_dense_bytes(const wherry_tensor *tensor);

/** True if the elements lie end to end, the last dimension fastest. */
bool wh_tensor_is_dense(const wherry_tensor *tensor);

/**
 * How to prepare a state for a file: without merging gaps, so the file follows from the state
 * alone.
 */
wherry_prepare_options wh_file_prepare_options(void);

/**
 * Copies a state with its containers, keys and plain values, and puts its tensors on other
 * storages.
 * @param storages    borrowed; the copy adds references.
 * @param storage_of  the number of each tensor's storage, in the order of the walk: depth first,
 *                    the shards of a ShardedTensor in their order. NULL: each tensor has the
 *                    storage of its own number, and is dense.
 */
wherry_status wh_replace_storages(const wherry_value *state, wherry_storage *const *storages,
                                  const uint32_t *storage_of, wherry_value **state_p, wherry_error *error);

/** wh_replace_storages with storages in mapped files. @param mappings  by number of the file. */
wherry_status wh_map_state(const wherry_value *state, wh_mapping *const *mappings, const wh_file_range *ranges,
                           size_t range_count, const uint32_t *storage_of, wherry_value **state_p, wherry_error *error);

#endif
