/** @file alloc.h  The library's one way to allocate; see wherry/base.h. */
#ifndef WH_BASE_ALLOC_H
#define WH_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

#include <wherry/base.h>

#include "base/shared.h"

/** Whether memory may be held back between objects: the allocator is the default, and no sanitizer watches each of them. */
bool wh_alloc_may_keep(void);

/** size bytes, or NULL; size may be 0, and the result is still one to release. */
WH_SHARED void *wh_alloc(size_t size);

/** count elements of size bytes, or NULL, also where the product overflows. */
WH_SHARED void *wh_alloc_array(size_t count, size_t size);

/** The same, zeroed. */
WH_SHARED void *wh_alloc_zeroed(size_t count, size_t size);

/** memory may be NULL. */
WH_SHARED void wh_free(void *memory);

/** A copy of size bytes with a zero byte behind them, or NULL. */
WH_SHARED char *wh_copy_text(const char *text, size_t size);

/**
 * Makes room for one more element in a growing array, whose capacity at least doubles.
 * @return false where there is no memory; the array is as it was.
 */
WH_SHARED bool wh_grow(void **array, size_t *capacity, size_t count, size_t size);

/** Makes room for exactly count elements in all, where there is less. @return as wh_grow. */
bool wh_reserve(void **array, size_t *capacity, size_t count, size_t size);

/** wh_reserve for a typed array. */
#define WH_RESERVE(array, capacity, count) wh_reserve((void **)&(array), &(capacity), (count), sizeof(*(array)))

/** wh_grow for a typed array: WH_GROW(items, capacity, count). Calls only where there is no room; count is evaluated twice. */
#define WH_GROW(array, capacity, count)                                                                                \
    (((count) < (capacity) && (array)) || wh_grow((void **)&(array), &(capacity), (count), sizeof(*(array))))

/**
 * Memory that somebody else may still write to, so that it is never freed; a leak checker finds it here. Whoever else could free it must not. memory may be
 * NULL. Any thread.
 */
void wh_keep(void *memory);

#endif
