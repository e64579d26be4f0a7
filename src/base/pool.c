#include "base/pool.h"

#include <stdatomic.h>

#include "base/alloc.h"

/** Blocks grow to this size; what is larger than a quarter of it is an allocation of its own. */
enum { BLOCK_MIN = 1 << 10, BLOCK_MAX = 64 << 10, RESERVE_MAX = 256 << 20, ALIGNMENT = 8 };

/** The count starts at CUTTING, so that no object is the last while more are cut, and is put right when the block is full. */
#define CUTTING (SIZE_MAX / 2)

struct wh_pool_block {
    atomic_size_t users; /**< Objects in it that are not released. */
};

static void leave(wh_pool_block *block, size_t users) {
    if (atomic_fetch_sub_explicit(&block->users, users, memory_order_acq_rel) == users) {
        wh_free(block);
    }
}

static bool begin_block(wh_pool *pool, size_t size) {
    wh_pool_block *block = wh_alloc(size);
    if (!block) {
        return false;
    }
    atomic_init(&block->users, CUTTING);
    wh_pool_close(pool);
    *pool = (wh_pool){block, sizeof(*block), size, 0};
    return true;
}

bool wh_pool_reserve(wh_pool *pool, size_t size) {
    return size <= BLOCK_MIN || begin_block(pool, size < RESERVE_MAX ? size : RESERVE_MAX);
}

void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p) {
    *offset_p = 0;
    if (!pool || size > BLOCK_MAX / 4) {
        return wh_alloc(size);
    }
    size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    while (!pool->block || rounded > pool->size - pool->used) {
        size_t next = pool->size == 0 ? BLOCK_MIN : pool->size < BLOCK_MAX ? 2 * pool->size : BLOCK_MAX;
        if (!begin_block(pool, next)) {
            return NULL;
        }
    }
    pool->objects++;
    *offset_p = (uint32_t)pool->used;
    void *object = (char *)pool->block + pool->used;
    pool->used += rounded;
    return object;
}

void wh_pool_free(void *object, uint32_t offset) {
    if (offset) {
        leave((void *)((char *)object - offset), 1);
    } else {
        wh_free(object);
    }
}

void wh_pool_close(wh_pool *pool) {
    if (pool->block) {
        leave(pool->block, CUTTING - pool->objects);
        pool->block = NULL;
    }
}
