/**
 * @file cache_copy.h  Copying large blocks, for callers that know which memory is in the caches.
 */
#ifndef WH_BASE_CACHE_COPY_H
#define WH_BASE_CACHE_COPY_H

#include <stddef.h>

/**
 * A memcpy with non-temporal stores, if the processor has them. The copy does not read the
 * destination into the caches first, and does not evict other data from them. It is faster than
 * memcpy for copies of a few KiB or more. Later stores may become visible before these stores. So
 * call wh_memcpy_fence before you tell another thread or process about the bytes.
 */
void wh_memcpy_nontemporal(void *restrict to, const void *restrict from, size_t size);

/**
 * Prefetches the first and the last cache line of a destination of wh_memcpy_nontemporal. These
 * lines are usually written only in part, so the processor must read them first. Without the
 * prefetch, copies of 4 KiB spend a quarter of their time waiting for these two lines.
 */
static inline void wh_memcpy_prefetch(void *to, size_t size) {
    if (size) {
        __builtin_prefetch(to, 1);
        __builtin_prefetch((char *)to + size - 1, 1);
    }
}

/**
 * Orders earlier non-temporal copies before later stores. It waits until the copies have reached
 * the memory, so call it once after many copies.
 */
void wh_memcpy_fence(void);

/**
 * A memcpy from memory that is not in the caches to memory that is. It copies page by page and
 * prefetches the start of the next page, so that small pages cost no more than huge pages.
 */
void wh_memcpy_into_cache(void *restrict to, const void *restrict from, size_t size);

#endif
