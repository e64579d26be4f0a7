#include "memory/cuda_slots.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/pinned.h"

void wh_slots_init(wh_slots *slots, uint64_t devices, size_t slot_bytes, const wh_stop *stop, wh_deadline deadline) {
    *slots =
        (wh_slots){.slot_bytes = slot_bytes, .device = __builtin_ctzll(devices), .stop = stop, .deadline = deadline};
    pthread_mutex_init(&slots->lock, NULL);
}

/** slot may be NULL. */
static void free_slot(const wh_slots *slots, wh_slot *slot) {
    if (!slot) {
        return;
    }
    if (slot->pinned) {
        wh_pinned_give(slot->memory, slots->slot_bytes);
    } else {
        wh_free(slot->memory);
    }
    wh_free(slot->runs);
    wh_free(slot);
}

void wh_slots_end_copies(wh_slots *slots) {
    for (size_t i = 0; i < WH_CUDA_DEVICES_MAX; i++) {
        wh_cuda_queue_destroy(slots->queues[i]);
        slots->queues[i] = NULL;
    }
}

void wh_slots_destroy(wh_slots *slots) {
    wh_slots_end_copies(slots);
    for (size_t i = 0; i < slots->count; i++) {
        free_slot(slots, slots->all[i]);
    }
    wh_free(slots->all);
    pthread_mutex_destroy(&slots->lock);
}

static wh_slot *create_slot(const wh_slots *slots) {
    wh_slot *slot = wh_alloc_zeroed(1, sizeof(*slot));
    void *memory = NULL;
    if (!slot) {
        return NULL;
    }
    slot->pinned = wh_pinned_take(slots->device, slots->slot_bytes, &memory, NULL) == WHERRY_OK;
    slot->memory = slot->pinned ? memory : wh_alloc(slots->slot_bytes);
    if (!slot->memory) {
        free_slot(slots, slot);
        return NULL;
    }
    return slot;
}

wherry_status wh_slots_take(wh_slots *slots, uint64_t chunk, wh_slot **slot_p, wherry_error *error) {
    pthread_mutex_lock(&slots->lock);
    wh_slot *slot = slots->free;
    slots->free = slot ? slot->next : NULL;
    pthread_mutex_unlock(&slots->lock);
    if (!slot) {
        slot = create_slot(slots);
        pthread_mutex_lock(&slots->lock);
        bool kept = slot && WH_GROW(slots->all, slots->capacity, slots->count);
        if (kept) {
            slots->all[slots->count++] = slot;
        }
        pthread_mutex_unlock(&slots->lock);
        if (!kept) {
            free_slot(slots, slot);
            return wh_fail_memory(error, "staging a chunk");
        }
    }
    slot->chunk = chunk;
    slot->queue = NULL;
    slot->run_count = 0;
    slot->next = NULL;
    *slot_p = slot;
    return WHERRY_OK;
}

bool wh_slots_are_used_up(wh_slots *slots, size_t most) {
    pthread_mutex_lock(&slots->lock);
    bool used_up = slots->count >= most && !slots->free;
    pthread_mutex_unlock(&slots->lock);
    return used_up;
}

void wh_slots_give(wh_slots *slots, wh_slot *slot) {
    pthread_mutex_lock(&slots->lock);
    slot->next = slots->free;
    slots->free = slot;
    pthread_mutex_unlock(&slots->lock);
}

static wherry_status find_queue(wh_slots *slots, int32_t device, wh_cuda_queue **queue_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (device < 0 || device >= WH_CUDA_DEVICES_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "there is no cuda:%d", (int)device);
    }
    pthread_mutex_lock(&slots->lock);
    if (!slots->queues[device]) {
        status = wh_cuda_queue_create(device, slots->queues + device, error);
    }
    *queue_p = slots->queues[device];
    pthread_mutex_unlock(&slots->lock);
    return status;
}

wherry_status wh_slots_begin(wh_slots *slots, wh_slot *slot, wherry_error *error) {
    wh_cuda_queue *queue = NULL;
    size_t count = slot->run_count;
    slot->run_count = 0;
    if (!count) {
        return WHERRY_OK;
    }
    WH_TRY(find_queue(slots, slot->device, &queue, error));
    WH_TRY(wh_cuda_queue_copy(queue, slot->pinned ? WH_CUDA_WITH_PINNED : WH_CUDA_WITH_PAGEABLE, slot->runs, count,
                              error));
    wherry_status status = wh_cuda_queue_mark(queue, &slot->ticket, error);
    slot->queue = queue;
    return status;
}

wherry_status wh_slots_await(const wh_slots *slots, const wh_slot *slot, wherry_error *error) {
    return slot->queue ? wh_cuda_queue_wait(slot->queue, slot->ticket, slots->stop, slots->deadline, error) : WHERRY_OK;
}

/** A slot has one ticket. Chunks with two devices are rare. */
wherry_status wh_slots_add(wh_slots *slots, wh_slot *slot, const wh_cuda_run *run, int32_t device,
                           wherry_error *error) {
    if (slot->run_count && slot->device != device) {
        WH_TRY(wh_slots_begin(slots, slot, error));
        WH_TRY(wh_slots_await(slots, slot, error));
    }
    if (!WH_GROW(slot->runs, slot->run_capacity, slot->run_count)) {
        return wh_fail_memory(error, "staging a chunk");
    }
    slot->device = device;
    slot->runs[slot->run_count++] = *run;
    return WHERRY_OK;
}
