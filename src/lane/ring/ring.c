#include "lane/ring/ring_internal.h"

#include <unistd.h>

#include "base/alloc.h"
#include "lane/lanes.h"

/* The other side may be asleep: it looks again, and finds that nobody is left. */
static void say_closed(wh_ring_end *end) {
    atomic_store(end->pushes ? &end->shared->push_closed : &end->shared->pull_closed, 1);
    wh_ring_wake(&end->shared->answered);
    for (uint32_t i = 0; i < end->base.workers; i++) {
        wh_ring_wake(end->pushes ? &end->shared->rings[i].head : &end->shared->rings[i].tail);
    }
}

static void ring_close(wh_lane_end *base) {
    wh_ring_end *end = wh_ring_end_of(base);
    if (!end) {
        return;
    }
    if (end->shared) {
        say_closed(end);
    }
    wh_ring_memory_close(end);
    if (end->socket >= 0) {
        close(end->socket);
    }
    pthread_mutex_destroy(&end->lock);
    wh_free(end);
}

const wh_lane_ops wh_lane_ring = {
    .name = "ring",
    .traits = WH_LANE_DIGESTS | WH_LANE_STAGES,
    .offer = wh_ring_offer,
    .probe = wh_ring_probe,
    .accept = wh_ring_accept,
    .pull = wh_ring_pull,
    .push = wh_ring_push,
    .close = ring_close,
};
