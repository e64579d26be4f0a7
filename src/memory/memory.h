/**
 * @file memory.h  Memory spaces: one table of memory operations per kind of device.
 *
 * There are two tables: one for the host and one for CUDA devices (memory/cuda.h). To support
 * another kind of device, add a table.
 */
#ifndef WH_MEMORY_MEMORY_H
#define WH_MEMORY_MEMORY_H

#include <stdint.h>

#include <wherry/tensor.h>

/** The operations. Any thread may call them. */
typedef struct wh_memory_ops {
    /**
     * Allocates zeroed memory for a storage. The system provides the pages of a large host
     * allocation when they are first used. Blocks while the system or the driver works.
     * @param nbytes  at least 1.
     * @return WHERRY_OK; WHERRY_NO_MEMORY; for a device also WHERRY_SYSTEM, and
     * WHERRY_INVALID_ARGUMENT if there is no such device.
     */
    wherry_status (*allocate)(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error);

    /** Frees memory that `allocate` returned. @param nbytes  the size passed to `allocate`. */
    void (*release)(void *data, uint64_t nbytes);

    /**
     * Copies from host memory to this memory. The copy is complete on return. For small sizes; use
     * cuda_queue.h for large ones.
     * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if an address
     * that should be in device memory is not.
     */
    wherry_status (*write)(void *to, const void *from, uint64_t nbytes, wherry_error *error);
} wh_memory_ops;

/**
 * The operations for CUDA devices. `allocate` waits until the memory is zeroed. Get this table from
 * wh_memory_of, which checks that there is a driver.
 */
extern const wh_memory_ops wh_memory_cuda;

/** @return the operations for a kind of device; NULL if this build or this host has none. */
const wh_memory_ops *wh_memory_of(wherry_device_kind kind);

/*
 * Page sizes of host memory. The receiver uses them to choose a lane: if memory is on small pages,
 * `cma` (process_vm_readv) is slower than `ring` (two copies through shared memory).
 */

/** Size of a huge page in bytes. */
#define WH_HUGE_PAGE (UINT64_C(2) << 20)

typedef enum wh_pages {
    WH_PAGES_UNKNOWN, /**< Memory was not used yet, the range is short, or Linux is too old. */
    WH_PAGES_SMALL,
    WH_PAGES_HUGE,
} wh_pages;

/** Opens a descriptor for wh_pages_of. The caller closes it. @return -1 on failure. */
int wh_pages_open(void);

/**
 * Checks the page in the middle of a range of this process's memory. It takes a few microseconds.
 * The result is always WH_PAGES_UNKNOWN before Linux 6.7.
 */
wh_pages wh_pages_of(int fd, const void *data, uint64_t nbytes);

#endif
