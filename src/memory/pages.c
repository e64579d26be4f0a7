#include "memory/pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>

/* From <linux/fs.h>, which knows it only since Linux 6.7. */
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

wh_pages wh_pages_of(int look, const void *data, uint64_t nbytes) {
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
    if (ioctl(look, SCAN, &scan) < 1) {
        return WH_PAGES_UNKNOWN;
    }
    return found.categories & IS_HUGE ? WH_PAGES_HUGE : WH_PAGES_SMALL;
}
