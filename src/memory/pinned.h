/**
 * @file pinned.h  Blocks of pinned host memory, which devices can access directly. Blocks are
 * cached between transfers, because pinning 64 MiB takes 40 ms.
 *
 * Any thread may call these functions. They block only while the driver pins or unpins memory.
 */
#ifndef WH_MEMORY_PINNED_H
#define WH_MEMORY_PINNED_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/**
 * Size of a cached block in bytes. A chunk of the default size fits. Larger blocks are not cached.
 * If a larger block would exceed the limit, the cached blocks are freed first.
 */
enum { WH_PINNED_BLOCK = (4 << 20) + 4096 };

/**
 * Takes a block of at least `size` bytes, which every device can access.
 * @param device  the device whose context pins the block. Pass a device that is already in use. On
 * any other device, this call creates a context.
 * @return WHERRY_OK; WHERRY_LIMIT if the process would pin more MiB than the environment variable
 * WHERRY_PINNED_MIB allows (default 128); WHERRY_INVALID_ARGUMENT for an unknown device;
 * WHERRY_NO_MEMORY, WHERRY_UNSUPPORTED, WHERRY_SYSTEM.
 */
wherry_status wh_pinned_take(int32_t device, size_t size, void **block_p, wherry_error *error);

/**
 * Gives a block back. @param block  may be NULL. @param size  the size passed to wh_pinned_take.
 */
void wh_pinned_give(void *block, size_t size);

/** Frees the cached blocks. */
void wh_pinned_trim(void);

#endif
