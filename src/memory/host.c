#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/error.h"
#include "memory/cuda.h"
#include "memory/memory.h"
#include "memory/pages.h"

/* From the size of a huge page on memory is mapped, aligned to it, and asks for huge pages; below, it comes from the heap. */

static uint64_t round_up(uint64_t nbytes) {
    return (nbytes + WH_HUGE_PAGE - 1) / WH_HUGE_PAGE * WH_HUGE_PAGE;
}

static wherry_status allocate_mapped(uint64_t nbytes, void **data_p, wherry_error *error) {
    uint64_t size = round_up(nbytes);
    char *memory =
        mmap(NULL, size + WH_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot map %llu bytes for a storage",
                             (unsigned long long)nbytes);
    }
    uint64_t before = (WH_HUGE_PAGE - (uintptr_t)memory % WH_HUGE_PAGE) % WH_HUGE_PAGE;
    if (before) {
        munmap(memory, before);
    }
    munmap(memory + before + size, WH_HUGE_PAGE - before);
    madvise(memory + before, size, MADV_HUGEPAGE);
    *data_p = memory + before;
    return WHERRY_OK;
}

static wherry_status allocate(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error) {
    (void)device;
    if (nbytes > INT64_MAX - 2 * WH_HUGE_PAGE) {
        return wh_fail(error, WHERRY_NO_MEMORY, "no machine has %llu bytes for a storage", (unsigned long long)nbytes);
    }
    if (nbytes >= WH_HUGE_PAGE) {
        return allocate_mapped(nbytes, data_p, error);
    }
    void *data = wh_alloc_zeroed(1, nbytes);
    if (!data) {
        return wh_fail_memory(error, "a storage");
    }
    *data_p = data;
    return WHERRY_OK;
}

static void release(void *data, uint64_t nbytes) {
    if (nbytes >= WH_HUGE_PAGE) {
        munmap(data, round_up(nbytes));
    } else {
        wh_free(data);
    }
}

static wherry_status copy(void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    (void)error;
    memcpy(to, from, nbytes);
    return WHERRY_OK;
}

static const wh_memory_ops host = {"host", allocate, release, copy, copy};

const wh_memory_ops *wh_memory_of(wherry_device_kind kind) {
    switch (kind) {
    case WHERRY_DEVICE_CPU:
        return &host;
    case WHERRY_DEVICE_CUDA:
        return wh_cuda_check(NULL) == WHERRY_OK ? &wh_memory_cuda : NULL;
    default:
        return NULL;
    }
}
