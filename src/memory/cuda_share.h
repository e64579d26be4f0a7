/**
 * @file cuda_share.h  Sharing device memory with another process on the same host.
 *
 * Memory is shared in units of allocations of the driver. A storage is a part of an allocation. A
 * plain allocation is shared with a handle of 64 bytes. Memory that consists of mappings (torch's
 * expandable segments) has no such handle. Here each mapping counts as an allocation. It is shared
 * with a file descriptor, which must be passed to the other process.
 */
#ifndef WH_MEMORY_CUDA_SHARE_H
#define WH_MEMORY_CUDA_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory/cuda.h"

enum { WH_CUDA_HANDLE_BYTES = 64 };

/** An allocation as its owner describes it. */
typedef struct wh_cuda_allocation {
    uint64_t base; /**< Its address in the owner's process. */
    uint64_t size;
    int32_t device;
    /**
     * The file descriptor of a mapping, owned by the caller of wh_cuda_describe. -1: use `handle`.
     */
    int fd;
    uint8_t handle[WH_CUDA_HANDLE_BYTES];
} wh_cuda_allocation;

/**
 * Describes the allocation that contains an address, so that another process can open it.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if the allocation cannot be shared, or if there is no
 * driver; WHERRY_INVALID_ARGUMENT if the address is not in device memory; WHERRY_NO_MEMORY,
 * WHERRY_SYSTEM.
 */
wherry_status wh_cuda_describe(const void *data, wh_cuda_allocation *allocation_p, wherry_error *error);

/** The device memory of a state, described so that other processes can open it. Starts as {0}. */
typedef struct wh_shared_memory {
    wh_cuda_allocation *items; /**< Sorted by address, without overlaps. */
    size_t count;
    size_t capacity;
    bool keeps; /**< The source has promised to keep the memory allocated. */
    /**
     * If `items` is empty, the reason. The status WHERRY_OK means that the state has no device
     * memory.
     */
    wherry_error reason;
} wh_shared_memory;

/**
 * Adds the allocations of a range of device memory: one, or several mappings.
 * @return as wh_cuda_describe; WHERRY_UNSUPPORTED if they would take too many file descriptors.
 */
wherry_status wh_shared_memory_add(wh_shared_memory *shared, const void *data, uint64_t bytes, wherry_error *error);

/** Frees everything, and closes the descriptors. */
void wh_shared_memory_destroy(wh_shared_memory *shared);

/** An open allocation of another process. */
typedef struct wh_cuda_import {
    void *data; /**< Its address in this process. */
    uint64_t size;
    int32_t device; /**< The device that reads it. */
    bool mapped;    /**< True if it was opened by a file descriptor. */
} wh_cuda_import;

/**
 * Opens an allocation, so that a device of this process can read it.
 * @param allocation  the owner's description. Its size is not trusted: the call fails if the memory
 *                    is smaller. `fd` is a descriptor of this process, and the caller keeps it.
 * @return WHERRY_OK; WHERRY_REFUSED if the driver cannot open or map it; WHERRY_OUT_OF_BOUNDS if a
 * plain allocation is smaller than described; WHERRY_INVALID_ARGUMENT for an unknown device;
 * WHERRY_UNSUPPORTED if there is no driver; WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_cuda_open(const wh_cuda_allocation *allocation, int32_t device, wh_cuda_import *import_p,
                           wherry_error *error);

/** Closes an allocation. All queued copies from it must be done. */
void wh_cuda_close(const wh_cuda_import *import);

#endif
