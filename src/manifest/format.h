/** @file format.h  The numbers of docs/wire-format.md that writing and reading share. */
#ifndef WH_MANIFEST_FORMAT_H
#define WH_MANIFEST_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include <wherry/expert.h>

#define WH_MANIFEST_MAGIC "wherry"

/** How many items each array has. */
enum {
    WH_MANIFEST_ITEMS = 7,
    WH_STORAGE_ITEMS = 4,
    WH_MESH_ITEMS = 4,
    WH_TENSOR_ITEMS = 7,
    WH_DTENSOR_ITEMS = 8,
    WH_SHARDED_ITEMS = 8,
    WH_INFO_ITEMS = 5,
    WH_PLACE_ITEMS = 3,
};

/** Types of items, as CBOR numbers them; null is one of the simple values. */
enum {
    WH_MAJOR_UINT = 0,
    WH_MAJOR_NEGINT = 1,
    WH_MAJOR_BYTES = 2,
    WH_MAJOR_TEXT = 3,
    WH_MAJOR_ARRAY = 4,
    WH_MAJOR_SIMPLE = 7,
};

enum { WH_SIMPLE_NULL = 22 };

enum { WH_TAG_POSITIVE = 2, WH_TAG_NEGATIVE = 3 };

enum { WH_SHARDED_REQUIRES_GRAD = 1, WH_SHARDED_PIN_MEMORY = 2, WH_SHARDED_FLAGS = 3 };

/** Whether the extents are one run of all bytes, which is written as null. */
static inline bool wh_extents_are_whole(const wherry_extent *extents, size_t count, uint64_t nbytes) {
    return count == 1 && extents->level_count == 0 && extents->offset == 0 && extents->length == nbytes;
}

#endif
