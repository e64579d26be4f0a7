/**
 * @file cuda_slots.h  Host buffers of one size, each for the bytes of one chunk on their way
 * between a device and a lane for host memory.
 *
 * 1. A slot is used again only after all copies from and to it have completed.
 * 2. Slots are pinned as far as the limit allows (pinned.h). Further slots are plain memory, which
 *    is slower.
 *
 * Any number of threads may use one wh_slots at once; each slot belongs to one of them.
 */
#ifndef WH_MEMORY_CUDA_SLOTS_H
#define WH_MEMORY_CUDA_SLOTS_H

#include <pthread.h>

#include "memory/cuda_queue.h"

typedef struct wh_slot {
    uint8_t *memory;
    bool pinned;
    uint64_t chunk;       /**< The chunk whose bytes the slot holds. */
    wh_cuda_queue *queue; /**< The queue with the last copies; NULL: there were none. */
    uint64_t ticket;      /**< Ticket of the last copies, in `queue`. */
    /**
     * Copies that have not begun, all with one device. The memory of the list is kept for the next
     * chunk.
     */
    wh_cuda_run *runs;
    size_t run_count;
    size_t run_capacity;
    int32_t device;       /**< The device of the runs. */
    struct wh_slot *next; /**< The next slot in the list that this slot is in. */
} wh_slot;

/** All slots of a fetch or delivery, and one queue of copies per device. */
typedef struct wh_slots {
    pthread_mutex_t lock; /**< Guards `all`, `free` and `queues`. */
    size_t slot_bytes;    /**< Length of the longest chunk. */
    int32_t device;       /**< The device that pins the slots: any of those in use. */
    const wh_stop *stop;  /**< Ends waiting for copies. */
    wh_deadline deadline;
    wh_slot **all;
    size_t count;
    size_t capacity;
    wh_slot *free;
    wh_cuda_queue *queues[WH_CUDA_DEVICES_MAX];
} wh_slots;

/** @param devices  one bit per CUDA device that copies use; at least one. */
void wh_slots_init(wh_slots *slots, uint64_t devices, size_t slot_bytes, const wh_stop *stop, wh_deadline deadline);

/** Waits for all copies, even if the stop was requested, and frees everything. */
void wh_slots_destroy(wh_slots *slots);

/** Waits for all copies, and allows no new ones. Keeps the memory. */
void wh_slots_end_copies(wh_slots *slots);

/** Takes a free slot, or creates one. Waits for nothing but the driver, which pins the memory. */
wherry_status wh_slots_take(wh_slots *slots, uint64_t chunk, wh_slot **slot_p, wherry_error *error);

/** True if at least `most` slots exist and no slot is free. */
bool wh_slots_are_used_up(wh_slots *slots, size_t most);

/** Makes a slot free again. Its copies must have completed. */
void wh_slots_give(wh_slots *slots, wh_slot *slot);

/**
 * Adds a copy between the slot and a device. If the slot has copies with another device, completes
 * them first.
 */
wherry_status wh_slots_add(wh_slots *slots, wh_slot *slot, const wh_cuda_run *run, int32_t device, wherry_error *error);

/** Begins the copies that were added to the slot. */
wherry_status wh_slots_begin(wh_slots *slots, wh_slot *slot, wherry_error *error);

/** Waits for the copies of the slot. @return as wh_cuda_queue_wait. */
wherry_status wh_slots_await(const wh_slots *slots, const wh_slot *slot, wherry_error *error);

#endif
