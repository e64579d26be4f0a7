/**
 * @file transfer.h  What a send and a receive have in common: their options, checked, and what
 * follows from them.
 */
#ifndef WH_TRANSFER_TRANSFER_H
#define WH_TRANSFER_TRANSFER_H

#include "transfer/lane_choice.h"
#include "transfer/message.h"

/**
 * How long one part of a lane's work may wait where the thread inside the call does that work and
 * has nothing else to do meanwhile: the group's own threads need the processor more than one that
 * looks around every few milliseconds.
 */
enum { WH_PATIENT_STEP_MS = 20 };

/**
 * Used by the thread that is inside the call; others read the options and the deadline, which stay
 * as they are.
 */
typedef struct wh_transfer {
    wherry_transport *transport;
    wherry_transfer_options options; /**< `threads` is at least 1. */
    wh_lane_choice lanes;
    wh_deadline deadline; /**< Of the whole call. */
    uint64_t begin;       /**< When it began, by wh_clock_now. */
    uint64_t asked;       /**< When options.interrupt was asked last. */
    bool interrupted;     /**< It said that the call shall end. */
} wh_transfer;

/** @return WHERRY_OK; WHERRY_INVALID_ARGUMENT. */
wherry_status wh_transfer_begin(wh_transfer *transfer, wherry_transport *transport,
                                const wherry_transfer_options *options, wherry_error *error);

/** This process as meshes and places name it. */
int64_t wh_transfer_rank(const wh_transfer *transfer);

/**
 * Why the call as a whole must end: WHERRY_CANCELLED, WHERRY_TIMED_OUT; WHERRY_OK where it need
 * not. Asks options.interrupt where it is time to: every loop of the thread that is inside the call
 * passes here, or by wh_transfer_cancelled, at least every 100 ms.
 */
wherry_status wh_transfer_must_end(wh_transfer *transfer, const char *doing, wherry_error *error);

/**
 * Whether it was cancelled or interrupted: the question of a stop (wh_stop_set_question) whose
 * context is a wh_transfer.
 */
bool wh_transfer_cancelled(void *transfer);

/**
 * Sends a message; the call can be ended while that finds no way. @return as wh_group_send;
 * WHERRY_CANCELLED.
 */
wherry_status wh_transfer_tell(wh_transfer *transfer, int32_t rank, uint64_t tag, const wh_note *note,
                               wh_deadline deadline, wherry_error *error);

/**
 * Notes in the figures how a lane takes the bytes; where its name says all, they stay as they are.
 * No worker is at work.
 */
void wh_transfer_describe(const wh_lane_ops *lane, const wh_lane_end *end, wherry_stats *stats);

/** When a loop looks at everything again: soon, or at the deadline. */
wh_deadline wh_transfer_tick(const wh_transfer *transfer);

/** A moment for a last message, also where the deadline has passed. */
wh_deadline wh_transfer_last_words(void);

/** Adds the name of a lane to those that moved a transfer's bytes: "cma+ring". */
void wh_stats_add_lane(wherry_stats *stats, const char *name);

/**
 * Notes why a lane was not used. error->reason is a wherry_lane_reason; if it is 0, the status
 * decides.
 */
void wh_stats_skip_lane(wherry_stats *stats, const char *name, const wherry_error *error);

/**
 * Waits for what the caller has queued on the stream of the options, where the memory of a device
 * is to be read or written.
 * @param devices  a bit for each such device; 0: nothing is waited for.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT; as wh_cuda_await_stream.
 */
wherry_status wh_transfer_await_stream(wh_transfer *transfer, uint64_t devices, wherry_error *error);

/** Seconds from one moment of wh_clock_now to another. */
double wh_seconds(uint64_t from, uint64_t to);

#endif
