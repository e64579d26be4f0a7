/**
 * @file wherry/allocator.h  Where the library's own memory comes from.
 *
 * All of the library's bookkeeping, whatever its size, is allocated through one table of functions. The bytes of tensors
 * are not: those are memory that the caller wraps (wherry/storage.h) or that a memory space provides. The default is the C
 * library's, which keeps up to 32 MiB of large blocks for the next call instead of giving them back to the system, and
 * out of which values and storages are cut in blocks of 16 KiB.
 */
#ifndef WHERRY_ALLOCATOR_H
#define WHERRY_ALLOCATOR_H

#include <stddef.h>

#include <wherry/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * An allocator. All three functions are called from any thread, several at once, and may not call back into the
 * library. `size` is never 0. Results are aligned as malloc's are; NULL means that there is no memory. Since 0.1.
 */
typedef struct wherry_allocator {
    void *(*allocate)(void *context, size_t size);                 /**< As malloc. */
    void *(*reallocate)(void *context, void *memory, size_t size); /**< As realloc; memory may be NULL. */
    void (*release)(void *context, void *memory);                  /**< As free; memory is never NULL. */
    void *context;                                                 /**< Passed to the three. */
} wherry_allocator;

/**
 * Replaces the allocator, for the whole process.
 * @param allocator  copied; NULL for the default again.
 * Call it while the library holds nothing: what one allocator gave cannot be released by another. Not thread-safe.
 * Since 0.1.
 */
WHERRY_API void wherry_allocator_set(const wherry_allocator *allocator);

/**
 * Releases memory that a function of this library handed out with the words "release with wherry_free".
 * @param memory  may be NULL. Any thread. Since 0.1.
 */
WHERRY_API void wherry_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif
