/** @file bulk.h  Copying much memory, where one knows what the caches hold. */
#ifndef WH_BASE_BULK_H
#define WH_BASE_BULK_H

#include <stddef.h>

/**
 * As memcpy, but past the caches where the processor can: what is only written need not be read first, and does not drive out what is. Worth it from a few
 * KiB on. Such stores are not ordered with later ones by themselves: wh_copies_settle comes before anybody else is told of them.
 */
void wh_copy_past_cache(void *restrict to, const void *restrict from, size_t size);

/**
 * Bytes will be copied there past the caches next. Of the lines at their ends only a part is written, so these have to be read, and whoever comes to them
 * waits: with runs of 4 KiB for a quarter of the time. This lets them come meanwhile.
 */
static inline void wh_copy_foresee(void *to, size_t size) {
    if (size) {
        __builtin_prefetch(to, 1);
        __builtin_prefetch((char *)to + size - 1, 1);
    }
}

/** From here on what was copied past the caches is as if it had been copied by memcpy. Once for many copies: it waits until they have reached memory. */
void wh_copies_settle(void);

/**
 * As memcpy, for bytes that are in no cache, into memory that is: page after page, the next one looked up meanwhile, so that small pages cost no more than
 * huge ones.
 */
void wh_copy_into_cache(void *restrict to, const void *restrict from, size_t size);

#endif
