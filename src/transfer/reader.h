/**
 * @file reader.h  A reader: at a source, the conversation with one receiver about one offer, from
 * WANT to the outcome.
 *
 *     WAITING --WANT--> OFFERED --DONE, or any failure--> CLOSING --> ENDED
 *        ^                | |                                ^
 *        '----WITHDRAW----' '--> REVOKED --ABORT, or time----'
 *
 *     WAITING -> OFFERED: take_want
 *     OFFERED -> WAITING: take_withdrawal
 *     OFFERED -> REVOKED: wh_reader_revoke
 *     REVOKED -> CLOSING: the receiver has noticed (take_acknowledgement), or look_at_closing
 *     any -> CLOSING:     end
 *     CLOSING -> ENDED:   look_at_closing, when the lane is closed
 *
 * While it is OFFERED, lanes are opened and closed one after the other:
 *
 *     CLOSED --PLAN--> ACCEPTING --> OPEN --CLOSE, or the next PLAN--> ENDING --> CLOSED
 *                          |          '--a worker failed--> BROKEN --'
 *                          '--> REFUSED, as CLOSED
 *
 * 1. From OFFERED on, the reader holds a lease: the source's memory does not change until CLOSING.
 *    Only RELEASED or CONFIRMED lets the receiver rely on what it has read.
 * 2. No function waits for the receiver. A message that cannot be sent at once waits in the
 *    reader's backlog, also the last one; workers that must end are awaited in CLOSING. So one
 *    receiver never delays another. There is one exception: over a group without sockets, a long
 *    message is sent at once.
 * 3. The outcome is decided when REVOKED or CLOSING begins, and does not change afterwards.
 * 4. A second PLAN may come as soon as all chunks of the first were handed out, or after CLOSE.
 *    While the first lane is ENDING, it waits in `later`, and so do the REQUESTs that follow it.
 * 5. If a step fails because the call was cancelled, the reader stays as it is: the loop of the
 *    send notices the cancel too, and revokes the lease.
 *
 * All functions are for the one thread that runs the send.
 */
#ifndef WH_TRANSFER_READER_H
#define WH_TRANSFER_READER_H

#include "group/backlog.h"
#include "transfer/call.h"
#include "transfer/offer.h"
#include "transfer/push.h"

typedef enum wh_reader_state {
    WH_READER_WAITING,
    WH_READER_OFFERED,
    /**
     * The receiver was told that its lease has ended. It gets a moment to notice, so that it does
     * not read memory that is freed. It is not waited for longer: it will never be released, so it
     * never relies on what it reads from now on.
     */
    WH_READER_REVOKED,
    WH_READER_CLOSING,
    WH_READER_ENDED,
} wh_reader_state;

typedef enum wh_reader_lane_state {
    WH_LANE_CLOSED,
    WH_LANE_REFUSED,   /**< Also closed, but REQUESTs for it may still come. */
    WH_LANE_ACCEPTING, /**< The lane waits for channels. */
    WH_LANE_OPEN,
    WH_LANE_BROKEN, /**< A worker failed. The receiver may still report a better reason. */
    WH_LANE_ENDING, /**< The lane is closed when its workers have ended. */
} wh_reader_lane_state;

/** The lane of the last PLAN. */
typedef struct wh_reader_lane {
    wh_reader_lane_state state;
    wh_push push;
    wh_string request; /**< What `accept` needs, kept while channels are missing. */
    wh_socket channels[WH_WORKERS_MAX];
    size_t channel_count;
    wherry_error broken; /**< BROKEN: why. */
    /** In ENDING, or if the outcome is decided: the time when workers are stopped. */
    wh_deadline close_by;
} wh_reader_lane;

/** Maximum number of messages that wait until a lane has ended. */
enum { WH_LATER_MAX = 64 };

typedef struct wh_reader {
    wh_call *call;
    const wh_offer *offer;
    wh_waiting_send *waiting; /**< The send, in the form that the pairing uses. */
    int32_t rank;
    wh_reader_state state;
    uint64_t incarnation;
    uint64_t nonce; /**< The tag of the receiver's inbox; 0: it has not asked. */
    uint64_t epoch; /**< The number of the lease. */
    wh_reader_lane lane;
    wh_push compare; /**< Digests that the receiver asked for with COMPARE. */
    /** A PLAN that waits until the lane has ended, and its REQUESTs. */
    wh_message later[WH_LATER_MAX];
    size_t later_count;
    /** Number of messages that need an answer. An honest receiver sends few. */
    uint64_t questions;
    /** Per chunk: how often it was requested. Allocated with the first PLAN. */
    uint8_t *times;
    wh_backlog backlog; /**< Messages that the receiver has not taken yet. */
    /**
     * When the reader began, WANT arrived, PLAN arrived, progress was shown, and the lane failed.
     */
    uint64_t moments[5];
    wh_liveness heard; /**< When either side last made progress. */
    wherry_outcome outcome;
} wh_reader;

/** @return NULL if out of memory. */
wh_reader *wh_reader_create(wh_call *call, const wh_offer *offer, wh_waiting_send *waiting, int32_t rank);

/** Stops the threads of a reader and frees everything. */
void wh_reader_destroy(wh_reader *reader);

/** True if the outcome is decided. */
static inline bool wh_reader_is_decided(const wh_reader *reader) {
    return reader->state >= WH_READER_REVOKED;
}

static inline bool wh_reader_holds_lease(const wh_reader *reader) {
    return reader->state == WH_READER_OFFERED;
}

/** Handles a message of its rank, or about it. */
void wh_reader_take(wh_reader *reader, wh_message *message);

/**
 * Checks the workers, the backlog and the progress of a reader. Call it after every wake-up, and
 * soon again while messages wait in the backlog.
 */
void wh_reader_tick(wh_reader *reader);

/** Ends the reader. If the receiver has a lease, tells it that the lease is revoked. */
void wh_reader_revoke(wh_reader *reader, wherry_status status, const wherry_error *error);

#endif
