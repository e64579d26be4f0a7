/**
 * @file layout.h  Where everything of a state goes in the files that are to hold it, before any of them is made.
 *
 * A format lays out; file_writer.c makes the files, writes the blocks into them and hands out a state whose tensors lie in the places.
 */
#ifndef WH_FILE_LAYOUT_H
#define WH_FILE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/tensor.h>

#include "base/text.h"
#include "file/mapping.h"

/** A file. */
typedef struct wh_layout_file {
    char *path;
    char *part; /**< Where it is written: `.NAME.part` beside it. */
    uint64_t size;
    wh_mapping *mapping; /**< Once it is made. */
    bool resumed;        /**< Its part was there already, and is gone on with. */
} wh_layout_file;

/** Bytes that are known beforehand: headers. */
typedef struct wh_block {
    size_t file;
    uint64_t offset;
    char *bytes;
    size_t size;
} wh_block;

/** Room for bytes of tensors. */
typedef struct wh_place {
    size_t file;
    uint64_t offset;
    uint64_t nbytes;
} wh_place;

/** Starts as {0}. */
typedef struct wh_layout {
    const char *path;      /**< What the caller calls the file; borrowed. */
    wh_layout_file *files; /**< Moved into place in this order: what names others comes last. */
    size_t file_count;
    size_t file_capacity;
    wh_block *blocks;
    size_t block_count;
    size_t block_capacity;
    wh_place *places;
    size_t place_count;
    size_t place_capacity;
    wh_place *covered; /**< What of the places is ever written, in any order. NULL: all of them. */
    size_t covered_count;
    size_t covered_capacity;

    /**
     * Places are storages, and this says which is that of each tensor, in the order of the walk. NULL: each tensor has the place of its number, and
     * is dense there.
     */
    uint32_t *storages;
} wh_layout;

void wh_layout_destroy(wh_layout *layout);

/** Adds a file. @param path  copied. @return false where there is no memory. */
bool wh_layout_add_file(wh_layout *layout, const char *path);

/** Adds a block at an offset of a file; takes the text over in any case. @return false where there is no memory. */
bool wh_layout_add_block(wh_layout *layout, size_t file, uint64_t offset, wh_string *text);

/** Adds a place. @return false where there is no memory. */
bool wh_layout_add_place(wh_layout *layout, size_t file, uint64_t offset, uint64_t nbytes);

/** Bytes of a tensor that is dense. */
uint64_t wh_dense_bytes(const wherry_tensor *tensor);

/** Whether the elements lie end to end, the last dimension fastest. */
bool wh_tensor_is_dense(const wherry_tensor *tensor);

#endif
