/**
 * @file transport.h  What the calls of a transport share: who asks for a checkpoint, and which
 * sends wait for whom.
 *
 * A WANT is paired with the oldest send that waits for its rank; where there is none it is kept
 * until there is one, or until it is withdrawn. Whoever reads from the group hands WANTs in (a
 * service of the group), so that nobody has to wait for them.
 */
#ifndef WH_TRANSFER_TRANSPORT_H
#define WH_TRANSFER_TRANSPORT_H

#include <pthread.h>

#include <wherry/checkpoint.h>

#include "group/mailbox.h"
#include "lane/lane.h"
#include "transfer/message.h"

/** A WANT that no send has taken yet. */
typedef struct wh_asking {
    struct wh_asking *next;
    wh_message message;
    uint64_t nonce;
} wh_asking;

/** A send, as the pairing sees it. */
typedef struct wh_waiting_send {
    struct wh_waiting_send *next; /**< Younger. */
    wh_inbox *inbox;
    const int32_t *ranks;
    /**
     * Of the WANT that each rank was paired with; 0: it waits for one. Used under the
     * transport's lock.
     */
    uint64_t *nonces;
    size_t count;
} wh_waiting_send;

struct wherry_transport {
    wh_group *group;
    uint64_t tag; /**< Of WANT and WITHDRAW. */
    const wh_lane_ops *const *lanes;
    size_t lane_count;
    pthread_mutex_t lock;
    wh_waiting_send *sends; /**< Oldest first. */
    wh_asking *asking;      /**< Oldest first. */
};

/**
 * @param lanes  all that there are, the fastest first; borrowed for ever.
 * @return as wherry_transport_create.
 */
wherry_status wh_transport_create(wh_group *group, uint32_t number, const wh_lane_ops *const *lanes, size_t lane_count,
                                  wherry_transport **transport_p, wherry_error *error);

/** Begins to pair a send: WANTs that fit are put into its inbox, those that wait already first. */
void wh_transport_add_send(wherry_transport *transport, wh_waiting_send *send);

/** A rank that was paired waits again. */
void wh_transport_unpair(wherry_transport *transport, wh_waiting_send *send, int32_t rank);

/** A rank's destination has ended: no WANT is paired with it any more. */
void wh_transport_end_pairing(wherry_transport *transport, wh_waiting_send *send, int32_t rank);

/**
 * Takes over a WANT or a WITHDRAW that came to a send whose destination has ended: it may be for
 * another.
 */
void wh_transport_take_back(wherry_transport *transport, wh_message *message);

/**
 * Ends it; WANTs that lie in its inbox unread are paired anew. Nothing where it was ended before.
 */
void wh_transport_remove_send(wherry_transport *transport, wh_waiting_send *send);

/**
 * Lets the lanes give back what they keep for the next transfers: of processes that are gone, and
 * of a rank of a group.
 * @param group  NULL: only of processes that are gone. @param rank  -1: all.
 * @param lost   that rank is. @param but  a lane that need not; NULL: none.
 */
void wh_transport_forget(const wherry_transport *transport, const wh_group *group, int32_t rank, bool lost,
                         const wh_lane_ops *but);

/** Encodes a message and sends it. @return as wh_group_send. */
wherry_status wh_transport_tell(wherry_transport *transport, int32_t rank, uint64_t tag, const wh_note *note,
                                wh_deadline deadline, wherry_error *error);

/** Fills path and text of a note from an error, and the status. */
void wh_note_reason(wh_note *note, wherry_status status, const wherry_error *error);

/** Fills an error with what a note says about its own side: "rank 2: ...". */
wherry_status wh_fail_note(wherry_error *error, wherry_status status, int32_t rank, const wh_note *note,
                           const char *what);

#endif
