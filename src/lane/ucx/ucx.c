/*
 * The ucx lane: moves chunks over the transports that UCX finds between two hosts.
 *
 * A chunk travels in pieces of up to 2 MiB. A run of at least 64 KiB has its own pieces, which UCX
 * reads from the tensor. Several shorter runs are packed into one piece at the source. If the
 * destination of a piece is contiguous, UCX writes to it directly. Otherwise the receiver unpacks
 * the piece.
 *
 *     source                                    receiver
 *     offer    ---------- OFFER ------------>   probe: creates links
 *     accept   <--------- PLAN: request ------
 *     push     ---------- HELLO ------------>   pull: answer
 *              <--------- WELCOME ------------
 *              ---------- PIECE ... --------->  fetches each piece when a slot is free
 *              ---------- END --------------->
 *              <--------- ENDED --------------
 *
 * Invariants:
 * 1. The receiver does not trust the source. The sink decides which chunks are expected and how
 *    long they are.
 * 2. A receiver begins and ends pieces in the order in which the source announced them. The same
 *    holds for chunks. A digest covers the pieces in this order.
 * 3. A worker has at most WH_UCX_SLOTS pieces in flight. At most PACKED_MAX of them are packed.
 * 4. No piece is sent before WELCOME. So if the lane is refused because the receiver does not
 *    answer, no byte of a chunk has moved.
 * 5. If a round fails, its link is disconnected. When push or pull has returned, UCX does not
 *    access any tensor.
 *
 * States of a source's end (wh_ucx_meeting), for all its workers together:
 *
 *     CALLING -> MET       meet: the first WELCOME has arrived
 *     CALLING -> REFUSED   fail_meeting: a worker got no answer, and no other worker has got one
 *
 * States of a receiver's worker in a round:
 *
 *     waiting -> answered  answer: HELLO has arrived (first round only)
 *     answered -> ended    wh_ucx_receiver_message: END has arrived
 *     ended -> over        send_ended: all chunks are complete
 */
#include "lane/ucx/ucx.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/process.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"

enum {
    DIRECT_BYTES = 64 << 10, /**< Runs of at least this length are not packed. */
    /** Maximum size of a packed piece. Small pieces are slower, because each has a fixed cost. */
    PACKED_BYTES = 1 << 20,
    /** Maximum number of packed pieces in flight. More of them would not fit in the CPU cache. */
    PACKED_MAX = 3,
    HUGE_PAGE_BYTES = 2 << 20 /**< The kernel copies faster from huge pages. */
};

uint32_t wh_ucx_meet_ms = 5000;

/* ---- both sides ---- */

static uint8_t *scratch_begin(const wh_ucx_link *link) {
    return link->scratch + (size_t)(-(uintptr_t)link->scratch & (HUGE_PAGE_BYTES - 1));
}

/**
 * Takes a part of the scratch memory, WH_UCX_SLOT_BYTES bytes. Chooses the first free part, because
 * it is most likely in the CPU cache. There are as many parts as slots, so one is always free.
 * @return NULL if out of memory.
 */
static uint8_t *take_scratch(wh_ucx_link *link) {
    if (!WH_RESERVE(link->scratch, link->scratch_bytes, (size_t)WH_UCX_SLOTS * WH_UCX_SLOT_BYTES + HUGE_PAGE_BYTES)) {
        return NULL;
    }
    unsigned part = (unsigned)__builtin_ctz(~link->scratch_used);
    link->scratch_used |= 1U << part;
    return scratch_begin(link) + (size_t)part * WH_UCX_SLOT_BYTES;
}

static void give_scratch(wh_ucx_link *link, const uint8_t *part) {
    link->scratch_used &= ~(1U << (size_t)(part - scratch_begin(link)) / WH_UCX_SLOT_BYTES);
}

void wh_ucx_note_progress(wh_ucx_worker *worker) {
    worker->patience = wh_site_patience(worker->end->site);
    worker->overdue = false;
}

/**
 * True if the peer's time limit has passed. It may have passed while this process was stopped. So
 * when this function first notices that the limit has passed, it allows another WH_UCX_LAST_LOOK_MS
 * to read messages that are waiting.
 */
static bool is_given_up(wh_ucx_worker *worker) {
    if (!wh_deadline_passed(worker->patience)) {
        return false;
    }
    bool looked = worker->overdue;
    worker->overdue = true;
    worker->patience = wh_deadline_earlier(worker->end->site->deadline, wh_deadline_in_ms(WH_UCX_LAST_LOOK_MS));
    return looked || wh_deadline_passed(worker->patience);
}

static wherry_status fail_lost(const wh_ucx_worker *worker, ucs_status_t why, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    return wh_site_blame(site,
                         wh_fail(error, WHERRY_PEER_LOST, "UCX has lost rank %d: %s", (int)site->peer,
                                 worker->link->ucx->ucs_status_string(why)),
                         error);
}

wherry_status wh_ucx_check(wh_ucx_worker *worker, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    if (worker->link->lost != UCS_OK) {
        return fail_lost(worker, worker->link->lost, error);
    }
    return is_given_up(worker) ? wh_site_timed_out(site, error) : WHERRY_OK;
}

/** Lets UCX work once. @return as wh_ucx_check. */
static wherry_status progress(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_link_progress(worker->link, worker->end->site->stop);
    return wh_ucx_check(worker, error);
}

static wherry_status begin_round(wh_ucx_worker *worker, bool verify, wherry_error *error) {
    wh_ucx_note_progress(worker);
    worker->link->scratch_used = 0;
    return wh_digester_need(verify, &worker->digester, error);
}

/**
 * Stores and logs, once, which transports UCX has chosen. Call this after the peer has answered.
 */
static void note_transports(wh_ucx_worker *worker) {
    wh_ucx_end *end = worker->end;
    if (worker == end->workers && !end->detail[0]) {
        const char *transports = wh_ucx_link_transports(worker->link);
        snprintf(end->detail, sizeof(end->detail), "UCX %s over %s", worker->link->ucx->ucp_get_version_string(),
                 transports[0] ? transports : "unknown transports");
        wh_log(WHERRY_LOG_INFO, "ucx: the connection %s rank %d uses %s; workers: %u", end->is_source ? "to" : "from",
               (int)end->site->peer, end->detail, (unsigned)end->base.workers);
    }
}

/** Ends a worker's share of a round. @return status. */
static wherry_status end_share(wh_ucx_worker *worker, wherry_status status) {
    worker->link->clean = status == WHERRY_OK;
    if (status != WHERRY_OK) {
        wh_ucx_link_disconnect(worker->link);
    }
    wh_ucx_leave();
    return status;
}

/* ---- source: pieces ---- */

/** Handles a message for a source. Implements wh_ucx_message_fn. */
static bool source_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                           bool rendezvous) {
    wh_ucx_worker *worker = context;
    wh_ucx_header message;
    (void)data, (void)size, (void)rendezvous;
    if (!wh_ucx_header_read(header, header_size, worker->end->token, &message)) {
        worker->source->met = worker->source->met || message.kind == WH_UCX_WELCOME;
        worker->source->ended = worker->source->ended || message.kind == WH_UCX_ENDED;
        wh_ucx_note_progress(worker);
    }
    return false;
}

/** Returns the length of the next piece. *direct_p is true if it is one run and is not packed. */
static size_t measure_piece(const wh_run_cursor *cursor, bool *direct_p) {
    size_t first = wh_run_cursor_left(cursor);
    *direct_p = true;
    if (first >= DIRECT_BYTES) {
        return (size_t)wh_min(first, WH_UCX_PIECE_MAX);
    }
    size_t bytes = first;
    for (const struct iovec *at = cursor->at + 1; at < cursor->end && at->iov_len < DIRECT_BYTES; at++) {
        if (bytes + at->iov_len > PACKED_BYTES) {
            break;
        }
        *direct_p = false;
        bytes += at->iov_len;
    }
    return bytes;
}

/**
 * Sends the next piece of the chunk. If the piece must be packed while PACKED_MAX packed pieces are
 * in flight, sends nothing and leaves the slot free.
 */
static wherry_status send_piece(wh_ucx_worker *worker, wh_ucx_outgoing *slot, bool verify, wherry_error *error) {
    wh_ucx_source *source = worker->source;
    bool direct;
    size_t bytes = measure_piece(&source->cursor, &direct);
    const void *from = (const char *)source->cursor.at->iov_base + source->cursor.skip;
    slot->packed = NULL;
    if (direct) {
        wh_run_cursor_advance(&source->cursor, bytes);
    } else if (__builtin_popcount(worker->link->scratch_used) == PACKED_MAX) {
        return WHERRY_OK;
    } else {
        from = slot->packed = take_scratch(worker->link);
        WH_TRY_ALLOC(from, error, "a piece");
        wh_run_cursor_pack(&source->cursor, slot->packed, bytes, NULL);
    }
    wh_ucx_header header = {
        .kind = WH_UCX_PIECE, .chunk = source->chunk, .bytes = source->segments.bytes, .offset = source->offset};
    source->offset += bytes;
    if (verify) { /* Hash before the send, so that UCX finds the bytes in the CPU cache. */
        wh_digester_add(worker->digester, from, bytes);
        if (source->offset == source->segments.bytes) {
            header.flags = WH_UCX_DIGEST;
            header.digest = wh_digester_end(worker->digester);
        }
    }
    wh_ucx_header_write(slot->header, worker->end->token, &header);
    slot->chunk = source->chunk;
    slot->bytes = bytes;
    wh_ucx_send(worker->link, &slot->operation, slot->header, from, bytes, true);
    return WHERRY_OK;
}

/**
 * True if there is a piece to send. If the current chunk was sent completely, gets the next one.
 * @return false if there are no more chunks, or if an error occurred, which is then in *status_p.
 */
static bool has_piece(wh_ucx_worker *worker, const wh_feed *feed, wherry_status *status_p, wherry_error *error) {
    wh_ucx_source *source = worker->source;
    while (source->offset == source->segments.bytes) {
        if (!feed->next(feed->context, &source->chunk)) {
            return false;
        }
        *status_p = feed->gather(feed->context, source->chunk, &source->segments, error);
        if (*status_p != WHERRY_OK) {
            return false;
        }
        source->cursor = wh_run_cursor_at(&source->segments);
        source->offset = 0;
        source->chunks += source->segments.bytes != 0;
        if (feed->verify) {
            wh_digester_begin(worker->digester);
        }
    }
    return true;
}

/** Sends pieces while slots are free. Sets *more_p to false if there are no more chunks. */
static wherry_status send_pieces(wh_ucx_worker *worker, const wh_feed *feed, bool *more_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool sent = true;
    for (wh_ucx_outgoing *slot = worker->source->slots;
         slot < worker->source->slots + WH_UCX_SLOTS && *more_p && sent && status == WHERRY_OK; slot++) {
        if (!slot->bytes) {
            *more_p = has_piece(worker, feed, &status, error);
            status = *more_p ? send_piece(worker, slot, feed->verify, error) : status;
            sent = slot->bytes;
        }
    }
    return status;
}

/** True if UCX has read all bytes of a chunk. */
static bool is_read(const wh_ucx_source *source, uint64_t chunk) {
    bool read = source->chunk != chunk || source->offset == source->segments.bytes;
    for (size_t i = 0; i < WH_UCX_SLOTS; i++) {
        read = read && !(source->slots[i].bytes && source->slots[i].chunk == chunk);
    }
    return read;
}

/** Frees the slots of pieces that were sent. *used_p is the number of slots still in use. */
static wherry_status collect_sent(wh_ucx_worker *worker, const wh_feed *feed, size_t *used_p, wherry_error *error) {
    size_t used = 0;
    for (wh_ucx_outgoing *slot = worker->source->slots; slot < worker->source->slots + WH_UCX_SLOTS; slot++) {
        if (slot->bytes && slot->operation.done) {
            if (slot->operation.status != UCS_OK) {
                return fail_lost(worker, slot->operation.status, error);
            }
            feed->moved(feed->context, slot->bytes);
            slot->bytes = 0;
            if (slot->packed) {
                give_scratch(worker->link, slot->packed);
            }
            if (is_read(worker->source, slot->chunk)) {
                wh_feed_done(feed, slot->chunk);
            }
            wh_ucx_note_progress(worker);
        }
        used += slot->bytes != 0;
    }
    *used_p = used;
    return WHERRY_OK;
}

/* ---- source: a round ---- */

/**
 * Changes the state of the end from CALLING to `wanted`. Only the first call can change the state.
 * @return true if the state is now `wanted`.
 */
static bool settle_meeting(wh_ucx_end *end, wh_ucx_meeting wanted) {
    int state = WH_UCX_CALLING;
    return atomic_compare_exchange_strong(&end->meeting, &state, wanted) || state == (int)wanted;
}

/**
 * Handles a worker that got no answer. Refuses the lane, unless another worker got an answer.
 * @param why  the error of UCX; UCS_OK if the time limit has passed.
 */
static wherry_status fail_meeting(const wh_ucx_worker *worker, ucs_status_t why, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    if (!settle_meeting(worker->end, WH_UCX_REFUSED)) {
        return fail_lost(worker, why, error);
    }
    return why == UCS_OK
               ? wh_fail(error, WHERRY_REFUSED,
                         "rank %d did not answer over UCX within %u ms; check UCX_NET_DEVICES and the firewall",
                         (int)site->peer, (unsigned)wh_ucx_meet_ms)
               : wh_fail(error, WHERRY_REFUSED, "UCX cannot reach rank %d: %s; check UCX_NET_DEVICES and the firewall",
                         (int)site->peer, worker->link->ucx->ucs_status_string(why));
}

/**
 * Sends HELLO, which has this side's address for the answer, and waits for WELCOME. If another
 * worker has got its answer, UCX reaches the receiver: then the site's limits end the wait.
 */
static wherry_status meet(wh_ucx_worker *worker, wherry_error *error) {
    wh_deadline limit = wh_deadline_in_ms(wh_ucx_meet_ms);
    bool looked = false; /* True if the extra time has begun; see is_given_up. */
    wh_ucx_link_greet(worker->link, WH_UCX_HELLO, worker->end->token);
    while (!worker->source->met) {
        wherry_status status = progress(worker, error);
        if (worker->source->met) {
            break;
        }
        if (status == WHERRY_PEER_LOST) {
            return fail_meeting(worker, worker->link->lost, error);
        }
        if (status != WHERRY_OK) {
            return status;
        }
        if (wh_deadline_passed(limit)) {
            if (looked && settle_meeting(worker->end, WH_UCX_REFUSED)) {
                return fail_meeting(worker, UCS_OK, error);
            }
            limit = looked ? wh_deadline_never() : wh_deadline_in_ms(WH_UCX_LAST_LOOK_MS);
            looked = true;
        }
    }
    wh_ucx_note_progress(worker);
    return settle_meeting(worker->end, WH_UCX_MET)
               ? WHERRY_OK
               : wh_fail(error, WHERRY_REFUSED, "UCX cannot reach rank %d", (int)worker->end->site->peer);
}

static wherry_status send_chunks(wh_ucx_worker *worker, const wh_feed *feed, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool more = true;
    size_t used = 1;
    wh_ucx_note_progress(worker);
    while (status == WHERRY_OK && (more || used)) {
        status = send_pieces(worker, feed, &more, error);
        WH_THEN(status, progress(worker, error));
        WH_THEN(status, collect_sent(worker, feed, &used, error));
    }
    /* After a stop request, the feed returns no more chunks, but the round is not complete. */
    return status == WHERRY_OK && wh_stop_requested(worker->end->site->stop) ? wh_site_cancelled(error) : status;
}

/**
 * Sends END and waits for ENDED. A receiver that has everything may close its link before ENDED
 * arrives. So a lost peer is not an error here. The conversation tells whether the receiver has
 * everything.
 */
static wherry_status send_end(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_outgoing *slot = worker->source->slots;
    wherry_status status = WHERRY_OK;
    note_transports(worker);
    wh_ucx_header_write(slot->header, worker->end->token,
                        &(wh_ucx_header){.kind = WH_UCX_END, .chunk = worker->source->chunks});
    wh_ucx_send(worker->link, &slot->operation, slot->header, NULL, 0, false);
    wh_point("ucx source sent END");
    while (status == WHERRY_OK && !worker->source->ended) {
        status = progress(worker, error);
    }
    return status == WHERRY_PEER_LOST ? WHERRY_OK : status;
}

static wherry_status ucx_push(wh_lane_end *base, uint32_t number, const wh_feed *feed, wherry_error *error) {
    wh_ucx_worker *worker = ((wh_ucx_end *)(void *)base)->workers + number;
    WH_TRY(begin_round(worker, feed->verify, error));
    wherry_status status = WHERRY_OK;
    if (!worker->link->peer) {
        return fail_lost(worker, UCS_ERR_NOT_CONNECTED, error);
    }
    wh_ucx_enter();
    worker->source->chunks = 0;
    worker->source->ended = false;
    if (!worker->source->met) {
        status = meet(worker, error);
    }
    do {
        WH_THEN(status, send_chunks(worker, feed, error));
    } while (status == WHERRY_OK && wh_feed_more(feed));
    wh_ucx_note_progress(worker);
    WH_THEN(status, send_end(worker, error));
    return end_share(worker, status);
}

/* ---- receiver: messages ---- */

/** Stores a HELLO. @return NULL on success; otherwise what the source has sent. */
static const char *take_hello(wh_ucx_receiver *receiver, const void *data, size_t size, bool rendezvous) {
    if (receiver->hello || rendezvous || size <= WH_UCX_ID_BYTES || size > WH_LANE_OFFER_MAX) {
        return "a malformed HELLO or a second HELLO";
    }
    receiver->hello = (uint8_t *)wh_text_copy(data, size);
    return receiver->hello ? NULL : "a HELLO, but this process has no memory left to store it";
}

/** Queues an announced piece. @return NULL on success; otherwise what the source has sent. */
static const char *take_piece(wh_ucx_receiver *receiver, const wh_ucx_header *header, void *data, size_t size,
                              bool rendezvous) {
    if (!receiver->hello || !rendezvous || receiver->ended) {
        return "a piece before HELLO, after END, or without rendezvous";
    }
    if (receiver->queue_count == WH_UCX_QUEUE) {
        return "too many pieces at once";
    }
    receiver->queue[(receiver->queue_first + receiver->queue_count++) % WH_UCX_QUEUE] =
        (wh_ucx_announced){*header, data, size};
    return NULL;
}

bool wh_ucx_receiver_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                             bool rendezvous) {
    wh_ucx_worker *worker = context;
    wh_ucx_receiver *receiver = worker->receiver;
    wh_ucx_header message;
    const char *wrong = wh_ucx_header_read(header, header_size, worker->end->token, &message);
    bool kept = false;
    if (wrong && !*wrong) {
        return false; /* The message belongs to an earlier transfer. */
    }
    if (!wrong && message.kind == WH_UCX_HELLO) {
        wrong = take_hello(receiver, data, size, rendezvous);
    } else if (!wrong && message.kind == WH_UCX_PIECE) {
        wrong = take_piece(receiver, &message, data, size, rendezvous);
        kept = !wrong;
    } else if (!wrong && message.kind == WH_UCX_END && !receiver->ended) {
        receiver->ended = true;
        receiver->chunks = message.chunk;
    } else if (!wrong) {
        wrong = "a message out of order";
    }
    receiver->wrong = receiver->wrong ? receiver->wrong : wrong;
    return kept;
}

static wherry_status fail_malformed(const wh_ucx_worker *worker, const char *what, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    return wh_site_blame(site, wh_fail(error, WHERRY_MALFORMED, "over UCX, rank %d sent %s", (int)site->peer, what),
                         error);
}

/* ---- receiver: pieces ---- */

static wh_ucx_arriving *arriving_at(wh_ucx_receiver *receiver, size_t number) {
    return receiver->arriving + (receiver->arriving_first + number) % (WH_UCX_SLOTS + 1);
}

/** Returns the chunk that was opened last; NULL if no chunk is arriving. */
static wh_ucx_arriving *last_arriving(wh_ucx_receiver *receiver) {
    return receiver->arriving_count ? arriving_at(receiver, receiver->arriving_count - 1) : NULL;
}

/** Checks that a piece is the next piece of its chunk. Opens the chunk for its first piece. */
static wherry_status check_piece(wh_ucx_worker *worker, const wh_sink *sink, const wh_ucx_announced *piece,
                                 wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wh_ucx_arriving *last = last_arriving(receiver);
    if (!last || last->begun == last->landing.segments.bytes) {
        /* There is room, because every open chunk has a piece in a slot, and one slot is free. */
        last = arriving_at(receiver, receiver->arriving_count);
        wherry_status status = sink->open(sink->context, piece->header.chunk, &last->landing, error);
        if (status != WHERRY_OK) {
            return wh_site_blame(worker->end->site, status, error);
        }
        last->begun = last->landed = 0;
        receiver->arriving_count++;
        receiver->cursor = wh_run_cursor_at(&last->landing.segments);
    }
    const char *wrong =
        last->landing.chunk == piece->header.chunk
            ? wh_ucx_piece_check(&piece->header, piece->bytes, last->begun, last->landing.segments.bytes, sink->verify)
            : "a piece of another chunk before the current chunk was complete";
    return wrong ? fail_malformed(worker, wrong, error) : WHERRY_OK;
}

/** Begins to receive the oldest announced piece. A slot must be free. */
static wherry_status begin_piece(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    const wh_ucx_announced *piece = receiver->queue + receiver->queue_first;
    WH_TRY(check_piece(worker, sink, piece, error));
    wh_run_cursor *cursor = &receiver->cursor;
    wh_ucx_incoming *slot = receiver->slots + (receiver->slot_first + receiver->slot_count) % WH_UCX_SLOTS;
    slot->chunk = last_arriving(receiver);
    slot->cursor = *cursor;
    slot->bytes = piece->bytes;
    slot->digest = piece->header.digest;
    slot->direct = cursor->at->iov_base && wh_run_cursor_left(cursor) >= piece->bytes;
    slot->to = slot->direct ? wh_run_cursor_here(cursor) : take_scratch(worker->link);
    WH_TRY_ALLOC(slot->to, error, "a piece");
    wh_run_cursor_advance(cursor, piece->bytes);
    slot->chunk->begun += piece->bytes;
    receiver->queue_first = (receiver->queue_first + 1) % WH_UCX_QUEUE;
    receiver->queue_count--;
    receiver->slot_count++;
    wh_ucx_receive(worker->link, &slot->operation, piece->data, slot->to, piece->bytes);
    return WHERRY_OK;
}

/** Ends the oldest piece, whose operation is done. Closes its chunk if that is complete. */
static wherry_status end_piece(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wh_ucx_incoming *slot = receiver->slots + receiver->slot_first;
    wh_ucx_arriving *chunk = slot->chunk;
    if (slot->operation.status != UCS_OK) {
        return fail_lost(worker, slot->operation.status, error);
    }
    if (sink->verify) {
        if (!chunk->landed) {
            wh_digester_begin(worker->digester);
        }
        wh_digester_add(worker->digester, slot->to, slot->bytes);
    }
    if (!slot->direct) {
        wh_run_cursor_unpack(&slot->cursor, slot->to, slot->bytes, NULL);
        give_scratch(worker->link, slot->to);
    }
    receiver->slot_first = (receiver->slot_first + 1) % WH_UCX_SLOTS;
    receiver->slot_count--;
    chunk->landed += slot->bytes;
    sink->moved(sink->context, slot->bytes);
    wh_ucx_note_progress(worker);
    if (chunk->landed < chunk->landing.segments.bytes) {
        return WHERRY_OK;
    }
    receiver->arriving_first = (receiver->arriving_first + 1) % (WH_UCX_SLOTS + 1);
    receiver->arriving_count--;
    receiver->closed++;
    return wh_sink_close(sink, &chunk->landing, worker->digester, sink->verify ? &slot->digest : NULL, error);
}

/** Begins announced pieces while slots are free, and ends pieces that have arrived. */
static wherry_status move_pieces(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && receiver->queue_count && receiver->slot_count < WH_UCX_SLOTS) {
        status = begin_piece(worker, sink, error);
    }
    while (status == WHERRY_OK && receiver->slot_count && receiver->slots[receiver->slot_first].operation.done) {
        status = end_piece(worker, sink, error);
        if (status == WHERRY_OK && receiver->queue_count) {
            status = begin_piece(worker, sink, error);
        }
    }
    return status;
}

/* ---- receiver: a round ---- */

/**
 * Answers HELLO at the address that HELLO contains. From now on, UCX detects if the source dies.
 */
static wherry_status answer(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wherry_status status = wh_ucx_link_connect(worker->link, receiver->hello, receiver->hello + WH_UCX_ID_BYTES,
                                               worker->end->site->peer, error);
    if (status == WHERRY_OK) {
        receiver->answered = true;
        wh_ucx_link_greet(worker->link, WH_UCX_WELCOME, worker->end->token);
        wh_ucx_note_progress(worker);
    }
    return status;
}

static bool has_all(const wh_ucx_receiver *receiver) {
    return receiver->ended && receiver->closed >= receiver->chunks && !receiver->slot_count && !receiver->queue_count &&
           !receiver->arriving_count;
}

static wherry_status receive_chunks(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !has_all(receiver)) {
        wh_ucx_link_progress(worker->link, worker->end->site->stop);
        if (worker->link->lost != UCS_OK && !receiver->answered) {
            /* Only the peer of an earlier transfer can be lost here. */
            wh_ucx_link_disconnect(worker->link);
        }
        status = wh_ucx_check(worker, error);
        if (status == WHERRY_OK && receiver->wrong) {
            status = fail_malformed(worker, receiver->wrong, error);
        }
        if (status == WHERRY_OK && receiver->hello && !receiver->answered) {
            status = answer(worker, error);
        }
        if (status == WHERRY_OK && receiver->answered) {
            status = move_pieces(worker, sink, error);
        }
    }
    return status == WHERRY_OK && receiver->closed != receiver->chunks
               ? fail_malformed(worker, "more chunks than its END says", error)
               : status;
}

static wherry_status send_ended(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_receiver *receiver = worker->receiver;
    wherry_status status = WHERRY_OK;
    note_transports(worker);
    receiver->ended = false;
    wh_ucx_header_write(receiver->ended_header, worker->end->token, &(wh_ucx_header){.kind = WH_UCX_ENDED});
    wh_ucx_send(worker->link, &receiver->ending, receiver->ended_header, NULL, 0, false);
    while (status == WHERRY_OK && !receiver->ending.done) {
        status = progress(worker, error);
    }
    return status;
}

static wherry_status ucx_pull(wh_lane_end *base, uint32_t number, const wh_sink *sink, wherry_error *error) {
    wh_ucx_worker *worker = ((wh_ucx_end *)(void *)base)->workers + number;
    wh_ucx_receiver *receiver = worker->receiver;
    WH_TRY(begin_round(worker, sink->verify, error));
    wh_ucx_enter();
    receiver->closed = 0;
    wherry_status status = receive_chunks(worker, sink, error);
    WH_THEN(status, send_ended(worker, error));
    for (; status != WHERRY_OK && receiver->queue_count; receiver->queue_count--) {
        worker->link->ucx->ucp_am_data_release(worker->link->worker, receiver->queue[receiver->queue_first].data);
        receiver->queue_first = (receiver->queue_first + 1) % WH_UCX_QUEUE;
    }
    return end_share(worker, status);
}

/* ---- ends ---- */

static void ucx_close(wh_lane_end *base) {
    wh_ucx_end *end = (void *)base;
    for (uint32_t i = 0; end && i < WH_UCX_WORKERS_MAX; i++) {
        wh_ucx_worker *worker = end->workers + i;
        wh_ucx_link_give(worker->link);
        wh_digester_destroy(worker->digester);
        if (end->is_source && worker->source) {
            wh_segments_destroy(&worker->source->segments);
        } else if (worker->receiver) {
            for (size_t k = 0; k < WH_UCX_SLOTS + 1; k++) {
                wh_landing_destroy(&worker->receiver->arriving[k].landing);
            }
            wh_free(worker->receiver->hello);
        }
        /* This also frees worker->receiver, because both are in a union. */
        wh_free(worker->source);
    }
    wh_free(end);
}

static wherry_status open_worker(wh_ucx_worker *worker, const uint8_t *peer_id, bool long_segments,
                                 wherry_error *error) {
    if (peer_id) {
        worker->source = wh_alloc_zeroed(1, sizeof(*worker->source));
    } else {
        worker->receiver = wh_alloc_zeroed(1, sizeof(*worker->receiver));
    }
    WH_TRY_ALLOC(peer_id ? (void *)worker->source : worker->receiver, error, "a lane");
    WH_TRY(wh_ucx_link_take(peer_id, long_segments, &worker->link, error));
    worker->link->message = peer_id ? source_message : wh_ucx_receiver_message;
    worker->link->message_context = worker;
    return WHERRY_OK;
}

/**
 * Creates an end and its workers.
 * @param request  at a source, the receiver's request, with the address of each worker. At a
 *                 receiver, a request without addresses.
 */
static wherry_status open_end(const wh_lane_site *site, const wh_ucx_request *request, wh_ucx_end **end_p,
                              wherry_error *error) {
    wh_ucx_end *end = wh_alloc_zeroed(1, sizeof(*end));
    wherry_status status = WHERRY_OK;
    WH_TRY_ALLOC(end, error, "a lane");
    end->base.workers = request->workers;
    end->site = site;
    end->is_source = request->addresses[0].id;
    for (uint32_t i = 0; i < request->workers && status == WHERRY_OK; i++) {
        end->workers[i].end = end;
        status = open_worker(end->workers + i, request->addresses[i].id, request->long_segments, error);
    }
    if (status != WHERRY_OK) {
        ucx_close(&end->base);
        return status;
    }
    *end_p = end;
    return WHERRY_OK;
}

static wh_ucx_offer own_offer(const wh_lane_site *site) {
    return (wh_ucx_offer){.workers = (uint32_t)wh_min(site->threads, WH_UCX_WORKERS_MAX),
                          .long_segments = wh_ucx_may_use_long_segments()};
}

/** Does not load UCX, because most receivers do not use this lane. */
static wherry_status ucx_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    wh_ucx_offer own = own_offer(site);
    wh_ucx_offer_write(&own, offer);
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : WHERRY_OK;
}

static wherry_status write_request(wh_ucx_end *end, wh_string *bytes, wherry_error *error) {
    wh_ucx_request request = {.workers = end->base.workers, .long_segments = end->workers[0].link->long_segments};
    WH_TRY(wh_random_fill(end->token, sizeof(end->token), error));
    memcpy(request.token, end->token, sizeof(request.token));
    for (uint32_t i = 0; i < end->base.workers; i++) {
        const wh_ucx_link *link = end->workers[i].link;
        request.addresses[i] = (wh_ucx_address){link->id, link->address, link->address_size};
    }
    uint32_t workers = wh_ucx_request_write(&request, bytes);
    WH_TRY_ALLOC(!bytes->failed, error, "the request of a lane");
    if (!workers) {
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "an address of UCX has %zu bytes, which is too long; list fewer devices in UCX_NET_DEVICES",
                       request.addresses[0].size);
    }
    end->base.workers = workers;
    return WHERRY_OK;
}

/**
 * Does not contact the source. The source contacts the receiver in `push`, and refuses the lane if
 * the receiver does not answer.
 */
static wherry_status ucx_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                               bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    wh_ucx_offer own = own_offer(site);
    wh_ucx_offer peer;
    wh_ucx_end *end;
    *assist_p = false;
    WH_TRY(wh_ucx_offer_read(offer, size, site->peer, &peer, error));
    wh_ucx_request wanted = {.workers = (uint32_t)wh_min(own.workers, peer.workers),
                             .long_segments = own.long_segments && peer.long_segments};
    WH_TRY(open_end(site, &wanted, &end, error));
    return wh_lane_deliver(&wh_lane_ucx, &end->base, write_request(end, request, error), end_p);
}

static wherry_status ucx_accept(const wh_lane_site *site, const void *bytes, size_t size, bool *ready_p,
                                wh_lane_end **end_p, wherry_error *error) {
    wh_ucx_offer own = own_offer(site);
    wh_ucx_request request;
    wh_ucx_end *end;
    WH_TRY(wh_ucx_request_read(bytes, size, site->peer, &request, error));
    if (request.workers > own.workers || (request.long_segments && !own.long_segments)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d asked for %u workers%s over UCX, but %u%s were offered",
                       (int)site->peer, (unsigned)request.workers, request.long_segments ? " with long segments" : "",
                       (unsigned)own.workers, own.long_segments ? " with long segments" : "");
    }
    WH_TRY(open_end(site, &request, &end, error));
    wherry_status status = WHERRY_OK;
    memcpy(end->token, request.token, sizeof(end->token));
    wh_ucx_enter();
    for (uint32_t i = 0; i < request.workers && status == WHERRY_OK; i++) {
        const wh_ucx_address *address = request.addresses + i;
        status = wh_ucx_link_connect(end->workers[i].link, address->id, address->bytes, site->peer, error);
    }
    wh_ucx_leave();
    *ready_p = status == WHERRY_OK;
    return wh_lane_deliver(&wh_lane_ucx, &end->base, status, end_p);
}

static void ucx_describe(const wh_lane_end *base, wh_string *text) {
    const wh_ucx_end *end = (const void *)base;
    wh_string_format(text, "%s", end->detail);
}

const wh_lane_ops wh_lane_ucx = {
    .name = "ucx",
    .traits = WH_LANE_NETWORK | WH_LANE_DIGESTS | WH_LANE_STAGES,
    .offer = ucx_offer,
    .probe = ucx_probe,
    .accept = ucx_accept,
    .pull = ucx_pull,
    .push = ucx_push,
    .describe = ucx_describe,
    .close = ucx_close,
};
