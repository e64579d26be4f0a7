#include "transfer/fetch.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "state/prepare.h"

enum { AHEAD_MIN = 8, AHEAD_MAX = 24 };

wherry_status wh_fetch_init(wh_fetch *fetch, const wh_source *source, const wh_chunk_set *list, uint32_t workers,
                            const wh_stop *stop, wh_deadline deadline, wherry_error *error) {
    *fetch = (wh_fetch){.source = source, .list = list};
    fetch->slots = wh_alloc_zeroed(list->total, sizeof(wh_slot *));
    if (!fetch->slots) {
        return wh_fail_memory(error, "fetching from a device");
    }
    fetch->ahead = wh_min(wh_max(2 * (uint64_t)workers, AHEAD_MIN), AHEAD_MAX);
    pthread_mutex_init(&fetch->lock, NULL);
    wh_stage_init(&fetch->stage, __builtin_ctzll(source->devices), wh_space_chunk_max(&source->prepared->space), stop,
                  deadline);
    return WHERRY_OK;
}

void wh_fetch_destroy(wh_fetch *fetch) {
    if (wh_fetch_exists(fetch)) {
        wh_stage_destroy(&fetch->stage);
        wh_free(fetch->slots);
        pthread_mutex_destroy(&fetch->lock);
        *fetch = (wh_fetch){0};
    }
}

/** A chunk that is being laid out in a slot. */
typedef struct layout {
    wh_fetch *fetch;
    wh_slot *slot;
    uint64_t at;
    wherry_status status;
    wherry_error *error;
} layout;

static int add_piece(void *context, const wh_piece *piece) {
    layout *l = context;
    const wherry_storage *storage = l->fetch->source->prepared->storages[piece->storage];
    const char *from = (const char *)wherry_storage_data(storage) + piece->offset;
    for (uint64_t i = 0; i < piece->count && l->status == WHERRY_OK; i++) {
        wh_cuda_run run = {from + i * piece->stride, l->slot->memory + l->at, piece->length};
        l->status = wh_stage_add(&l->fetch->stage, l->slot, &run, wherry_storage_device(storage).index, l->error);
        l->at += piece->length;
    }
    return l->status != WHERRY_OK;
}

/** Begins the next chunk; under the lock. */
static wherry_status begin_next(wh_fetch *fetch, wherry_error *error) {
    const wherry_prepared *prepared = fetch->source->prepared;
    uint64_t chunk = wh_chunk_set_at(fetch->list, fetch->begun);
    uint64_t begin;
    uint64_t length;
    wh_slot *slot;
    wherry_status status = wh_stage_take(&fetch->stage, &slot, error);
    if (status != WHERRY_OK) {
        return status;
    }
    fetch->slots[fetch->begun++] = slot;
    slot->chunk = chunk;
    wherry_prepared_chunk(prepared, chunk, &begin, &length);
    layout l = {.fetch = fetch, .slot = slot, .status = WHERRY_OK, .error = error};
    wh_space_visit(&prepared->space, begin, begin + length, add_piece, &l);
    return l.status == WHERRY_OK ? wh_stage_copy(&fetch->stage, slot, error) : l.status;
}

wherry_status wh_fetch_gather(wh_fetch *fetch, uint64_t chunk, wh_segments *segments, wherry_error *error) {
    uint64_t place = wh_chunk_set_find(fetch->list, chunk);
    uint64_t begin;
    uint64_t length;
    pthread_mutex_lock(&fetch->lock);
    /* a slot that was begun in vain has no ticket to wait for */
    wherry_status status = fetch->failure.status;
    while (status == WHERRY_OK && fetch->begun < fetch->list->total &&
           (fetch->begun <= place || fetch->begun - fetch->done < fetch->ahead)) {
        status = begin_next(fetch, &fetch->failure);
    }
    if (status != WHERRY_OK) {
        fetch->failure.status = status;
        if (error) {
            *error = fetch->failure;
        }
    }
    wh_slot *slot = fetch->slots[place];
    pthread_mutex_unlock(&fetch->lock);
    if (status == WHERRY_OK) {
        status = wh_stage_wait(&fetch->stage, slot, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_prepared_chunk(fetch->source->prepared, chunk, &begin, &length);
    wh_segments_clear(segments);
    return wh_segments_add(segments, slot->memory, length) ? WHERRY_OK : wh_fail_memory(error, "a chunk's segments");
}

void wh_fetch_done(wh_fetch *fetch, uint64_t chunk) {
    uint64_t place = wh_chunk_set_find(fetch->list, chunk);
    pthread_mutex_lock(&fetch->lock);
    wh_slot *slot = place < fetch->begun ? fetch->slots[place] : NULL;
    if (slot) {
        fetch->slots[place] = NULL;
        fetch->done++;
        wh_stage_give(&fetch->stage, slot);
    }
    pthread_mutex_unlock(&fetch->lock);
}
