/**
 * @file destination_work.h  A destination's work: the lane that the receiver chose, the threads
 * that push, the digests it asked for.
 */
#ifndef WH_TRANSFER_DESTINATION_WORK_H
#define WH_TRANSFER_DESTINATION_WORK_H

#include "transfer/destination.h"

/** Sends it a message; one that does not read is waited for until its no_progress_ms. */
wherry_status wh_destination_tell(wh_destination *destination, const wh_note *note, wherry_error *error);

/** Ends it, and tells it why unless it is lost. */
void wh_destination_fail(wh_destination *destination, wherry_status status, const wherry_error *error);

/**
 * PLAN: checks the chunks, takes the lane. An error ends the destination; a lane that does not work
 * is told to the receiver.
 */
wherry_status wh_destination_plan(wh_destination *destination, const wh_note *plan, wherry_error *error);

/** RETRY: these chunks again. */
wherry_status wh_destination_retry(wh_destination *destination, const wh_note *retry, wherry_error *error);

/** COMPARE: makes the digests of these chunks, and tells them when they are there. */
wherry_status wh_destination_compare(wh_destination *destination, const wh_note *compare, wherry_error *error);

/** ASSIST: opens the door for a lane, and answers. */
wherry_status wh_destination_assist(wh_destination *destination, const wh_note *assist, wherry_error *error);

/** Another channel has come for a lane that waits for it. */
wherry_status wh_destination_accept(wh_destination *destination, wherry_error *error);

/**
 * Takes in what the crew has done where it has ended. @return WHERRY_OK, also where it works on;
 * else why it failed.
 */
wherry_status wh_destination_work_ended(wh_destination *destination, wherry_error *error);

/**
 * Does a part of the work of a round that is done in parts.
 * @param wait_ms  how long it may wait where nothing can be done.
 * @return WHERRY_OK, also where there is more to do; else why it failed.
 */
wherry_status wh_destination_push_some(wh_destination *destination, uint32_t wait_ms, wherry_error *error);

/** The receiver has all: gives work that is about to end a moment to do so in order. */
void wh_destination_finish_work(wh_destination *destination);

/** Stops the crew, closes the lane and the channels. */
void wh_destination_end_lane(wh_destination *destination);

#endif
