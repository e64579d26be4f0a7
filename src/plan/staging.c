#include "plan/staging.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "state/tensor.h"

/**
 * Number of chunks that a fetch begins in advance, and number of slots that a delivery uses before
 * it waits.
 */
enum { AHEAD_MIN = 8, AHEAD_MAX = 24, DELIVERY_SLOTS = 24 };

/** The copies of a chunk that go into a slot, or out of it. */
typedef struct copying {
    wh_slots *slots;
    wh_slot *slot;
    wherry_storage *const *storages; /**< Into a slot: the storages of the chunk. */
    /** Into a slot: number of the chunk's bytes that were handled. */
    uint64_t at;
    wherry_status status;
    wherry_error *error;
} copying;

/* ---- source ---- */

void wh_fetch_init(wh_fetch *fetch, const wherry_prepared *prepared, uint32_t workers, const wh_stop *stop,
                   wh_deadline deadline) {
    *fetch = (wh_fetch){.prepared = prepared, .ahead = wh_min(wh_max(2 * (uint64_t)workers, AHEAD_MIN), AHEAD_MAX)};
    pthread_mutex_init(&fetch->lock, NULL);
    wh_slots_init(&fetch->slots, prepared->traits.cuda, wh_space_chunk_max(&prepared->space), stop, deadline);
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
        wh_slots_destroy(&fetch->slots);
        wh_free(fetch->order);
        pthread_mutex_destroy(&fetch->lock);
        *fetch = (wh_fetch){0};
    }
}

static int lay_out_piece(void *context, const wh_piece *piece) {
    copying *c = context;
    const wherry_storage *storage = c->storages[piece->storage];
    const char *from = (const char *)wherry_storage_data(storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count && c->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * piece->stride, c->slot->memory + c->at, piece->length};
        c->status = wh_slots_add(c->slots, c->slot, &run, wherry_storage_device(storage).index, c->error);
        c->at += piece->length;
    }
    return c->status != WHERRY_OK;
}

/** Begins to fetch the next chunk; the lock is held. */
static wherry_status fetch_next(wh_fetch *fetch, wherry_error *error) {
    const wherry_prepared *prepared = fetch->prepared;
    uint64_t chunk = fetch->order[fetch->begun];
    uint64_t begin;
    uint64_t length;
    wh_slot *slot;
    WH_TRY(wh_slots_take(&fetch->slots, chunk, &slot, error));
    fetch->begun++;
    fetch->active_count++;
    slot->next = fetch->active;
    fetch->active = slot;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    copying c = {&fetch->slots, slot, prepared->storages, 0, WHERRY_OK, error};
    wh_space_visit(&prepared->space, begin, begin + length, lay_out_piece, &c);
    return c.status == WHERRY_OK ? wh_slots_begin(&fetch->slots, slot, error) : c.status;
}

/** Where the slot of a chunk is linked in the active list; NULL if the chunk is not active. */
static wh_slot **find_active(wh_fetch *fetch, uint64_t chunk) {
    wh_slot **at = &fetch->active;
    while (*at && (*at)->chunk != chunk) {
        at = &(*at)->next;
    }
    return *at ? at : NULL;
}

wherry_status wh_fetch_gather(wh_fetch *fetch, uint64_t chunk, struct iovec *run_p, wherry_error *error) {
    pthread_mutex_lock(&fetch->lock);
    /*
     * After a failure no slot is handed out, because the slot that failed has no ticket to wait
     * for.
     */
    wherry_status status = fetch->failure.status;
    while (status == WHERRY_OK && fetch->begun < fetch->count &&
           (fetch->active_count < fetch->ahead || !find_active(fetch, chunk))) {
        status = fetch_next(fetch, &fetch->failure);
    }
    wh_slot **found = find_active(fetch, chunk);
    if (status == WHERRY_OK && !found) {
        status =
            wh_fail(&fetch->failure, WHERRY_INTERNAL, "a chunk is fetched from a device, but was not queued for that");
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
    WH_TRY(wh_slots_await(&fetch->slots, slot, error));
    *run_p = (struct iovec){slot->memory, wh_prepared_chunk_length(fetch->prepared, chunk)};
    return WHERRY_OK;
}

void wh_fetch_done(wh_fetch *fetch, uint64_t chunk) {
    pthread_mutex_lock(&fetch->lock);
    wh_slot **at = find_active(fetch, chunk);
    if (at) {
        wh_slot *slot = *at;
        *at = slot->next;
        fetch->active_count--;
        wh_slots_give(&fetch->slots, slot);
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
        wh_slots_init(&delivery->slots, plan->traits.cuda, wh_space_chunk_max(&plan->prepared->space), stop, deadline);
    }
}

void wh_delivery_destroy(wh_delivery *delivery) {
    if (delivery->plan) {
        wh_slots_destroy(&delivery->slots);
        pthread_mutex_destroy(&delivery->lock);
        *delivery = (wh_delivery){0};
    }
}

void wh_delivery_end_copies(wh_delivery *delivery) {
    wh_slots_end_copies(&delivery->slots);
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
 * Completes chunks in flight, oldest first, whose copies are done; the lock is held.
 * @param wait  wait for the copies.
 * @param all   not only the oldest.
 */
static wherry_status complete(wh_delivery *delivery, bool wait, bool all, wherry_error *error) {
    wh_slot *slot;
    while ((slot = delivery->in_flight) != NULL) {
        bool done = true;
        if (wait) {
            WH_TRY(wh_slots_await(&delivery->slots, slot, error));
        } else if (slot->queue) {
            WH_TRY(wh_cuda_queue_passed(slot->queue, slot->ticket, &done, error));
        }
        if (!done) {
            break;
        }
        delivery->in_flight = slot->next;
        delivery->in_flight_end = delivery->in_flight ? delivery->in_flight_end : &delivery->in_flight;
        delivery->delivered(delivery->context, slot->chunk);
        wh_slots_give(&delivery->slots, slot);
        if (!all) {
            break;
        }
    }
    return WHERRY_OK;
}

wherry_status wh_delivery_open(wh_delivery *delivery, uint64_t chunk, wh_slot **slot_p, wherry_error *error) {
    pthread_mutex_lock(&delivery->lock);
    wherry_status status = complete(delivery, false, true, error);
    if (status == WHERRY_OK && wh_slots_are_used_up(&delivery->slots, DELIVERY_SLOTS)) {
        status = complete(delivery, true, false, error);
    }
    pthread_mutex_unlock(&delivery->lock);
    return status == WHERRY_OK ? wh_slots_take(&delivery->slots, chunk, slot_p, error) : status;
}

static int deliver_copy(void *context, const wherry_copy *copy) {
    copying *c = context;
    const uint8_t *from = c->slot->memory + copy->chunk_offset;
    uint8_t *to = copy->memory;
    bool device = is_on_device(copy->storage);
    for (uint64_t i = 0; i < copy->count && c->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * copy->chunk_stride, to + i * copy->storage_stride, copy->length};
        if (device) {
            c->status = wh_slots_add(c->slots, c->slot, &run, wherry_storage_device(copy->storage).index, c->error);
        } else {
            memcpy(run.to, run.from, run.length);
        }
    }
    return c->status != WHERRY_OK;
}

wherry_status wh_delivery_close(wh_delivery *delivery, wh_slot *slot, wherry_error *error) {
    copying c = {&delivery->slots, slot, NULL, 0, WHERRY_OK, error};
    wherry_plan_visit_chunk(delivery->plan, slot->chunk, deliver_copy, &c);
    WH_THEN(c.status, wh_slots_begin(&delivery->slots, slot, error));
    if (c.status == WHERRY_OK) {
        pthread_mutex_lock(&delivery->lock);
        slot->next = NULL;
        *delivery->in_flight_end = slot;
        delivery->in_flight_end = &slot->next;
        pthread_mutex_unlock(&delivery->lock);
    }
    return c.status;
}

void wh_delivery_discard(wh_delivery *delivery, wh_slot *slot) {
    wh_slots_give(&delivery->slots, slot);
}

void wh_delivery_poll(wh_delivery *delivery) {
    if (delivery->plan) {
        pthread_mutex_lock(&delivery->lock);
        complete(delivery, false, true, NULL);
        pthread_mutex_unlock(&delivery->lock);
    }
}

wherry_status wh_delivery_settle(wh_delivery *delivery, wherry_error *error) {
    if (!delivery->plan) {
        return WHERRY_OK;
    }
    pthread_mutex_lock(&delivery->lock);
    wherry_status status = complete(delivery, true, true, error);
    pthread_mutex_unlock(&delivery->lock);
    return status;
}
