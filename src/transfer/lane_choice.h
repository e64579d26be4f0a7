/** @file lane_choice.h  Which lanes a call may take, in which order. */
#ifndef WH_TRANSFER_LANE_CHOICE_H
#define WH_TRANSFER_LANE_CHOICE_H

#include "transfer/transport.h"

typedef struct wh_lane_choice {
    const wh_lane_ops *lanes[WH_OFFERED_LANES_MAX];
    size_t count;
    bool ordered; /**< The user has said in which order. */
} wh_lane_choice;

/**
 * @param text  "cma,stream": these, in this order; "^cma,^ring": all but these; NULL: WHERRY_LANES,
 * else all.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for a name that there is not, with those that there
 * are.
 */
wherry_status wh_lane_choice_make(const wherry_transport *transport, const char *text, wh_lane_choice *choice,
                                  wherry_error *error);

/**
 * Puts lanes that are slow with short runs behind the others of the same host, unless the user has
 * said in which order.
 * @param runs  how many there are, about, of `bytes` in all.
 */
void wh_lane_choice_order(wh_lane_choice *choice, uint64_t bytes, uint64_t runs);

/** Whether one of the lanes has a trait: WH_LANE_*. */
bool wh_lane_choice_has(const wh_lane_choice *choice, uint32_t trait);

/**
 * Whether a lane is passed over without a word, since nobody expects it to take part: one for
 * devices that was not named, where none of them are concerned.
 */
bool wh_lane_choice_passes(const wh_lane_choice *choice, const wh_lane_ops *lane, bool devices);

/** The lane of a name; NULL where it is not one of the choice. */
const wh_lane_ops *wh_lane_choice_find(const wh_lane_choice *choice, const void *name, size_t size);

#endif
