/**
 * @file alloc.h  The library's only way to allocate memory (wherry_allocator_set replaces it), and
 * pools.
 *
 * A pool cuts many small objects from few allocations. Each object is still released on its own: it
 * records how far it lies from the start of its block, and a block is freed with its last object.
 * Decoding builds tens of thousands of values at once; without a pool, half of its time would go
 * into the allocator.
 *
 * Values that a program creates one by one come from a pool that all threads share. Otherwise a
 * program that allocates each tensor's memory before it describes the tensor would spread its
 * values over as many pages as it has tensors, and every walk over them would miss the cache.
 */
#ifndef WH_BASE_ALLOC_H
#define WH_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "base/shared.h"

/** @return size bytes, or NULL. With size 0, the result is still a pointer to release. */
WH_SHARED void *wh_alloc(size_t size);

/** @return count elements of size bytes; NULL if out of memory, or if the product overflows. */
WH_SHARED void *wh_alloc_array(size_t count, size_t size);

/** wh_alloc_array, zeroed. */
WH_SHARED void *wh_alloc_zeroed(size_t count, size_t size);

/** memory may be NULL. */
WH_SHARED void wh_free(void *memory);

/** @return a copy of size bytes, followed by a zero byte; NULL if out of memory. */
WH_SHARED char *wh_copy_text(const char *text, size_t size);

/**
 * Makes room for one more element in a growing array. The capacity at least doubles.
 * @return false if out of memory; the array is unchanged.
 */
WH_SHARED bool wh_grow(void **array, size_t *capacity, size_t count, size_t size);

/** Makes room for exactly count elements in total, if there is less. @return as wh_grow. */
bool wh_reserve(void **array, size_t *capacity, size_t count, size_t size);

/** wh_reserve for a typed array. */
#define WH_RESERVE(array, capacity, count) wh_reserve((void **)&(array), &(capacity), (count), sizeof(*(array)))

/** wh_grow for a typed array. Calls a function only if there is no room; evaluates count twice. */
#define WH_GROW(array, capacity, count)                                                                                \
    (((count) < (capacity) && (array)) || wh_grow((void **)&(array), &(capacity), (count), sizeof(*(array))))

/**
 * Gives up memory that somebody else may still write to: it is never freed. A leak checker still
 * finds it. The caller must not free it either. memory may be NULL. Any thread.
 */
void wh_leak(void *memory);

/** True if freed memory may be cached: the allocator is the default, and no sanitizer is in use. */
bool wh_alloc_may_cache(void);

typedef struct wh_pool_block wh_pool_block;

/** A pool; starts as {0}. One thread at a time allocates; any thread releases objects. */
typedef struct wh_pool {
    wh_pool_block *block; /**< The current block, which the pool keeps alive. */
    size_t used;
    size_t size;
    size_t objects; /**< Allocated from the current block. */
} wh_pool;

/**
 * Starts with a block of about `size` bytes, if many objects are expected.
 * @return false if out of memory.
 */
bool wh_pool_reserve(wh_pool *pool, size_t size);

/**
 * Allocates an object, aligned for pointers and 64-bit numbers.
 * @param pool      NULL: the shared pool. If another thread is using it, or the allocator is not
 *                  the default, the object is a separate allocation.
 * @param offset_p  to pass to wh_pool_free; 0 for a separate allocation.
 * @return NULL if out of memory.
 */
void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p);

/** Releases an object. Any thread. */
void wh_pool_free(void *object, uint32_t offset);

/** Ends allocating from the pool. Its objects stay valid. */
void wh_pool_close(wh_pool *pool);

#endif
