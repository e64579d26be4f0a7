/**
 * @file memory.h  Memory spaces: what can be done with the memory of a kind of device.
 *
 * One table of operations a space: host memory, CUDA devices (memory/cuda.h). Another kind of device is another table.
 */
#ifndef WH_MEMORY_MEMORY_H
#define WH_MEMORY_MEMORY_H

#include <stdint.h>

#include <wherry/tensor.h>

typedef struct wh_memory_ops {
    const char *name;

    /**
     * Zeroed memory for a tensor's bytes; pages come when they are touched. nbytes is at least 1.
     * @return WHERRY_OK; WHERRY_NO_MEMORY; of a device also WHERRY_SYSTEM. Blocks as long as the system or the driver takes. Any thread.
     */
    wherry_status (*allocate)(uint64_t nbytes, wherry_device device, void **data_p, wherry_error *error);

    /** Gives back what allocate gave, with the same nbytes. Any thread. */
    void (*release)(void *data, uint64_t nbytes);

    /**
     * Copies host bytes to memory of this space, or from it; they are there when it returns. For few bytes: many go by a queue (memory/cuda_queue.h).
     * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY. Any thread.
     */
    wherry_status (*write)(void *to, const void *from, uint64_t nbytes, wherry_error *error);
    wherry_status (*read)(void *to, const void *from, uint64_t nbytes, wherry_error *error);
} wh_memory_ops;

/** That of CUDA devices; `allocate` waits until the zeros are there. Only where there is a driver: wh_memory_of. */
extern const wh_memory_ops wh_memory_cuda;

/** The operations for a kind of device, or NULL where this build or this machine has none. */
const wh_memory_ops *wh_memory_of(wherry_device_kind kind);

#endif
