/**
 * @file writer.h  Layouts. A layout says where each part of a state will be in the files, before
 * any file exists.
 *
 * A format fills in a wh_layout. writer.c then creates the files, writes the headers, and returns a
 * state whose tensors are in the files.
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
    char *part; /**< The path while the file is written: `.NAME.part` in the same folder. */
    uint64_t size;
    wh_mapping *mapping; /**< NULL until the file exists. */
    bool resumed;        /**< True if the part file existed and is continued. */
} wh_layout_file;

/** A header. Its bytes are known before the bytes of the tensors. */
typedef struct wh_header {
    size_t file;
    uint64_t offset;
    char *bytes;
    size_t size;
} wh_header;

/** A range of a file that contains bytes of tensors. */
typedef struct wh_file_range {
    size_t file;
    uint64_t offset;
    uint64_t nbytes;
} wh_file_range;

/** A layout. Initialize it with {0}. */
typedef struct wh_layout {
    const char *path; /**< The path that the caller passed; borrowed. */
    /**
     * The finished part files get their final names in this order, so a file that refers to other
     * files comes last.
     */
    wh_layout_file *files;
    size_t file_count;
    size_t file_capacity;
    wh_header *headers;
    size_t header_count;
    size_t header_capacity;
    wh_file_range *ranges; /**< One range per tensor, or one per storage: see storage_of. */
    size_t range_count;
    size_t range_capacity;
    /**
     * The parts of the ranges that will be written, in any order. They may include gaps that will
     * not be written. NULL if the ranges will be written completely.
     */
    wh_file_range *covered;
    size_t covered_count;
    size_t covered_capacity;

    /**
     * If the ranges are storages: the range number of each tensor, in the order of the walk. NULL
     * if the ranges are tensors: then tensor number i is dense in range number i.
     */
    uint32_t *storage_of;
} wh_layout;

void wh_layout_destroy(wh_layout *layout);

/** Adds a file. @param path  copied. @return false if out of memory. */
bool wh_layout_add_file(wh_layout *layout, const char *path);

/** Adds a header. Takes the text over, even on failure. @return false if out of memory. */
bool wh_layout_add_header(wh_layout *layout, size_t file, uint64_t offset, wh_string *text);

/** Adds a range. @return false if out of memory. */
bool wh_layout_add_range(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes);

/** Adds a range to `covered`. @return false if out of memory. */
bool wh_layout_add_covered(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes);

/** Returns the size of a dense tensor in bytes. */
uint64_t wh_dense_bytes(const wherry_tensor *tensor);

/** True if the elements are contiguous, in row-major order. */
bool wh_tensor_is_dense(const wherry_tensor *tensor);

/**
 * Returns the options for preparing a state for a file. Their max_gap is 0, so that the file and
 * its digests contain only bytes that belong to a tensor.
 */
wherry_prepare_options wh_file_prepare_options(void);

/**
 * Copies a state with its containers, keys and plain values. The tensors of the copy are views of
 * other storages.
 * @param storages    borrowed. The copy holds references of its own.
 * @param storage_of  the storage number of each tensor, in the order of the walk: depth first, and
 *                    the shards of a ShardedTensor in their order. NULL if tensor number i is dense
 *                    in storage number i.
 */
wherry_status wh_replace_storages(const wherry_value *state, wherry_storage *const *storages,
                                  const uint32_t *storage_of, wherry_value **state_p, wherry_error *error);

/**
 * Like wh_replace_storages, with storages in mapped files. @param mappings  the mapped files by
 * file number.
 */
wherry_status wh_map_state(const wherry_value *state, wh_mapping *const *mappings, const wh_file_range *ranges,
                           size_t range_count, const uint32_t *storage_of, wherry_value **state_p, wherry_error *error);

#endif
