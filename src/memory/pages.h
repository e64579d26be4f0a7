/** @file pages.h  Which pages memory of the host lies on: reading small ones through the kernel costs more than the copying. */
#ifndef WH_MEMORY_PAGES_H
#define WH_MEMORY_PAGES_H

#include <stdint.h>

/** Bytes of a huge page. */
#define WH_HUGE_PAGE (UINT64_C(2) << 20)

typedef enum wh_pages {
    WH_PAGES_UNKNOWN, /**< Not touched yet, too short to tell, or the kernel does not say (before Linux 6.7). */
    WH_PAGES_SMALL,
    WH_PAGES_HUGE,
} wh_pages;

/** Begins to look. @return what wh_pages_of wants, closed by close(); -1 where the system does not let this process look. */
int wh_pages_open(void);

/** Looks at the middle of a run of memory of this process. Some microseconds. */
wh_pages wh_pages_of(int look, const void *data, uint64_t nbytes);

#endif
