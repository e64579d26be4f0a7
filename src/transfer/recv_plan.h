/**
 * @file recv_plan.h  What a receive agrees on before the first byte: the target, whether the
 * sources send the same state, and where each chunk goes.
 *
 * If the caller wants no state back and the target alone says what is received, the receive expects
 * a source with an equal state: it prepares its own target like a source, names the fingerprint in
 * its question, and plans while the answer is on its way. A source with that fingerprint then sends
 * no manifest. Otherwise the plan is made from the manifest of the first source that answers.
 *
 * For the thread inside the call.
 */
#ifndef WH_TRANSFER_RECV_PLAN_H
#define WH_TRANSFER_RECV_PLAN_H

#include "range/chunkset.h"
#include "transfer/call.h"
#include "transfer/offer.h"

/** Starts as {0}. */
typedef struct wh_agreement {
    /** The caller wants the state, not only the bytes of its target. */
    bool wants_state;
    const wherry_value *target; /**< Before the offer; NULL: none. */
    bool disjoint;              /**< No two tensors of the target share memory. */
    wh_offer *as_source;        /**< The target, prepared like a source; NULL: not possible. */
    wherry_plan *same_plan;     /**< For a source with an equal state. Borrows from as_source. */
    wherry_error unfit;         /**< Why there is no same_plan; status WHERRY_OK: there is one. */
    const wherry_plan *plan;    /**< The plan in use: same_plan or own_plan. */
    wherry_plan *own_plan;
    wherry_plan_summary summary; /**< Of the plan. */
    bool in_place;
    /** The chunks to ask for: those of the plan, without those that the target already has. */
    wh_chunk_set wanted;
    uint64_t wanted_bytes;
} wh_agreement;

/**
 * Gets the target from the caller and prepares it, before the sources are asked.
 * @return WHERRY_OK; the error of options.target.
 */
wherry_status wh_agreement_begin(wh_agreement *agreement, wh_call *call, wherry_error *error);

/** Plans as far as possible while the offer is on its way. */
void wh_agreement_plan_ahead(wh_agreement *agreement);

/**
 * Makes the plan.
 * @param offer  of the source at `rank`.
 * @return WHERRY_OK; WHERRY_MALFORMED; as wherry_manifest_decode and wherry_plan_create; the errors
 * of the caller's functions.
 */
wherry_status wh_agreement_make(wh_agreement *agreement, wh_call *call, const wh_note *offer, int32_t rank,
                                wherry_error *error);

/**
 * Checks that another source sends the same state as the one that the plan was made from. Logs a
 * warning if only plain values differ.
 * @param first, first_rank  the offer that the plan was made from.
 * @param other, other_rank  the offer to check.
 * @return WHERRY_OK; WHERRY_MISMATCH, with the path and both sides; as wherry_manifest_decode.
 */
wherry_status wh_agreement_check(const wh_agreement *agreement, const wh_call *call, const wh_note *first,
                                 int32_t first_rank, const wh_note *other, int32_t other_rank, wherry_error *error);

void wh_agreement_destroy(wh_agreement *agreement);

#endif
