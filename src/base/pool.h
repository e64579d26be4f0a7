/**
 * @file pool.h  Many small objects from few allocations, each still released on its own.
 *
 * Objects are cut from blocks one behind the other. Each keeps how far it lies from the beginning of its block; a block is given back when the
 * last of its objects is. Decoding builds tens of thousands of values at once, and half of its time would go into the allocator otherwise.
 *
 * What is made one by one is cut from a pool that all threads have in common: a program that allocates the memory of each tensor before it describes that would
 * otherwise have its values spread over as many pages as it has tensors, and whoever walks them would wait for each.
 */
#ifndef WH_BASE_POOL_H
#define WH_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wh_pool_block wh_pool_block;

/** Where objects are cut from; starts as {0}. Used by one thread at a time; objects may be released by any. */
typedef struct wh_pool {
    wh_pool_block *block; /**< The current one, which the pool keeps alive. */
    size_t used;
    size_t size;
    size_t objects; /**< Cut from the current block. */
} wh_pool;

/** Begins with a block of about that size, for what is known to be many objects. @return false where there is no memory. */
bool wh_pool_reserve(wh_pool *pool, size_t size);

/**
 * Cuts off an object, aligned for pointers and 64-bit numbers.
 * @param pool      NULL: the common one. Where another thread is just at that, or the allocator is not the default, the object is an allocation of its own.
 * @param offset_p  what wh_pool_free needs; 0 for an allocation of its own.
 * @return NULL where there is no memory.
 */
void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p);

/** Releases an object. Any thread. */
void wh_pool_free(void *object, uint32_t offset);

/** Ends cutting; the objects live on. */
void wh_pool_close(wh_pool *pool);

/** The same of the common one; the next object begins it anew. */
void wh_pool_close_common(void);

#endif
