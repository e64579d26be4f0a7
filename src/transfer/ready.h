/** @file ready.h  What a state is made ready as; see wherry/ready.h. */
#ifndef WH_TRANSFER_READY_H
#define WH_TRANSFER_READY_H

#include <wherry/expert.h>
#include <wherry/ready.h>

#include "transfer/source.h"
#include "transfer/transfer.h"

struct wherry_ready {
    const wherry_value *state;
    int64_t rank;
    uint32_t flags;
    wh_source source;
    wherry_plan *
        plan; /**< To be received into: from a source whose manifest is as the own one. Borrows what the source prepared. */
};

/**
 * Makes a state ready. @param flags  WHERRY_READY_*. @return as wh_source_init and wh_plan_same; wh_ready_clear in any case.
 */
wherry_status wh_ready_init(wherry_ready *ready, const wherry_value *state, int64_t rank, uint32_t flags,
                            wherry_error *error);

/** Makes the plan of one that has none, being made without WHERRY_READY_RECV. @return as wh_plan_same. */
wherry_status wh_ready_plan(wherry_ready *ready, wherry_error *error);

/** What was all zeros may be cleared, too. */
void wh_ready_clear(wherry_ready *ready);

/** Whether a call may use it, for `purpose`: one of WHERRY_READY_*. ready may be NULL. @return WHERRY_OK; WHERRY_INVALID_ARGUMENT. */
wherry_status wh_ready_check(const wherry_ready *ready, const wh_transfer *transfer, uint32_t purpose,
                             wherry_error *error);

#endif
