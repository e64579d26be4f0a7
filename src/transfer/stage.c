#include "transfer/stage.h"

#include "base/alloc.h"
#include "base/error.h"
#include "memory/pinned.h"

void wh_stage_init(wh_stage *stage, int32_t device, size_t slot_bytes, const wh_stop *stop, wh_deadline deadline) {
    *stage = (wh_stage){.slot_bytes = slot_bytes, .device = device, .stop = stop, .deadline = deadline};
    pthread_mutex_init(&stage->lock, NULL);
}

/** slot may be NULL. */
static void free_slot(const wh_stage *stage, wh_slot *slot) {
    if (!slot) {
        return;
    }
    if (slot->pinned) {
        wh_pinned_give(slot->memory, stage->slot_bytes);
    } else {
        wh_free(slot->memory);
    }
    wh_free(slot->runs);
    wh_free(slot);
}

void wh_stage_end_copies(wh_stage *stage) {
    for (size_t i = 0; i < WH_CUDA_DEVICES_MAX; i++) {
        wh_cuda_queue_destroy(stage->queues[i]); /* which waits */
        stage->queues[i] = NULL;
    }
}

void wh_stage_destroy(wh_stage *stage) {
    if (!stage->slot_bytes) {
        return;
    }
    wh_stage_end_copies(stage);
    for (size_t i = 0; i < stage->count; i++) {
        free_slot(stage, stage->slots[i]);
    }
    wh_free(stage->slots);
    pthread_mutex_destroy(&stage->lock);
    *stage = (wh_stage){0};
}

bool wh_stage_is_full(wh_stage *stage, size_t usual) {
    pthread_mutex_lock(&stage->lock);
    bool full = stage->count >= usual && !stage->free;
    pthread_mutex_unlock(&stage->lock);
    return full;
}

/* ---- slots ---- */

static wh_slot *make_slot(const wh_stage *stage) {
    wh_slot *slot = wh_alloc_zeroed(1, sizeof(*slot));
    void *memory = NULL;
    if (!slot) {
        return NULL;
    }
    slot->pinned = wh_pinned_take(stage->device, stage->slot_bytes, &memory, NULL) == WHERRY_OK;
    slot->memory = slot->pinned ? memory : wh_alloc(stage->slot_bytes);
    if (!slot->memory) {
        free_slot(stage, slot);
        return NULL;
    }
    return slot;
}

static bool keep(wh_stage *stage, wh_slot *slot) {
    pthread_mutex_lock(&stage->lock);
    bool kept = WH_GROW(stage->slots, stage->capacity, stage->count);
    if (kept) {
        stage->slots[stage->count++] = slot;
    }
    pthread_mutex_unlock(&stage->lock);
    return kept;
}

wherry_status wh_stage_take(wh_stage *stage, wh_slot **slot_p, wherry_error *error) {
    pthread_mutex_lock(&stage->lock);
    wh_slot *slot = stage->free;
    stage->free = slot ? slot->next : NULL;
    pthread_mutex_unlock(&stage->lock);
    if (!slot) {
        slot = make_slot(stage);
        if (!slot || !keep(stage, slot)) {
            free_slot(stage, slot);
            return wh_fail_memory(error, "staging a chunk");
        }
    }
    slot->queue = NULL;
    slot->run_count = 0;
    slot->next = NULL;
    *slot_p = slot;
    return WHERRY_OK;
}

void wh_stage_give(wh_stage *stage, wh_slot *slot) {
    pthread_mutex_lock(&stage->lock);
    slot->next = stage->free;
    stage->free = slot;
    pthread_mutex_unlock(&stage->lock);
}

/* ---- copies ---- */

static wherry_status find_queue(wh_stage *stage, int32_t device, wh_cuda_queue **queue_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (device < 0 || device >= WH_CUDA_DEVICES_MAX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "there is no cuda:%d", (int)device);
    }
    pthread_mutex_lock(&stage->lock);
    if (!stage->queues[device]) {
        status = wh_cuda_queue_create(device, stage->queues + device, error);
    }
    *queue_p = stage->queues[device];
    pthread_mutex_unlock(&stage->lock);
    return status;
}

wherry_status wh_stage_add(wh_stage *stage, wh_slot *slot, const wh_cuda_run *run, int32_t device,
                           wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (slot->run_count && slot->device != device) {
        status = wh_stage_copy(stage, slot, error);
        if (status == WHERRY_OK) {
            status = wh_stage_wait(stage, slot, error);
        }
    }
    if (status != WHERRY_OK) {
        return status;
    }
    if (!WH_GROW(slot->runs, slot->run_capacity, slot->run_count)) {
        return wh_fail_memory(error, "staging a chunk");
    }
    slot->device = device;
    slot->runs[slot->run_count++] = *run;
    return WHERRY_OK;
}

wherry_status wh_stage_copy(wh_stage *stage, wh_slot *slot, wherry_error *error) {
    wh_cuda_queue *queue = NULL;
    size_t count = slot->run_count;
    slot->run_count = 0;
    if (!count) {
        return WHERRY_OK;
    }
    wherry_status status = find_queue(stage, slot->device, &queue, error);
    if (status == WHERRY_OK) {
        status = wh_cuda_queue_copy(queue, slot->pinned ? WH_CUDA_WITH_PINNED : WH_CUDA_WITH_PAGEABLE, slot->runs,
                                    count, error);
    }
    if (status == WHERRY_OK) {
        status = wh_cuda_queue_mark(queue, &slot->ticket, error);
        slot->queue = queue;
    }
    return status;
}

wherry_status wh_slot_passed(const wh_slot *slot, bool *passed_p, wherry_error *error) {
    *passed_p = true;
    return slot->queue ? wh_cuda_queue_passed(slot->queue, slot->ticket, passed_p, error) : WHERRY_OK;
}

wherry_status wh_stage_wait(const wh_stage *stage, const wh_slot *slot, wherry_error *error) {
    return slot->queue ? wh_cuda_queue_wait(slot->queue, slot->ticket, stage->stop, stage->deadline, error) : WHERRY_OK;
}
