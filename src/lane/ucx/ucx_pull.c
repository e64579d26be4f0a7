/* A receiver's worker: pieces to chunks. Nothing in a header is believed: the sink says whether a chunk is waited for, and how long it is. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lane/site.h"
#include "lane/ucx/ucx_internal.h"

void wh_ucx_puller_destroy(wh_ucx_puller *pull) {
    if (!pull) {
        return;
    }
    for (size_t i = 0; i < WH_UCX_SLOTS + 1; i++) {
        wh_landing_destroy(&pull->arriving[i].landing);
    }
    wh_free(pull->hello);
    wh_free(pull);
}

/* ---- messages ---- */

/** @return what is wrong with it, or NULL. */
static const char *take_hello(wh_ucx_puller *pull, const void *address, size_t size, bool rendezvous) {
    if (pull->hello || rendezvous || size <= WH_UCX_ID_BYTES || size > WH_LANE_OFFER_MAX) {
        return "a greeting that is none, or a second one";
    }
    pull->hello = (uint8_t *)wh_copy_text(address, size);
    return pull->hello ? NULL : "a greeting for which there is no memory here";
}

static const char *take_piece(wh_ucx_puller *pull, const wh_ucx_header *header, void *data, size_t size,
                              bool rendezvous) {
    if (!pull->hello || !rendezvous || pull->ended) {
        return "a piece before it was welcome, or after the end";
    }
    if (pull->queue_count == WH_UCX_QUEUE) {
        return "more pieces at once than it may";
    }
    pull->queue[(pull->queue_first + pull->queue_count++) % WH_UCX_QUEUE] = (wh_ucx_announced){*header, data, size};
    return NULL;
}

bool wh_ucx_pull_message(void *context, const void *header, size_t header_size, void *data, size_t size,
                         bool rendezvous) {
    wh_ucx_worker *worker = context;
    wh_ucx_puller *pull = worker->pull;
    wh_ucx_header message;
    const char *wrong = wh_ucx_header_read(header, header_size, worker->end->token, &message);
    bool taken = false;
    if (wrong && !*wrong) {
        return false; /* of a transfer that is over: it goes nowhere */
    }
    if (!wrong && message.kind == WH_UCX_HELLO) {
        wrong = take_hello(pull, data, size, rendezvous);
    } else if (!wrong && message.kind == WH_UCX_PIECE) {
        wrong = take_piece(pull, &message, data, size, rendezvous);
        taken = !wrong;
    } else if (!wrong && message.kind == WH_UCX_END && !pull->ended) {
        pull->ended = true;
        pull->chunks = message.chunk;
    } else if (!wrong) {
        wrong = "a message out of turn";
    }
    pull->wrong = pull->wrong ? pull->wrong : wrong;
    return taken;
}

static wherry_status malformed(const wh_ucx_worker *worker, const char *what, uint64_t chunk, wherry_error *error) {
    const wh_lane_site *site = worker->end->site;
    return wh_site_blame(site,
                         wh_fail(error, WHERRY_MALFORMED, "rank %d has sent %s (chunk %llu); it is faulty",
                                 (int)site->peer, what, (unsigned long long)chunk),
                         error);
}

/* ---- pieces ---- */

static wh_ucx_arriving *last_arriving(wh_ucx_puller *pull) {
    return pull->arriving_count
               ? pull->arriving + (pull->arriving_first + pull->arriving_count - 1) % (WH_UCX_SLOTS + 1)
               : NULL;
}

/** Opens a chunk, the last one of which was begun as a whole. There is room: each before it has a piece in a slot, and there is one slot free. */
static wherry_status open_chunk(wh_ucx_worker *worker, const wh_sink *sink, uint64_t chunk, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wh_ucx_arriving *arriving = pull->arriving + (pull->arriving_first + pull->arriving_count) % (WH_UCX_SLOTS + 1);
    wherry_status status = sink->open(sink->context, chunk, &arriving->landing, error);
    if (status != WHERRY_OK) {
        return wh_site_blame(worker->end->site, status, error);
    }
    arriving->begun = arriving->landed = 0;
    pull->arriving_count++;
    pull->cursor = wh_run_cursor_at(&arriving->landing.segments);
    return WHERRY_OK;
}

/** Finds the chunk that an announced piece is of, and whether it is its next. */
static wherry_status check_piece(wh_ucx_worker *worker, const wh_sink *sink, const wh_ucx_announced *piece,
                                 wherry_error *error) {
    const wh_ucx_arriving *last = last_arriving(worker->pull);
    if (!last || last->begun == last->landing.segments.bytes) {
        wherry_status status = open_chunk(worker, sink, piece->header.chunk, error);
        if (status != WHERRY_OK) {
            return status;
        }
        last = last_arriving(worker->pull);
    }
    const char *wrong =
        last->landing.chunk == piece->header.chunk
            ? wh_ucx_piece_check(&piece->header, piece->bytes, last->begun, last->landing.segments.bytes, sink->verify)
            : "a piece of another chunk before one was through";
    return wrong ? malformed(worker, wrong, piece->header.chunk, error) : WHERRY_OK;
}

/** Begins the oldest piece that was announced. There is a slot free. */
static wherry_status begin_piece(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    const wh_ucx_announced *piece = pull->queue + pull->queue_first;
    wherry_status status = check_piece(worker, sink, piece, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_ucx_incoming *slot = pull->slots + (pull->slot_first + pull->slot_count) % WH_UCX_SLOTS;
    slot->chunk = last_arriving(pull);
    slot->cursor = pull->cursor;
    slot->bytes = piece->bytes;
    slot->digest = piece->header.digest;
    slot->direct = pull->cursor.at->iov_base && wh_run_cursor_left(&pull->cursor) >= piece->bytes;
    slot->to = slot->direct ? wh_run_cursor_here(&pull->cursor) : wh_ucx_scratch_take(worker);
    if (!slot->to) {
        return wh_fail_memory(error, "a piece");
    }
    wh_run_cursor_advance(&pull->cursor, piece->bytes);
    slot->chunk->begun += piece->bytes;
    pull->queue_first = (pull->queue_first + 1) % WH_UCX_QUEUE;
    pull->queue_count--;
    pull->slot_count++;
    wh_ucx_receive(worker->station, &slot->operation, piece->data, slot->to, piece->bytes);
    return WHERRY_OK;
}

/** The bytes of the oldest piece have come. */
static wherry_status end_piece(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wh_ucx_incoming *slot = pull->slots + pull->slot_first;
    wh_ucx_arriving *chunk = slot->chunk;
    if (slot->operation.status != UCS_OK) {
        return wh_ucx_fail_lost(worker, slot->operation.status, error);
    }
    if (sink->verify) {
        if (!chunk->landed) {
            wh_digester_begin(worker->digester);
        }
        wh_digester_add(worker->digester, slot->to, slot->bytes);
    }
    if (!slot->direct) {
        wh_run_cursor_unpack(&slot->cursor, slot->to, slot->bytes);
    }
    if (!slot->direct) {
        wh_ucx_scratch_give(worker, slot->to);
    }
    pull->slot_first = (pull->slot_first + 1) % WH_UCX_SLOTS;
    pull->slot_count--;
    chunk->landed += slot->bytes;
    sink->moved(sink->context, slot->bytes);
    wh_ucx_got_on(worker);
    if (chunk->landed < chunk->landing.segments.bytes) {
        return WHERRY_OK;
    }
    wh_digest digest;
    if (sink->verify) {
        digest = wh_digester_end(worker->digester);
    }
    pull->arriving_first = (pull->arriving_first + 1) % (WH_UCX_SLOTS + 1);
    pull->arriving_count--;
    pull->closed++;
    return sink->close(sink->context, &chunk->landing, sink->verify ? &digest : NULL,
                       sink->verify ? &slot->digest : NULL, error);
}

/** Ends the pieces that have come, in their order, and begins others. */
static wherry_status move_pieces(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && pull->queue_count && pull->slot_count < WH_UCX_SLOTS) {
        status = begin_piece(worker, sink, error);
    }
    while (status == WHERRY_OK && pull->slot_count && pull->slots[pull->slot_first].operation.done) {
        status = end_piece(worker, sink, error);
        if (status == WHERRY_OK && pull->queue_count) {
            status = begin_piece(worker, sink, error);
        }
    }
    return status;
}

/* ---- a round ---- */

/** The source has called: answers, by the address that it gave. Its death is noticed from now on. */
static wherry_status answer(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wherry_status status = wh_ucx_station_connect(worker->station, pull->hello, pull->hello + WH_UCX_ID_BYTES,
                                                  worker->end->site->peer, error);
    if (status == WHERRY_OK) {
        pull->answered = true;
        wh_ucx_station_greet(worker->station, WH_UCX_WELCOME, worker->end->token);
        wh_ucx_got_on(worker);
    }
    return status;
}

static bool is_through(const wh_ucx_puller *pull) {
    return pull->ended && pull->closed >= pull->chunks && !pull->slot_count && !pull->queue_count &&
           !pull->arriving_count;
}

static wherry_status pull_chunks(wh_ucx_worker *worker, const wh_sink *sink, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !is_through(pull)) {
        wh_ucx_turn(worker->station, worker->end->site->stop);
        if (worker->station->lost != UCS_OK && !pull->answered) {
            wh_ucx_station_disconnect(
                worker->station); /* from whom an earlier transfer left: the source is still to call */
        }
        status = wh_ucx_must_end(worker, error);
        if (status == WHERRY_OK && pull->wrong) {
            status = malformed(worker, pull->wrong, UINT64_MAX, error);
        }
        if (status == WHERRY_OK && pull->hello && !pull->answered) {
            status = answer(worker, error);
        }
        if (status == WHERRY_OK && pull->answered) {
            status = move_pieces(worker, sink, error);
        }
    }
    return status == WHERRY_OK && pull->closed != pull->chunks
               ? malformed(worker, "more chunks than it says", pull->closed, error)
               : status;
}

/** Tells the source, which is waiting for it. */
static wherry_status end_round(wh_ucx_worker *worker, wherry_error *error) {
    wh_ucx_puller *pull = worker->pull;
    wherry_status status = WHERRY_OK;
    wh_ucx_note_chosen(worker);
    pull->ended = false;
    wh_ucx_header_write(pull->over, worker->end->token, &(wh_ucx_header){.kind = WH_UCX_ENDED});
    wh_ucx_send(worker->station, &pull->ending, pull->over, NULL, 0, false);
    while (status == WHERRY_OK && !pull->ending.done) {
        wh_ucx_turn(worker->station, worker->end->site->stop);
        status = wh_ucx_must_end(worker, error);
    }
    return status;
}

/** What was announced and not begun is let go. */
static void drop_queue(wh_ucx_worker *worker) {
    wh_ucx_puller *pull = worker->pull;
    for (; pull->queue_count; pull->queue_count--) {
        worker->station->ucx->ucp_am_data_release(worker->station->worker, pull->queue[pull->queue_first].data);
        pull->queue_first = (pull->queue_first + 1) % WH_UCX_QUEUE;
    }
}

wherry_status wh_ucx_pull(wh_lane_end *base, uint32_t number, const wh_sink *sink, wherry_error *error) {
    wh_ucx_worker *worker = ((wh_ucx_end *)(void *)base)->workers + number;
    wh_ucx_puller *pull = worker->pull;
    wherry_status status = wh_ucx_begin_round(worker, sink->verify, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_ucx_enter();
    pull->closed = 0;
    status = pull_chunks(worker, sink, error);
    if (status == WHERRY_OK) {
        status = end_round(worker, error);
    }
    worker->station->clean = status == WHERRY_OK;
    if (status != WHERRY_OK) {
        drop_queue(worker);
        wh_ucx_station_disconnect(worker->station);
    }
    wh_ucx_leave();
    return status;
}
