/** @file cache_copy.h  Copies of large blocks by a caller who knows what is in the caches. */
#ifndef WH_BASE_CACHE_COPY_H
#define WH_BASE_CACHE_COPY_H

#include <stddef.h>

/**
 * memcpy with non-temporal stores, if the processor has them. The destination is not read first,
 * and does not evict what is in the caches. Pays off from a few KiB on. Such stores are not ordered
 * with later ones: call wh_copy_fence before another thread or process is told about the bytes.
 */
void wh_copy_nontemporal(void *restrict to, const void *restrict from, size_t size);

/**
 * Prefetches the two ends of a destination of wh_copy_nontemporal. Their cache lines are written
 * only in part and must be read first. Without a prefetch, runs of 4 KiB spend a quarter of the
 * time waiting for them.
 */
static inline void wh_copy_prefetch(void *to, size_t size) {
    if (size) {
        __builtin_prefetch(to, 1);
        __builtin_prefetch((char *)to + size - 1, 1);
    }
}

/**
 * Orders earlier non-temporal copies before later stores. Call it once for many copies: it waits
 * for memory.
 */
void wh_copy_fence(void);

/**
 * memcpy from memory that is in no cache to memory that is. Copies page by page and looks up the
 * next page ahead, so that small pages cost no more than huge ones.
 */
void wh_copy_into_cache(void *restrict to, const void *restrict from, size_t size);

#endif
