/**
 * @file pinned.h  Pinned host memory, which devices access directly, in blocks that are cached from
 * transfer to transfer: pinning 64 MiB takes 40 ms.
 *
 * Any thread. Blocks only as long as the driver takes to pin and to unpin.
 */
#ifndef WH_MEMORY_PINNED_H
#define WH_MEMORY_PINNED_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/**
 * Size of a cached block: a chunk of 4 MiB fits. A larger block is not cached; cached ones are
 * freed if it needs the room.
 */
enum { WH_PINNED_BLOCK = (4 << 20) + 4096 };

/**
 * Takes a block of at least `size` bytes, which every device can access.
 * @param device  whose context pins it: no context is created on a device that is not in use.
 * @return WHERRY_OK; WHERRY_LIMIT if the process would use more than WHERRY_PINNED_MIB
 * (environment; default 128); WHERRY_NO_MEMORY, WHERRY_UNSUPPORTED, WHERRY_SYSTEM.
 */
wherry_status wh_pinned_take(int32_t device, size_t size, void **block_p, wherry_error *error);

/** Returns a block. @param size  as it was taken. block may be NULL. */
void wh_pinned_give(void *block, size_t size);

/** Frees the cached blocks. */
void wh_pinned_trim(void);

#endif
