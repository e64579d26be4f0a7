/* A source's worker: chunks to pieces. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/point.h"
#include "lane/site.h"
#include "lane/ucx/ucx_internal.h"

uint32_t wh_ucx_meet_ms = 5000;

bool wh_ucx_push_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                         bool rendezvous) {
    wh_ucx_worker *worker = context;
    wh_ucx_header message;
    (void)data, (void)size, (void)rendezvous;
    if (!wh_ucx_header_read(header, header_size, worker->end->token, &message)) {
        worker->push->met = worker->push->met || message.kind == WH_UCX_WELCOME;
        worker->push->ended = worker->push->ended || message.kind == WH_UCX_ENDED;
        wh_ucx_got_on(worker);
    }
    return false;
}

void wh_ucx_pusher_destroy(wh_ucx_pusher *push) {
    if (push) {
        wh_segments_destroy(&push->segments);
    }
    wh_free(push);
}

/* ---- pieces ---- */

/** How long the next piece is, of at most so many bytes where it is packed, and whether it goes out from where it lies. There is one. */
static size_t measure(const wh_run_cursor *cursor, size_t most, bool *direct_p) {
    size_t first = wh_run_cursor_left(cursor);
    *direct_p = true;
    if (first >= WH_UCX_DIRECT) {
        return (size_t)wh_min(first, WH_UCX_PIECE_MAX);
    }
    size_t bytes = first;
    for (const struct iovec *at = cursor->at + 1; at < cursor->end && at->iov_len < WH_UCX_DIRECT; at++) {
        if (bytes + at->iov_len > most) {
            break;
        }
        *direct_p = false;
        bytes += at->iov_len;
    }
    return bytes;
}

/** Sends the next piece of the chunk, unless it is one too many that is packed. It is hashed first: then the copy finds it in the cache. */
static wherry_status push_piece(wh_ucx_worker *worker, wh_ucx_outgoing *slot, bool verify, wherry_error *error) {
    wh_ucx_pusher *push = worker->push;
    bool direct;
    size_t bytes = measure(&push->cursor, push->packing.bytes, &direct);
    const void *from = (const char *)push->cursor.at->iov_base + push->cursor.skip;
    slot->packed = NULL;
    if (direct) {
        wh_run_cursor_advance(&push->cursor, bytes);
    } else if (__builtin_popcount(worker->station->scratch_used) == push->packing.most) {
        return WHERRY_OK;
    } else {
        from = slot->packed = wh_ucx_scratch_take(worker);
        if (!from) {
            return wh_fail_memory(error, "a piece");
        }
        wh_run_cursor_pack(&push->cursor, slot->packed, bytes);
    }
    wh_ucx_header header = {
        .kind = WH_UCX_PIECE, .chunk = push->chunk, .bytes = push->segments.bytes, .offset = push->offset};
    push->offset += bytes;
    if (verify) {
        wh_digester_add(worker->digester, from, bytes);
        if (push->offset == push->segments.bytes) {
            header.flags = WH_UCX_DIGEST;
            header.digest = wh_digester_end(worker->digester);
        }
    }
    wh_ucx_header_write(slot->header, worker->end->token, &header);
    slot->chunk = push->chunk;
    slot->bytes = bytes;
    wh_ucx_send(worker->station, &slot->operation, slot->header, from, bytes, true);
    return WHERRY_OK;
}

/** Takes the next chunk where the last is through. @return false where there are none, or with *status_p an error. */
static bool next_piece(wh_ucx_worker *worker, const wh_feed *feed, wherry_status *status_p, wherry_error *error) {
    wh_ucx_pusher *push = worker->push;
    while (push->offset == push->segments.bytes) {
        if (!feed->next(feed->context, &push->chunk)) {
            return false;
        }
        *status_p = feed->gather(feed->context, push->chunk, &push->segments, error);
        if (*status_p != WHERRY_OK) {
            return false;
        }
        push->cursor = wh_run_cursor_at(&push->segments);
        push->offset = 0;
        push->chunks += push->segments.bytes != 0;
        if (feed->verify) {
            wh_digester_begin(worker->digester);
        }
    }
    return true;
}

/** Whether no byte of a chunk is still to be read. */
static bool is_read(const wh_ucx_pusher *push, uint64_t chunk) {
    bool read = push->chunk != chunk || push->offset == push->segments.bytes;
    for (size_t i = 0; i < WH_UCX_SLOTS; i++) {
        read = read && !(push->slots[i].bytes && push->slots[i].chunk == chunk);
    }
    return read;
}

/** Ends what is through. @return how many slots are in use, or a failure. */
static wherry_status end_pieces(wh_ucx_worker *worker, const wh_feed *feed, size_t *used_p, wherry_error *error) {
    size_t used = 0;
    for (wh_ucx_outgoing *slot = worker->push->slots; slot < worker->push->slots + WH_UCX_SLOTS; slot++) {
        if (slot->bytes && slot->operation.done) {
            if (slot->operation.status != UCS_OK) {
                return wh_ucx_fail_lost(worker, slot->operation.status, error);
            }
            feed->moved(feed->context, slot->bytes);
            slot->bytes = 0;
            if (slot->packed) {
                wh_ucx_scratch_give(worker, slot->packed);
            }
            if (is_read(worker->push, slot->chunk)) {
                wh_feed_done(feed, slot->chunk);
            }
            wh_ucx_got_on(worker);
        }
        used += slot->bytes != 0;
    }
    *used_p = used;
    return WHERRY_OK;
}

/** Begins pieces while there are slots, and not too many are packed. *more_p becomes false where there are no more. */
static wherry_status begin_pieces(wh_ucx_worker *worker, const wh_feed *feed, bool *more_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool begun = true;
    for (wh_ucx_outgoing *slot = worker->push->slots;
         slot < worker->push->slots + WH_UCX_SLOTS && *more_p && begun && status == WHERRY_OK; slot++) {
        if (!slot->bytes) {
            *more_p = next_piece(worker, feed, &status, error);
            status = *more_p ? push_piece(worker, slot, feed->verify, error) : status;
            begun = slot->bytes;
        }
    }
    return status;
}

/* ---- a round ---- */

/** Settles for the whole end whether it has met the receiver or refuses the lane. The first worker decides. @return true if it is as wanted. */
static bool decide(wh_ucx_end *end, wh_ucx_meeting wanted) {
    int meeting = WH_UCX_CALLING;
    return atomic_compare_exchange_strong(&end->meeting, &meeting, wanted) || meeting == (int)wanted;
}

/** Until the receiver has answered one of the workers, what fails is the lane, not the transfer. */
static wherry_status judge_meeting(const wh_ucx_worker *worker, wh_deadline meeting, wherry_status status,
                                   wherry_error *error) {
    int32_t rank = worker->end->site->peer;
    bool failed = status == WHERRY_PEER_LOST || (status == WHERRY_OK && wh_deadline_passed(meeting));
    if (failed && !decide(worker->end, WH_UCX_REFUSED)) {
        return status == WHERRY_OK ? wh_site_timed_out(worker->end->site, error) : status;
    }
    if (status == WHERRY_PEER_LOST) {
        return wh_fail(error, WHERRY_REFUSED,
                       "UCX does not reach rank %d: %s; look at UCX_NET_DEVICES and the firewall", (int)rank,
                       worker->station->ucx->ucs_status_string(worker->station->lost));
    }
    if (status == WHERRY_OK && wh_deadline_passed(meeting)) {
        return wh_fail(error, WHERRY_REFUSED,
                       "rank %d did not answer over UCX within %u ms; look at UCX_NET_DEVICES and the firewall",
                       (int)rank, (unsigned)wh_ucx_meet_ms);
    }
    return status;
}

/** Says who calls, and waits for the answer: the receiver finds its way back by what HELLO brings. No piece goes before that. */
static wherry_status meet(wh_ucx_worker *worker, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    wh_deadline meeting = wh_deadline_in_ms(wh_ucx_meet_ms);
    bool last = false; /* moment of it: as in wh_ucx_must_end */
    wh_ucx_station_greet(worker->station, WH_UCX_HELLO, worker->end->token);
    while (status == WHERRY_OK && !worker->push->met) {
        wh_ucx_turn(worker->station, worker->end->site->stop);
        if (!last && wh_deadline_passed(meeting)) {
            last = true;
            meeting = wh_deadline_in_ms(WH_UCX_LAST_MS);
        }
        status = worker->push->met ? WHERRY_OK : judge_meeting(worker, meeting, wh_ucx_must_end(worker, error), error);
    }
    wh_ucx_got_on(worker);
    return status == WHERRY_OK && !decide(worker->end, WH_UCX_MET)
               ? wh_fail(error, WHERRY_REFUSED, "UCX does not reach rank %d", (int)worker->end->site->peer)
               : status;
}

static wherry_status push_chunks(wh_ucx_worker *worker, const wh_feed *feed, wherry_error *error) {
    worker->push->packing = (wh_ucx_packing){1 << 20, 3};
    wherry_status status = WHERRY_OK;
    bool more = true;
    size_t used = 1;
    while (status == WHERRY_OK && (more || used)) {
        status = begin_pieces(worker, feed, &more, error);
        if (status == WHERRY_OK) {
            wh_ucx_turn(worker->station, worker->end->site->stop);
            status = wh_ucx_must_end(worker, error);
        }
        if (status == WHERRY_OK) {
            status = end_pieces(worker, feed, &used, error);
        }
    }
    /* A feed that was stopped has no more chunks either: that is no end of a round. */
    return status == WHERRY_OK && wh_stop_requested(worker->end->site->stop) ? wh_site_cancelled(error) : status;
}

/** A receiver that has everything may be gone before its answer is here. What became of the transfer is for it to say. */
static wherry_status end_round(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_outgoing *slot = worker->push->slots;
    wherry_status status = WHERRY_OK;
    wh_ucx_note_chosen(worker);
    wh_ucx_header_write(slot->header, worker->end->token,
                        &(wh_ucx_header){.kind = WH_UCX_END, .chunk = worker->push->chunks});
    wh_ucx_send(worker->station, &slot->operation, slot->header, NULL, 0, false);
    wh_point("ucx source said the end");
    while (status == WHERRY_OK && !worker->push->ended) {
        wh_ucx_turn(worker->station, worker->end->site->stop);
        status = wh_ucx_must_end(worker, error);
    }
    return status == WHERRY_PEER_LOST ? WHERRY_OK : status;
}

wherry_status wh_ucx_push(wh_lane_end *base, uint32_t number, const wh_feed *feed, wherry_error *error) {
    wh_ucx_worker *worker = ((wh_ucx_end *)(void *)base)->workers + number;
    wherry_status status = wh_ucx_begin_round(worker, feed->verify, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (!worker->station->peer) {
        return wh_ucx_fail_lost(worker, UCS_ERR_NOT_CONNECTED, error);
    }
    wh_ucx_enter();
    worker->push->chunks = 0;
    worker->push->ended = false;
    if (!worker->push->met) {
        status = meet(worker, error);
    }
    if (status == WHERRY_OK) {
        status = push_chunks(worker, feed, error);
    }
    if (status == WHERRY_OK) {
        status = end_round(worker, error);
    }
    worker->station->clean = status == WHERRY_OK;
    if (status != WHERRY_OK) {
        wh_ucx_station_disconnect(worker->station);
    }
    wh_ucx_leave();
    return status;
}
