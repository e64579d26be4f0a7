/**
 * @file cuda.h  Memory of CUDA devices: which device it is on, and waiting for devices and for the
 * caller's streams.
 *
 * The driver is loaded at its first use: libcuda.so.1, or the file that WHERRY_CUDA_LIBRARY names.
 * Devices have the driver's numbers, which torch uses too. Like the CUDA runtime and torch, Wherry
 * uses the primary context of each device; the context that was current in the calling thread is
 * restored when a call returns. CUDA has one address space: an address says whether it is on the
 * host, or on which device.
 *
 * Every function may be called by any thread. None blocks unless its comment says so.
 */
#ifndef WH_MEMORY_CUDA_H
#define WH_MEMORY_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/tensor.h>

#include "base/stop.h"

/** Device numbers are below this. */
enum { WH_CUDA_DEVICES_MAX = 64 };

/** @return WHERRY_OK if there is a driver and a device; WHERRY_UNSUPPORTED with the reason. */
wherry_status wh_cuda_check(wherry_error *error);

/** Number of devices; 0 without a driver. */
int32_t wh_cuda_device_count(void);

/**
 * Finds the device of an address.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if it is not device memory; WHERRY_UNSUPPORTED without
 * a driver.
 */
wherry_status wh_cuda_device_of(const void *data, int32_t *device_p, wherry_error *error);

/**
 * Copies memory that a device can reach, such as an opened allocation of another process. Complete
 * on return.
 * @return WHERRY_OK; WHERRY_NO_MEMORY, WHERRY_SYSTEM, WHERRY_UNSUPPORTED.
 */
wherry_status wh_cuda_read(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error);

enum { WH_CUDA_UUID_BYTES = 16 };

/** Reads the device's unique id. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_UNSUPPORTED. */
wherry_status wh_cuda_uuid(int32_t device, uint8_t uuid[WH_CUDA_UUID_BYTES], wherry_error *error);

/**
 * Waits for all work on the caller's stream, so that memory can then be read and written regardless
 * of it. Blocks.
 * @param stream   a CUstream; NULL: the legacy default stream of each device in `devices`.
 * @param devices  one bit per device.
 * @param stop     may be NULL.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CANCELLED after a stop; WHERRY_SYSTEM if the queued
 * work failed.
 */
wherry_status wh_cuda_await_stream(void *stream, uint64_t devices, const wh_stop *stop, wh_deadline deadline,
                                   wherry_error *error);

/** Waiting for a device, or a library that works on it, by polling; starts as {0}. */
typedef struct wh_cuda_backoff {
    /** Expected within milliseconds: poll without sleeping, because a sleep oversleeps. */
    bool busy;
    uint64_t start;    /**< Of the wait. */
    uint64_t sleep_ns; /**< The last sleep. */
} wh_cuda_backoff;

/**
 * Waits a moment between two polls. It yields at first, because copies often take less time than a
 * sleep, and then sleeps, longer each time.
 * @param stop  may be NULL.
 * @param what  for the error's text.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT.
 */
wherry_status wh_cuda_back_off(wh_cuda_backoff *backoff, const wh_stop *stop, wh_deadline deadline, const char *what,
                               wherry_error *error);

#endif
