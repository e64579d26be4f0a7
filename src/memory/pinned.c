#include "memory/pinned.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "memory/cuda_driver.h"

enum { DEFAULT_MIB = 128, MOST_MIB = 1 << 20, CACHED_MAX = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *cached[CACHED_MAX]; /* Free blocks of WH_PINNED_BLOCK bytes each. */
/* A device that has pinned a block. Its context can unpin all blocks. */
static int32_t home;
static size_t cached_count;
static size_t bytes; /* All pinned memory: in use and cached. */

static size_t most_bytes(void) {
    const char *text = getenv("WHERRY_PINNED_MIB");
    unsigned long mib = text && *text ? strtoul(text, NULL, 10) : DEFAULT_MIB;
    return (mib < MOST_MIB ? mib : MOST_MIB) << 20;
}

/** Pins a block that all devices can access. `device` is the one whose context pins it. */
static wherry_status pin(int32_t device, size_t size, void **block_p, wherry_error *error) {
    const wh_cuda_driver *driver;
    WH_TRY(wh_cuda_enter(device, &driver, error));
    int result = driver->host_alloc(block_p, size, WH_CU_HOST_PORTABLE);
    wh_cuda_leave(driver);
    if (result == WH_CU_OK) {
        pthread_mutex_lock(&lock);
        home = device;
        pthread_mutex_unlock(&lock);
    }
    return result == WH_CU_OK ? WHERRY_OK : wh_cuda_fail(error, result, "cannot pin host memory");
}

static void unpin(void *block) {
    const wh_cuda_driver *driver;
    pthread_mutex_lock(&lock);
    int32_t device = home;
    pthread_mutex_unlock(&lock);
    if (wh_cuda_enter(device, &driver, NULL) == WHERRY_OK) {
        driver->host_free(block);
        wh_cuda_leave(driver);
    }
}

static size_t block_size(size_t size) {
    return size < WH_PINNED_BLOCK ? WH_PINNED_BLOCK : size;
}

/** Takes a cached block, or reserves room for a new one. @return false if there is neither. */
static bool claim(size_t size, void **block_p) {
    pthread_mutex_lock(&lock);
    *block_p = size == WH_PINNED_BLOCK && cached_count ? cached[--cached_count] : NULL;
    bool fits = *block_p || bytes + size <= most_bytes();
    bytes += *block_p || !fits ? 0 : size;
    pthread_mutex_unlock(&lock);
    return fits;
}

wherry_status wh_pinned_take(int32_t device, size_t size, void **block_p, wherry_error *error) {
    size = block_size(size);
    void *block = NULL;
    bool claimed = claim(size, &block);
    if (!claimed && size > WH_PINNED_BLOCK) {
        wh_pinned_trim(); /* The cached blocks are too small, but count against the limit. */
        claimed = claim(size, &block);
    }
    if (!claimed) {
        return wh_fail(error, WHERRY_LIMIT,
                       "cannot pin %zu more bytes of host memory within the limit of %zu MiB; to raise the limit, set "
                       "WHERRY_PINNED_MIB",
                       size, most_bytes() >> 20);
    }
    wherry_status status = block ? WHERRY_OK : pin(device, size, &block, error);
    if (status == WHERRY_OK) {
        *block_p = block;
    } else {
        pthread_mutex_lock(&lock);
        bytes -= size;
        pthread_mutex_unlock(&lock);
    }
    return status;
}

void wh_pinned_give(void *block, size_t size) {
    if (!block) {
        return;
    }
    size = block_size(size);
    pthread_mutex_lock(&lock);
    bool keep = size == WH_PINNED_BLOCK && cached_count < CACHED_MAX;
    if (keep) {
        cached[cached_count++] = block;
    } else {
        bytes -= size;
    }
    pthread_mutex_unlock(&lock);
    if (!keep) {
        unpin(block);
    }
}

void wh_pinned_trim(void) {
    for (;;) {
        pthread_mutex_lock(&lock);
        void *block = cached_count ? cached[--cached_count] : NULL;
        bytes -= block ? WH_PINNED_BLOCK : 0;
        pthread_mutex_unlock(&lock);
        if (!block) {
            return;
        }
        unpin(block);
    }
}
