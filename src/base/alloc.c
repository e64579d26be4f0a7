#include "base/alloc.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * ---- the default allocator ----
 *
 * This is malloc with two additions, because the first access to new memory often costs more than
 * the work done in it. First, a freed large block is cached for the next allocation, up to a limit,
 * instead of being returned to the system. Second, very large blocks are placed on huge pages if
 * the system has them.
 */
enum { CACHED_FROM = 64 << 10, CACHED_BYTES_MAX = 32 << 20, HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20 };

typedef struct cached_block {
    struct cached_block *next;
} cached_block;

/*
 * Always taken with trylock. If another thread holds this lock during a fork(), the lock stays
 * locked in the child forever. Such a child works without the cache.
 */
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
static cached_block *cached_blocks;
static size_t cached_bytes;

/* Nothing is cached under a sanitizer, so that the sanitizer can detect a use after free. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CACHE_BLOCKS false
#elif defined(__has_feature)
#define CACHE_BLOCKS (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define CACHE_BLOCKS true
#endif

/** A cached block that is at most twice as large as needed, or NULL. */
static void *take_cached(size_t size) {
    cached_block *found = NULL;
    if (!CACHE_BLOCKS || pthread_mutex_trylock(&cache_lock) != 0) {
        return NULL;
    }
    for (cached_block **at = &cached_blocks; *at; at = &(*at)->next) {
        size_t usable = malloc_usable_size(*at);
        if (usable >= size && usable / 2 <= size) {
            found = *at;
            *at = found->next;
            cached_bytes -= usable;
            break;
        }
    }
    pthread_mutex_unlock(&cache_lock);
    return found;
}

/** Tries to put a freed block into the cache. @return false if the caller must free the block. */
static bool cache(void *memory, size_t usable) {
    if (!CACHE_BLOCKS || pthread_mutex_trylock(&cache_lock) != 0) {
        return false;
    }
    bool fits = usable <= CACHED_BYTES_MAX - cached_bytes;
    if (fits) {
        cached_block *block = memory;
        block->next = cached_blocks;
        cached_blocks = block;
        cached_bytes += usable;
    }
    pthread_mutex_unlock(&cache_lock);
    return fits;
}

static void ask_for_huge_pages(void *memory, size_t size) {
    uintptr_t first = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + size) / HUGE_PAGE * HUGE_PAGE;
    madvise((char *)memory + (first - (uintptr_t)memory), end - first, MADV_HUGEPAGE);
}

static void *default_allocate(void *context, size_t size) {
    (void)context;
    void *memory = size >= CACHED_FROM ? take_cached(size) : NULL;
    if (!memory) {
        memory = malloc(size);
        if (memory && size >= HUGE_FROM) {
            ask_for_huge_pages(memory, size);
        }
    }
    return memory;
}

static void default_release(void *context, void *memory) {
    (void)context;
    size_t usable = malloc_usable_size(memory);
    if (usable < CACHED_FROM || !cache(memory, usable)) {
        free(memory);
    }
}

static void *default_reallocate(void *context, void *memory, size_t size) {
    if (size < CACHED_FROM) {
        return realloc(memory, size);
    }
    size_t usable = memory ? malloc_usable_size(memory) : 0;
    if (usable >= size) {
        return memory;
    }
    void *larger = default_allocate(context, size);
    if (larger && memory) {
        memcpy(larger, memory, usable);
        default_release(context, memory);
    }
    return larger;
}

/* ---- allocating ---- */

static const wherry_allocator default_allocator = {
    .allocate = default_allocate, .reallocate = default_reallocate, .release = default_release};
static wherry_allocator current = {
    .allocate = default_allocate, .reallocate = default_reallocate, .release = default_release};

bool wh_alloc_may_cache(void) {
    return CACHE_BLOCKS && current.allocate == default_allocate;
}

void *wh_alloc(size_t size) {
    return current.allocate(current.context, size ? size : 1);
}

void *wh_alloc_array(size_t count, size_t size) {
    size_t total;
    return __builtin_mul_overflow(count, size, &total) ? NULL : wh_alloc(total);
}

void *wh_alloc_zeroed(size_t count, size_t size) {
    void *memory = wh_alloc_array(count, size);
    if (memory) {
        memset(memory, 0, count * size);
    }
    return memory;
}

void wh_free(void *memory) {
    if (memory) {
        current.release(current.context, memory);
    }
}

void wherry_free(void *memory) {
    wh_free(memory);
}

char *wh_text_copy(const char *text, size_t size) {
    char *copy = size < SIZE_MAX ? wh_alloc(size + 1) : NULL;
    if (copy) {
        if (size) {
            memcpy(copy, text, size);
        }
        copy[size] = '\0';
    }
    return copy;
}

bool wh_reserve(void **array, size_t *capacity, size_t count, size_t size) {
    if (count <= *capacity) {
        return true;
    }
    size_t total;
    void *grown =
        __builtin_mul_overflow(count, size, &total) ? NULL : current.reallocate(current.context, *array, total);
    if (!grown) {
        return false;
    }
    *array = grown;
    *capacity = count;
    return true;
}

bool wh_grow(void **array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) {
        return true;
    }
    size_t wanted = *capacity < 4 ? 4 : *capacity;
    while (wanted <= count) {
        if (__builtin_mul_overflow(wanted, 2, &wanted)) {
            return false;
        }
    }
    return wh_reserve(array, capacity, wanted, size);
}

void wh_leak(void *memory) {
    typedef struct leaked {
        struct leaked *next;
        void *memory;
    } leaked;
    static _Atomic(leaked *) all;
    leaked *one = memory ? wh_alloc(sizeof(*one)) : NULL;
    if (one) {
        *one = (leaked){atomic_load(&all), memory};
        while (!atomic_compare_exchange_weak(&all, &one->next, one)) {
        }
    }
}

/* ---- pools ---- */

/**
 * Each block of a pool is twice as large as the block before it, until BLOCK_MAX is reached.
 * wh_pool_reserve allocates at most RESERVE_MAX. An object larger than a quarter of BLOCK_MAX is a
 * separate allocation.
 */
enum { BLOCK_MIN = 1 << 10, BLOCK_MAX = 64 << 10, RESERVE_MAX = 256 << 20, ALIGNMENT = 8 };

/**
 * Block size of the shared pool. A single long-lived object keeps at most this much memory
 * allocated. An object larger than a quarter of it is a separate allocation.
 */
enum { SHARED_BLOCK = 16 << 10 };

/**
 * The user count of a block starts at OPEN, so that releasing objects cannot free the block while
 * the pool still allocates from it. wh_pool_close corrects the count to the real number of objects.
 */
#define OPEN (SIZE_MAX / 2)

struct wh_pool_block {
    /**
     * Number of objects that are not released yet. While the pool allocates from the block: OPEN
     * minus the number of released objects.
     */
    atomic_size_t users;
};

static void leave_block(wh_pool_block *block, size_t users) {
    if (atomic_fetch_sub_explicit(&block->users, users, memory_order_acq_rel) == users) {
        wh_free(block);
    }
}

void wh_pool_close(wh_pool *pool) {
    if (pool->block) {
        leave_block(pool->block, OPEN - pool->objects);
        pool->block = NULL;
    }
}

static bool begin_block(wh_pool *pool, size_t size) {
    wh_pool_block *block = wh_alloc(size);
    if (!block) {
        return false;
    }
    atomic_init(&block->users, OPEN);
    wh_pool_close(pool);
    *pool = (wh_pool){block, sizeof(*block), size, 0};
    return true;
}

bool wh_pool_reserve(wh_pool *pool, size_t size) {
    return size <= BLOCK_MIN || begin_block(pool, size < RESERVE_MAX ? size : RESERVE_MAX);
}

static size_t round_up(size_t size) {
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool has_room(const wh_pool *pool, size_t size) {
    return pool->block && round_up(size) <= pool->size - pool->used;
}

/** Takes an object from the current block, which must have room. */
static void *cut(wh_pool *pool, size_t size, uint32_t *offset_p) {
    pool->objects++;
    *offset_p = (uint32_t)pool->used;
    void *object = (char *)pool->block + pool->used;
    pool->used += round_up(size);
    return object;
}

/* Always taken with trylock, for the same reason as cache_lock. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static wh_pool shared_pool;

static void *alloc_shared(size_t size, uint32_t *offset_p) {
    void *object = NULL;
    if (size <= SHARED_BLOCK / 4 && wh_alloc_may_cache() && pthread_mutex_trylock(&shared_lock) == 0) {
        if (has_room(&shared_pool, size) || begin_block(&shared_pool, SHARED_BLOCK)) {
            object = cut(&shared_pool, size, offset_p);
        }
        pthread_mutex_unlock(&shared_lock);
    }
    return object ? object : wh_alloc(size);
}

void *wh_pool_alloc(wh_pool *pool, size_t size, uint32_t *offset_p) {
    *offset_p = 0;
    if (!pool) {
        return alloc_shared(size, offset_p);
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
        leave_block((void *)((char *)object - offset), 1);
    } else {
        wh_free(object);
    }
}

/* ---- replacing the allocator ---- */

void wherry_allocator_set(const wherry_allocator *allocator) {
    if (pthread_mutex_trylock(&shared_lock) == 0) {
        wh_pool_close(&shared_pool); /* The old allocator must free the pool's block. */
        pthread_mutex_unlock(&shared_lock);
    }
    current = allocator ? *allocator : default_allocator;
}
