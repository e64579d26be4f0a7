#include "transfer/sink_device.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "plan/plan.h"
#include "state/prepare.h"
#include "state/tensor.h"
#include "transfer/source.h"

/** So many slots are used before whoever needs one waits for a device. */
enum { USUAL_SLOTS = 24 };

static bool on_device(const wherry_storage *storage) {
    return wherry_storage_device(storage).kind != WHERRY_DEVICE_CPU;
}

void wh_chunk_sink_init_stage(wh_chunk_sink *sink, wh_deadline deadline) {
    uint64_t devices = sink->plan->traits.cuda;
    sink->to_device = devices != 0;
    if (sink->to_device) {
        pthread_mutex_init(&sink->lock, NULL);
        wh_stage_init(&sink->stage, __builtin_ctzll(devices), wh_space_chunk_max(&sink->plan->prepared->space),
                      sink->stop, deadline);
        sink->flying_end = &sink->flying;
    }
}

void wh_chunk_sink_destroy_stage(wh_chunk_sink *sink) {
    if (sink->to_device) {
        wh_stage_destroy(&sink->stage);
        pthread_mutex_destroy(&sink->lock);
    }
}

static int is_to_device(void *context, const wherry_copy *copy) {
    (void)context;
    return on_device(copy->storage);
}

bool wh_chunk_sink_goes_to_device(const wh_chunk_sink *sink, uint64_t chunk) {
    return sink->to_device && wherry_plan_visit_chunk(sink->plan, chunk, is_to_device, NULL) != 0;
}

/* ---- slots ---- */

/**
 * Takes note of the oldest chunk on its way that has arrived; under the lock. @param wait  for it,
 * where it has not.
 */
static wherry_status reap_one(wh_chunk_sink *sink, bool wait, bool *reaped_p, wherry_error *error) {
    wh_slot *slot = sink->flying;
    bool passed = false;
    wherry_status status = WHERRY_OK;
    *reaped_p = false;
    if (!slot) {
        return WHERRY_OK;
    }
    if (wait) {
        status = wh_stage_wait(&sink->stage, slot, error);
        passed = status == WHERRY_OK;
    } else {
        status = wh_slot_passed(slot, &passed, error);
    }
    if (status != WHERRY_OK || !passed) {
        return status;
    }
    sink->flying = slot->next;
    sink->flying_end = sink->flying ? sink->flying_end : &sink->flying;
    wh_chunk_sink_note(sink, slot->chunk, WH_CHUNK_LANDED);
    wh_stage_give(&sink->stage, slot);
    *reaped_p = true;
    return WHERRY_OK;
}

/** Takes note of all that have arrived, and waits for one where there are slots enough. */
static wherry_status reap(wh_chunk_sink *sink, wherry_error *error) {
    wherry_status status;
    bool reaped;
    pthread_mutex_lock(&sink->lock);
    do {
        status = reap_one(sink, false, &reaped, error);
    } while (status == WHERRY_OK && reaped);
    if (status == WHERRY_OK && wh_stage_is_full(&sink->stage, USUAL_SLOTS)) {
        status = reap_one(sink, true, &reaped, error);
    }
    pthread_mutex_unlock(&sink->lock);
    return status;
}

wherry_status wh_chunk_sink_settle(wh_chunk_sink *sink, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool reaped = true;
    if (!sink->to_device) {
        return WHERRY_OK;
    }
    pthread_mutex_lock(&sink->lock);
    while (status == WHERRY_OK && reaped) {
        status = reap_one(sink, true, &reaped, error);
    }
    pthread_mutex_unlock(&sink->lock);
    return status;
}

wherry_status wh_chunk_sink_open_slot(wh_chunk_sink *sink, uint64_t length, wh_landing *landing, wherry_error *error) {
    wh_slot *slot;
    wherry_status status = reap(sink, error);
    if (status == WHERRY_OK) {
        status = wh_stage_take(&sink->stage, &slot, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    slot->chunk = landing->chunk;
    landing->slot = slot;
    landing->staged = true;
    wh_segments_clear(&landing->segments);
    return wh_segments_add(&landing->segments, slot->memory, length) ? WHERRY_OK
                                                                     : wh_fail_memory(error, "a chunk that has come");
}

/** A chunk that goes from its slot to where it belongs. */
typedef struct delivery {
    wh_chunk_sink *sink;
    wh_slot *slot;
    wherry_status status;
    wherry_error *error;
} delivery;

static int deliver_copy(void *context, const wherry_copy *copy) {
    delivery *d = context;
    const uint8_t *from = d->slot->memory + copy->chunk_offset;
    uint8_t *to = copy->memory;
    bool device = on_device(copy->storage);
    for (uint64_t i = 0; i < copy->count && d->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * copy->chunk_stride, to + i * copy->storage_stride, copy->length};
        if (device) {
            d->status =
                wh_stage_add(&d->sink->stage, d->slot, &run, wherry_storage_device(copy->storage).index, d->error);
        } else {
            memcpy(run.to, run.from, run.length);
        }
    }
    return d->status != WHERRY_OK;
}

wherry_status wh_chunk_sink_close_slot(wh_chunk_sink *sink, wh_landing *landing, wh_chunk_state state,
                                       wherry_error *error) {
    wh_slot *slot = landing->slot;
    landing->slot = NULL;
    if (state != WH_CHUNK_LANDED) {
        wh_chunk_sink_note(sink, landing->chunk, state);
        wh_stage_give(&sink->stage, slot);
        return WHERRY_OK;
    }
    delivery d = {.sink = sink, .slot = slot, .status = WHERRY_OK, .error = error};
    wherry_plan_visit_chunk(sink->plan, landing->chunk, deliver_copy, &d);
    if (d.status == WHERRY_OK) {
        d.status = wh_stage_copy(&sink->stage, slot, error);
    }
    if (d.status == WHERRY_OK) {
        pthread_mutex_lock(&sink->lock);
        slot->next = NULL;
        *sink->flying_end = slot;
        sink->flying_end = &slot->next;
        pthread_mutex_unlock(&sink->lock);
    }
    return d.status;
}

/* ---- straight ---- */

/** The routes of a chunk, which the origin's segments lead to. */
typedef struct routing {
    wh_routes *routes;
    bool by_position; /**< Nobody asks for addresses: a chunk's bytes come in their order. */
    bool failed;
} routing;

static bool add_route(wh_routes *routes, uint64_t from, char *to, uint64_t length, int32_t device) {
    wh_route *last = routes->count ? routes->items + routes->count - 1 : NULL;
    routes->bytes += length;
    if (last && last->device == device && last->from + last->length == from && (char *)last->to + last->length == to) {
        last->length += length;
        return true;
    }
    if (!WH_GROW(routes->items, routes->capacity, routes->count)) {
        return false;
    }
    routes->items[routes->count++] = (wh_route){from, to, length, device};
    return true;
}

/** The last segment that begins at or before a position of the chunk. */
static size_t find_segment(const wh_routes *routes, uint64_t position) {
    size_t low = 0;
    size_t high = routes->origin.count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (routes->begins[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int route_copy(void *context, const wherry_copy *copy) {
    routing *r = context;
    const wh_segments *origin = &r->routes->origin;
    char *to = copy->memory;
    int32_t device = on_device(copy->storage) ? wherry_storage_device(copy->storage).index : -1;
    for (uint64_t i = 0; i < copy->count && !r->failed; i++) {
        uint64_t position = copy->chunk_offset + i * copy->chunk_stride;
        if (r->by_position) {
            r->failed =
                !add_route(r->routes, r->routes->span + position, to + i * copy->storage_stride, copy->length, device);
            continue;
        }
        size_t at = find_segment(r->routes, position);
        for (uint64_t done = 0; done < copy->length && !r->failed; at++) {
            uint64_t into = position + done - r->routes->begins[at];
            uint64_t part = wh_min(copy->length - done, origin->items[at].iov_len - into);
            uint64_t from = (uint64_t)(uintptr_t)origin->items[at].iov_base + into;
            r->failed = !add_route(r->routes, from, to + i * copy->storage_stride + done, part, device);
            done += part;
        }
    }
    return r->failed;
}

/** Where the runs of a chunk lie at the source, and at which of its bytes each begins. */
static wherry_status find_origin(const wh_chunk_sink *sink, uint64_t chunk, wh_routes *routes, wherry_error *error) {
    wherry_status status = wh_origin_gather(sink->plan->prepared, sink->bases, chunk, &routes->origin, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (!WH_RESERVE(routes->begins, routes->begin_capacity, routes->origin.count)) {
        return wh_fail_memory(error, "the routes of a chunk");
    }
    uint64_t begin = 0;
    for (size_t i = 0; i < routes->origin.count; i++) {
        routes->begins[i] = begin;
        begin += routes->origin.items[i].iov_len;
    }
    return WHERRY_OK;
}

wherry_status wh_chunk_sink_route(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error) {
    wh_chunk_sink *sink = context;
    uint64_t begin_there;
    uint64_t length;
    wherry_status status = wh_chunk_sink_admit(sink, chunk, error);
    if (status == WHERRY_OK && sink->bases) {
        status = find_origin(sink, chunk, routes, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_prepared_chunk(sink->plan->prepared, chunk, &begin_there, &length);
    routing r = {routes, !sink->bases, false};
    wherry_plan_visit_chunk(sink->plan, chunk, route_copy, &r);
    routes->span += length;
    return r.failed ? wh_fail_memory(error, "the routes of a chunk") : WHERRY_OK;
}

wherry_status wh_chunk_sink_arrived(void *context, uint64_t chunk, wherry_error *error) {
    wh_chunk_sink *sink = context;
    (void)error;
    wh_chunk_sink_note(sink, chunk, WH_CHUNK_LANDED);
    return WHERRY_OK;
}
