/**
 * @file destination.h  One destination of a send: from its WANT to RELEASED, or to the reason why
 * not.
 *
 *   WAITING --WANT--> OFFERED --PLAN--> MOVING --DONE--> RELEASED      (PLAN again: the next chunks
 *   over another lane)
 *      ^---WITHDRAW------| |                 |                 |
 *      +-----------------+-----------------+--> FAILED: it gave up, died, stood still; or the send
 *      as a whole ended (REVOKED)
 *
 * From OFFER on it holds a lease: the source's memory stays as it is until this is RELEASED or
 * FAILED, and only RELEASED lets the receiver take what it has for good. All functions are called
 * by the one thread that runs the send; none of them waits, but for sending a message, and where
 * that thread alone may use the group for pushing. What ends because the call was cancelled is left
 * as it is: the loop of the send sees that too, and revokes the lease.
 */
#ifndef WH_TRANSFER_DESTINATION_H
#define WH_TRANSFER_DESTINATION_H

#include "range/chunkset.h"
#include "transfer/crew.h"
#include "transfer/fetch.h"
#include "transfer/source.h"
#include "transfer/transfer.h"

typedef enum wh_destination_state {
    WH_DESTINATION_WAITING,
    WH_DESTINATION_OFFERED,
    WH_DESTINATION_MOVING,
    WH_DESTINATION_RELEASED,
    WH_DESTINATION_FAILED,
} wh_destination_state;

typedef struct wh_destination {
    wh_transfer *transfer;
    const wh_source *source;
    wh_waiting_send *waiting; /**< The send, as the pairing sees it. */
    wh_inbox *inbox;          /**< Of the send. */
    int32_t rank;
    wh_destination_state state;
    uint64_t incarnation;
    uint64_t nonce; /**< The tag of the receiver's inbox. */
    uint64_t epoch; /**< Of the lease. */
    wh_lane_site site;
    wh_stop stop;
    const wh_lane_ops *lane;
    wh_lane_end *end;
    wh_string request; /**< For the lane's accept, while channels are still to come. */
    bool accepting;
    int channels[WH_CREW_MAX];
    bool verify;
    uint32_t requests; /**< Plans, calls for help and retries so far: an honest receiver has few. */
    wh_chunk_set list;
    bool on_device; /**< The list is of chunks of devices: the last PLAN that there may be. */
    wh_fetch fetch; /**< Where chunks of a device go by way of the host; else {0}. */
    _Atomic uint64_t moved;
    _Atomic uint64_t digested; /**< Bytes, for a receiver that reads by itself. */
    uint64_t peer_bytes;       /**< What the receiver says it has. */
    uint64_t wanted;           /**< Bytes that it asked for. */
    wh_crew crew;
    bool in_parts; /**< No crew is at work on the round: wh_destination_step is. */
    /**
     * Of the round's chunks, by place in the list, for a receiver that is told them by message;
     * NULL: the lane carries them, or they are not wanted.
     */
    wh_digest *digests;
    /** The work failed; whether that is the receiver's doing a message may still tell. */
    bool broken;
    wherry_error breakage;
    uint64_t broken_at;
    uint64_t heard; /**< When it last got on. */
    uint64_t heard_bytes;
    uint64_t asked_at; /**< Moments, by wh_clock_now: WANT came, */
    uint64_t plan_at;  /**< PLAN came, */
    uint64_t shown_at; /**< and progress was last shown to the user. */
    wherry_outcome outcome;
} wh_destination;

void wh_destination_init(wh_destination *destination, wh_transfer *transfer, const wh_source *source,
                         wh_waiting_send *waiting, int32_t rank);

/** Ends its threads, and releases what it has. */
void wh_destination_destroy(wh_destination *destination);

static inline bool wh_destination_ended(const wh_destination *destination) {
    return destination->state >= WH_DESTINATION_RELEASED;
}

static inline bool wh_destination_holds_lease(const wh_destination *destination) {
    return destination->state == WH_DESTINATION_OFFERED || destination->state == WH_DESTINATION_MOVING;
}

/** Takes a message of its rank, or about it. */
void wh_destination_take(wh_destination *destination, wh_message *message);

/**
 * Whether its lane leaves the work of a round to the thread that runs the send:
 * wh_destination_step.
 */
static inline bool wh_destination_needs_steps(const wh_destination *destination) {
    return destination->in_parts && wh_destination_holds_lease(destination);
}

/** Does a part of that work. @param wait_ms  how long it may wait where nothing can be done. */
void wh_destination_step(wh_destination *destination, uint32_t wait_ms);

/** Looks after its crew and its progress. */
void wh_destination_tick(wh_destination *destination);

/** Ends it because the send ends: the receiver is told that the lease is revoked. */
void wh_destination_revoke(wh_destination *destination, wherry_status status, const wherry_error *error,
                           wh_deadline deadline);

#endif
