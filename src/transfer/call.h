/**
 * @file call.h  What every send and receive has: its checked options, its deadline, its cancel
 * handle and interrupt callback, and the lanes it may use. Also helpers that fill wherry_stats.
 *
 * A call must end for one of three reasons: its deadline has passed, somebody has cancelled it, or
 * the interrupt callback of its options has returned true. A cancel request may come from any
 * thread and wakes the waiting call. The interrupt callback is only called by the thread inside the
 * call: by wh_call_must_end in its own loops, and through the question of a wh_stop (base/stop.h)
 * while it waits in a lower layer.
 *
 * Threads: all functions are for the thread inside the call, except wherry_cancel_request and
 * wherry_cancel_requested. Worker threads may read the options and the deadline, which do not
 * change after wh_call_begin.
 */
#ifndef WH_TRANSFER_CALL_H
#define WH_TRANSFER_CALL_H

#include "transfer/message.h"
#include "transfer/serve.h"

/**
 * How long one step of a lane may wait if the thread inside the call runs the lane and has nothing
 * else to do. Long, because the threads of the group need the processor more.
 */
enum { WH_PATIENT_STEP_MS = 20 };

/** The lanes that a call may use, in the order in which it tries them. */
typedef struct wh_lane_list {
    const wh_lane_ops *lanes[WH_OFFERED_LANES_MAX];
    size_t count;
    bool ordered; /**< The user named the lanes, so their order is fixed. */
} wh_lane_list;

/** When a peer last got on, and at how many bytes. */
typedef struct wh_liveness {
    uint64_t at;         /**< By wh_clock_now. */
    uint64_t bytes;      /**< That this side has counted. */
    uint64_t peer_bytes; /**< That the peer has reported. */
} wh_liveness;

/** Notes that something came from the peer. */
static inline void wh_liveness_note(wh_liveness *heard) {
    heard->at = wh_clock_now();
}

/** Notes a PROGRESS message. */
static inline void wh_liveness_report(wh_liveness *heard, uint64_t peer_bytes) {
    if (peer_bytes != heard->peer_bytes) {
        heard->peer_bytes = peer_bytes < INT64_MAX ? peer_bytes : INT64_MAX;
        wh_liveness_note(heard);
    }
}

/**
 * Notes progress if `bytes` has changed. @return true if nothing has happened for limit_ms.
 */
bool wh_liveness_is_over(wh_liveness *heard, uint64_t bytes, int64_t limit_ms);

/** Must not move while it is attached to its cancel handle. */
typedef struct wh_call {
    wherry_transport *transport;
    wherry_transfer_options options; /**< `threads` is at least 1. */
    wh_lane_list lanes;
    wh_deadline deadline;
    uint64_t begin;               /**< Start of the call, by wh_clock_now. */
    uint64_t asked;               /**< When options.interrupt was called last. */
    bool interrupted;             /**< options.interrupt has returned true. */
    struct wh_call *next_of_same; /**< Next call with the same cancel handle; under its lock. */
    wh_inbox *cancel_inbox;       /**< A cancel request wakes it; under the handle's lock. */
    wh_stop *cancel_stop;         /**< A cancel request stops it; may be NULL; likewise. */
} wh_call;

/**
 * Copies and checks the options, and starts the deadline. Nothing has to be released afterwards.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; as wh_group_permit.
 */
wherry_status wh_call_begin(wh_call *call, wherry_transport *transport, const wherry_transfer_options *options,
                            wherry_error *error);

/**
 * Checks the ranks of a call. @return WHERRY_OK; WHERRY_INVALID_ARGUMENT if the group has no such
 * rank, or if one is named twice.
 */
wherry_status wh_check_ranks(const wherry_transport *transport, const int32_t *ranks, size_t count,
                             wherry_error *error);

/** The rank of this process in meshes and placements: options.rank, or the rank in the group. */
int64_t wh_call_rank(const wh_call *call);

/* ---- why a call ends ---- */

/**
 * Makes cancel requests wake the inbox. This function and the next two do nothing if the call has
 * no cancel handle.
 */
void wh_call_attach(wh_call *call, wh_inbox *inbox);

/**
 * Makes cancel requests, including an earlier one, also request this stop. NULL: none, so that the
 * last one can be destroyed.
 */
void wh_call_set_stop(wh_call *call, wh_stop *stop);

/** Ends wh_call_attach, so that inbox and stop can be destroyed. Safe to call twice. */
void wh_call_detach(wh_call *call);

/**
 * Tells whether the call was cancelled or interrupted. Has the signature of a stop's question
 * (wh_stop_set_question).
 * @param call  a wh_call.
 */
bool wh_call_is_cancelled(void *call);

/**
 * Tells why the call must end, if it must. Calls options.interrupt if that is due: each loop of the
 * thread inside the call gets here, or to wh_call_is_cancelled, at least every 100 ms.
 * @param doing  what the call is doing, for the message: "timed out after 3 s while <doing>".
 * @return WHERRY_OK: it need not end; WHERRY_CANCELLED; WHERRY_TIMED_OUT.
 */
wherry_status wh_call_must_end(wh_call *call, const char *doing, wherry_error *error);

/** How long a loop of the call may wait before it looks at everything again. */
wh_deadline wh_call_tick(const wh_call *call);

/** A short deadline for a last message, independent of the deadline of the call. */
wh_deadline wh_call_grace(void);

/**
 * Waits for the work that the caller has queued on options.stream.
 * @param devices  one bit per CUDA device whose memory the call will use; 0: returns at once.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT; as wh_cuda_await_stream.
 */
wherry_status wh_call_await_stream(wh_call *call, uint64_t devices, wherry_error *error);

/* ---- lanes ---- */

/**
 * Reads a list of lanes.
 * @param text  "cma,stream": these, in this order; "^cma,^ring": all except these; NULL: the value
 *              of WHERRY_LANES, or all lanes if that is not set.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for an unknown name; the message lists the known ones.
 */
wherry_status wh_lane_list_parse(const wherry_transport *transport, const char *text, wh_lane_list *list_p,
                                 wherry_error *error);

/**
 * Moves lanes that are slow with short runs behind the other lanes of the same host, unless the
 * user has given an order.
 * @param bytes, runs  of the whole transfer; runs may be an estimate.
 */
void wh_lane_list_sort(wh_lane_list *list, uint64_t bytes, uint64_t runs);

/** True if a lane of the list has the trait (WH_LANE_*). */
bool wh_lane_list_has(const wh_lane_list *list, uint32_t trait);

/** @return NULL if the list has no lane with this name. */
const wh_lane_ops *wh_lane_list_find(const wh_lane_list *list, const void *name, size_t size);

/**
 * True if the lane is for devices, was not named by the user, and no tensor is on a device. Such a
 * lane is not reported as skipped.
 */
bool wh_lane_is_skipped(const wh_lane_list *list, const wh_lane_ops *lane, bool devices);

/* ---- statistics ---- */

/** Appends the name of a lane that moved bytes: "cma+ring". */
void wh_stats_add_lane(wherry_stats *stats, const char *name);

/** Undoes the last wh_stats_add_lane, for a lane that was refused after all. */
void wh_stats_remove_lane(wherry_stats *stats, const char *name);

/**
 * Records why a lane was not used. error->reason is a wherry_lane_reason; if it is 0, the status
 * decides.
 */
void wh_stats_skip_lane(wherry_stats *stats, const char *name, const wherry_error *error);

/**
 * Sets stats->detail to the lane's own description of how the bytes travelled, if it has one. No
 * worker may run. lane and end may be NULL.
 */
void wh_stats_describe_lane(wherry_stats *stats, const wh_lane_ops *lane, const wh_lane_end *end);

/** Seconds between two moments of wh_clock_now; 0 if `from` is 0 or later than `to`. */
double wh_seconds(uint64_t from, uint64_t to);

#endif
