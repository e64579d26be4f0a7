/** @file lane_choice.h  Which lanes a call may take, in which order. */
#ifndef WH_TRANSFER_LANE_CHOICE_H
#define WH_TRANSFER_LANE_CHOICE_H

#include "transfer/transport.h"

typedef struct wh_lane_choice {
    const wh_lane_ops *lanes[WH_OFFERED_LANES_MAX];
    size_t count;
} wh_lane_choice;

/**
 * @param text  "cma,stream": these, in this order; "^cma,^ring": all but these; NULL: WHERRY_LANES, else all.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for a name that there is not, with those that there are.
 */
wherry_status wh_lane_choice_make(const wherry_transport *transport, const char *text, wh_lane_choice *choice,
                                  wherry_error *error);

/** The lane of a name; NULL where it is not one of the choice. */
const wh_lane_ops *wh_lane_choice_find(const wh_lane_choice *choice, const void *name, size_t size);

#endif
