/**
 * @file stage.h  Staging: host memory that a chunk waits in on its way between a lane, which knows
 * no other, and the memory of devices.
 *
 * A slot holds one chunk. Copies from and to devices go on while the lane works on other chunks; a
 * slot is used again when its copies are done. Slots are pinned as far as that is allowed
 * (memory/pinned.h), and plain memory beyond, which is slower.
 */
#ifndef WH_TRANSFER_STAGE_H
#define WH_TRANSFER_STAGE_H

#include <pthread.h>

#include "memory/cuda_queue.h"

typedef struct wh_slot {
    uint8_t *memory;
    bool pinned;
    uint64_t chunk;       /**< Whose bytes are in it. */
    wh_cuda_queue *queue; /**< That the last copies went to; NULL: there were none. */
    uint64_t ticket;      /**< Of these. */
    /** What wh_stage_copy will begin, all of one device; the room is kept from chunk to chunk. */
    wh_cuda_run *runs;
    size_t run_count;
    size_t run_capacity;
    int32_t device;       /**< Of the runs. */
    struct wh_slot *next; /**< In a list of the owner's. */
} wh_slot;

/** Starts as {0}. Several threads may use it at once, each its own slots. */
typedef struct wh_stage {
    pthread_mutex_t lock;
    size_t slot_bytes;
    int32_t device; /**< One of those that it is for. */
    const wh_stop *stop;
    wh_deadline deadline;
    wh_slot **slots; /**< All. */
    size_t count;
    size_t capacity;
    wh_slot *free;
    wh_cuda_queue *queues[WH_CUDA_DEVICES_MAX];
} wh_stage;

/**
 * @param device  one that it is for. @param slot_bytes  of the longest chunk. @param stop  ends
 * waiting; borrowed.
 */
void wh_stage_init(wh_stage *stage, int32_t device, size_t slot_bytes, const wh_stop *stop, wh_deadline deadline);

/**
 * Waits until no copy is under way, also where the stop was requested; none can be begun any more.
 */
void wh_stage_end_copies(wh_stage *stage);

/** Does that, and frees the slots. On {0} it does nothing. */
void wh_stage_destroy(wh_stage *stage);

/** Whether so many slots are all in use. */
bool wh_stage_is_full(wh_stage *stage, size_t usual);

/**
 * A slot that is free, or a new one. @return WHERRY_OK; WHERRY_NO_MEMORY. Never waits, but for the
 * driver to pin memory.
 */
wherry_status wh_stage_take(wh_stage *stage, wh_slot **slot_p, wherry_error *error);

/** Gives a slot back; its copies are done. */
void wh_stage_give(wh_stage *stage, wh_slot *slot);

/**
 * Adds a copy from or to the memory of a device to the slot's list. Where those before are of
 * another device they are carried out first: a slot has one ticket, and such chunks are rare.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; as wh_stage_copy and wh_stage_wait.
 */
wherry_status wh_stage_add(wh_stage *stage, wh_slot *slot, const wh_cuda_run *run, int32_t device, wherry_error *error);

/** Begins the copies on the slot's list, and empties that. @return as wh_cuda_queue_copy. */
wherry_status wh_stage_copy(wh_stage *stage, wh_slot *slot, wherry_error *error);

/** Whether the slot's copies are done. */
wherry_status wh_slot_passed(const wh_slot *slot, bool *passed_p, wherry_error *error);

/** Waits until the slot's copies are done. @return as wh_cuda_queue_wait. */
wherry_status wh_stage_wait(const wh_stage *stage, const wh_slot *slot, wherry_error *error);

#endif
