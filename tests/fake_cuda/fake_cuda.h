/**
 * @file fake_cuda.h  A driver of CUDA that needs no device: what tests ask of it beyond the calls
 * that the library makes.
 *
 * Its devices are host memory that this process cannot touch at the address that it is given: code
 * that reads or writes device memory by itself dies. Streams are threads, so that what is not
 * waited for is not there. Copies outside an allocation, and kernels that reach host memory which
 * is not pinned, or memory of another device that was not opened for theirs, break the context, as
 * on a device. Tests find these functions by dlsym in the library that WHERRY_CUDA_LIBRARY names.
 *
 * Of the environment: FAKE_CUDA_DEVICES (2), FAKE_CUDA_NO_IPC (1: handles are refused),
 * FAKE_CUDA_NO_KERNEL (1: modules do not load), FAKE_CUDA_NO_PEERS (1: no device reaches another's
 * memory), FAKE_CUDA_DELAY_US (before each piece of work, 0).
 */
#ifndef WH_TESTS_FAKE_CUDA_H
#define WH_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

/** Where a byte of device memory really lies, for filling and looking; NULL where it is none. */
void *fake_cuda_shadow(const void *address);

/** The same for as many bytes as lie in one allocation: those may lie end to end. */
void *fake_cuda_shadow_part(const void *address, size_t size, size_t *part_p);

/**
 * Lets call number `number` from now on answer `result`; 0: none. Calls by which a test or the
 * library only gives something back never fail.
 */
void fake_cuda_fail_at(uint64_t number, int result);

/** How many calls that may fail there were since fake_cuda_fail_at was last called. */
uint64_t fake_cuda_calls(void);

/** How often one was made: "cuLaunchKernel". */
uint64_t fake_cuda_count(const char *name);

/**
 * Bytes of device memory that are allocated, and the most that were since fake_cuda_forget_peak; of
 * pinned memory; allocations of others that are open.
 */
size_t fake_cuda_device_bytes(void);
size_t fake_cuda_device_peak(void);
size_t fake_cuda_pinned_bytes(void);
size_t fake_cuda_imports(void);
void fake_cuda_forget_peak(void);

/**
 * The devices whose primary contexts this process has retained, a bit each: each costs memory of
 * the device.
 */
unsigned fake_cuda_contexts(void);

/**
 * Work on a stream (NULL: device 0's default one): nothing behind it is done before
 * fake_cuda_open_gate.
 */
void fake_cuda_shut_gate(void *stream);
void fake_cuda_open_gate(void);

/**
 * Work of another library on a stream: called in its turn, by the stream's thread. For
 * tests/fake_nccl/.
 */
void fake_cuda_put(void *stream, void (*call)(void *context), void *context);

/** Breaks the contexts, as a fault in a kernel does; 0 mends them. */
void fake_cuda_break(int result);

#endif
