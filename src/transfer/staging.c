#include "transfer/staging.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/pinned.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "state/tensor.h"

/** How many chunks a fetch begins ahead, and how many slots a delivery uses before it waits. */
enum { AHEAD_MIN = 8, AHEAD_MAX = 24, DELIVERY_SLOTS = 24 };

/* ---- slots ---- */

static void init_slots(wh_slots *slots, uint64_t devices, size_t slot_bytes, const wh_stop *stop,
                       wh_deadline deadline) {
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

/** Waits for all copies; none can be begun any more. */
static void end_copies(wh_slots *slots) {
    for (size_t i = 0; i < WH_CUDA_DEVICES_MAX; i++) {
        wh_cuda_queue_destroy(slots->queues[i]);
        slots->queues[i] = NULL;
    }
}

static void destroy_slots(wh_slots *slots) {
    end_copies(slots);
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

/** Takes a free slot, or creates one. Waits for nothing but the driver, which pins the memory. */
static wherry_status take_slot(wh_slots *slots, uint64_t chunk, wh_slot **slot_p, wherry_error *error) {
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

/** The copies of the slot must have completed. */
static void give_slot(wh_slots *slots, wh_slot *slot) {
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

/** Begins the copies that were added to the slot. */
static wherry_status begin_copies(wh_slots *slots, wh_slot *slot, wherry_error *error) {
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

/** Waits for the copies of the slot. */
static wherry_status await_copies(const wh_slots *slots, const wh_slot *slot, wherry_error *error) {
    return slot->queue ? wh_cuda_queue_wait(slot->queue, slot->ticket, slots->stop, slots->deadline, error) : WHERRY_OK;
}

/**
 * Adds a copy between the slot and a device. A slot has one ticket, so if the copies before are
 * with another device, they are completed first. Chunks with two devices are rare.
 */
static wherry_status add_copy(wh_slots *slots, wh_slot *slot, const wh_cuda_run *run, int32_t device,
                              wherry_error *error) {
    if (slot->run_count && slot->device != device) {
        WH_TRY(begin_copies(slots, slot, error));
        WH_TRY(await_copies(slots, slot, error));
    }
    if (!WH_GROW(slot->runs, slot->run_capacity, slot->run_count)) {
        return wh_fail_memory(error, "staging a chunk");
    }
    slot->device = device;
    slot->runs[slot->run_count++] = *run;
    return WHERRY_OK;
}

/* ---- source ---- */

void wh_fetch_init(wh_fetch *fetch, const wh_offer *offer, uint32_t workers, const wh_stop *stop,
                   wh_deadline deadline) {
    *fetch = (wh_fetch){.offer = offer, .ahead = wh_min(wh_max(2 * (uint64_t)workers, AHEAD_MIN), AHEAD_MAX)};
    pthread_mutex_init(&fetch->lock, NULL);
    init_slots(&fetch->slots, offer->devices, wh_space_chunk_max(&offer->prepared->space), stop, deadline);
}

bool wh_fetch_add(wh_fetch *fetch, const wherry_interval *intervals, size_t count) {
    bool ok = true;
    pthread_mutex_lock(&fetch->lock);
    for (size_t i = 0; i < count && ok; i++) {
        for (uint64_t k = 0; k < intervals[i].count && ok; k++) {
            ok = WH_GROW(fetch->order, fetch->capacity, fetch->count);
            if (ok) {
                fetch->order[fetch->count++] = intervals[i].first + k;
            }
        }
    }
    pthread_mutex_unlock(&fetch->lock);
    return ok;
}

void wh_fetch_destroy(wh_fetch *fetch) {
    if (wh_fetch_exists(fetch)) {
        destroy_slots(&fetch->slots);
        wh_free(fetch->order);
        pthread_mutex_destroy(&fetch->lock);
        *fetch = (wh_fetch){0};
    }
}

typedef struct layout {
    wh_fetch *fetch;
    wh_slot *slot;
    uint64_t at; /**< Bytes of the slot that are laid out. */
    wherry_status status;
    wherry_error *error;
} layout;

static int lay_out_piece(void *context, const wh_piece *piece) {
    layout *l = context;
    const wherry_storage *storage = l->fetch->offer->prepared->storages[piece->storage];
    const char *from = (const char *)wherry_storage_data(storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count && l->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * piece->stride, l->slot->memory + l->at, piece->length};
        l->status = add_copy(&l->fetch->slots, l->slot, &run, wherry_storage_device(storage).index, l->error);
        l->at += piece->length;
    }
    return l->status != WHERRY_OK;
}

/** Begins to fetch the next chunk; the lock is held. */
static wherry_status fetch_next(wh_fetch *fetch, wherry_error *error) {
    const wherry_prepared *prepared = fetch->offer->prepared;
    uint64_t chunk = fetch->order[fetch->begun];
    uint64_t begin;
    uint64_t length;
    wh_slot *slot;
    WH_TRY(take_slot(&fetch->slots, chunk, &slot, error));
    fetch->begun++;
    fetch->active_count++;
    slot->next = fetch->active;
    fetch->active = slot;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    layout l = {.fetch = fetch, .slot = slot, .status = WHERRY_OK, .error = error};
    wh_space_visit(&prepared->space, begin, begin + length, lay_out_piece, &l);
    return l.status == WHERRY_OK ? begin_copies(&fetch->slots, slot, error) : l.status;
}

/** Where the slot of a chunk is linked in the active list; NULL if the chunk is not active. */
static wh_slot **find_active(wh_fetch *fetch, uint64_t chunk) {
    wh_slot **at = &fetch->active;
    while (*at && (*at)->chunk != chunk) {
        at = &(*at)->next;
    }
    return *at ? at : NULL;
}

wherry_status wh_fetch_gather(wh_fetch *fetch, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    uint64_t begin;
    uint64_t length;
    pthread_mutex_lock(&fetch->lock);
    /* After a failure no slot is handed out: the one that failed has no ticket to wait for. */
    wherry_status status = fetch->failure.status;
    while (status == WHERRY_OK && fetch->begun < fetch->count &&
           (fetch->active_count < fetch->ahead || !find_active(fetch, chunk))) {
        status = fetch_next(fetch, &fetch->failure);
    }
    wh_slot **found = find_active(fetch, chunk);
    if (status == WHERRY_OK && !found) {
        status = wh_fail(&fetch->failure, WHERRY_INTERNAL, "a chunk was not added before it was gathered");
    }
    if (status != WHERRY_OK) {
        fetch->failure.status = status;
        if (error) {
            *error = fetch->failure;
        }
    }
    const wh_slot *slot = found ? *found : NULL;
    pthread_mutex_unlock(&fetch->lock);
    if (status != WHERRY_OK) {
        return status;
    }
    WH_TRY(await_copies(&fetch->slots, slot, error));
    wherry_prepared_chunk(fetch->offer->prepared, chunk, &begin, &length);
    wh_segments_clear(segments);
    return wh_segments_add(segments, slot->memory, length) ? WHERRY_OK : wh_fail_memory(error, "a chunk's segments");
}

void wh_fetch_done(wh_fetch *fetch, uint64_t chunk) {
    pthread_mutex_lock(&fetch->lock);
    wh_slot **at = find_active(fetch, chunk);
    if (at) {
        wh_slot *slot = *at;
        *at = slot->next;
        fetch->active_count--;
        give_slot(&fetch->slots, slot);
    }
    pthread_mutex_unlock(&fetch->lock);
}

/* ---- receiver ---- */

void wh_delivery_init(wh_delivery *delivery, const wherry_plan *plan, wh_delivered_fn delivered, void *context,
                      const wh_stop *stop, wh_deadline deadline) {
    *delivery = (wh_delivery){0};
    if (plan->traits.cuda) {
        *delivery = (wh_delivery){.plan = plan, .delivered = delivered, .context = context};
        delivery->in_flight_end = &delivery->in_flight;
        pthread_mutex_init(&delivery->lock, NULL);
        init_slots(&delivery->slots, plan->traits.cuda, wh_space_chunk_max(&plan->prepared->space), stop, deadline);
    }
}

void wh_delivery_destroy(wh_delivery *delivery) {
    if (delivery->plan) {
        destroy_slots(&delivery->slots);
        pthread_mutex_destroy(&delivery->lock);
        *delivery = (wh_delivery){0};
    }
}

void wh_delivery_end_copies(wh_delivery *delivery) {
    end_copies(&delivery->slots);
}

static bool is_on_device(const wherry_storage *storage) {
    return wherry_storage_device(storage).kind != WHERRY_DEVICE_CPU;
}

static int goes_to_device(void *context, const wherry_copy *copy) {
    (void)context;
    return is_on_device(copy->storage);
}

bool wh_delivery_takes(const wh_delivery *delivery, uint64_t chunk) {
    return delivery->plan && wherry_plan_visit_chunk(delivery->plan, chunk, goes_to_device, NULL) != 0;
}

/**
 * Completes the oldest chunk in flight if its copies are done; the lock is held.
 * @param wait         wait for its copies.
 * @param completed_p  false: there is no chunk in flight, or it is not done.
 */
static wherry_status complete_oldest(wh_delivery *delivery, bool wait, bool *completed_p, wherry_error *error) {
    wh_slot *slot = delivery->in_flight;
    *completed_p = false;
    if (!slot) {
        return WHERRY_OK;
    }
    bool done = true;
    if (wait) {
        WH_TRY(await_copies(&delivery->slots, slot, error));
    } else if (slot->queue) {
        WH_TRY(wh_cuda_queue_passed(slot->queue, slot->ticket, &done, error));
    }
    if (!done) {
        return WHERRY_OK;
    }
    delivery->in_flight = slot->next;
    delivery->in_flight_end = delivery->in_flight ? delivery->in_flight_end : &delivery->in_flight;
    delivery->delivered(delivery->context, slot->chunk);
    give_slot(&delivery->slots, slot);
    *completed_p = true;
    return WHERRY_OK;
}

static bool are_slots_used_up(wh_slots *slots) {
    pthread_mutex_lock(&slots->lock);
    bool used_up = slots->count >= DELIVERY_SLOTS && !slots->free;
    pthread_mutex_unlock(&slots->lock);
    return used_up;
}

wherry_status wh_delivery_open(wh_delivery *delivery, uint64_t chunk, wh_slot **slot_p, wherry_error *error) {
    wherry_status status;
    bool completed;
    pthread_mutex_lock(&delivery->lock);
    do {
        status = complete_oldest(delivery, false, &completed, error);
    } while (status == WHERRY_OK && completed);
    if (status == WHERRY_OK && are_slots_used_up(&delivery->slots)) {
        status = complete_oldest(delivery, true, &completed, error);
    }
    pthread_mutex_unlock(&delivery->lock);
    return status == WHERRY_OK ? take_slot(&delivery->slots, chunk, slot_p, error) : status;
}

typedef struct delivering {
    wh_delivery *delivery;
    wh_slot *slot;
    wherry_status status;
    wherry_error *error;
} delivering;

static int deliver_copy(void *context, const wherry_copy *copy) {
    delivering *d = context;
    const uint8_t *from = d->slot->memory + copy->chunk_offset;
    uint8_t *to = copy->memory;
    bool device = is_on_device(copy->storage);
    for (uint64_t i = 0; i < copy->count && d->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * copy->chunk_stride, to + i * copy->storage_stride, copy->length};
        if (device) {
            d->status =
                add_copy(&d->delivery->slots, d->slot, &run, wherry_storage_device(copy->storage).index, d->error);
        } else {
            memcpy(run.to, run.from, run.length);
        }
    }
    return d->status != WHERRY_OK;
}

wherry_status wh_delivery_close(wh_delivery *delivery, wh_slot *slot, wherry_error *error) {
    delivering d = {.delivery = delivery, .slot = slot, .status = WHERRY_OK, .error = error};
    wherry_plan_visit_chunk(delivery->plan, slot->chunk, deliver_copy, &d);
    WH_THEN(d.status, begin_copies(&delivery->slots, slot, error));
    if (d.status == WHERRY_OK) {
        pthread_mutex_lock(&delivery->lock);
        slot->next = NULL;
        *delivery->in_flight_end = slot;
        delivery->in_flight_end = &slot->next;
        pthread_mutex_unlock(&delivery->lock);
    }
    return d.status;
}

void wh_delivery_discard(wh_delivery *delivery, wh_slot *slot) {
    give_slot(&delivery->slots, slot);
}

void wh_delivery_poll(wh_delivery *delivery) {
    bool completed = delivery->plan != NULL;
    if (completed) {
        pthread_mutex_lock(&delivery->lock);
        while (completed && complete_oldest(delivery, false, &completed, NULL) == WHERRY_OK) {
        }
        pthread_mutex_unlock(&delivery->lock);
    }
}

wherry_status wh_delivery_settle(wh_delivery *delivery, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool completed = true;
    if (!delivery->plan) {
        return WHERRY_OK;
    }
    pthread_mutex_lock(&delivery->lock);
    while (status == WHERRY_OK && completed) {
        status = complete_oldest(delivery, true, &completed, error);
    }
    pthread_mutex_unlock(&delivery->lock);
    return status;
}
