#include "transfer/recv_plan.h"

#include <wherry/expert.h>

#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "manifest/manifest.h"
#include "plan/plan.h"
#include "state/sharded.h"

/* ---- before the offer ---- */

wherry_status wh_agreement_begin(wh_agreement *agreement, wh_call *call, wherry_error *error) {
    const wherry_transfer_options *options = &call->options;
    if (options->target) {
        wherry_status status = options->target(options->target_context, &agreement->target);
        if (status != WHERRY_OK) {
            return wh_fail(error, status, "the target callback failed: %s", wherry_status_text(status));
        }
    }
    /* With these flags, the target differs from the source. */
    bool differs = options->flags & (WHERRY_RECV_NEW | WHERRY_RECV_PARTIAL);
    if (agreement->target && !agreement->wants_state && !options->inspect && !differs) {
        /* A source with an equal state can be expected. If this fails, the plan will show why. */
        bool exact = options->step != WHERRY_STEP_ANY; /* The same as at a source. */
        wh_offer_create(agreement->target, wh_call_rank(call), exact, WH_SHARE_NEVER, &agreement->as_source, NULL);
    }
    return WHERRY_OK;
}

void wh_agreement_plan_ahead(wh_agreement *agreement) {
    if (agreement->as_source) {
        agreement->unfit.status =
            wh_plan_same(agreement->as_source->prepared, &agreement->same_plan, &agreement->unfit);
    } else {
        agreement->disjoint = agreement->target && wh_targets_are_disjoint(agreement->target);
    }
}

/* ---- the plan ---- */

/** Shows the offered state to the caller, who may refuse it or provide a target for it. */
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

/** Makes a plan from the decoded manifest, which the plan owns on success. */
static wherry_status plan_prepared(wh_agreement *agreement, const wh_call *call, wherry_prepared *prepared,
                                   wherry_error *error) {
    const wherry_transfer_options *options = &call->options;
    const wherry_value *target = agreement->target;
    WH_TRY(show_offer(options, wherry_prepared_state(prepared), &target, error));
    agreement->in_place = target != NULL;
    if (!agreement->wants_state && (!target || options->flags & WHERRY_RECV_NEW)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "state_p is NULL, so what is received into new memory would be lost; pass state_p, or a target "
                       "without WHERRY_RECV_NEW");
    }
    bool disjoint =
        agreement->disjoint || ((options->accept || agreement->as_source) && target && wh_targets_are_disjoint(target));
    wherry_plan_options plan_options;
    wherry_plan_options_init(&plan_options);
    plan_options.flags = options->flags & WHERRY_PLAN_FLAGS;
    plan_options.device = options->device;
    plan_options.allocate = options->allocate;
    plan_options.context = options->allocate_context;
    plan_options.rank = wh_call_rank(call);
    return wh_plan_create(prepared, target, disjoint, &plan_options, &agreement->own_plan, error);
}

static wherry_status plan_manifest(wh_agreement *agreement, const wh_call *call, wherry_error *error) {
    wherry_prepared *prepared;
    wh_bytes manifest = agreement->manifest;
    WH_TRY(wherry_manifest_decode(manifest.bytes, manifest.size, call->options.limits, &prepared, error));
    wherry_status status = plan_prepared(agreement, call, prepared, error);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
    }
    agreement->plan = agreement->own_plan;
    return status;
}

/** Uses the plan that was made in advance. */
static wherry_status plan_same(wh_agreement *agreement, const wh_recv_source *source, wherry_error *error) {
    if (!agreement->as_source) {
        return wh_fail(error, WHERRY_MALFORMED, "%s offers a state without a manifest", source->name);
    }
    if (agreement->unfit.status != WHERRY_OK) {
        *error = agreement->unfit;
        return agreement->unfit.status;
    }
    agreement->plan = agreement->same_plan;
    agreement->in_place = true;
    return WHERRY_OK;
}

wherry_status wh_agreement_make(wh_agreement *agreement, wh_call *call, wh_recv_source *source, wherry_error *error) {
    agreement->first = source;
    agreement->manifest = source->offer.manifest;
    agreement->offer = source->offer_message;
    source->offer_message = (wh_message){.channel = WH_NO_SOCKET};
    WH_TRY(agreement->manifest.size ? plan_manifest(agreement, call, error) : plan_same(agreement, source, error));
    wherry_plan_summarize(agreement->plan, &agreement->summary);
    size_t count;
    const wherry_interval *intervals = wherry_plan_intervals(agreement->plan, &count);
    agreement->wanted_bytes = agreement->summary.chunk_bytes;
    WH_TRY_ALLOC(wh_chunk_set_init(&agreement->wanted, intervals, count), error, "a receive");
    wh_point("receiver planned");
    const wherry_plan_summary *summary = &agreement->summary;
    for (size_t i = 0; i < summary->missing || i < summary->extra; i++) {
        wh_log(WHERRY_LOG_DEBUG, "the states differ: the source lacks %s, the target lacks %s",
               i < summary->missing ? wherry_plan_missing(agreement->plan, i) : "nothing more",
               i < summary->extra ? wherry_plan_extra(agreement->plan, i) : "nothing more");
    }
    return WHERRY_OK;
}

/* ---- several sources ---- */

/** Decodes a manifest; without one, borrows the target, which equals the source's state. */
static wherry_status read_offer(const wh_agreement *agreement, const wh_call *call, wh_bytes manifest,
                                wherry_prepared **owned_p, const wherry_prepared **prepared_p, wherry_error *error) {
    if (!manifest.size && !agreement->as_source) {
        return wh_fail(error, WHERRY_MALFORMED, "a source offers a state without a manifest");
    }
    if (manifest.size) {
        WH_TRY(wherry_manifest_decode(manifest.bytes, manifest.size, call->options.limits, owned_p, error));
    }
    *prepared_p = *owned_p ? *owned_p : agreement->as_source->prepared;
    return WHERRY_OK;
}

static wherry_status compare_layouts(const wherry_prepared *first, const char *first_name, const wherry_prepared *other,
                                     const wh_recv_source *source, wherry_error *error) {
    wherry_error why = {.status = WHERRY_OK};
    const wherry_value *a = wherry_prepared_state(first);
    const wherry_value *b = wherry_prepared_state(other);
    wherry_status status = wh_layout_compare(a, first->rank, b, other->rank, &why);
    if (status == WHERRY_OK && !wh_space_is_divided_like(&first->space, &other->space)) {
        status = wh_fail(&why, WHERRY_MISMATCH, "their bytes are divided differently");
    }
    if (status != WHERRY_OK) {
        wh_fail(error, status, "%s and %s send states with different layouts: %s", first_name, source->name,
                why.message);
        wh_fail_path(error, why.path);
        return wh_fail_rank(error, source->rank, status);
    }
    if (wherry_value_compare(a, b, WHERRY_COMPARE_NO_CONTENT, &why) != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "plain values of %s and %s differ, and those of %s are used: %s: %s", first_name,
               source->name, first_name, why.path, why.message);
    }
    return WHERRY_OK;
}

wherry_status wh_agreement_check(const wh_agreement *agreement, const wh_call *call, const wh_recv_source *source,
                                 wherry_error *error) {
    wh_bytes first = agreement->manifest;
    wh_bytes other = source->offer.manifest;
    /* Two ranks may have different boxes of a DTensor, so their manifests must be decoded. */
    bool boxes = agreement->plan->prepared->dtensor_count > 0;
    bool same = first.bytes == other.bytes || (!first.size && !other.size);
    if (same || (!boxes && wh_manifests_are_equal(first.bytes, first.size, other.bytes, other.size))) {
        return WHERRY_OK;
    }
    wherry_prepared *owned[2] = {NULL, NULL};
    const wherry_prepared *prepared[2] = {NULL, NULL};
    wherry_status status = read_offer(agreement, call, first, owned, prepared, error);
    WH_THEN(status, read_offer(agreement, call, other, owned + 1, prepared + 1, error));
    WH_THEN(status, compare_layouts(prepared[0], agreement->first->name, prepared[1], source, error));
    wherry_prepared_destroy(owned[0]);
    wherry_prepared_destroy(owned[1]);
    return status;
}

void wh_agreement_destroy(wh_agreement *agreement) {
    if (agreement->first) {
        wh_message_clear(&agreement->offer);
    }
    wh_chunk_set_destroy(&agreement->wanted);
    wherry_plan_destroy(agreement->own_plan);
    wherry_plan_destroy(agreement->same_plan);
    wh_offer_unref(agreement->as_source);
}
