/**
 * @file fake_cuda.h  A fake CUDA driver that needs no device. This header has the functions for
 * tests, beyond the driver's own API.
 *
 * Device memory is host memory, but its addresses are not accessible: code that reads or writes
 * device memory directly crashes. Streams are threads, so results are missing unless the code waits
 * for them. Invalid accesses break the context, as on a real device: copies outside an allocation,
 * and kernels that access unpinned host memory or memory of another device without peer access.
 * Tests find these functions with dlsym in the library that WHERRY_CUDA_LIBRARY names.
 *
 * Environment variables: FAKE_CUDA_DEVICES (number of devices, default 2), FAKE_CUDA_NO_IPC (1: IPC
 * handles fail), FAKE_CUDA_NO_KERNEL (1: modules do not load), FAKE_CUDA_NO_PEERS (1: no peer
 * access between devices), FAKE_CUDA_DELAY_US (delay before each operation on a stream, default 0).
 */
#ifndef WH_TESTS_FAKE_CUDA_H
#define WH_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

/** The accessible host address of a byte of device memory; NULL if it is not device memory. */
void *fake_cuda_shadow(const void *address);

/** Like fake_cuda_shadow. *part_p is how many of the `size` bytes are in the same allocation. */
void *fake_cuda_shadow_part(const void *address, size_t size, size_t *part_p);

/**
 * Makes the `number`-th call from now on return `result`; 0: none. Calls that only release
 * something never fail.
 */
void fake_cuda_fail_at(uint64_t number, int result);

/** Number of calls that can fail, since the last call of fake_cuda_fail_at. */
uint64_t fake_cuda_calls(void);

/** Number of calls of a driver function, such as "cuLaunchKernel". */
uint64_t fake_cuda_count(const char *name);

/**
 * Allocated bytes of device memory; their peak since fake_cuda_forget_peak; allocated bytes of
 * pinned memory; number of open allocations of other processes.
 */
size_t fake_cuda_device_bytes(void);
size_t fake_cuda_device_peak(void);
size_t fake_cuda_pinned_bytes(void);
size_t fake_cuda_imports(void);
void fake_cuda_forget_peak(void);

/**
 * The devices whose primary contexts this process has retained, one bit per device. A real context
 * costs device memory.
 */
unsigned fake_cuda_contexts(void);

/**
 * Queues a gate on a stream (NULL: the default stream of device 0). Later work on the stream waits
 * until fake_cuda_open_gate.
 */
void fake_cuda_shut_gate(void *stream);
void fake_cuda_open_gate(void);

/** Queues a call on a stream; the stream's thread makes it. For tests/fake_nccl/. */
void fake_cuda_put(void *stream, void (*call)(void *context), void *context);

/** Breaks the contexts, as a fault in a kernel does; 0 repairs them. */
void fake_cuda_break(int result);

#endif
