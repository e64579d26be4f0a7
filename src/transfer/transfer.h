/** @file transfer.h  What a send and a receive have in common: their options, checked, and what follows from them. */
#ifndef WH_TRANSFER_TRANSFER_H
#define WH_TRANSFER_TRANSFER_H

#include "transfer/lane_choice.h"

typedef struct wh_transfer {
    wherry_transport *transport;
    wherry_transfer_options options; /**< `threads` is at least 1. */
    wh_lane_choice lanes;
    wh_deadline deadline; /**< Of the whole call. */
    uint64_t begin;       /**< When it began, by wh_clock_now. */
} wh_transfer;

/** @return WHERRY_OK; WHERRY_INVALID_ARGUMENT. */
wherry_status wh_transfer_begin(wh_transfer *transfer, wherry_transport *transport,
                                const wherry_transfer_options *options, wherry_error *error);

/** Why the call as a whole must end: WHERRY_CANCELLED, WHERRY_TIMED_OUT; WHERRY_OK where it need not. */
wherry_status wh_transfer_must_end(const wh_transfer *transfer, const char *doing, wherry_error *error);

/** When a loop looks at everything again: soon, or at the deadline. */
wh_deadline wh_transfer_tick(const wh_transfer *transfer);

/** A moment for a last message, also where the deadline has passed. */
wh_deadline wh_transfer_last_words(void);

/** Seconds from one moment of wh_clock_now to another. */
double wh_seconds(uint64_t from, uint64_t to);

#endif
