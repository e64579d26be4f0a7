#include "memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/error.h"
#include "memory/cuda.h"

/*
 * An allocation of at least the size of a huge page is mapped at a huge page boundary, and the
 * system is asked to use huge pages for it. Smaller allocations come from wh_alloc.
 */

static uint64_t round_up(uint64_t nbytes) {
    return (nbytes + WH_HUGE_PAGE - 1) / WH_HUGE_PAGE * WH_HUGE_PAGE;
}

static wherry_status allocate_mapped(uint64_t nbytes, void **data_p, wherry_error *error) {
    uint64_t size = round_up(nbytes);
    char *memory =
        mmap(NULL, size + WH_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return wh_fail_errno(error, WHERRY_NO_MEMORY, errno, "cannot allocate %llu bytes for a storage",
                             (unsigned long long)nbytes);
    }
    uint64_t unaligned = (WH_HUGE_PAGE - (uintptr_t)memory % WH_HUGE_PAGE) % WH_HUGE_PAGE;
    if (unaligned) {
        munmap(memory, unaligned);
    }
    munmap(memory + unaligned + size, WH_HUGE_PAGE - unaligned);
    madvise(memory + unaligned, size, MADV_HUGEPAGE);
    *data_p = memory + unaligned;
    return WHERRY_OK;
}

static wherry_status allocate(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error) {
    (void)device;
    if (nbytes > INT64_MAX - 2 * WH_HUGE_PAGE) {
        return wh_fail(error, WHERRY_NO_MEMORY, "a storage of %llu bytes exceeds the address space",
                       (unsigned long long)nbytes);
    }
    if (nbytes >= WH_HUGE_PAGE) {
        return allocate_mapped(nbytes, data_p, error);
    }
    void *data = wh_alloc_zeroed(1, nbytes);
    WH_TRY_ALLOC(data, error, "a storage");
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

static wherry_status write_bytes(void *to, const void *from, uint64_t nbytes, wherry_error *error) {
    (void)error;
    memcpy(to, from, nbytes);
    return WHERRY_OK;
}

static const wh_memory_ops host = {.allocate = allocate, .release = release, .write = write_bytes};

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

/* ---- pages ---- */

/* The ioctl PAGEMAP_SCAN, copied from <linux/fs.h>. Headers before Linux 6.7 do not have it. */
struct scan_region {
    uint64_t start;
    uint64_t end;
    uint64_t categories;
};

struct scan {
    uint64_t size;
    uint64_t flags;
    uint64_t start;
    uint64_t end;
    uint64_t walk_end;
    uint64_t regions;
    uint64_t region_count;
    uint64_t max_pages;
    uint64_t category_inverted;
    uint64_t category_mask;
    uint64_t category_anyof_mask;
    uint64_t return_mask;
};

#define SCAN _IOWR('f', 16, struct scan)

enum { IS_PRESENT = 1 << 3, IS_HUGE = 1 << 6 };

int wh_pages_open(void) {
    return open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

wh_pages wh_pages_of(int fd, const void *data, uint64_t nbytes) {
    uint64_t middle = ((uint64_t)(uintptr_t)data + nbytes / 2) & ~(WH_HUGE_PAGE - 1);
    if (middle < (uintptr_t)data || middle + WH_HUGE_PAGE > (uintptr_t)data + nbytes) {
        return WH_PAGES_UNKNOWN;
    }
    struct scan_region found = {0};
    struct scan scan = {
        .size = sizeof(scan),
        .start = middle,
        .end = middle + WH_HUGE_PAGE,
        .regions = (uintptr_t)&found,
        .region_count = 1,
        .category_mask = IS_PRESENT,
        .return_mask = IS_PRESENT | IS_HUGE,
    };
    if (ioctl(fd, SCAN, &scan) < 1) {
        return WH_PAGES_UNKNOWN;
    }
    return found.categories & IS_HUGE ? WH_PAGES_HUGE : WH_PAGES_SMALL;
}
