/* Reads chunks back from the memory that a plan would write to. */
#include <string.h>

#include "base/alloc.h"
#include "plan/plan.h"
#include "state/tensor.h"

static int gather_copy(void *context, const wherry_copy *copy) {
    wh_gathered *g = context;
    const char *from = copy->memory;
    g->unsure = g->unsure || wherry_storage_device(copy->storage).kind != WHERRY_DEVICE_CPU || !from;
    for (uint64_t i = 0; i < copy->count && !g->unsure; i++) {
        uint64_t at = copy->chunk_offset + i * copy->chunk_stride;
        g->unsure = memchr(g->covered + at, 1, copy->length) != NULL;
        memset(g->covered + at, 1, copy->length);
        memcpy(g->bytes + at, from + i * copy->storage_stride, copy->length);
        g->found += copy->length;
    }
    return g->unsure;
}

/** Finds the run of memory that has a whole chunk. This is the usual case, and needs no copy. */
static int find_run(void *context, const wherry_copy *copy) {
    struct iovec *run = context;
    bool whole = !run->iov_base && copy->count == 1 && copy->chunk_offset == 0 && copy->length == run->iov_len &&
                 wherry_storage_device(copy->storage).kind == WHERRY_DEVICE_CPU;
    run->iov_base = whole ? copy->memory : NULL;
    return !whole;
}

bool wh_plan_gather(const wherry_plan *plan, uint64_t chunk, wh_gathered *g, struct iovec *run_p) {
    g->length = wh_prepared_chunk_length(plan->prepared, chunk);
    *run_p = (struct iovec){NULL, g->length};
    if (wherry_plan_visit_chunk(plan, chunk, find_run, run_p) == 0 && run_p->iov_base) {
        return true;
    }
    if (!wh_reserve((void **)&g->bytes, &g->room, g->length, 1) ||
        !wh_reserve((void **)&g->covered, &g->covered_room, g->length, 1)) {
        return false;
    }
    memset(g->covered, 0, g->length);
    g->found = 0;
    g->unsure = false;
    wherry_plan_visit_chunk(plan, chunk, gather_copy, g);
    *run_p = (struct iovec){g->bytes, g->length};
    return !g->unsure && g->found == g->length;
}

void wh_gathered_destroy(wh_gathered *gathered) {
    wh_free(gathered->bytes);
    wh_free(gathered->covered);
    *gathered = (wh_gathered){0};
}
