#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"

/** Blocks grow to this size; what is larger than a quarter of it is an allocation of its own. */
enum { BLOCK_MIN = 1 << 10, BLOCK_MAX = 64 << 10, RESERVE_MAX = 256 << 20, ALIGNMENT = 8 };

/** Blocks of the common pool: one object that stays keeps no more than this. */
enum { COMMON_BLOCK = 16 << 10 };

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

static size_t rounded(size_t size) {
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool has_room(const wh_pool *pool, size_t size) {
    return pool->block && rounded(size) <= pool->size - pool->used;
}

/** Cuts off an object that there is room for. */
static void *cut(wh_pool *pool, size_t size, uint32_t *offset_p) {
    pool->objects++;
    *offset_p = (uint32_t)pool->used;
    void *object = (char *)pool->block + pool->used;
    pool->used += rounded(size);
    return object;
}

/* Only ever tried: the child of a fork may find it taken for good, and then does without. */
static pthread_mutex_t common_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_pool common;

static void *alloc_common(size_t size, uint32_t *offset_p) {
    void *object = NULL;
    if (size <= COMMON_BLOCK / 4 && wh_alloc_may_keep() && pthread_mutex_trylock(&common_lock) == 0) {
        if (has_room(&common, size) || begin_block(&common, COMMON_BLOCK)) {
            object = cut(&common, size, offset_p);
        }
        pthread_mutex_unlock(&common_lock);
    }
    return object ? object : wh_alloc(size);
}

void wh_pool_close_common(void) {
    if (pthread_mutex_trylock(&common_lock) == 0) {
        wh_pool_close(&common);
        pthread_mutex_unlock(&common_lock);
    }
}

void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p) {
    *offset_p = 0;
    if (!pool) {
        return alloc_common(size, offset_p);
    }
    if (size > BLOCK_MAX / 4) {
        return wh_alloc(size);
    }
    while (!has_room(pool, size)) {
        size_t next = pool->size == 0 ? BLOCK_MIN : pool->size < BLOCK_MAX ? 2 * pool->size : BLOCK_MAX;
        if (!begin_block(pool, next)) {
            return NULL;
        }
    }
    return cut(pool, size, offset_p);
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
