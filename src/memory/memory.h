/**
 * @file memory.h  Memory spaces: the operations on the memory of a kind of device, one table per
 * kind.
 *
 * There are two, for the host and for CUDA devices (memory/cuda.h). Another kind of device is
 * another table.
 */
#ifndef WH_MEMORY_MEMORY_H
#define WH_MEMORY_MEMORY_H

#include <stdint.h>

#include <wherry/tensor.h>

/** Every operation may be called by any thread. */
typedef struct wh_memory_ops {
    const char *name;

    /**
     * Allocates zeroed memory for a tensor. Host pages are allocated when they are touched.
     * @param nbytes  at least 1.
     * @return WHERRY_OK; WHERRY_NO_MEMORY; for a device also WHERRY_SYSTEM. Blocks as long as the
     * system or the driver takes.
     */
    wherry_status (*allocate)(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error);

    /** Frees memory of allocate. @param nbytes  as for allocate. */
    void (*release)(void *data, uint64_t nbytes);

    /**
     * Copies host bytes to this memory (write), or from it (read). The copy is complete on return.
     * Meant for few bytes; cuda_queue.h is for many.
     * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY.
     */
    wherry_status (*write)(void *to, const void *from, uint64_t nbytes, wherry_error *error);
    wherry_status (*read)(void *to, const void *from, uint64_t nbytes, wherry_error *error);
} wh_memory_ops;

/**
 * Of CUDA devices. `allocate` waits until the memory is zeroed. Use it through wh_memory_of: it
 * needs a driver.
 */
extern const wh_memory_ops wh_memory_cuda;

/** @return the operations for a kind of device; NULL if this build or this host has none. */
const wh_memory_ops *wh_memory_of(wherry_device_kind kind);

/* ---- pages of host memory: reading small pages through the kernel costs more than copying ---- */

/** Size of a huge page. */
#define WH_HUGE_PAGE (UINT64_C(2) << 20)

typedef enum wh_pages {
    WH_PAGES_UNKNOWN, /**< Not touched yet, too short to tell, or a kernel before Linux 6.7. */
    WH_PAGES_SMALL,
    WH_PAGES_HUGE,
} wh_pages;

/** @return a file descriptor for wh_pages_of, for close(); -1 if the system does not allow it. */
int wh_pages_open(void);

/** Looks at the page in the middle of a range of this process's memory. Takes microseconds. */
wh_pages wh_pages_of(int fd, const void *data, uint64_t nbytes);

#endif
