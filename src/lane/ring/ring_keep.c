/*
 * Shared memory that a source keeps for the next transfer to the same rank: making it, page by page, takes longer than a megabyte takes to go through it. Only of
 * transfers that went well: in any other somebody else may have the memory.
 */
#include "lane/ring/ring_internal.h"

#include <unistd.h>

#include "base/fork_lock.h"
#include "group/mailbox.h"

enum { KEPT_MAX = 4 };

typedef struct kept_memory {
    wh_ring_shared *shared; /* NULL: the place is free */
    int fd;
    const wh_group *group;
    int32_t rank;
    uint64_t incarnation;
    uint32_t workers;
} kept_memory;

static kept_memory places[KEPT_MAX];
static size_t next_place; /* which is given up where all are taken */

/* The memory is not mapped in the child (MADV_DONTFORK), and not its to use. */
static void after_fork_in_child(void) {
    for (size_t i = 0; i < KEPT_MAX; i++) {
        if (places[i].shared) {
            close(places[i].fd);
        }
        places[i].shared = NULL;
    }
}

static wh_fork_lock lock = WH_FORK_LOCK(NULL, after_fork_in_child);

/* ---- under the lock ---- */

static void release(kept_memory *kept) {
    if (kept->shared) {
        wh_ring_memory_unmap(kept->shared, kept->workers);
        close(kept->fd);
        kept->shared = NULL;
    }
}

static bool is_for(const kept_memory *kept, const wh_ring_end *end, uint64_t incarnation) {
    return kept->shared && kept->group == end->site->group && kept->rank == end->site->peer &&
           kept->incarnation == incarnation && kept->workers == end->base.workers;
}

/* ---- */

/* Of the receiver: one that took its place must not get what the other may still have. Takes a lock of the group's, so not under the other. */
static uint64_t incarnation_of(const wh_ring_end *end) {
    return wh_mailbox_incarnation(end->site->group->mailbox, end->site->peer);
}

bool wh_ring_take_kept(wh_ring_end *end) {
    if (!end->site->group) {
        return false; /* nothing is kept for nobody */
    }
    uint64_t incarnation = incarnation_of(end);
    wh_fork_lock_take(&lock);
    for (size_t i = 0; i < KEPT_MAX && !end->shared; i++) {
        kept_memory *kept = places + i;
        if (is_for(kept, end, incarnation) && !atomic_load(&kept->shared->pull_closed)) {
            release(kept); /* its receiver may still write there */
        } else if (is_for(kept, end, incarnation)) {
            end->shared = kept->shared;
            end->memory = kept->fd;
            kept->shared = NULL;
        }
    }
    wh_fork_lock_give(&lock);
    if (end->shared) {
        wh_ring_memory_reset(end);
    }
    return end->shared;
}

bool wh_ring_keep(wh_ring_end *end) {
    bool worth = end->site->group && end->shared && atomic_load(&end->admitted) && !atomic_load(&end->failed);
    if (!worth) {
        return false;
    }
    uint64_t incarnation = incarnation_of(end);
    wh_fork_lock_take(&lock);
    kept_memory *place = NULL;
    for (size_t i = 0; i < KEPT_MAX; i++) {
        place = !place && !places[i].shared ? places + i : place;
    }
    if (!place) {
        place = places + next_place;
        next_place = (next_place + 1) % KEPT_MAX;
        release(place);
    }
    *place = (kept_memory){end->shared, end->memory, end->site->group, end->site->peer, incarnation, end->base.workers};
    wh_fork_lock_give(&lock);
    end->shared = NULL;
    end->memory = -1;
    return true;
}

void wh_ring_forget(const wh_group *group, int32_t rank, bool lost) {
    (void)lost;
    wh_fork_lock_take(&lock);
    for (size_t i = 0; i < KEPT_MAX && group; i++) {
        if (places[i].shared && places[i].group == group && (rank < 0 || places[i].rank == rank)) {
            release(places + i);
        }
    }
    wh_fork_lock_give(&lock);
}
