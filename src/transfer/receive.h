/**
 * @file receive.h  A call of wherry_checkpoint_recv, as its parts share it.
 *
 * receive.c begins and ends it; receive_plan.c asks and plans; receive_lane.c finds a lane that
 * works; receive_data.c moves the bytes. Everything here is used by the thread that is inside the
 * call; the crew only touches the sink.
 */
#ifndef WH_TRANSFER_RECEIVE_H
#define WH_TRANSFER_RECEIVE_H

#include "transfer/cancel.h"
#include "transfer/crew.h"
#include "transfer/sink.h"
#include "transfer/source.h"
#include "transfer/tensor_table.h"
#include "transfer/transfer.h"

/** The chunks that move over one lane: those of host memory, or those of devices. */
typedef struct wh_leg {
    bool device;
    wherry_interval *intervals;
    size_t count;
    uint64_t bytes;
} wh_leg;

typedef struct wh_receive {
    wh_transfer transfer;
    int32_t rank;         /**< Of the source. */
    uint64_t incarnation; /**< That the question went to; 0: not known. */
    uint64_t nonce;
    bool asked; /**< The question is on its way, so that the source is to be told when this ends. */
    wh_inbox *inbox;
    wh_cancellable cancellable;
    wh_message offer_message; /**< The OFFER, which `offer` borrows from. */
    wh_note offer;
    wh_source as_source; /**< The target, prepared as its own source, to compare fingerprints. */
    /** The question names the target's fingerprint: as_source is filled. */
    bool known;
    /** For a source with that fingerprint. Borrows what as_source prepared. */
    wherry_plan *same_plan;
    const wherry_plan *plan;
    wherry_plan *own_plan; /**< The same, unless it is same_plan. */
    wherry_plan_summary summary;
    bool in_place;
    /**
     * No two tensors of the target share memory, as was seen while the source prepared its offer.
     */
    bool apart;
    bool wants_state; /**< The caller does, beside what is in its target. */
    /** The chunks to ask for: the plan's, or those of them that the target does not hold. */
    wh_chunk_set wanted;
    uint64_t wanted_bytes; /**< In them. */
    wh_stop stop;
    wh_lane_site site;
    wh_leg leg; /**< The one that is at work. */
    const wh_lane_ops *lane;
    wh_lane_end *end;
    wh_chunk_sink sink;
    wh_trace trace;
    bool verify;
    wh_crew crew;
    wh_message_type answer; /**< The last of RELEASED, ASSISTED, REFUSE_LANE that came; 0: none. */
    wherry_error reason;    /**< What it said; status WHERRY_OK where it was a yes. */
    /** Memory may still be written to, and is never freed: wh_lane_site.held_p. */
    bool held;
    /** The source is lost, or has ended the conversation: it need not be told. */
    bool gone;
    bool revoked;        /**< It has, and waits to hear that this side reads no more. */
    uint64_t peer_bytes; /**< What the source says it has done. */
    wh_tensor_table table;
    bool has_table;
    uint64_t ready_ns; /**< How long it took to prepare the target. */
    uint64_t asked_at; /**< Moments, by wh_clock_now. */
    uint64_t offered_at;
    uint64_t data_at;
    uint64_t landed_at; /**< The last byte had come. */
    uint64_t done_at;
    uint64_t told_at;     /**< Progress, to the source; */
    uint64_t shown_at;    /**< to the user. */
    uint64_t heard;       /**< When something last got on, */
    uint64_t heard_bytes; /**< at so many bytes. */
    wherry_stats stats;
} wh_receive;

/** Sends the source a message under the id of its send. */
wherry_status wh_receive_tell(wh_receive *receive, const wh_note *note, wherry_error *error);

/**
 * Takes a message if one comes until the deadline, and heeds it.
 * @return WHERRY_OK, also where none came; the reason where the receive must end: the source
 * revoked, gave up or was lost; cancelled; timed out.
 */
wherry_status wh_receive_heed(wh_receive *receive, wh_deadline deadline, const char *doing, wherry_error *error);

/**
 * Waits for the source's answer of that type, or of REFUSE_LANE. receive->answer and ->reason have
 * it.
 */
wherry_status wh_receive_await(wh_receive *receive, wh_message_type type, const char *doing, wherry_error *error);

/**
 * Asks, and finds out what will be received where. The target is made, and prepared, before: at the
 * same time as the source makes its state so.
 */
wherry_status wh_receive_agree(wh_receive *receive, wherry_error *error);

/**
 * With WHERRY_RECV_COMPARE: finds out which chunks the target holds, and leaves them out of
 * ->wanted.
 */
wherry_status wh_receive_compare(wh_receive *receive, wherry_error *error);

/**
 * Takes a message if one comes until the deadline, tells how far it is, and looks whether anything
 * gets on.
 */
wherry_status wh_receive_look_around(wh_receive *receive, wh_deadline deadline, wherry_error *error);

/**
 * Has a crew at work on the receive, and looks around until `is_over` says so, or something ends
 * the receive; then a crew that is still at work is stopped.
 * @param result_p  what the crew came to, with its error where nothing else ended the receive.
 * @return WHERRY_OK; as wh_crew_start; as wh_receive_look_around.
 */
wherry_status wh_receive_run_crew(wh_receive *receive, uint32_t workers, wh_work_fn work,
                                  bool (*is_over)(wh_receive *receive), wherry_status *result_p, wherry_error *error);

/**
 * Makes the wanted chunks of host memory, or those of devices, ->leg. @return false where there is
 * no memory.
 */
bool wh_receive_make_leg(wh_receive *receive, bool device);

/**
 * Gets all bytes over the first lane that works, those of host memory and those of devices each
 * over their own.
 */
wherry_status wh_receive_bytes(wh_receive *receive, wherry_error *error);

/**
 * Moves all chunks over the lane that was taken, again where they are wrong. Where the source
 * refuses the lane after all, ->answer says so.
 */
wherry_status wh_receive_data(wh_receive *receive, wherry_error *error);

/**
 * A lane failed with `status` and `error`: waits a moment, since the source, or its end, may tell
 * better why. @return the better reason, or status.
 */
wherry_status wh_receive_explain(wh_receive *receive, wherry_status status, wherry_error *error);

/** Says how far it is, to the source and to the user; `last`: in any case, to the user. */
void wh_receive_progress(wh_receive *receive, bool last);

/** Stops the crew and closes the lane. */
void wh_receive_end_lane(wh_receive *receive);

/**
 * After a failure: which tensors are complete, half written, untouched, and whether their memory is
 * held; added to the error, and to options.report_p.
 */
void wh_receive_report(wh_receive *receive, wherry_error *error);

/** The table of tensors, made when it is first needed; NULL where there is no memory. */
const wh_tensor_table *wh_receive_table(wh_receive *receive);

#endif
