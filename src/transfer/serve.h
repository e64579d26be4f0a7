/**
 * @file serve.h  Transports: which receivers ask for a checkpoint, which sends wait for them, and
 * the loop that serves them.
 *
 * 1. A WANT is paired with the oldest send that waits for its rank. If there is none, it is kept
 *    until there is one, or until it is withdrawn.
 * 2. The thread that reads from the group passes WANT and WITHDRAW messages in (a service of the
 *    group), so no thread has to wait for them.
 * 3. A receiver of several sources that has finished withdraws its question with status OK. That is
 *    kept too: a later send of the same step to this rank learns that it is not needed.
 */
#ifndef WH_TRANSFER_SERVE_H
#define WH_TRANSFER_SERVE_H

#include <pthread.h>

#include <wherry/checkpoint.h>

#include "group/mailbox.h"
#include "lane/lane.h"

/** A WANT that no send has taken yet, or the WITHDRAW of a receiver that has finished. */
typedef struct wh_asking {
    wh_message message;
    uint64_t nonce;
    int64_t step;  /**< The step that the WANT names. */
    bool finished; /**< The message is a WITHDRAW. */
} wh_asking;

/** A rank that a send serves. */
typedef struct wh_served_rank {
    int32_t rank;
    uint64_t nonce; /**< The nonce of the WANT that it was paired with; 0: it waits for one. */
} wh_served_rank;

/** A send, in the form that the pairing uses. Used under the transport's lock. */
typedef struct wh_waiting_send {
    struct wh_waiting_send *next; /**< Younger. */
    wh_inbox *inbox;
    wh_served_rank *ranks;
    size_t count;
    size_t capacity;
    int64_t step;
    bool any;    /**< True if the send serves every rank, again and again: `ranks` grows. */
    bool closed; /**< True if the send takes no more questions. */
} wh_waiting_send;

struct wherry_transport {
    wh_group *group;
    uint64_t tag; /**< The tag that WANT and WITHDRAW have. */
    const wh_lane_ops *const *lanes;
    size_t lane_count;
    pthread_mutex_t lock;   /**< Protects the members below. */
    wh_waiting_send *sends; /**< Oldest first. */
    wh_asking *asking;      /**< Oldest first. */
    size_t asking_count;
    size_t asking_capacity;
};

/**
 * @param lanes  all lanes, the fastest first; borrowed for ever.
 * @return as wherry_transport_create.
 */
wherry_status wh_transport_create(wh_group *group, uint32_t number, const wh_lane_ops *const *lanes, size_t lane_count,
                                  wherry_transport **transport_p, wherry_error *error);

/**
 * A rank of a send is not paired any more.
 * @param again  it waits for its next WANT. Else none is paired with it until a call with `again`.
 */
void wh_transport_unpair(wherry_transport *transport, wh_waiting_send *send, int32_t rank, bool again);

/**
 * Lets the lanes release what they keep for the next transfers: of processes that have ended and,
 * if `group` is not NULL, of a rank.
 * @param rank  -1: all ranks of the group.
 * @param lost  the rank is lost.
 * @param but   a lane that keeps everything; NULL: none.
 */
void wh_transport_forget(const wherry_transport *transport, const wh_group *group, int32_t rank, bool lost,
                         const wh_lane_ops *but);

#endif
