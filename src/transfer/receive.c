/*
 * Receiving: agree on what goes where, take a lane, move the bytes, and rely on them only when the
 * source has confirmed that they stood still.
 */
#include "transfer/receive.h"

#include <stdio.h>
#include <string.h>

#include <wherry/expert.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "state/tensor.h"

wherry_status wh_receive_tell(wh_receive *receive, const wh_note *note, wherry_error *error) {
    receive->stats.messages++;
    wh_deadline patience = wh_deadline_in_ms(receive->transfer.options.no_progress_ms);
    return wh_transfer_tell(&receive->transfer, receive->rank, receive->offer.id, note,
                            wh_deadline_earlier(receive->transfer.deadline, patience), error);
}

/* ---- heeding the source ---- */

static wherry_status take_answer(wh_receive *receive, const wh_note *note) {
    receive->answer = note->type;
    receive->reason = (wherry_error){.status = WHERRY_OK};
    if (note->status != WHERRY_OK) {
        wh_fail(&receive->reason, WHERRY_REFUSED, "%.*s", (int)note->text.size, (const char *)note->text.bytes);
    }
    return WHERRY_OK;
}

static wherry_status take_note(wh_receive *receive, const wh_note *note, wherry_error *error) {
    switch (note->type) {
    case WH_RELEASED:
        if (note->epoch == receive->offer.epoch) {
            receive->answer = WH_RELEASED;
        }
        return WHERRY_OK;
    case WH_ASSISTED:
    case WH_REFUSE_LANE:
        return take_answer(receive, note);
    case WH_DIGESTS:
        receive->heard = wh_clock_now();
        return wh_chunk_sink_claim(&receive->sink, note->first, note->digests.bytes,
                                   note->digests.size / WH_DIGEST_BYTES)
                   ? WHERRY_OK
                   : wh_fail(error, WHERRY_MALFORMED, "rank %d sent digests that nobody asked for", (int)receive->rank);
    case WH_PROGRESS:
        if (note->bytes > receive->peer_bytes) {
            receive->peer_bytes = note->bytes;
            receive->heard = wh_clock_now();
        }
        return WHERRY_OK;
    case WH_REVOKED:
        receive->gone = receive->revoked = true;
        wh_fail_note(error, WHERRY_REVOKED, receive->rank, note, "took its offer back, what was received is not valid");
        return WHERRY_REVOKED;
    case WH_ABORT:
        receive->gone = true;
        return wh_fail_note(error, note->status == WHERRY_MISMATCH ? WHERRY_MISMATCH : WHERRY_ABORTED, receive->rank,
                            note, "gave up");
    default:
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of type %d, which a source does not",
                       (int)receive->rank, (int)note->type);
    }
}

static wherry_status take_message(wh_receive *receive, wh_message *message, wherry_error *error) {
    if (message->rank != receive->rank) {
        return WHERRY_OK; /* the loss of another rank, or a message that no source sends */
    }
    if (message->kind == WH_MESSAGE_LOST && message->incarnation < receive->incarnation) {
        return WHERRY_OK;
    }
    if (message->kind == WH_MESSAGE_LOST) {
        receive->gone = true;
        wh_fail(error, WHERRY_PEER_LOST, "rank %d was lost: %.*s", (int)receive->rank, (int)message->size,
                message->bytes ? (const char *)message->bytes : "");
        error->rank = receive->rank;
        return WHERRY_PEER_LOST;
    }
    wh_note note;
    wherry_status status = wh_note_decode(message->bytes, message->size, &note, error);
    if (status == WHERRY_OK && note.type == WH_OFFER && !receive->offer_message.bytes) {
        receive->offer_message = *message;
        receive->offer = note;
        message->bytes = NULL;
        return WHERRY_OK;
    }
    return status == WHERRY_OK ? take_note(receive, &note, error) : status;
}

/** Why this call ends by itself, if it does. */
static wherry_status must_end(wh_receive *receive, const char *doing, wherry_error *error) {
    wherry_status status = wh_transfer_must_end(&receive->transfer, doing, error);
    return status == WHERRY_OK ? status : wh_fail_rank(error, receive->rank, status);
}

wherry_status wh_receive_heed(wh_receive *receive, wh_deadline deadline, const char *doing, wherry_error *error) {
    wh_message message;
    wherry_error none; /* that nothing came is no error */
    wherry_status status = must_end(receive, doing, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wh_inbox_take(receive->inbox, deadline, &message, &none);
    if (status == WHERRY_TIMED_OUT) {
        return WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        *error = none;
        /*
         * Where this call ends anyway, that is why: a group may be closed by what its lane could
         * not take back.
         */
        wherry_status own = must_end(receive, doing, error);
        status = own == WHERRY_OK ? status : own;
    } else {
        status = take_message(receive, &message, error);
        wh_message_clear(&message);
    }
    return status;
}

wherry_status wh_receive_await(wh_receive *receive, wh_message_type type, const char *doing, wherry_error *error) {
    wh_deadline limit = wh_deadline_in_ms(receive->transfer.options.no_progress_ms);
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && receive->answer != type && receive->answer != WH_REFUSE_LANE) {
        if (wh_deadline_passed(limit)) {
            wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out while %s: no answer for %lld ms", (int)receive->rank,
                    doing, (long long)receive->transfer.options.no_progress_ms);
            error->rank = receive->rank;
            return WHERRY_TIMED_OUT;
        }
        status =
            wh_receive_heed(receive, wh_deadline_earlier(limit, wh_transfer_tick(&receive->transfer)), doing, error);
    }
    return status;
}

/* ---- the end ---- */

/**
 * Closes what this side has open of the source's memory, before the source is told of the end: it
 * may free that then. What a lane keeps of it stays only where the same lane has moved this state.
 */
static void let_go(wh_receive *receive, wherry_status status) {
    const wherry_transport *transport = receive->transfer.transport;
    if (status != WHERRY_OK || (receive->lane && receive->lane->traits & WH_LANE_ONE_SIDED)) {
        wh_receive_end_lane(receive);
    }
    bool lost = status == WHERRY_PEER_LOST;
    if (lost || receive->offer_message.bytes) {
        wh_transport_forget(transport, transport->group, receive->rank, lost, lost ? NULL : receive->lane);
    }
}

static wherry_status confirm(wh_receive *receive, wherry_error *error) {
    receive->done_at = wh_clock_now();
    receive->answer = 0;
    wh_point("receiver has all bytes");
    let_go(receive, WHERRY_OK);
    wh_note done = {.type = WH_DONE, .epoch = receive->offer.epoch, .bytes = atomic_load(&receive->sink.moved)};
    wherry_status status = wh_receive_tell(receive, &done, error);
    wh_point("receiver said done");
    if (status == WHERRY_OK) {
        status = wh_receive_await(receive, WH_RELEASED, "waiting for the source to confirm", error);
    }
    if (status == WHERRY_OK && receive->answer != WH_RELEASED) {
        status =
            wh_fail(error, WHERRY_MALFORMED, "rank %d refused a lane after all bytes had come", (int)receive->rank);
    }
    return status;
}

/**
 * Tells the source that this side gives up, or that it has noticed that the lease is over; nothing
 * of it is read any more.
 */
static void give_up(wh_receive *receive, wherry_status status, const wherry_error *error) {
    if ((receive->gone && !receive->revoked) || !receive->asked) {
        return;
    }
    bool offered = receive->offer_message.bytes != NULL;
    wherry_transport *transport = receive->transfer.transport;
    wh_note note = {.type = offered ? WH_ABORT : WH_WITHDRAW, .nonce = receive->nonce};
    wh_note_reason(&note, status, error);
    wh_transport_tell(transport, receive->rank, offered ? receive->offer.id : transport->tag, &note,
                      wh_transfer_last_words(), NULL);
}

static void finish_stats(wh_receive *receive) {
    wherry_stats *stats = &receive->stats;
    uint64_t now = wh_clock_now();
    stats->struct_size = sizeof(*stats);
    stats->offer_seconds = wh_seconds(receive->asked_at, receive->offered_at);
    stats->plan_seconds = wh_seconds(receive->offered_at, receive->data_at + receive->ready_ns);
    stats->data_seconds = wh_seconds(receive->data_at, receive->done_at ? receive->done_at : now);
    stats->verify_seconds = receive->verify ? wh_seconds(receive->landed_at, receive->done_at) : 0;
    stats->release_seconds = wh_seconds(receive->done_at, now);
    wh_trace_phase(&receive->trace, "offer", receive->asked_at, receive->offered_at);
    wh_trace_phase(&receive->trace, "plan", receive->offered_at, receive->data_at);
    wh_trace_phase(&receive->trace, "data", receive->data_at, receive->done_at ? receive->done_at : now);
    wh_trace_phase(&receive->trace, "release", receive->done_at, now);
    stats->total_seconds = wh_seconds(receive->transfer.begin, now);
    stats->tensors = receive->summary.tensors;
    stats->bytes_wanted = receive->wanted_bytes;
    stats->bytes_moved = atomic_load(&receive->sink.moved);
    stats->verified = receive->verify;
    if (receive->transfer.options.stats) {
        *receive->transfer.options.stats = *stats;
    }
}

static void log_success(const wh_receive *receive) {
    const wherry_stats *stats = &receive->stats;
    double rate = stats->data_seconds > 0 ? (double)stats->bytes_moved / stats->data_seconds * 1e-9 : 0;
    wh_log(
        WHERRY_LOG_INFO,
        "received %llu tensors, %llu bytes from rank %d over %s%s%s%s%s in %.3f s (data %.3f s, %.2f GB/s; offer %.3f, "
        "plan %.3f, release %.3f)",
        (unsigned long long)stats->tensors, (unsigned long long)stats->bytes_moved, (int)receive->rank,
        *stats->lane ? stats->lane : "no lane", *stats->detail ? " (" : "", stats->detail, *stats->detail ? ")" : "",
        stats->verified ? ", verified" : "", stats->total_seconds, stats->data_seconds, rate, stats->offer_seconds,
        stats->plan_seconds, stats->release_seconds);
}

static wherry_status run(wh_receive *receive, wherry_value **state_p, wherry_error *error) {
    wherry_status status = wh_receive_agree(receive, error);
    if (status == WHERRY_OK) {
        status = wh_transfer_await_stream(&receive->transfer, receive->plan->traits.cuda, error);
    }
    if (status == WHERRY_OK && (receive->transfer.options.flags & WHERRY_RECV_COMPARE) && receive->in_place) {
        status = wh_receive_compare(receive, error);
    }
    receive->data_at = wh_clock_now();
    if (status == WHERRY_OK && receive->wanted.total) {
        status = wh_receive_bytes(receive, error);
    }
    if (status == WHERRY_OK) {
        status = confirm(receive, error);
    }
    if (status != WHERRY_OK) {
        let_go(receive, status);
        give_up(receive, status, error);
        wh_receive_report(receive, error);
        error->status = status;
        wh_log(WHERRY_LOG_WARN, "receiving from rank %d failed: %s", (int)receive->rank, error->message);
    } else {
        wh_receive_end_lane(receive);
        wh_receive_progress(receive, true);
        status = state_p ? wherry_plan_take_state(receive->own_plan, state_p, error) : WHERRY_OK;
    }
    finish_stats(receive);
    if (status == WHERRY_OK) {
        log_success(receive);
    }
    return status;
}

/** Whoever wants no state must say where the bytes go. */
static wherry_status check_target(const wh_receive *receive, wherry_error *error) {
    const wherry_transfer_options *options = &receive->transfer.options;
    return receive->wants_state || options->target || options->accept
               ? WHERRY_OK
               : wh_fail(error, WHERRY_INVALID_ARGUMENT, "state_p is NULL, and nothing says where to receive");
}

/**
 * Where somebody may still write to what was received into, none of it is ever freed: the storages,
 * of a target too, and where chunks on their way to a device have landed.
 */
static void free_or_keep(wh_receive *receive) {
    if (!receive->held) {
        wh_chunk_sink_destroy(&receive->sink);
        return;
    }
    wh_chunk_sink_keep(&receive->sink);
    for (size_t i = 0; i < receive->plan->kept_count; i++) {
        wherry_storage_ref(receive->plan->kept[i]);
        wh_leak(receive->plan->kept[i]);
    }
    wh_log(WHERRY_LOG_ERROR, "the memory of %zu storages is kept for ever: rank %d may still write to it",
           receive->plan->kept_count, (int)receive->rank);
}

wherry_status wherry_checkpoint_recv(wherry_transport *transport, int32_t rank, const wherry_transfer_options *options,
                                     wherry_value **state_p, wherry_error *error) {
    wherry_error own;
    error = error ? error : &own;
    if (!transport) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport is NULL");
    }
    wh_receive receive = {.rank = rank, .wants_state = state_p != NULL, .stop.event = -1};
    wherry_status status = wh_group_check_rank(transport->group, rank, error);
    if (status == WHERRY_OK) {
        status = wh_transfer_begin(&receive.transfer, transport, options, error);
    }
    if (status == WHERRY_OK) {
        status = check_target(&receive, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    receive.trace = (wh_trace){receive.transfer.options.trace, receive.transfer.options.trace_context, rank, NULL};
    if (receive.transfer.options.report_p) {
        *receive.transfer.options.report_p = NULL;
    }
    status = run(&receive, state_p, error);
    wh_cancel_detach(receive.transfer.options.cancel, &receive.cancellable);
    wh_inbox_close(receive.inbox);
    wh_message_clear(&receive.offer_message);
    wh_stop_destroy(&receive.stop);
    free_or_keep(&receive);
    wh_chunk_set_destroy(&receive.wanted);
    wh_tensor_table_destroy(&receive.table);
    wh_free(receive.leg.intervals);
    wherry_plan_destroy(receive.own_plan);
    wherry_plan_destroy(receive.same_plan);
    wh_source_destroy(&receive.as_source);
    return status;
}
