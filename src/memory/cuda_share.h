/**
 * @file cuda_share.h  Device memory that another process on the same host can reach.
 *
 * The unit is an allocation: what one call of the driver returned; a storage is a part of it. A
 * plain allocation has a handle of 64 bytes. One that is made of mappings (torch's expandable
 * segments) has none: each mapping has a file descriptor instead, which must be passed to the other
 * process.
 */
#ifndef WH_MEMORY_CUDA_SHARE_H
#define WH_MEMORY_CUDA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/cuda.h"

enum { WH_CUDA_HANDLE_BYTES = 64 };

/** An allocation as its owner describes it. */
typedef struct wh_cuda_allocation {
    uint64_t base; /**< Its address in the owner's process. */
    uint64_t size;
    int32_t device;
    int fd; /**< Of a mapping; closed by the caller of wh_cuda_describe. -1: it has a handle. */
    uint8_t handle[WH_CUDA_HANDLE_BYTES];
} wh_cuda_allocation;

/**
 * Describes the allocation of an address.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if it cannot be shared; WHERRY_SYSTEM.
 */
wherry_status wh_cuda_describe(const void *data, wh_cuda_allocation *allocation_p, wherry_error *error);

/** An open allocation of another process. */
typedef struct wh_cuda_import {
    void *data; /**< Its address in this process. */
    uint64_t size;
    int32_t device; /**< The device that reads it. */
    bool mapped;    /**< Opened by a file descriptor. */
} wh_cuda_import;

/**
 * Opens an allocation for reading by a device.
 * @param allocation  as its owner described it, and not trusted: the driver's size counts. `fd` is
 *                    a descriptor of this process and stays the caller's.
 * @return WHERRY_OK; WHERRY_REFUSED if the driver does not open it; WHERRY_OUT_OF_BOUNDS if it is
 * smaller than described; WHERRY_UNSUPPORTED.
 */
wherry_status wh_cuda_open(const wh_cuda_allocation *allocation, int32_t device, wh_cuda_import *import_p,
                           wherry_error *error);

/** Closes an allocation. No copy from it may be queued. */
void wh_cuda_close(const wh_cuda_import *import);

#endif
