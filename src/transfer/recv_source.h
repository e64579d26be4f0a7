/**
 * @file recv_source.h  At a receiver: the conversation with one source, the choice of its lane, and
 * its session.
 *
 *     ABSENT --ask--> ASKED --OFFER--> OFFERED --a worker failed--> BROKEN --> GONE
 *                        |                |                                     ^
 *                        '----------------'------ lost, revoked, gave up -------'
 *
 *     ABSENT -> ASKED:   wh_source_ask
 *     ASKED -> OFFERED:  wh_source_take
 *     OFFERED -> BROKEN: break_source
 *     BROKEN -> GONE:    wh_source_look, after a moment
 *     any -> GONE:       wh_source_fail
 *     GONE -> ABSENT:    look_for_return, if the rank is back
 *
 * 1. While OFFERED, the source has promised not to change its state (the lease). A session can be
 *    opened and closed any number of times.
 * 2. BROKEN: the lane failed; for a moment, the source or the group may tell a better reason.
 * 3. A source that is GONE has a reason (failure). Its session is stopped; its workers may still
 *    run until wh_source_look has closed it. Only then its chunks can be assigned to others.
 * 4. Every error of a source stays with the source. Functions return an error only if the whole
 *    receive must end: cancel, deadline, a closed group, no memory, no threads.
 *
 * For the thread inside the call.
 */
#ifndef WH_TRANSFER_RECV_SOURCE_H
#define WH_TRANSFER_RECV_SOURCE_H

#include "transfer/call.h"
#include "transfer/chunks.h"

struct wh_recv;
struct wh_comparing;

typedef enum wh_source_state {
    WH_SOURCE_ABSENT,
    WH_SOURCE_ASKED,
    WH_SOURCE_OFFERED,
    WH_SOURCE_BROKEN,
    WH_SOURCE_GONE,
} wh_source_state;

/** Maximum length of a source's name. Longer names are cut. */
enum { WH_SOURCE_NAME_MAX = 128 };

typedef struct wh_recv_source {
    struct wh_recv *recv;
    wherry_transport *transport;
    /** The inbox for all sources of its group. Its tag is the nonce of the questions. */
    wh_inbox *inbox;
    /** The name in messages: "rank 3", or a name from the caller. */
    char name[WH_SOURCE_NAME_MAX];
    int32_t rank;
    wh_source_state state;
    uint64_t incarnation;     /**< The incarnation that was asked; 0: not known. */
    wh_message offer_message; /**< The OFFER, which `offer` borrows from. */
    wh_note offer;
    wh_pull pull;             /**< The session of this source; closed if nothing is requested. */
    size_t next_lane;         /**< The lane of the call to try next. */
    uint32_t sessions;        /**< Number of PLAN messages so far. */
    uint32_t damaged;         /**< Number of times that chunks of this source came damaged. */
    uint32_t damaged_session; /**< The session in which chunks last came damaged. */
    /** True if the session is stopped because other sources are asked instead. */
    bool recalled;
    /** True if the source was told that this side has ended, or need not be told. */
    bool told;
    /**
     * The last of RELEASED, CONFIRMED, ASSISTED, REFUSE_LANE; 0: none. CONFIRM: the source was
     * asked to confirm, and has not answered.
     */
    wh_message_type answer;
    /** The reason in the answer, with status WHERRY_OK for yes; later why it is BROKEN or GONE. */
    wherry_error failure;
    /** When it became BROKEN or was asked to confirm, or when its session last had work to do. */
    uint64_t since;
    wh_liveness heard;              /**< When the source last made progress. */
    int scheduled;                  /**< Its number in the schedule; -1: it is not there. */
    uint64_t reported;              /**< Number of bytes that were reported to the schedule. */
    struct wh_comparing *comparing; /**< The comparison that its digests are for; NULL: none. */
} wh_recv_source;

/**
 * Sends the question. A source that has not joined, or takes no message now, stays ABSENT. With one
 * source, waits for that until the next tick of the call.
 * @return see invariant 4.
 */
wherry_status wh_source_ask(wh_recv_source *source, wherry_error *error);

/** Handles a message of the source, or about it. */
void wh_source_take(wh_recv_source *source, wh_message *message);

/** Sends a message to the source. A failure is a failure of the source. @return see invariant 4. */
wherry_status wh_source_tell(wh_recv_source *source, const wh_note *note, wherry_error *error);

/**
 * The source failed. The first reason counts.
 * @param tell  the source must learn the reason, when its session is closed.
 */
void wh_source_fail(wh_recv_source *source, wherry_status status, const wherry_error *error, bool tell);

/**
 * Requests chunks, which must not be assigned to any source. Opens a session first if there is
 * none: tries the lanes, the fastest first. If none works, the source fails. If trying takes so
 * long that other sources are asked instead, no session is opened, and the source becomes
 * `recalled`.
 * @param chunks  may be none if `last` and a session is open.
 * @param last    no request follows in this session.
 * @return see invariant 4.
 */
wherry_status wh_source_request(wh_recv_source *source, const wh_chunk_set *chunks, bool last, wherry_error *error);

/**
 * Looks after the session and the state. Reports to the schedule which chunks have landed, came
 * damaged or were not delivered.
 * @return see invariant 4.
 */
wherry_status wh_source_look(wh_recv_source *source, wherry_error *error);

/** Gives up a source that makes no progress although it has something to do. */
void wh_source_check_progress(wh_recv_source *source);

/** Stops the session, or the probe of a lane, because other sources deliver its chunks sooner. */
void wh_source_recall(wh_recv_source *source);

/** Index of the source in recv->sources. */
uint8_t wh_source_number(const wh_recv_source *source);

/** The lane of the last session; NULL: none. */
const wh_lane_ops *wh_source_lane(const wh_recv_source *source);

/** Bytes that came from this source. */
uint64_t wh_source_bytes(const wh_recv_source *source);

/** True if the source has a lease and can be asked for chunks. */
static inline bool wh_source_is_usable(const wh_recv_source *source) {
    return source->state == WH_SOURCE_OFFERED;
}

/**
 * Closes the session and, if the receive has failed, tells the source why.
 * @param status  the result of the receive.
 */
void wh_source_end(wh_recv_source *source, wherry_status status, const wherry_error *error);

/** Frees everything. */
void wh_source_destroy(wh_recv_source *source);

#endif
