/** @file ready.h  What a state is made ready as; see wherry/ready.h. */
#ifndef WH_TRANSFER_READY_H
#define WH_TRANSFER_READY_H

#include <wherry/plan.h>
#include <wherry/ready.h>

#include "transfer/source.h"
#include "transfer/transfer.h"

struct wherry_ready {
    const wherry_value *state;
    int64_t rank;
    uint32_t flags;
    wh_source source;
    wherry_plan *plan; /**< To be received into: from a source whose manifest is as the own one. */
};

/** Whether a call may use it, for `purpose`: one of WHERRY_READY_*. ready may be NULL. @return WHERRY_OK; WHERRY_INVALID_ARGUMENT. */
wherry_status wh_ready_check(const wherry_ready *ready, const wh_transfer *transfer, uint32_t purpose,
                             wherry_error *error);

#endif
