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
#include "transfer/recv_source.h"

/** Starts as {0}. */
typedef struct wh_agreement {
    /** The caller wants the state, not only the bytes of its target. */
    bool wants_state;
    const wherry_value *target; /**< The target that is known before the offer; NULL: none. */
    bool disjoint;              /**< No two tensors of the target share memory. */
    wh_offer *as_source;        /**< The target, prepared like a source; NULL: not possible. */
    wherry_plan *same_plan;     /**< For a source with an equal state. Borrows from as_source. */
    /** The reason why there is no same_plan; status WHERRY_OK: there is one. */
    wherry_error unfit;
    const wherry_plan *plan; /**< The plan in use: same_plan or own_plan. */
    wherry_plan *own_plan;
    wh_recv_source *first; /**< The source whose manifest was planned; NULL: none yet. */
    /** The OFFER of that source. The source may come back with another one. */
    wh_message offer;
    /** The manifest, which is in `offer`; empty if the state equals as_source. */
    wh_bytes manifest;
    wherry_plan_summary summary; /**< The prepared state of `plan`. */
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
 * @param source  one that has offered. Its OFFER moves to the agreement.
 * @return WHERRY_OK; WHERRY_MALFORMED; as wherry_manifest_decode and wherry_plan_create; the errors
 * of the caller's functions.
 */
wherry_status wh_agreement_make(wh_agreement *agreement, wh_call *call, wh_recv_source *source, wherry_error *error);

/**
 * Checks that a source sends the same state as the one that the plan was made from. Logs a warning
 * if only plain values differ.
 * @return WHERRY_OK; WHERRY_MISMATCH, with the path and both sides; as wherry_manifest_decode.
 */
wherry_status wh_agreement_check(const wh_agreement *agreement, const wh_call *call, const wh_recv_source *source,
                                 wherry_error *error);

void wh_agreement_destroy(wh_agreement *agreement);

#endif
