#include "transfer/ready.h"

#include "base/alloc.h"
#include "base/fail.h"
#include "base/options.h"
#include "plan/plan.h"
#include "transfer/transport.h"
#include <wherry/manifest.h>

void wherry_ready_options_init(wherry_ready_options *options) {
    *options = (wherry_ready_options){.struct_size = sizeof(*options), .flags = WHERRY_READY_FLAGS, .rank = -1};
}

/** Plans to receive the state from a rank that has the same one: from what this rank itself would offer. */
static wherry_status plan_ahead(wherry_ready *ready, wherry_error *error) {
    const wh_source *source = &ready->source;
    wherry_prepared *prepared;
    wherry_limits limits; /* what this process holds itself is none too large */
    wherry_limits_init(&limits);
    limits.depth = WHERRY_DEPTH_MAX;
    limits.manifest_bytes = limits.values = limits.string_bytes = UINT64_MAX;
    limits.total_bytes = INT64_MAX;
    wherry_status status = wherry_manifest_decode(source->manifest, source->manifest_size, &limits, &prepared, error);
    if (status != WHERRY_OK) {
        return status;
    }
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.rank = ready->rank;
    status = wherry_plan_create(prepared, ready->state, &options, &ready->plan, error);
    if (status != WHERRY_OK) {
        wherry_prepared_destroy(prepared);
    }
    return status;
}

wherry_status wherry_ready_create(const wherry_transport *transport, const wherry_value *state,
                                  const wherry_ready_options *options, wherry_ready **ready_p, wherry_error *error) {
    wherry_ready_options chosen;
    wherry_ready_options_init(&chosen);
    if (!transport || !state || !ready_p) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "transport, state or ready_p is NULL");
    }
    if (!wh_options_take(&chosen, sizeof(chosen), options) || !chosen.flags ||
        chosen.flags & ~(uint32_t)WHERRY_READY_FLAGS || chosen.rank < -1) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "fill the options by wherry_ready_options_init; flags must be known, at least one, and a rank is "
            "-1 or more");
    }
    wherry_ready *ready = wh_alloc_zeroed(1, sizeof(*ready));
    if (!ready) {
        return wh_fail_memory(error, "a state that is ready");
    }
    ready->state = state;
    ready->flags = chosen.flags;
    ready->rank = chosen.rank >= 0 ? chosen.rank : transport->group->rank;
    wherry_status status = wh_source_init(&ready->source, state, ready->rank, error);
    if (status == WHERRY_OK && chosen.flags & WHERRY_READY_RECV) {
        status = plan_ahead(ready, error);
    }
    if (status != WHERRY_OK) {
        wherry_ready_destroy(ready);
        return status;
    }
    *ready_p = ready;
    return WHERRY_OK;
}

void wherry_ready_destroy(wherry_ready *ready) {
    if (ready) {
        wherry_plan_destroy(ready->plan);
        wh_source_destroy(&ready->source);
        wh_free(ready);
    }
}

const wherry_value *wherry_ready_state(const wherry_ready *ready) {
    return ready->state;
}

wherry_status wh_ready_check(const wherry_ready *ready, const wh_transfer *transfer, uint32_t purpose,
                             wherry_error *error) {
    if (!ready) {
        return WHERRY_OK;
    }
    if (!(ready->flags & purpose)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the state was not made ready to be %s",
                       purpose == WHERRY_READY_SEND ? "sent" : "received into");
    }
    if (ready->rank != wh_transfer_rank(transfer)) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the state was made ready by rank %lld, and this is rank %lld",
                       (long long)ready->rank, (long long)wh_transfer_rank(transfer));
    }
    return WHERRY_OK;
}
