/**
 * @file cuda.h  Memory of CUDA devices: whose it is, and what the caller's own streams still do with it.
 *
 * The driver is loaded when it is first needed: libcuda.so.1, or the file that WHERRY_CUDA_LIBRARY names. Devices have the driver's numbers, which are torch's.
 * Their primary contexts are used, as CUDA's runtime and torch do, and the context that the calling thread had is current again when a call returns.
 * Addresses are those of one address space, as CUDA has it: each tells by itself whether it is the host's or which device's.
 *
 * wherry_storage_allocate and the planner go by memory/memory.h; asynchronous copies are memory/cuda_queue.h, pinned memory is memory/pinned.h, and memory that
 * another process reaches is memory/cuda_share.h. All functions may be called by any thread; none blocks unless it says so.
 */
#ifndef WH_MEMORY_CUDA_H
#define WH_MEMORY_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/tensor.h>

#include "base/stop.h"

/** Devices have lower numbers than this. */
enum { WH_CUDA_DEVICES_MAX = 64 };

/** WHERRY_OK where there is a driver and a device; else WHERRY_UNSUPPORTED with the reason. */
wherry_status wh_cuda_check(wherry_error *error);

/** How many devices there are; 0 where there is no driver. */
int32_t wh_cuda_device_count(void);

/**
 * The device that memory lies on.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT where an address is not of device memory; WHERRY_UNSUPPORTED without a driver.
 */
wherry_status wh_cuda_device_of(const void *data, int32_t *device_p, wherry_error *error);

/**
 * Reads memory through a device that reaches it by itself, such as another process's that was opened for it; done when it returns.
 * @return WHERRY_OK; WHERRY_NO_MEMORY, WHERRY_SYSTEM, WHERRY_UNSUPPORTED.
 */
wherry_status wh_cuda_read(int32_t device, void *to, const void *from, uint64_t nbytes, wherry_error *error);

/** What tells a device from all others of all hosts. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_UNSUPPORTED. */
enum { WH_CUDA_UUID_BYTES = 16 };
wherry_status wh_cuda_uuid(int32_t device, uint8_t uuid[WH_CUDA_UUID_BYTES], wherry_error *error);

/**
 * Waits until everything that was queued on a stream of the caller's is done, so that memory can be read and written without regard to it.
 * @param stream   a CUstream; NULL: the legacy default stream of each device.
 * @param devices  a bit for each device whose default stream is meant.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CANCELLED where the stop, which may be NULL, was requested; WHERRY_SYSTEM where what was queued has failed.
 */
wherry_status wh_cuda_await_stream(void *stream, uint64_t devices, const wh_stop *stop, wh_deadline deadline,
                                   wherry_error *error);

#endif
