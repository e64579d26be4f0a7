/**
 * @file cuda.h  CUDA device memory: finding the device of an address, and waiting for devices and
 * for the caller's streams.
 *
 * The driver is loaded on first use: libcuda.so.1, or the file that WHERRY_CUDA_LIBRARY names.
 * Devices have the driver's numbers, which torch uses too. Like the CUDA runtime and torch, Wherry
 * uses the primary context of each device. Every call restores the context that was current in the
 * calling thread. The host and all devices share one address space, so the driver can find the
 * device of an address.
 *
 * Any thread may call these functions. A function blocks only if its comment says so, or while the
 * driver or the context of a device starts on first use.
 */
#ifndef WH_MEMORY_CUDA_H
#define WH_MEMORY_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/tensor.h>

#include "base/stop.h"

/** Wherry uses at most this many devices. */
enum { WH_CUDA_DEVICES_MAX = 64 };

/** @return WHERRY_OK if there is a driver and a device; else WHERRY_UNSUPPORTED and the reason. */
wherry_status wh_cuda_check(wherry_error *error);

/** Returns the number of devices; 0 if there is no driver. */
int32_t wh_cuda_device_count(void);

/**
 * Finds the device of an address.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if it is not device memory; WHERRY_UNSUPPORTED if
 * there is no driver.
 */
wherry_status wh_cuda_device_of(const void *data, int32_t *device_p, wherry_error *error);

/**
 * Copies from memory that a device can access, such as an open allocation of another process.
 * Blocks until the copy is complete.
 * @return WHERRY_OK; WHERRY_NO_MEMORY, WHERRY_SYSTEM, WHERRY_UNSUPPORTED.
 */
wherry_status wh_cuda_read(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error);

enum { WH_CUDA_UUID_BYTES = 16 };

/** Reads the UUID of a device. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_UNSUPPORTED. */
wherry_status wh_cuda_uuid(int32_t device, uint8_t uuid[WH_CUDA_UUID_BYTES], wherry_error *error);

/**
 * Waits until all work on the caller's stream is done. Afterwards the memory that this work uses
 * can be read and written. Blocks.
 * @param stream   a CUstream; NULL: the legacy default stream of each device in `devices`.
 * @param devices  a bit mask with one bit per device. Used only if stream is NULL.
 * @param stop     may be NULL.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CANCELLED after a stop; WHERRY_SYSTEM if the queued
 * work failed or the stream is invalid; WHERRY_INVALID_ARGUMENT for an unknown device;
 * WHERRY_UNSUPPORTED if there is no driver; WHERRY_NO_MEMORY.
 */
wherry_status wh_cuda_await_stream(void *stream, uint64_t devices, const wh_stop *stop, wh_deadline deadline,
                                   wherry_error *error);

/**
 * The state of a wait that polls a device, or a library that works on a device. Initialize with
 * {0}.
 */
typedef struct wh_cuda_backoff {
    /** Set if the wait should end within a few milliseconds. The first sleep then comes later. */
    bool busy;
    uint64_t start;    /**< When the wait began; 0 if it has not begun. */
    uint64_t sleep_ns; /**< Length of the last sleep. */
} wh_cuda_backoff;

/**
 * Waits a moment between two polls. It yields at first, because copies often take less time than a
 * sleep. Then it sleeps, longer each time up to a limit.
 * @param stop  may be NULL.
 * @param what  what the caller is doing, for the error text "timed out while ...".
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT.
 */
wherry_status wh_cuda_back_off(wh_cuda_backoff *backoff, const wh_stop *stop, wh_deadline deadline, const char *what,
                               wherry_error *error);

#endif
