/**
 * @file cuda_share.h  Device memory that another process of the same host reaches.
 *
 * The unit is an allocation: what one call of the driver gave, of which a storage is a part. Plain allocations have a handle of 64 bytes. Those made of mappings
 * (torch's expandable segments) have none; each mapping is a file descriptor instead, which has to be handed over.
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
    int fd; /**< A mapping's descriptor, which whoever described it closes; -1: it has a handle. */
    uint8_t handle[WH_CUDA_HANDLE_BYTES];
} wh_cuda_allocation;

/** Describes the allocation that a byte of device memory lies in. @return WHERRY_OK; WHERRY_UNSUPPORTED where it cannot be shared; WHERRY_SYSTEM. */
wherry_status wh_cuda_describe(const void *data, wh_cuda_allocation *allocation_p, wherry_error *error);

/** An allocation of another process, open in this one. */
typedef struct wh_cuda_import {
    void *data; /**< Where it lies here. */
    uint64_t size;
    int32_t device; /**< Through which it is reached. */
    bool mapped;    /**< It was opened by a descriptor. */
} wh_cuda_import;

/**
 * Opens an allocation for reading by a device.
 * @param allocation  as its owner described it; `fd` is one of this process, and stays the caller's. Hostile: what the driver itself says of the size counts.
 * @return WHERRY_OK; WHERRY_REFUSED where the driver does not open it; WHERRY_OUT_OF_BOUNDS where it is smaller than said; WHERRY_UNSUPPORTED.
 */
wherry_status wh_cuda_open(const wh_cuda_allocation *allocation, int32_t device, wh_cuda_import *import_p,
                           wherry_error *error);

/** Nothing that reads it may be under way. */
void wh_cuda_close(const wh_cuda_import *import);

#endif
