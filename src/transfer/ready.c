#include "transfer/ready.h"

#include "base/alloc.h"
#include "base/fail.h"
#include "base/options.h"
#include "plan/plan.h"
#include "transfer/transport.h"

void wherry_ready_options_init(wherry_ready_options *options) {
    *options = (wherry_ready_options){.struct_size = sizeof(*options), .flags = WHERRY_READY_FLAGS, .rank = -1};
}

wherry_status wh_ready_init(wherry_ready *ready, const wherry_value *state, int64_t rank, uint32_t flags,
                            wherry_error *error) {
    *ready = (wherry_ready){.state = state, .rank = rank, .flags = flags};
    wherry_status status = wh_source_init(&ready->source, state, rank, error);
    if (status == WHERRY_OK && flags & WHERRY_READY_SEND) {
        status = wh_source_locate(&ready->source, error);
    }
    return status == WHERRY_OK && flags & WHERRY_READY_RECV ? wh_ready_plan(ready, error) : status;
}

wherry_status wh_ready_plan(wherry_ready *ready, wherry_error *error) {
    return wh_plan_same(ready->source.prepared, &ready->plan, error);
}

void wh_ready_clear(wherry_ready *ready) {
    wherry_plan_destroy(ready->plan);
    wh_source_destroy(&ready->source);
    *ready = (wherry_ready){0};
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
    wherry_ready *ready = wh_alloc(sizeof(*ready));
    if (!ready) {
        return wh_fail_memory(error, "a state that is ready");
    }
    int64_t rank = chosen.rank >= 0 ? chosen.rank : transport->group->rank;
    wherry_status status = wh_ready_init(ready, state, rank, chosen.flags, error);
    if (status != WHERRY_OK) {
        wherry_ready_destroy(ready);
        return status;
    }
    *ready_p = ready;
    return WHERRY_OK;
}

void wherry_ready_destroy(wherry_ready *ready) {
    if (ready) {
        wh_ready_clear(ready);
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
