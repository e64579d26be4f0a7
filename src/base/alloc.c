#include "base/alloc.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pool.h"

/*
 * The default allocator is the C library's, with two additions, since touching memory for the first time costs more than all the work that is
 * done in it. A large block that is given back is kept for the next one, up to a bound, instead of going back to the system. And very large
 * ones ask for huge pages.
 */
enum { KEPT_FROM = 64 << 10, KEPT_BYTES = 32 << 20, HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20 };

typedef struct kept_block {
    struct kept_block *next;
} kept_block;

/* Only ever tried: the child of a fork may find it taken for good, and then does without. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static kept_block *kept_blocks;
static size_t kept_bytes;

/* Under a sanitizer nothing is kept, so that a use after release is seen. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KEEP_BLOCKS false
#elif defined(__has_feature)
#define KEEP_BLOCKS (!__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer))
#else
#define KEEP_BLOCKS true
#endif

/** A kept block that is not much larger than what is asked for, or NULL. */
static void *take_kept(size_t size) {
    kept_block *found = NULL;
    if (!KEEP_BLOCKS || pthread_mutex_trylock(&kept_lock) != 0) {
        return NULL;
    }
    for (kept_block **at = &kept_blocks; *at && !found; at = &(*at)->next) {
        size_t usable = malloc_usable_size(*at);
        if (usable >= size && usable / 2 <= size) {
            found = *at;
            *at = found->next;
            kept_bytes -= usable;
            break;
        }
    }
    pthread_mutex_unlock(&kept_lock);
    return found;
}

/** Keeps a block, unless enough are kept. */
static bool keep(void *memory, size_t usable) {
    if (!KEEP_BLOCKS || pthread_mutex_trylock(&kept_lock) != 0) {
        return false;
    }
    bool fits = usable <= KEPT_BYTES - kept_bytes;
    if (fits) {
        kept_block *block = memory;
        block->next = kept_blocks;
        kept_blocks = block;
        kept_bytes += usable;
    }
    pthread_mutex_unlock(&kept_lock);
    return fits;
}

static void ask_for_huge_pages(void *memory, size_t size) {
    uintptr_t first = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t behind = ((uintptr_t)memory + size) / HUGE_PAGE * HUGE_PAGE;
    madvise((char *)memory + (first - (uintptr_t)memory), behind - first, MADV_HUGEPAGE);
}

static void *default_allocate(void *context, size_t size) {
    (void)context;
    void *memory = size >= KEPT_FROM ? take_kept(size) : NULL;
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
    if (usable < KEPT_FROM || !keep(memory, usable)) {
        free(memory);
    }
}

static void *default_reallocate(void *context, void *memory, size_t size) {
    if (size < KEPT_FROM) {
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

static const wherry_allocator ours = {default_allocate, default_reallocate, default_release, NULL};
static wherry_allocator current = {default_allocate, default_reallocate, default_release, NULL};

bool wh_alloc_may_keep(void) {
    return KEEP_BLOCKS && current.allocate == default_allocate;
}

void wherry_allocator_set(const wherry_allocator *allocator) {
    wh_pool_close_common();
    current = allocator ? *allocator : ours;
}

void wherry_free(void *memory) {
    wh_free(memory);
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

char *wh_copy_text(const char *text, size_t size) {
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

void wh_keep(void *memory) {
    typedef struct kept {
        struct kept *next;
        void *memory;
    } kept;
    static _Atomic(kept *) all;
    kept *one = memory ? wh_alloc(sizeof(*one)) : NULL;
    if (one) {
        *one = (kept){atomic_load(&all), memory};
        while (!atomic_compare_exchange_weak(&all, &one->next, one)) {
        }
    }
}
