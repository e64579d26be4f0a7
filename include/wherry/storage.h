/**
 * @file wherry/storage.h  Runs of memory that tensors are views of.
 *
 * A storage is a pointer, a number of bytes and a device, counted by references: every tensor over it holds one, and its
 * creator holds one. When the last is given back, memory that the library allocated is freed and memory that the caller
 * wrapped is handed back by the release function. Counting is thread-safe; the bytes are the caller's business.
 */
#ifndef WHERRY_STORAGE_H
#define WHERRY_STORAGE_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/device.h>
#include <wherry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A run of memory. Opaque. Since 0.1. */
typedef struct wherry_storage wherry_storage;

/**
 * Told once, when the last reference to a wrapped storage is gone, from whichever thread gave it back. It must not call
 * back into the library.
 */
typedef void (*wherry_release_fn)(void *context, void *data);

/**
 * Wraps memory that the caller owns.
 * @param data       the first byte; may be NULL only where nbytes is 0. It must stay valid until `release` is called.
 * @param nbytes     its length.
 * @param device     where it lies. A CUDA device's number may be -1: it is found from the address.
 * @param release    called when the storage is no longer used; NULL if the caller keeps the memory longer than that.
 * @param context    passed to release.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT, also for an address of no CUDA device where there is a driver that can tell; WHERRY_NO_MEMORY. On failure `release` is not called and the memory is
 * still the caller's. Does not block. Any thread. Since 0.1.
 */
WHERRY_API wherry_status wherry_storage_wrap(void *data, uint64_t nbytes, wherry_device device,
                                             wherry_release_fn release, void *context, wherry_storage **storage_p,
                                             wherry_error *error);

/**
 * Allocates a storage, zeroed. Host memory from 2 MiB on is aligned to 2 MiB and asks for huge pages; pages
 * are taken from the system only when they are first touched. Memory of a CUDA device is plain memory of its primary context.
 * @param device     its kind is WHERRY_DEVICE_CPU, or WHERRY_DEVICE_CUDA where there is a driver; number -1 is the first device.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED for another kind of device, or without a driver; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes, or a
 * device that there is not; WHERRY_NO_MEMORY; WHERRY_SYSTEM where the device fails. Host memory: does not block. Any thread. Since 0.1.
 */
WHERRY_API wherry_status wherry_storage_allocate(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/**
 * Makes a storage that has a size and a device but no memory: what a received manifest holds before it is planned.
 * @param storage_p  the storage, with one reference that the caller gives back by wherry_storage_unref.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for more than 2^63-1 bytes; WHERRY_NO_MEMORY. Does not block. Any thread. Since
 * 0.1.
 */
WHERRY_API wherry_status wherry_storage_describe(uint64_t nbytes, wherry_device device, wherry_storage **storage_p,
                                                 wherry_error *error);

/** Takes one more reference. @return storage. Any thread. Since 0.1. */
WHERRY_API wherry_storage *wherry_storage_ref(wherry_storage *storage);

/** Gives one reference back; the last one releases the memory. storage may be NULL. Any thread. Since 0.1. */
WHERRY_API void wherry_storage_unref(wherry_storage *storage);

/** The first byte; NULL where the storage has no memory or no bytes. Any thread. Since 0.1. */
WHERRY_API void *wherry_storage_data(const wherry_storage *storage);

/** The number of bytes. Any thread. Since 0.1. */
WHERRY_API uint64_t wherry_storage_nbytes(const wherry_storage *storage);

/** Where the memory lies, or is to lie. Any thread. Since 0.1. */
WHERRY_API wherry_device wherry_storage_device(const wherry_storage *storage);

#ifdef __cplusplus
}
#endif
#endif
