/* Asking for a checkpoint, and planning what is received where. */
#include <wherry/expert.h>

#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "plan/plan.h"
#include "transfer/receive.h"

/** Sends the question. A source that has not joined yet is waited for. */
static wherry_status send_want(wh_receive *receive, const wh_note *want, wherry_error *error) {
    wherry_transport *transport = receive->transfer.transport;
    wh_mailbox *mailbox = transport->group->mailbox;
    receive->incarnation = wh_mailbox_incarnation(mailbox, receive->rank);
    wherry_status status =
        wh_transfer_tell(&receive->transfer, receive->rank, transport->tag, want, receive->transfer.deadline, error);
    if (status == WHERRY_TIMED_OUT) {
        wh_fail(error, status, "timed out after %.3f s while asking for a checkpoint: rank %d %s",
                wh_seconds(receive->transfer.begin, wh_clock_now()), (int)receive->rank,
                wh_mailbox_incarnation(mailbox, receive->rank) ? "takes no messages" : "has not come");
        wh_fail_rank(error, receive->rank, status);
    }
    receive->asked = status == WHERRY_OK;
    return status;
}

static wherry_status ask(wh_receive *receive, wherry_error *error) {
    wherry_transport *transport = receive->transfer.transport;
    const wherry_transfer_options *options = &receive->transfer.options;
    receive->nonce = wh_random_tag();
    if (!receive->nonce) {
        return wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
    }
    wherry_status status = wh_inbox_open(transport->group, receive->nonce, &receive->inbox, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wh_cancel_attach(receive->transfer.options.cancel, &receive->cancellable, receive->inbox);
    wh_note want = {
        .type = WH_WANT,
        .nonce = receive->nonce,
        .step = options->step,
        .verify = (uint8_t)options->verify,
        .known = {receive->as_source.fingerprint.bytes, receive->known ? WH_DIGEST_BYTES : 0},
    };
    receive->asked_at = wh_clock_now();
    receive->stats.messages++;
    status = send_want(receive, &want, error);
    wh_point("receiver asked");
    return status;
}

static wherry_status await_offer(wh_receive *receive, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !receive->offer_message.bytes) {
        status =
            wh_receive_heed(receive, wh_transfer_tick(&receive->transfer), "waiting for the source to send", error);
    }
    receive->offered_at = wh_clock_now();
    wh_point("receiver has the offer");
    return status;
}

/** Bits of a receive have the same values in a plan, but for NEW. */
static uint32_t plan_flags(uint32_t flags) {
    uint32_t same = WHERRY_RECV_PARTIAL | WHERRY_RECV_ANY_DEVICE | WHERRY_RECV_ANY_BOX | WHERRY_RECV_TO_DEVICE;
    return (flags & same) | (flags & WHERRY_RECV_NEW ? (uint32_t)WHERRY_PLAN_NEW : 0);
}

/** Shows what is offered to whom it concerns, and lets them say where it goes. */
static wherry_status show_offer(const wherry_transfer_options *options, const wherry_value *state,
                                const wherry_value **target_p, wherry_error *error) {
    wherry_status status = options->inspect ? options->inspect(options->inspect_context, state) : WHERRY_OK;
    if (status != WHERRY_OK) {
        return wh_fail(error, status, "the inspect callback refused the state: %s", wherry_status_text(status));
    }
    status = options->accept ? options->accept(options->accept_context, state, target_p) : WHERRY_OK;
    return status == WHERRY_OK
               ? status
               : wh_fail(error, status, "the accept callback refused the state: %s", wherry_status_text(status));
}

/** Plans anew: reads the manifest, and finds for each tensor of it where it goes. */
static wherry_status plan_anew(wh_receive *receive, const wherry_value *target, wherry_error *error) {
    const wherry_transfer_options *options = &receive->transfer.options;
    wherry_prepared *prepared;
    wherry_status status = wherry_manifest_decode(receive->offer.manifest.bytes, receive->offer.manifest.size,
                                                  options->limits, &prepared, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = show_offer(options, wherry_prepared_state(prepared), &target, error);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
        return status;
    }
    receive->in_place = target != NULL;
    if (!receive->wants_state && (!target || options->flags & WHERRY_RECV_NEW)) {
        wherry_prepared_destroy(prepared);
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "state_p is NULL, and what is received into new memory would be lost: give it, or a target without "
            "WHERRY_RECV_NEW");
    }
    bool apart = receive->apart || ((options->accept || receive->known) && target && wh_targets_are_disjoint(target));
    wherry_plan_options plan_options;
    wherry_plan_options_init(&plan_options);
    plan_options.flags = plan_flags(options->flags);
    plan_options.device = options->device;
    plan_options.allocate = options->allocate;
    plan_options.context = options->allocate_context;
    plan_options.rank = wh_transfer_rank(&receive->transfer);
    status = wh_plan_create(prepared, target, apart, &plan_options, &receive->own_plan, error);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
    }
    receive->plan = receive->own_plan;
    return status;
}

/** Takes the plan made ahead if the source says that it has the same state, or makes one. */
static wherry_status make_plan(wh_receive *receive, const wherry_value *target, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (receive->known && receive->offer.manifest.size == 0) {
        receive->plan = receive->same_plan;
        receive->in_place = true;
    } else if (receive->offer.manifest.size == 0) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d offers a state without a manifest", (int)receive->rank);
    } else {
        status = plan_anew(receive, target, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_plan_summarize(receive->plan, &receive->summary);
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(receive->plan, &count);
    receive->wanted_bytes = receive->summary.chunk_bytes;
    if (!wh_chunk_set_init(&receive->wanted, intervals, count)) {
        return wh_fail_memory(error, "a receive");
    }
    wh_point("receiver planned");
    for (size_t i = 0; i < receive->summary.missing || i < receive->summary.extra; i++) {
        wh_log(WHERRY_LOG_DEBUG, "the states differ: the source lacks %s, the target lacks %s",
               i < receive->summary.missing ? wherry_plan_missing(receive->plan, i) : "nothing more",
               i < receive->summary.extra ? wherry_plan_extra(receive->plan, i) : "nothing more");
    }
    return WHERRY_OK;
}

/** Where to receive, as far as that is known before the offer. */
static wherry_status find_target(wh_receive *receive, const wherry_value **target_p, wherry_error *error) {
    const wherry_transfer_options *options = &receive->transfer.options;
    *target_p = NULL;
    if (!options->target) {
        return WHERRY_OK;
    }
    wherry_status status = options->target(options->target_context, target_p);
    return status == WHERRY_OK ? status
                               : wh_fail(error, status, "the target callback failed: %s", wherry_status_text(status));
}

/**
 * Finds what holds for a source that has the same state: the usual case, and then there is no
 * manifest to read. Where the target alone says what is received, it is prepared now, unless it
 * cannot be: what is wrong with it, the offer will show.
 */
static void prepare_target(wh_receive *receive, const wherry_value *target) {
    const wherry_transfer_options *options = &receive->transfer.options;
    /* who says so has a target that differs */
    uint32_t others = WHERRY_RECV_NEW | WHERRY_RECV_PARTIAL;
    if (receive->wants_state || options->inspect) {
        return;
    }
    if (target && !(options->flags & others)) {
        int64_t rank = wh_transfer_rank(&receive->transfer);
        receive->known = wh_source_init(&receive->as_source, target, rank, NULL) == WHERRY_OK;
        /* its fingerprint is all that is said of it */
        wh_source_forget_manifest(&receive->as_source);
    }
}

/**
 * While the offer is on its way: plans to receive from a source that has the same state, or looks
 * at the target for any other.
 */
static wherry_status plan_ahead(wh_receive *receive, const wherry_value *target, wherry_error *error) {
    if (receive->known) {
        return wh_plan_same(receive->as_source.prepared, &receive->same_plan, error);
    }
    receive->apart = target && wh_targets_are_disjoint(target);
    return WHERRY_OK;
}

wherry_status wh_receive_agree(wh_receive *receive, wherry_error *error) {
    const wherry_value *target = NULL;
    /* matters only for a source that has the same state */
    wherry_error unfit = {.status = WHERRY_OK};
    /* the source is asked all the same, so that it hears why it need not wait */
    wherry_error targetless = {.status = WHERRY_OK};
    targetless.status = find_target(receive, &target, &targetless);
    if (targetless.status == WHERRY_OK) {
        uint64_t begin = wh_clock_now();
        prepare_target(receive, target);
        receive->ready_ns = wh_clock_now() - begin;
    }
    wherry_status status = ask(receive, error);
    if (targetless.status != WHERRY_OK) {
        *error = targetless;
        return targetless.status;
    }
    if (status == WHERRY_OK) {
        unfit.status = plan_ahead(receive, target, &unfit);
        status = await_offer(receive, error);
    }
    int64_t steps[] = {receive->transfer.options.step, receive->offer.step};
    if (status == WHERRY_OK && steps[0] != steps[1] && steps[0] != WHERRY_STEP_ANY && steps[1] != WHERRY_STEP_ANY) {
        status = wh_fail(error, WHERRY_MISMATCH, "rank %d sends step %lld and step %lld is wanted", (int)receive->rank,
                         (long long)steps[1], (long long)steps[0]);
    }
    if (status == WHERRY_OK && unfit.status != WHERRY_OK && receive->offer.manifest.size == 0) {
        *error = unfit;
        status = unfit.status;
    }
    return status == WHERRY_OK ? make_plan(receive, target, error) : status;
}
