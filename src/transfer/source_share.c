/*
 * Which allocations the device memory of a state lies in, for lanes that let another process reach
 * them.
 */
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "state/prepare.h"
#include "transfer/source.h"

/**
 * Mappings are a file descriptor each for as long as they are offered. All sends together leave the
 * process two thirds of those that it may have.
 */
enum { DESCRIPTORS_SHARE = 3 };

static atomic_size_t descriptors;

static wherry_status count_descriptor(wherry_error *error) {
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &limit);
    size_t most = limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : (size_t)(limit.rlim_cur / DESCRIPTORS_SHARE);
    if (atomic_fetch_add(&descriptors, 1) < most) {
        return WHERRY_OK;
    }
    atomic_fetch_sub(&descriptors, 1);
    return wh_fail(error, WHERRY_UNSUPPORTED,
                   "the state lies in more than %zu mappings (expandable segments), each of which takes a file "
                   "descriptor while it is sent: allow more by ulimit -n",
                   most);
}

static void close_descriptor(const wh_cuda_allocation *one) {
    if (one->fd >= 0) {
        close(one->fd);
        atomic_fetch_sub(&descriptors, 1);
    }
}

/** The number of allocations that begin at or before an address. */
static size_t count_before(const wh_shared_memory *shared, uint64_t address) {
    size_t low = 0;
    size_t high = shared->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (shared->items[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static wherry_status insert(wh_shared_memory *shared, size_t *capacity, const wh_cuda_allocation *one,
                            wherry_error *error) {
    wherry_status status = one->fd >= 0 ? count_descriptor(error) : WHERRY_OK;
    if (status != WHERRY_OK) {
        close(one->fd);
        return status;
    }
    if (!WH_GROW(shared->items, *capacity, shared->count)) {
        close_descriptor(one);
        return wh_fail_memory(error, "the allocations of a state");
    }
    size_t at = count_before(shared, one->base);
    memmove(shared->items + at + 1, shared->items + at, (shared->count++ - at) * sizeof(*shared->items));
    shared->items[at] = *one;
    return WHERRY_OK;
}

/** Adds the allocations that a storage lies in: one, or the mappings that it is made of. */
static wherry_status add_storage(wh_shared_memory *shared, size_t *capacity, const wherry_storage *storage,
                                 wherry_error *error) {
    uint64_t at = (uint64_t)(uintptr_t)wherry_storage_data(storage);
    uint64_t end = at + wherry_storage_nbytes(storage);
    wherry_status status = WHERRY_OK;
    while (at < end && status == WHERRY_OK) {
        size_t before = count_before(shared, at);
        const wh_cuda_allocation *known = before ? shared->items + before - 1 : NULL;
        wh_cuda_allocation found;
        if (known && at - known->base < known->size) {
            at = known->base + known->size;
            continue;
        }
        status = wh_cuda_describe((void *)(uintptr_t)at, &found, error);
        if (status == WHERRY_OK) {
            status = insert(shared, capacity, &found, error);
            at = found.base + found.size;
        }
    }
    return status;
}

void wh_source_share(wh_source *source, bool keeps) {
    wh_shared_memory *shared = &source->shared;
    size_t capacity = 0;
    wherry_status status = WHERRY_OK;
    wherry_error error = {.status = WHERRY_OK};
    shared->keeps = keeps;
    for (size_t i = 0; i < source->prepared->storage_count && status == WHERRY_OK; i++) {
        const wherry_storage *storage = source->prepared->storages[i];
        if (wherry_storage_device(storage).kind == WHERRY_DEVICE_CUDA) {
            status = add_storage(shared, &capacity, storage, &error);
        }
    }
    if (status != WHERRY_OK) {
        wh_source_unshare(source);
        shared->reason = error;
    }
}

void wh_source_unshare(wh_source *source) {
    wh_shared_memory *shared = &source->shared;
    for (size_t i = 0; i < shared->count; i++) {
        close_descriptor(shared->items + i);
    }
    wh_free(shared->items);
    *shared = (wh_shared_memory){0};
}
