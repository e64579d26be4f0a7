/*
 * Blocks. The table moves them with put and get. Without put and get, this file moves them in
 * frames.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/cache_copy.h"
#include "base/checked.h"
#include "base/error.h"
#include "group/callback/callback_internal.h"

/* ---- tables with put and get ---- */

/** A block in flight. */
typedef struct table_block {
    /** The handle that the table's put, put_runs or get returned in *operation_p. */
    void *operation;
    /**
     * The peer's incarnation when the block began. If the table reports the rank as lost, this
     * incarnation is lost.
     */
    uint64_t incarnation;
} table_block;

/**
 * Handles a result of the table. If the table reports a rank as lost, all waits for that rank fail.
 */
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

/** The arguments of get, put or put_runs. */
typedef struct beginning {
    const char *function; /**< The name of the function, for errors. */
    bool into;            /**< True for get. */
    void *bytes;
    size_t size;
    const struct iovec *runs; /**< The runs for put_runs; NULL for put and get. */
    size_t count;             /**< Number of runs. */
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
 * The receiver sends CREDIT frames to allow a number of bytes. The source sends the bytes in PIECE
 * frames.
 *
 * 1. A source sends no byte without credit. So each piece finds its get, unless the get was
 *    abandoned, and at most WINDOW bytes per channel are in flight.
 * 2. The puts of a channel are sent in the order in which they began. Its gets are filled in the
 *    order in which they began.
 * 3. The reader writes to the memory of a get only while it holds the lock and the get is in the
 *    list. So it does not access the memory after abandon has returned.
 * 4. put, get, finish and abandon send frames. The reader sends none, because it is inside the
 *    table's receive.
 * 5. Only one thread at a time works on a channel. The lock protects against the reader.
 */

enum {
    WINDOW = 8 << 20, /* maximum credit; enough to keep the table busy until the next CREDIT */
    /*
     * push returns after it has sent this many bytes, so that finish can check the deadline and
     * read
     */
    TURN = 2 << 20,
    /* maximum number of flows per rank that CREDIT frames create, which limits the memory */
    FLOWS_MAX = 1024,
    /* maximum credit that a source accepts, more than an honest receiver ever allows */
    CREDIT_MAX = 1 << 30,
};

struct wh_emulated_block {
    wh_emulated_block *next;
    int32_t rank;
    uint64_t incarnation; /* the peer's incarnation when the block began */
    uint32_t channel;
    bool is_get;
    bool broken; /* for a get: a PIECE arrived that does not match it */
    uint8_t *bytes;
    size_t size;
    size_t moved;
    uint8_t *frame; /* for a put: the buffer for PIECE frames */
};

struct wh_flow {
    uint32_t channel;
    bool is_get;
    uint64_t credit;    /* for puts: bytes that may be sent; for gets: bytes that may arrive */
    uint64_t uncovered; /* for gets: bytes that have no credit yet */
};

/* The caller of the following functions holds the lock. */

static wh_flow *find_flow(wh_callback_peer *peer, uint32_t channel, bool is_get) {
    for (size_t i = 0; i < peer->flow_count; i++) {
        if (peer->flows[i].channel == channel && peer->flows[i].is_get == is_get) {
            return peer->flows + i;
        }
    }
    return NULL;
}

/** Like find_flow, but adds the flow if needed. @return NULL if out of memory. */
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

/** Returns the oldest block of a channel that has not moved completely. */
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
        return; /* The piece belongs to a transfer that has failed. */
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
 * Sends credit to the source if at least half of the window is free. If the table cannot send now,
 * finish tries again.
 */
static wherry_status allow(wh_callback *callback, int32_t rank, const wh_emulated_block *block, wherry_error *error) {
    wh_callback_peer *peer = callback->peers + rank;
    wherry_error latest;
    uint8_t bytes[WH_CALLBACK_HEADER_BYTES];
    pthread_mutex_lock(&callback->lock);
    wh_flow *flow = find_flow(peer, block->channel, true);
    uint64_t more = flow && flow->credit <= WINDOW / 2 ? wh_min(flow->uncovered, WINDOW - flow->credit) : 0;
    if (more) { /* Count the credit before CREDIT is sent, because a PIECE may arrive at once. */
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

/**
 * Sends pieces of the oldest puts of a channel. Stops once TURN bytes are sent, or if there is no
 * more credit or the table cannot send.
 */
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
        /* NULL if the receiver has withdrawn its credit. */
        wh_flow *used = find_flow(peer, channel, false);
        if (used && (used->credit -= wh_min(used->credit, length)) == 0) {
            drop_flow(peer, used);
        }
        pthread_mutex_unlock(&callback->lock);
    }
    return WHERRY_OK;
}

/** Removes a block from the list and frees it. */
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

/** Returns WHERRY_OK if a block may still move. Otherwise returns why it cannot. */
static wherry_status check_block(wh_callback *callback, int32_t rank, const wh_emulated_block *block, bool broken,
                                 wherry_error *error) {
    if (broken) {
        wherry_status status =
            wh_fail(error, WHERRY_MALFORMED, "rank %d sent bytes that do not match the expected block of %zu bytes",
                    (int)rank, block->size);
        return wh_fail_rank(error, rank, status);
    }
    WH_TRY(wh_callback_check_peer(callback, rank, block->incarnation, error));
    if (!wh_mailbox_is_present(callback->base.mailbox, rank, block->incarnation)) {
        return wh_fail_rank(error, rank, wh_fail(error, WHERRY_PEER_LOST, "rank %d was lost", (int)rank));
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
            return wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out waiting for a block", (int)rank);
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
        wh_memcpy_nontemporal(at, (const uint8_t *)runs->iov_base + skip, part);
        at += part;
        size -= part;
    }
    wh_memcpy_fence();
}
