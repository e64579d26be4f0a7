/** @file device_memory.h  Device memory in tests: allocating, filling and reading it, on a real device or on the fake one. */
#ifndef WH_TESTS_DEVICE_MEMORY_H
#define WH_TESTS_DEVICE_MEMORY_H

#include "memory/cuda_queue.h"
#include "support/build.h"

/** Host bytes to or from a device, or on it; waits until they are there. */
static inline void device_copy(int32_t device, void *to, const void *from, size_t size) {
    wherry_error error;
    wh_cuda_queue *queue;
    uint64_t ticket;
    wh_cuda_run run = {from, to, size};
    must(wh_cuda_queue_create(device, &queue, &error));
    must(wh_cuda_queue_copy(queue, WH_CUDA_WITH_PAGEABLE, &run, 1, &error));
    must(wh_cuda_queue_mark(queue, &ticket, &error));
    must(wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_in_ms(20000), &error));
    wh_cuda_queue_destroy(queue);
}

/** Memory of a device whose byte i is seed + 7 * i, as build_storage fills the host's. */
static inline wherry_storage *build_device_storage(int32_t device, uint64_t nbytes, uint8_t seed) {
    wherry_error error;
    wherry_storage *host = build_storage(nbytes, seed);
    wherry_storage *storage;
    must(wherry_storage_allocate(nbytes, (wherry_device){WHERRY_DEVICE_CUDA, device}, &storage, &error));
    if (nbytes) {
        device_copy(device, wherry_storage_data(storage), wherry_storage_data(host), nbytes);
    }
    wherry_storage_unref(host);
    return storage;
}

#endif
