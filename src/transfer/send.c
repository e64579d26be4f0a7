/* Sending: one loop over all destinations, each a state machine of its own (destination.h). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "group/mailbox.h"
#include "transfer/cancel.h"
#include "transfer/destination.h"

/** How long a part of the work of one destination among several may wait. */
enum { STEP_MS = 2 };

/** A call of wherry_checkpoint_send. */
typedef struct send_call {
    wh_transfer transfer;
    wh_source source;
    wh_inbox *inbox;
    wh_cancellable cancellable;
    wh_waiting_send waiting;
    wh_destination *destinations;
    size_t count;
    size_t turn; /**< Which of the destinations that work in steps may wait next. */
} send_call;

static wherry_status check_arguments(const wherry_transport *transport, const int32_t *ranks, size_t count,
                                     const wherry_value *state, wherry_error *error) {
    if (!transport || (count && !ranks) || !state) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport, ranks or state is NULL");
    }
    for (size_t i = 0; i < count; i++) {
        wherry_status status = wh_group_check_rank(transport->group, ranks[i], error);
        if (status != WHERRY_OK) {
            return status;
        }
        for (size_t k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                return wh_fail(error, WHERRY_INVALID_ARGUMENT, "rank %d is named twice", (int)ranks[i]);
            }
        }
    }
    return WHERRY_OK;
}

static wherry_status open_inbox(wherry_transport *transport, wh_inbox **inbox_p, wherry_error *error) {
    uint64_t tag = wh_random_tag();
    return tag ? wh_inbox_open(transport->group, tag, inbox_p, error)
               : wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
}

/** Everything that comes before the first message. */
static wherry_status prepare(send_call *call, const int32_t *ranks, size_t count, const wherry_value *state,
                             wherry_error *error) {
    wherry_transport *transport = call->transfer.transport;
    wherry_status status = wh_source_init(&call->source, state, wh_transfer_rank(&call->transfer), error);
    if (status == WHERRY_OK) {
        status = wh_source_locate(&call->source, error);
    }
    if (status == WHERRY_OK) {
        status = wh_transfer_await_stream(&call->transfer, call->source.devices, error);
    }
    if (status == WHERRY_OK && call->source.devices && wh_lane_choice_has(&call->transfer.lanes, WH_LANE_DEVICE)) {
        wh_source_share(&call->source, call->transfer.options.flags & WHERRY_KEEPS_MEMORY);
    }
    if (status == WHERRY_OK) {
        status = open_inbox(transport, &call->inbox, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    call->destinations = wh_alloc_zeroed(count, sizeof(*call->destinations));
    call->waiting = (wh_waiting_send){NULL, call->inbox, ranks, wh_alloc_zeroed(count, sizeof(uint64_t)), count};
    if (!call->destinations || !call->waiting.nonces) {
        return wh_fail_memory(error, "a send");
    }
    double seconds = wh_seconds(call->transfer.begin, wh_clock_now());
    for (; call->count < count; call->count++) {
        wh_destination *one = call->destinations + call->count;
        wh_destination_init(one, &call->transfer, &call->source, &call->waiting, ranks[call->count]);
        one->outcome.stats.prepare_seconds = seconds;
    }
    return WHERRY_OK;
}

static bool all_ended(const send_call *call) {
    for (size_t i = 0; i < call->count; i++) {
        if (!wh_destination_ended(call->destinations + i)) {
            return false;
        }
    }
    return true;
}

static void take(send_call *call, wh_message *message) {
    wherry_transport *transport = call->transfer.transport;
    for (size_t i = 0; i < call->count; i++) {
        wh_destination *one = call->destinations + i;
        bool asks = message->kind == WH_MESSAGE_BYTES && message->tag == transport->tag;
        if (one->rank == message->rank && asks && wh_destination_ended(one)) {
            wh_transport_take_back(transport, message);
            return;
        }
        if (one->rank == message->rank) {
            wh_destination_take(one, message);
        }
    }
    wh_message_clear(message);
}

/** Whether a message says that a receiver has noticed that its lease is over. */
static bool is_acknowledgement(const wh_message *message) {
    wh_note note;
    return message->kind == WH_MESSAGE_LOST ||
           (message->kind == WH_MESSAGE_BYTES &&
            wh_note_decode(message->bytes, message->size, &note, NULL) == WHERRY_OK && note.type == WH_ABORT);
}

/**
 * Gives receivers a moment to notice that their leases are over, so that those that are at it do
 * not read memory that is freed. One that does not answer is not waited for: it can never be told
 * that it was released, so that what it reads from now on is never taken for good.
 */
static void await_acknowledgements(send_call *call, size_t leases, wh_deadline soon) {
    wh_message message;
    while (leases && wh_inbox_take(call->inbox, soon, &message, NULL) == WHERRY_OK) {
        leases -= is_acknowledgement(&message);
        wh_message_clear(&message);
    }
}

/** Ends what has not ended: nobody can be released any more. */
static void revoke_all(send_call *call, wherry_status status, const wherry_error *error) {
    size_t leases = 0;
    wh_deadline soon = wh_transfer_last_words();
    wh_transport_remove_send(call->transfer.transport,
                             &call->waiting); /* whoever asks from now on, asks the next send */
    for (size_t i = 0; i < call->count; i++) {
        if (wh_destination_holds_lease(call->destinations + i)) {
            wh_stop_request(&call->destinations[i].stop);
            leases++;
        }
    }
    for (size_t i = 0; i < call->count; i++) {
        if (!wh_destination_ended(call->destinations + i)) {
            wh_destination_revoke(call->destinations + i, status, error, soon);
        }
    }
    if (status != WHERRY_CLOSED) {
        await_acknowledgements(call, leases, soon);
    }
}

/**
 * Does a part of the work of each destination that leaves it to this thread. One of them, another
 * each time, may wait: with none that does this loop would spin, with all of them many that stand
 * still would delay the others.
 * @return whether there was any.
 */
static bool step_all(send_call *call) {
    size_t workers = 0;
    size_t working = 0;
    for (size_t i = 0; i < call->count; i++) {
        workers += wh_destination_needs_steps(call->destinations + i);
    }
    uint32_t wait_ms = workers == 1 ? WH_PATIENT_STEP_MS : STEP_MS;
    for (size_t i = 0; i < call->count; i++) {
        wh_destination *one = call->destinations + i;
        if (wh_destination_needs_steps(one)) {
            wh_destination_step(one, working++ == call->turn ? wait_ms : 0);
        }
    }
    call->turn = working ? (call->turn + 1) % working : 0;
    return working > 0;
}

/** Where nobody comes back, whoever is lost already is not waited for. */
static void give_up_the_lost(send_call *call) {
    const wh_group *group = call->transfer.transport->group;
    for (size_t i = 0; i < call->count && !wh_group_can(group, WH_GROUP_REJOIN); i++) {
        wh_destination *one = call->destinations + i;
        char reason[128];
        if (wh_mailbox_is_lost(group->mailbox, one->rank, reason, sizeof(reason))) {
            wh_message gone = {WH_MESSAGE_LOST, one->rank, UINT64_MAX, 0, reason, strlen(reason), -1};
            wh_destination_take(one, &gone);
        }
    }
}

/** Serves until all have ended. @return WHERRY_CLOSED where the group did; else WHERRY_OK. */
static wherry_status serve(send_call *call, wherry_error *error) {
    uint64_t ticked = 0;
    /* who asks began when this one did, most likely */
    wh_mailbox_stay_awake(call->transfer.transport->group->mailbox);
    while (!all_ended(call)) {
        wherry_error why;
        wh_message message;
        wherry_status status = wh_transfer_must_end(&call->transfer, "sending a checkpoint", &why);
        if (status != WHERRY_OK) {
            revoke_all(call, status, &why);
            break;
        }
        bool busy = step_all(call);
        wh_deadline soon = busy ? wh_deadline_in_ms(0) : wh_transfer_tick(&call->transfer);
        status = wh_inbox_take(call->inbox, soon, &message, &why);
        if (status == WHERRY_OK) {
            take(call, &message);
        } else if (status == WHERRY_CLOSED) {
            revoke_all(call, status, &why);
            return wh_fail(error, WHERRY_CLOSED, "%s", why.message);
        }
        uint64_t now = wh_clock_now();
        if ((status == WHERRY_TIMED_OUT && !busy) || now - ticked > UINT64_C(50000000)) {
            ticked = now;
            for (size_t i = 0; i < call->count; i++) {
                wh_destination_tick(call->destinations + i);
            }
        }
    }
    return WHERRY_OK;
}

/** Hands the outcomes over. @return the first that is not OK. */
static wherry_status settle(const send_call *call, wherry_outcome *outcomes, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    size_t failed = 0;
    for (size_t i = 0; i < call->count; i++) {
        const wherry_outcome *one = &call->destinations[i].outcome;
        if (outcomes) {
            outcomes[i] = *one;
        }
        failed += one->status != WHERRY_OK;
        if (one->status == WHERRY_PEER_LOST) {
            wh_transport_forget(call->transfer.transport, call->transfer.transport->group, one->rank, true, NULL);
        }
        if (status == WHERRY_OK && one->status != WHERRY_OK) {
            status = one->status;
            if (error) {
                *error = one->error;
            }
        }
    }
    if (failed) {
        wh_log(WHERRY_LOG_WARN, "%zu of %zu destinations did not get the checkpoint", failed, call->count);
    }
    return status;
}

static void fill_outcomes(wherry_outcome *outcomes, const int32_t *ranks, size_t count, wherry_status status,
                          const wherry_error *error) {
    for (size_t i = 0; outcomes && i < count; i++) {
        outcomes[i] = (wherry_outcome){.rank = ranks[i], .status = status, .error = *error};
    }
}

wherry_status wherry_checkpoint_send(wherry_transport *transport, const int32_t *ranks, size_t count,
                                     const wherry_value *state, const wherry_transfer_options *options,
                                     wherry_outcome *outcomes, wherry_error *error) {
    send_call call = {.count = 0};
    wherry_error own;
    error = error ? error : &own;
    wherry_status status = check_arguments(transport, ranks, count, state, error);
    if (status == WHERRY_OK) {
        status = wh_transfer_begin(&call.transfer, transport, options, error);
    }
    if (status != WHERRY_OK || count == 0) {
        return status;
    }
    status = prepare(&call, ranks, count, state, error);
    if (status == WHERRY_OK) {
        wh_cancel_attach(call.transfer.options.cancel, &call.cancellable, call.inbox);
        for (size_t i = 0; i < count; i++) {
            wh_group_watch(transport->group, ranks[i]);
        }
        wh_transport_add_send(transport, &call.waiting);
        give_up_the_lost(&call);
        serve(&call, error);
        wh_cancel_detach(call.transfer.options.cancel, &call.cancellable);
        wh_transport_remove_send(transport, &call.waiting);
        status = settle(&call, outcomes, error);
    } else {
        fill_outcomes(outcomes, ranks, count, status, error);
    }
    for (size_t i = 0; i < call.count; i++) {
        wh_destination_destroy(call.destinations + i);
    }
    wh_inbox_close(call.inbox);
    wh_free(call.waiting.nonces);
    wh_free(call.destinations);
    wh_source_destroy(&call.source);
    return status;
}
