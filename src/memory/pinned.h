/**
 * @file pinned.h  Host memory that devices reach by themselves, in blocks that are kept for the next transfer: pinning 64 MiB takes 40 ms.
 *
 * Any thread. Nothing blocks but for what the driver takes to pin and to release.
 */
#ifndef WH_MEMORY_PINNED_H
#define WH_MEMORY_PINNED_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

/** Of this size are blocks kept; larger ones are made and released each time, and those that are kept give way to them. A chunk of 4 MiB fits. */
enum { WH_PINNED_BLOCK = (4 << 20) + 4096 };

/**
 * A block of at least `size` bytes, which every device reaches.
 * @param device  that it is for: pinning needs a context, and none is made on a device that is not used.
 * @return WHERRY_OK; WHERRY_LIMIT where it would be more than WHERRY_PINNED_MIB (of the environment; default 128) that this process has in use;
 * WHERRY_NO_MEMORY, WHERRY_UNSUPPORTED, WHERRY_SYSTEM.
 */
wherry_status wh_pinned_take(int32_t device, size_t size, void **block_p, wherry_error *error);

/** Gives a block back, with the size that it was taken with. block may be NULL. */
void wh_pinned_give(void *block, size_t size);

/** Releases the blocks that nobody uses. */
void wh_pinned_trim(void);

#endif
