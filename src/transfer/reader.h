/**
 * @file reader.h  A reader: at a source, the conversation with one receiver about one offer, from
 * WANT to the outcome.
 *
 *     WAITING --WANT--> OFFERED --PLAN--> MOVING --DONE--> CLOSING --> ENDED
 *        ^                 |  ^             |                 ^
 *        '----WITHDRAW-----'  '----CLOSE----'                 |
 *                          |  (or the lane was refused)       |
 *                          '---------- any failure -----------'
 *
 *     WAITING -> OFFERED: take_want
 *     OFFERED -> WAITING: take_withdrawal
 *     OFFERED -> MOVING:  take_plan
 *     MOVING -> OFFERED:  look_at_lane, refuse_lane
 *     any -> CLOSING:     end
 *     CLOSING -> ENDED:   look_at_closing, when the lane is closed
 *
 * 1. From OFFERED on, the reader holds a lease: the source's memory does not change until CLOSING.
 *    Only RELEASED or CONFIRMED lets the receiver rely on what it has read.
 * 2. No function waits for the receiver, except for up to 200 ms to tell it why it fails. A message
 *    that cannot be sent at once waits in the reader's backlog; workers that must end are awaited
 *    in CLOSING. So one receiver never delays another. The exception: over a group without sockets,
 *    a long OFFER is sent at once.
 * 3. The outcome is decided when CLOSING begins, and does not change afterwards.
 * 4. A second PLAN may come as soon as all chunks of the first were handed out, or after CLOSE. It
 *    waits until the first lane is closed, and so do the REQUESTs that follow it.
 * 5. If a step fails because the call was cancelled, the reader stays as it is: the loop of the
 *    send notices the cancel too, and revokes the lease.
 *
 * All functions are for the one thread that runs the send.
 */
#ifndef WH_TRANSFER_READER_H
#define WH_TRANSFER_READER_H

#include "transfer/call.h"
#include "transfer/offer.h"
#include "transfer/push.h"

typedef enum wh_reader_state {
    WH_READER_WAITING,
    WH_READER_OFFERED,
    WH_READER_MOVING,
    WH_READER_CLOSING,
    WH_READER_ENDED,
} wh_reader_state;

/** How many REQUESTs may wait for the lane of a second PLAN. */
enum { WH_LATER_MAX = 64 };

typedef struct wh_reader {
    wh_call *call;
    const wh_offer *offer;
    wh_waiting_send *waiting; /**< The send, as the pairing sees it. */
    int32_t rank;
    wh_reader_state state;
    uint64_t incarnation;
    uint64_t nonce; /**< The tag of the receiver's inbox; 0: it has not asked. */
    uint64_t epoch; /**< Of the lease. */
    wh_push data;
    wh_push compare;                /**< Digests that the receiver asked for with COMPARE. */
    wh_string request;              /**< For the lane's accept, while channels are missing. */
    bool accepting;                 /**< The lane waits for channels. */
    bool lane_ends;                 /**< The lane is closed when its workers have ended. */
    bool lane_refused;              /**< The last lane was refused: its REQUESTs may still come. */
    wh_message plan;                /**< The PLAN to open a lane for after that; no bytes: none. */
    wh_message later[WH_LATER_MAX]; /**< The REQUESTs that came after that PLAN. */
    size_t later_count;
    int channels[WH_WORKERS_MAX];
    size_t channel_count;
    uint64_t questions; /**< Messages that need an answer: an honest receiver sends few. */
    /** Per chunk: how often it was requested. Allocated with the first PLAN. */
    uint8_t *times;
    wh_backlog backlog;   /**< Messages that the receiver has not taken yet. */
    wh_deadline close_by; /**< When workers that are ending are stopped. */
    wherry_error broken;  /**< Why the lane failed; the receiver may still tell a better reason. */
    uint64_t moments[4];  /**< WANT came; PLAN came; progress was shown; the lane failed. */
    wh_liveness heard;    /**< When either side last got on. */
    wherry_outcome outcome;
} wh_reader;

void wh_reader_init(wh_reader *reader, wh_call *call, const wh_offer *offer, wh_waiting_send *waiting, int32_t rank);

/** Stops its threads and frees everything. */
void wh_reader_destroy(wh_reader *reader);

/** True if the outcome is decided. */
static inline bool wh_reader_is_decided(const wh_reader *reader) {
    return reader->state >= WH_READER_CLOSING;
}

static inline bool wh_reader_holds_lease(const wh_reader *reader) {
    return reader->state == WH_READER_OFFERED || reader->state == WH_READER_MOVING;
}

/** Handles a message of its rank, or about it. */
void wh_reader_take(wh_reader *reader, wh_message *message);

/** True if its lane leaves the work to the thread that runs the send: wh_push_step. */
static inline bool wh_reader_needs_step(wh_reader *reader) {
    return wh_session_needs_step(&reader->data.session);
}

/** Looks after its workers, its backlog and its progress. Call it after every wake-up. */
void wh_reader_tick(wh_reader *reader);

/** True if messages wait in the backlog, so that wh_reader_tick should be called soon again. */
static inline bool wh_reader_has_backlog(const wh_reader *reader) {
    return reader->backlog.count > 0;
}

/** Ends the reader because the send ends, and tells the receiver that its lease is revoked. */
void wh_reader_revoke(wh_reader *reader, wherry_status status, const wherry_error *error, wh_deadline deadline);

#endif
