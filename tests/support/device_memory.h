/**
 * @file device_memory.h  Allocates, fills and reads device memory, on a real device or on the fake
 * one.
 */
#ifndef WH_TESTS_DEVICE_MEMORY_H
#define WH_TESTS_DEVICE_MEMORY_H

#include "memory/cuda_queue.h"
#include "support/build.h"
#include "support/fake_driver.h"

/** Copies between host and device, in any direction. Returns when the copy is done. */
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

/** A storage in device memory. Byte i is seed + 7 * i, as in build_storage. */
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

/**
 * Maps `count` physical allocations of device 0 at adjacent addresses, as an allocator with
 * expandable segments does. Makes a context of the device current.
 * @return the first address; NULL if the driver refuses.
 */
static inline void *map_device_pieces(size_t piece, size_t count) {
    struct properties { /* This is the layout that the driver uses. */
        int type;
        int handle_types;
        int location_type;
        int device;
        void *rest;
        unsigned char flags[8];
    } wanted = {1, 1, 1, 0, NULL, {0}}; /* pinned memory, shared as a descriptor, on a device */
    struct rights {
        int location_type;
        int device;
        int flags;
    } rights = {1, 0, 3}; /* The device may read and write it. */
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*create)(uint64_t *, size_t, const struct properties *, unsigned long long);
    int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
    int (*set)(uint64_t, size_t, const struct rights *, size_t);
    int (*release)(uint64_t);
    *(void **)&retain = fake_driver_symbol("cuDevicePrimaryCtxRetain");
    *(void **)&set_current = fake_driver_symbol("cuCtxSetCurrent");
    *(void **)&reserve = fake_driver_symbol("cuMemAddressReserve");
    *(void **)&create = fake_driver_symbol("cuMemCreate");
    *(void **)&map = fake_driver_symbol("cuMemMap");
    *(void **)&set = fake_driver_symbol("cuMemSetAccess");
    *(void **)&release = fake_driver_symbol("cuMemRelease");
    void *context;
    uint64_t address = 0;
    bool good = wh_cuda_check(NULL) == WHERRY_OK && retain(&context, 0) == 0 && set_current(context) == 0 &&
                reserve(&address, piece * count, 0, 0, 0) == 0;
    for (size_t i = 0; i < count && good; i++) {
        uint64_t handle;
        uint64_t at = address + i * piece;
        good = create(&handle, piece, &wanted, 0) == 0 && map(at, piece, 0, handle, 0) == 0 && release(handle) == 0 &&
               set(at, piece, &rights, 1) == 0;
    }
    return good ? (void *)(uintptr_t)address : NULL;
}

#endif
