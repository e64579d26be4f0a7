/**
 * @file alloc.h  Allocating memory, and pools. The library allocates its data structures here;
 * wherry_allocator_set replaces the allocator.
 *
 * A pool places many small objects in a few large blocks. Each object is still released separately:
 * it stores its offset from the start of its block, and a block is freed with its last object.
 * Decoding creates tens of thousands of values at once. Without a pool, it would spend half of its
 * time in the allocator.
 *
 * Values that a program creates one by one come from a pool that all threads share, so they are
 * close together in memory. Many programs allocate the memory of a tensor and then create its
 * value. Without the pool, each value would be on a different page, and almost every access to a
 * value would be a cache miss.
 */
#ifndef WH_BASE_ALLOC_H
#define WH_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "base/shared.h"

/**
 * Allocates memory. @return size bytes; NULL if out of memory. With size 0, the result is still a
 * pointer that must be freed.
 */
WH_SHARED void *wh_alloc(size_t size);

/**
 * Allocates an array. @return count elements of size bytes; NULL if out of memory, or if the
 * product overflows.
 */
WH_SHARED void *wh_alloc_array(size_t count, size_t size);

/** Like wh_alloc_array, but filled with zeros. */
WH_SHARED void *wh_alloc_zeroed(size_t count, size_t size);

/**
 * Frees memory that a function of this file returned, except an object of a pool. memory may be
 * NULL.
 */
WH_SHARED void wh_free(void *memory);

/** @return a copy of size bytes, followed by a zero byte; NULL if out of memory. */
WH_SHARED char *wh_text_copy(const char *text, size_t size);

/**
 * Makes room for one more element in an array of `count` elements. If there is no room, the
 * capacity is doubled until there is. It becomes at least 4.
 * @return false if out of memory; the array is unchanged.
 */
WH_SHARED bool wh_grow(void **array, size_t *capacity, size_t count, size_t size);

/**
 * Makes room for exactly count elements in total, unless there is room already. @return false if
 * out of memory; the array is unchanged.
 */
bool wh_reserve(void **array, size_t *capacity, size_t count, size_t size);

/** Calls wh_reserve for a typed array. */
#define WH_RESERVE(array, capacity, count) wh_reserve((void **)&(array), &(capacity), (count), sizeof(*(array)))

/**
 * Makes room for one more element in a typed array. Calls wh_grow only if there is no room.
 * Evaluates count twice.
 */
#define WH_GROW(array, capacity, count)                                                                                \
    (((count) < (capacity) && (array)) || wh_grow((void **)&(array), &(capacity), (count), sizeof(*(array))))

/**
 * Gives up memory that others, such as MPI, may still write to. It is never freed, and the caller
 * must not free it either. A list keeps it reachable, so that a leak checker does not report it.
 * memory may be NULL. Any thread may call this.
 */
void wh_leak(void *memory);

/** True if freed memory may be cached: the allocator is the default, and no sanitizer is in use. */
bool wh_alloc_may_cache(void);

typedef struct wh_pool_block wh_pool_block;

/**
 * A pool. Initialize it with {0}. Only one thread at a time may allocate from it, but any thread
 * may release objects.
 */
typedef struct wh_pool {
    /** The block that the pool allocates from. The pool keeps it allocated. */
    wh_pool_block *block;
    size_t used;
    size_t size;
    size_t objects; /**< Number of objects allocated from the current block. */
} wh_pool;

/**
 * Allocates a block of `size` bytes in advance, but at most 256 MiB. Call this if many objects are
 * expected. Does nothing if `size` is at most 1 KiB.
 * @return false if out of memory.
 */
bool wh_pool_reserve(wh_pool *pool, size_t size);

/**
 * Allocates an object, aligned for pointers and 64-bit numbers.
 * @param pool      NULL for the shared pool.
 * @param offset_p  a number that must be passed to wh_pool_free. It is 0 if the object is a
 *                  separate allocation. That is the case if the object is large. For the shared
 *                  pool, it is also the case if another thread is using the pool, or if
 *                  wh_alloc_may_cache is false.
 * @return the object; NULL if out of memory.
 */
void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p);

/** Releases an object. Any thread may call this. offset is the number from wh_pool_alloc. */
void wh_pool_free(void *object, uint32_t offset);

/** Stops allocating from the pool. Its objects stay valid. */
void wh_pool_close(wh_pool *pool);

#endif
