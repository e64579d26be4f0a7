/**
 * @file call.h  What every send and receive has: its checked options, its deadline, its cancel
 * handle and interrupt callback, and the lanes it may use.
 *
 * A call must end for one of three reasons: its deadline has passed, another thread has cancelled
 * it, or the interrupt callback of its options has returned true. A cancel request may come from
 * any thread and wakes the waiting call. The interrupt callback is only called by the thread inside
 * the call: by wh_call_must_end in its own loops, and through the question of a wh_stop
 * (base/stop.h) while it waits in a lower layer.
 *
 * Threads: all functions are for the thread inside the call. Worker threads may read the options
 * and the deadline, which do not change after wh_call_begin.
 */
#ifndef WH_TRANSFER_CALL_H
#define WH_TRANSFER_CALL_H

#include "base/cancel.h"
#include "lane/lane_list.h"
#include "transfer/message.h"
#include "transfer/serve.h"

/** Must not move while it is attached to its cancel handle. */
typedef struct wh_call {
    wherry_transport *transport;
    wherry_transfer_options options; /**< `threads` is at least 1. */
    wh_lane_list lanes;
    wh_deadline deadline;
    uint64_t begin;           /**< Start of the call, by wh_clock_now. */
    uint64_t asked;           /**< When options.interrupt was called last. */
    bool interrupted;         /**< options.interrupt has returned true. */
    wh_cancel_listener wakes; /**< A cancel request wakes the inbox. */
    wh_cancel_listener stops; /**< A cancel request stops what this thread or its workers do. */
} wh_call;

/**
 * Copies and checks the options, and starts the deadline. Nothing has to be released afterwards.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT; as wh_group_permit.
 */
wherry_status wh_call_begin(wh_call *call, wherry_transport *transport, const wherry_transfer_options *options,
                            wherry_error *error);

/** The rank of this process in meshes and placements: options.rank, or the rank in the group. */
int64_t wh_call_rank(const wh_call *call);

/**
 * The context of a lane in this call, with a stop that nobody requests.
 * @param tag      of the source's inbox.
 * @param devices  that hold tensors of this side.
 */
wh_lane_site wh_call_site(const wh_call *call, wh_group *group, int32_t peer, uint64_t tag, uint64_t devices);

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

/** How long a loop of the call may wait before it checks everything again. */
wh_deadline wh_call_tick(const wh_call *call);

/**
 * Waits for the work that the caller has queued on options.stream.
 * @param devices  one bit per CUDA device whose memory the call will use; 0: returns at once.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT; as wh_cuda_await_stream.
 */
wherry_status wh_call_await_stream(wh_call *call, uint64_t devices, wherry_error *error);

#endif
