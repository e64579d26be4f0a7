/**
 * @file push.h  The source's side of a session: hands the chunks that a receiver requests to the
 * lane, and computes their digests if the lane does not carry them.
 *
 * With a one-sided lane the receiver reads the chunks itself. If it wants digests, workers of this
 * session only compute them. A receiver that asks for digests without any lane (COMPARE) gets such
 * a session too, over a lane that moves nothing: wh_lane_digests.
 *
 * Threads: workers call the functions of the feed. All others are for the thread inside the call.
 */
#ifndef WH_TRANSFER_PUSH_H
#define WH_TRANSFER_PUSH_H

#include <wherry/expert.h>

#include "plan/staging.h"
#include "transfer/message.h"
#include "transfer/offer.h"
#include "transfer/session.h"

/** Moves nothing, on no host. For a session that only computes digests. */
extern const wh_lane_ops wh_lane_digests;

/** Starts as {0}. Must not move in memory while its session is open. */
typedef struct wh_push {
    wh_session session; /**< First: see wh_move_fn and wh_session_next. */
    const wh_offer *offer;
    bool strong;    /**< The digests are by SHA-256. */
    bool on_device; /**< The chunks are in device memory. The first request decides. */
    wh_fetch fetch; /**< Used only if chunks on a device go through host memory; else {0}. */
    /**
     * By chunk number, for digests that go by message; NULL: the lane carries them, or the receiver
     * wants none.
     */
    wherry_digest *digests;
    _Atomic uint64_t digested; /**< Bytes. */
    size_t told;               /**< Number of requests whose digests were sent. */
} wh_push;

/**
 * Opens the session, before the lane is accepted.
 * @param verify  the receiver wants digests.
 * @return as wh_session_prepare.
 */
wherry_status wh_push_prepare(wh_push *push, const wh_offer *offer, const wh_lane_ops *lane, const wh_lane_site *site,
                              wh_inbox *inbox, bool verify, wherry_error *error);

/**
 * Appends a request of the receiver.
 * @param intervals  encoded, from a hostile peer.
 * @return WHERRY_OK; WHERRY_OUT_OF_BOUNDS; WHERRY_MALFORMED, also for a request without chunks that
 * is not the last, and for chunks of host and device memory in one session; WHERRY_NO_MEMORY.
 */
wherry_status wh_push_request(wh_push *push, wh_bytes intervals, bool last, wherry_error *error);

/**
 * Starts the work, after the lane was accepted and the first request was appended.
 * @param workers_p  receives the number of workers; 0: nothing has to be done here.
 * @return WHERRY_OK; WHERRY_MALFORMED if the lane cannot move these chunks; as wh_workers_start;
 * WHERRY_NO_MEMORY.
 */
wherry_status wh_push_start(wh_push *push, uint32_t *workers_p, wherry_error *error);

/** Bytes that this side has sent or digested. */
static inline uint64_t wh_push_work(const wh_push *push) {
    return atomic_load(&push->session.moved) + atomic_load(&push->digested);
}

/** True if this side has something to do for each chunk: to send it, or to digest it. */
static inline bool wh_push_hands_out(const wh_push *push) {
    return !(push->session.lane->traits & WH_LANE_ONE_SIDED) || push->digests;
}

/** True if the digests of all requests were sent. */
static inline bool wh_push_has_told(const wh_push *push) {
    return !push->digests || push->told == push->session.queue.count;
}

/** Closes the session and frees everything. Does nothing if it is closed. */
void wh_push_close(wh_push *push);

#endif
