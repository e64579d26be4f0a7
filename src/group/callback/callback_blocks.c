/* Blocks: moved by the table without copies, or by the library for a table without put and get. */
#include <string.h>

#include "base/alloc.h"
#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"
#include "group/callback/callback_internal.h"

/* ---- tables with put and get ---- */

/** A block under way. */
typedef struct table_block {
    void *operation; /**< The table's. */
    /** Of the peer when the block began: a loss that shows later concerns this one. */
    uint64_t incarnation;
} table_block;

/** Handles a result of the table. Fails everybody who waits for a rank that it reports as lost. */
static wherry_status settle(wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                            uint64_t incarnation, wherry_error *latest, wherry_error *error) {
    if (status == WHERRY_OK) {
        return status;
    }
    status = wh_callback_settle(callback, status, function, rank, latest);
    if (status == WHERRY_PEER_LOST) {
        wh_mailbox_lose(callback->base.mailbox, rank, incarnation, latest->message);
    }
    if (error) {
        *error = *latest;
    }
    return status;
}

/** A block to begin, by get, put, or put_runs if there are runs. */
typedef struct beginning {
    const char *function; /**< Its name, for errors. */
    bool into;
    void *bytes;
    size_t size;
    const struct iovec *runs; /**< Of put_runs, */
    size_t count;             /**< and how many. */
} beginning;

static wherry_status call(wh_callback *callback, const beginning *what, int32_t rank, uint32_t channel,
                          void **operation_p, wherry_error *error) {
    const wherry_group_ops *ops = &callback->ops;
    if (what->runs) {
        return ops->put_runs(callback->context, rank, channel, what->runs, what->count, operation_p, error);
    }
    return what->into ? ops->get(callback->context, rank, channel, what->bytes, what->size, operation_p, error)
                      : ops->put(callback->context, rank, channel, what->bytes, what->size, operation_p, error);
}

static wherry_status begin(wh_callback *callback, const beginning *what, int32_t rank, uint32_t channel,
                           void **operation_p, wherry_error *error) {
    wherry_error latest;
    wherry_status status = wh_callback_check_peer(callback, rank, 0, error);
    table_block *begun = status == WHERRY_OK ? wh_alloc(sizeof(*begun)) : NULL;
    if (!begun) {
        return status == WHERRY_OK ? wh_fail_memory(error, "a block") : status;
    }
    pthread_mutex_lock(&callback->lock);
    begun->incarnation = callback->peers[rank].incarnation;
    pthread_mutex_unlock(&callback->lock);
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    status = call(callback, what, rank, channel, &begun->operation, &latest);
    wh_callback_leave(callback);
    status = settle(callback, status, what->function, rank, begun->incarnation, &latest, error);
    if (status == WHERRY_OK) {
        *operation_p = begun;
    } else {
        wh_free(begun);
    }
    return status;
}

wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "put", .bytes = (void *)bytes, .size = size}, rank,
                 channel, operation_p, error);
}

wherry_status wh_callback_put_runs(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs,
                                   size_t count, void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "put_runs", .runs = runs, .count = count}, rank,
                 channel, operation_p, error);
}

wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    return begin((wh_callback *)group, &(beginning){.function = "get", .into = true, .bytes = bytes, .size = size},
                 rank, channel, operation_p, error);
}

wherry_status wh_callback_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    table_block *begun = operation;
    wherry_error latest;
    wh_fail(&latest, WHERRY_OK, "%s", "");
    wh_callback_enter(callback);
    wherry_status status = callback->ops.finish(callback->context, begun->operation, timeout_ms, &latest);
    wh_callback_leave(callback);
    bool gone = status != WHERRY_TIMED_OUT;
    status = settle(callback, status, "finish", rank, begun->incarnation, &latest, error);
    if (gone) {
        wh_free(begun);
    }
    return status;
}

bool wh_callback_abandon_block(wh_group *group, void *operation) {
    wh_callback *callback = (wh_callback *)group;
    table_block *begun = operation;
    wh_callback_enter(callback);
    bool released = callback->ops.abandon(callback->context, begun->operation);
    wh_callback_leave(callback);
    wh_free(begun);
    return released;
}

/*
 * ---- tables without put and get ----
 *
 * The receiver of blocks allows bytes by CREDIT frames, and the source sends them in PIECE frames.
 *
 * 1. A source sends no byte without credit. So a piece finds the get that it is for, and no more
 *    than WINDOW bytes per channel are between the ranks.
 * 2. The puts of a channel are sent, and its gets filled, in the order in which they were begun.
 * 3. The reader writes to the memory of a get under the lock, and only while the get is listed. So
 *    it is not touched once abandon has returned.
 * 4. Frames are sent by put, get, finish and abandon, never by the reader, which is inside the
 *    table's receive.
 * 5. One thread at a time works on a channel; the lock is for the reader.
 */

enum {
    WINDOW = 8 << 20, /* enough to keep the table busy while credit travels */
    /* per call of finish, so that a slow receiver does not hold up the others */
    TURN = 2 << 20,
    FLOWS_MAX = 1024,     /* per rank: a peer cannot make this process take more memory */
    CREDIT_MAX = 1 << 30, /* no honest receiver allows as much */
};

struct wh_emulated_block {
    wh_emulated_block *next;
    int32_t rank;
    uint64_t incarnation; /* of the peer, when the block was begun */
    uint32_t channel;
    bool is_get;
    bool broken; /* of a get: what came for it was not what it waits for */
    uint8_t *bytes;
    size_t size;
    size_t moved;
    uint8_t *frame; /* of a put: where a piece is made ready */
};

struct wh_flow {
    uint32_t channel;
    bool is_get;
    uint64_t credit;    /* bytes that may be sent, or that may come */
    uint64_t uncovered; /* of gets: bytes without credit */
};

/* The following four: the lock is held. */

static wh_flow *find_flow(wh_callback_peer *peer, uint32_t channel, bool is_get) {
    for (size_t i = 0; i < peer->flow_count; i++) {
        if (peer->flows[i].channel == channel && peer->flows[i].is_get == is_get) {
            return peer->flows + i;
        }
    }
    return NULL;
}

/** @return NULL if there is no memory. */
static wh_flow *need_flow(wh_callback_peer *peer, uint32_t channel, bool is_get) {
    wh_flow *flow = find_flow(peer, channel, is_get);
    if (!flow && WH_GROW(peer->flows, peer->flow_capacity, peer->flow_count)) {
        flow = peer->flows + peer->flow_count++;
        *flow = (wh_flow){.channel = channel, .is_get = is_get};
    }
    return flow;
}

static void drop_flow(wh_callback_peer *peer, wh_flow *flow) {
    *flow = peer->flows[--peer->flow_count];
}

/** The oldest block of a channel that has not moved. */
static wh_emulated_block *find_block(const wh_callback_peer *peer, uint32_t channel, bool is_get) {
    wh_emulated_block *block = peer->blocks;
    while (block && (block->channel != channel || block->is_get != is_get || block->moved == block->size)) {
        block = block->next;
    }
    return block;
}

void wh_emulated_forget(wh_callback_peer *peer) {
    wh_free(peer->flows);
    peer->flows = NULL;
    peer->flow_count = peer->flow_capacity = 0;
}

static bool take_credit(wh_callback_peer *peer, uint32_t channel, uint64_t bytes) {
    wh_flow *flow =
        bytes && peer->flow_count < FLOWS_MAX ? need_flow(peer, channel, false) : find_flow(peer, channel, false);
    if (!flow) {
        return !bytes || peer->flow_count >= FLOWS_MAX;
    }
    if (bytes) {
        flow->credit = wh_min(flow->credit + bytes, CREDIT_MAX);
    } else {
        drop_flow(peer, flow);
    }
    return true;
}

static void take_piece(wh_callback_peer *peer, const wh_callback_frame *frame) {
    wh_emulated_block *block = find_block(peer, (uint32_t)frame->tag, true);
    wh_flow *flow = find_flow(peer, (uint32_t)frame->tag, true);
    if (!block || !flow || block->incarnation != frame->from) {
        return; /* what is left of a transfer that failed */
    }
    if (frame->total != block->size || frame->offset != block->moved || frame->size > flow->credit) {
        block->broken = true;
        return;
    }
    memcpy(block->bytes + block->moved, frame->bytes, frame->size);
    block->moved += frame->size;
    flow->credit -= frame->size;
    if (!flow->credit && !flow->uncovered) {
        drop_flow(peer, flow);
    }
}

bool wh_emulated_take(wh_callback *callback, int32_t rank, const wh_callback_frame *frame) {
    wh_callback_peer *peer = callback->peers + rank;
    if (frame->kind == WH_CALLBACK_CREDIT) {
        return take_credit(peer, (uint32_t)frame->tag, frame->total);
    }
    take_piece(peer, frame);
    return true;
}

/**
 * Allows the source more bytes if at least half of the window is free. What the table does not take
 * now is tried again by finish.
 */
static wherry_status allow(wh_callback *callback, int32_t rank, const wh_emulated_block *block, wherry_error *error) {
    wh_callback_peer *peer = callback->peers + rank;
    wherry_error latest;
    uint8_t bytes[WH_CALLBACK_HEADER_BYTES];
    pthread_mutex_lock(&callback->lock);
    wh_flow *flow = find_flow(peer, block->channel, true);
    uint64_t more = flow && flow->credit <= WINDOW / 2 ? wh_min(flow->uncovered, WINDOW - flow->credit) : 0;
    if (more) { /* before it is said: the answer may come at once */
        flow->credit += more;
        flow->uncovered -= more;
    }
    pthread_mutex_unlock(&callback->lock);
    if (!more) {
        return WHERRY_OK;
    }
    wh_callback_frame frame = {.kind = WH_CALLBACK_CREDIT,
                               .from = callback->incarnation,
                               .to = block->incarnation,
                               .tag = block->channel,
                               .total = more};
    wh_callback_frame_write(&frame, bytes);
    wherry_status status = wh_callback_send_block(callback, rank, bytes, sizeof(bytes), 0, &latest);
    if (status != WHERRY_TIMED_OUT) {
        return settle(callback, status, "send", rank, block->incarnation, &latest, error);
    }
    pthread_mutex_lock(&callback->lock);
    flow = find_flow(peer, block->channel, true);
    if (flow) {
        flow->credit -= more;
        flow->uncovered += more;
    }
    pthread_mutex_unlock(&callback->lock);
    return WHERRY_OK;
}

/** Sends pieces of the oldest puts of a channel while there is credit and the table takes them. */
static wherry_status push(wh_callback *callback, int32_t rank, uint32_t channel, wh_deadline deadline,
                          wherry_error *error) {
    wh_callback_peer *peer = callback->peers + rank;
    for (size_t sent = 0, length; sent < TURN; sent += length) {
        wherry_error latest;
        pthread_mutex_lock(&callback->lock);
        wh_emulated_block *block = find_block(peer, channel, false);
        const wh_flow *flow = find_flow(peer, channel, false);
        uint64_t credit = flow ? flow->credit : 0;
        pthread_mutex_unlock(&callback->lock);
        length = block ? wh_min(wh_min(block->size - block->moved, callback->ops.max_block - WH_CALLBACK_HEADER_BYTES),
                                credit)
                       : 0;
        if (!length) {
            return WHERRY_OK;
        }
        wh_callback_frame frame = {.kind = WH_CALLBACK_PIECE,
                                   .from = callback->incarnation,
                                   .to = block->incarnation,
                                   .tag = channel,
                                   .total = block->size,
                                   .offset = block->moved};
        wh_callback_frame_write(&frame, block->frame);
        memcpy(block->frame + WH_CALLBACK_HEADER_BYTES, block->bytes + block->moved, length);
        wh_deadline step = wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_CALLBACK_STEP_MS));
        wherry_status status = wh_callback_send_block(callback, rank, block->frame, WH_CALLBACK_HEADER_BYTES + length,
                                                      (uint32_t)wh_deadline_poll_ms(step), &latest);
        if (status != WHERRY_OK) {
            return status == WHERRY_TIMED_OUT
                       ? WHERRY_OK
                       : settle(callback, status, "send", rank, block->incarnation, &latest, error);
        }
        pthread_mutex_lock(&callback->lock);
        block->moved += length;
        wh_flow *used = find_flow(peer, channel, false); /* the receiver may have taken it back */
        if (used && (used->credit -= wh_min(used->credit, length)) == 0) {
            drop_flow(peer, used);
        }
        pthread_mutex_unlock(&callback->lock);
    }
    return WHERRY_OK;
}

/** Takes a block off the list and frees it. */
static void remove_block(wh_callback *callback, wh_emulated_block *block) {
    pthread_mutex_lock(&callback->lock);
    wh_emulated_block **at = &callback->peers[block->rank].blocks;
    while (*at != block) {
        at = &(*at)->next;
    }
    *at = block->next;
    pthread_mutex_unlock(&callback->lock);
    wh_free(block->frame);
    wh_free(block);
}

bool wh_emulated_abandon(wh_group *group, void *operation) {
    wh_callback *callback = (wh_callback *)group;
    wh_emulated_block *block = operation;
    int32_t rank = block->rank;
    wh_callback_frame frame = {
        .kind = WH_CALLBACK_CREDIT, .from = callback->incarnation, .to = block->incarnation, .tag = block->channel};
    pthread_mutex_lock(&callback->lock);
    wh_flow *flow = find_flow(callback->peers + rank, block->channel, block->is_get);
    bool take_back = flow && block->is_get && flow->credit;
    if (flow) {
        drop_flow(callback->peers + rank, flow);
    }
    pthread_mutex_unlock(&callback->lock);
    remove_block(callback, block);
    if (take_back) {
        uint8_t bytes[WH_CALLBACK_HEADER_BYTES];
        wherry_error ignored;
        wh_callback_frame_write(&frame, bytes);
        wh_callback_send_block(callback, rank, bytes, sizeof(bytes), 0, &ignored);
    }
    return true;
}

static wherry_status begin_emulated(wh_callback *callback, int32_t rank, const wh_emulated_block *what,
                                    void **operation_p, wherry_error *error) {
    wh_callback_peer *peer = callback->peers + rank;
    WH_TRY(wh_callback_check_peer(callback, rank, 0, error));
    wh_emulated_block *block = wh_alloc(sizeof(*block));
    size_t room = wh_min(what->size, callback->ops.max_block - WH_CALLBACK_HEADER_BYTES);
    uint8_t *frame = block && !what->is_get ? wh_alloc(WH_CALLBACK_HEADER_BYTES + room) : NULL;
    if (!block || (!what->is_get && !frame)) {
        wh_free(block);
        return wh_fail_memory(error, "a block");
    }
    *block = *what;
    block->rank = rank;
    block->frame = frame;
    pthread_mutex_lock(&callback->lock);
    block->incarnation = peer->incarnation;
    wh_flow *flow = what->is_get ? need_flow(peer, what->channel, true) : NULL;
    bool listed = flow || !what->is_get;
    if (listed) {
        wh_emulated_block **at = &peer->blocks;
        while (*at) {
            at = &(*at)->next;
        }
        *at = block;
    }
    if (flow) {
        flow->uncovered += what->size;
    }
    pthread_mutex_unlock(&callback->lock);
    if (!listed) {
        wh_free(frame);
        wh_free(block);
        return wh_fail_memory(error, "a block");
    }
    wherry_status status = what->is_get ? allow(callback, rank, block, error)
                                        : push(callback, rank, what->channel, wh_deadline_in_ms(0), error);
    if (status != WHERRY_OK) {
        wh_emulated_abandon(&callback->base, block);
        return status;
    }
    *operation_p = block;
    return WHERRY_OK;
}

wherry_status wh_emulated_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    wh_emulated_block put = {.channel = channel, .bytes = (void *)bytes, .size = size};
    return begin_emulated((wh_callback *)group, rank, &put, operation_p, error);
}

wherry_status wh_emulated_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error) {
    wh_emulated_block get = {.channel = channel, .is_get = true, .bytes = bytes, .size = size};
    return begin_emulated((wh_callback *)group, rank, &get, operation_p, error);
}

/** Why a block will never move; WHERRY_OK if it may. */
static wherry_status check_block(wh_callback *callback, int32_t rank, const wh_emulated_block *block, bool broken,
                                 wherry_error *error) {
    if (broken) {
        wherry_status status =
            wh_fail(error, WHERRY_MALFORMED, "rank %d sent bytes that do not belong to the block of %zu bytes",
                    (int)rank, block->size);
        return wh_fail_rank(error, rank, status);
    }
    WH_TRY(wh_callback_check_peer(callback, rank, block->incarnation, error));
    if (!wh_mailbox_is_present(callback->base.mailbox, rank, block->incarnation)) {
        return wh_fail_rank(error, rank, wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost", (int)rank));
    }
    return WHERRY_OK;
}

wherry_status wh_emulated_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error) {
    wh_callback *callback = (wh_callback *)group;
    wh_emulated_block *block = operation;
    wh_deadline deadline = wh_deadline_in_ms(timeout_ms);
    for (bool last = false;; last = wh_deadline_passed(deadline)) {
        wherry_status status =
            block->is_get ? allow(callback, rank, block, error) : push(callback, rank, block->channel, deadline, error);
        pthread_mutex_lock(&callback->lock);
        bool moved = block->moved == block->size;
        bool broken = block->broken;
        pthread_mutex_unlock(&callback->lock);
        if (status == WHERRY_OK && !moved) {
            status = check_block(callback, rank, block, broken, error);
        }
        if (status == WHERRY_OK && !moved && last) {
            return wh_fail(error, WHERRY_TIMED_OUT, "rank %d: a block has not moved yet", (int)rank);
        }
        if (status == WHERRY_OK && !moved) {
            status = wh_callback_read(callback, deadline, true, error);
            if (status != WHERRY_OK) {
                wh_mailbox_close(callback->base.mailbox);
            }
        }
        if (status != WHERRY_OK) {
            wh_emulated_abandon(group, block);
            return status;
        }
        if (moved) {
            remove_block(callback, block);
            return WHERRY_OK;
        }
    }
}

void wherry_group_copy_runs(void *to, const struct iovec *runs, size_t skip, size_t size) {
    uint8_t *at = to;
    for (; size; runs++, skip = 0) {
        size_t part = wh_min(runs->iov_len - skip, size);
        wh_copy_nontemporal(at, (const uint8_t *)runs->iov_base + skip, part);
        at += part;
        size -= part;
    }
    wh_copy_fence();
}
