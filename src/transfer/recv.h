/**
 * @file recv.h  A receive: one call of wherry_checkpoint_recv_from.
 *
 *     agree (recv_plan) -> compare (recv_compare) -> move chunks -> confirm
 *
 * The call owns the target, the plan, the schedule and the result. Each source has its own
 * conversation and session (recv_source). One thread, the one inside the call, does everything
 * except moving bytes: it takes messages from one inbox and hands out requests.
 *
 * 1. A chunk counts only while its source holds the lease, or after that source has confirmed that
 *    its state was unchanged (RELEASED or CONFIRMED). If a source is lost before, its chunks count
 *    only if their digests equal those of another source with a lease.
 * 2. With one source, the conversation is: WANT, OFFER, PLAN, bytes, DONE, RELEASED. With several,
 *    CONFIRM goes to every source whose chunks are kept, and DONE to all when everybody has
 *    answered: so a source that is lost in between can still be replaced.
 * 3. A call ends in one way: wh_recv_pump notices the deadline, a cancel, an interrupt or a closed
 *    group, and returns an error; the loss of a source goes through wh_source_fail, and ends the
 *    call when no source is left. Then sessions are stopped and closed, and the sources are told.
 */
#ifndef WH_TRANSFER_RECV_H
#define WH_TRANSFER_RECV_H

#include "plan/schedule.h"
#include "transfer/call.h"
#include "transfer/chunks.h"
#include "transfer/recv_plan.h"
#include "transfer/recv_source.h"
#include "transfer/report.h"

/** Indices of wh_recv.moments. */
enum { WH_AT_ASKED, WH_AT_OFFERED, WH_AT_DATA, WH_AT_LANDED, WH_AT_DONE, WH_AT_SHOWN, WH_AT_TOLD, WH_MOMENTS };

typedef struct wh_recv {
    wh_call call;
    wh_inbox *inbox; /**< For all sources. Its tag is the nonce of the questions. */
    wh_recv_source *sources;
    size_t source_count;
    wh_recv_source *first; /**< The source whose manifest was planned. */
    wh_agreement agreed;
    wh_chunks chunks;
    wh_schedule *schedule; /**< NULL: there is one source. */
    /** The chunks that move now: those of host memory, or those of devices. */
    wh_chunk_set leg;
    bool on_device; /**< The leg is in device memory. */
    /** Requested by a cancel, and when the receive ends. Ends waits for devices. Has no event. */
    wh_stop stop;
    wh_tensor_table table;
    bool has_table;
    wh_trace trace;
    bool held; /**< Memory may still be written to, and is never freed: wh_lane_site.held_p. */
    bool checked;
    uint64_t ready_ns; /**< How long it took to prepare the target. */
    uint64_t moments[WH_MOMENTS];
    wherry_stats stats;
} wh_recv;

/**
 * Takes a message if one comes until the deadline, and passes it to its source.
 * @param doing  for the message of an error.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT, WHERRY_CLOSED: the receive must end.
 */
wherry_status wh_recv_pump(wh_recv *recv, wh_deadline deadline, const char *doing, wherry_error *error);

/** Passes messages that have come already to their sources, without waiting for more. */
void wh_recv_take_waiting(wh_recv *recv);

/** Fails if no source is left, or if one is gone and all are required. */
wherry_status wh_recv_check_sources(wh_recv *recv, wherry_error *error);

/** A chunk is complete, and leaves the outstanding list of its source. */
void wh_recv_note_landed(wh_recv *recv, wh_recv_source *source, uint64_t chunk);

/** A chunk has come damaged, or was not delivered: it must be requested again. */
void wh_recv_note_lost(wh_recv *recv, wh_recv_source *source, uint64_t chunk);

/** The workers of a source that was recalled have ended: others may be asked for its chunks. */
void wh_recv_note_recalled(wh_recv *recv, wh_recv_source *source);

/** Waits until all closed chunks are on their devices. @return as wh_chunks_settle. */
wherry_status wh_recv_settle(wh_recv *recv, wherry_error *error);

/** Bytes of `count` chunks. */
uint64_t wh_recv_bytes_of_chunks(const wh_recv *recv, const uint64_t *chunks, size_t count);

/* ---- report.c ---- */

/** Shows progress to the user and to the sources. `last`: to the user, in any case. */
void wh_recv_progress(wh_recv *recv, bool last);

/** The table of tensors, created when it is first needed; NULL if there is no memory. */
wh_tensor_table *wh_recv_table(wh_recv *recv);

/** Adds the path of a tensor in the chunk to an error that is already filled. */
void wh_recv_fail_chunk(wh_recv *recv, uint64_t chunk, wherry_error *error);

/** Fills the statistics, also those of the caller. */
void wh_recv_finish_stats(wh_recv *recv);

void wh_recv_log_success(const wh_recv *recv);

/** Appends to the error what the failure leaves behind, and fills options.report_p. */
void wh_recv_report_failure(wh_recv *recv, wherry_error *error);

/* ---- recv_compare.c ---- */

/**
 * Sets `set` to the wanted chunks of host memory, or to those of devices.
 * @return false if there is no memory.
 */
bool wh_recv_select(const wh_recv *recv, bool device, wh_chunk_set *set);

/** Bytes of the chunks of a set. */
uint64_t wh_recv_bytes_of(const wh_recv *recv, const wh_chunk_set *set);

/** Digests that a source was asked for. */
typedef struct wh_comparing {
    const wh_chunk_set *chunks;
    wherry_digest *claimed; /**< By place in `chunks`. */
    bool *has_claim;        /**< By place in `chunks`. */
    uint64_t left;          /**< How many have not come. */
} wh_comparing;

/**
 * Takes digests of the source. @param strict  refuse those that were not asked for; else ignore
 * them. @return false if one is refused.
 */
bool wh_comparing_take(wh_comparing *comparing, uint64_t first, const void *digests, size_t count, bool strict);

/**
 * With WHERRY_RECV_COMPARE: finds out which chunks the target already has, and takes them out of
 * agreed.wanted.
 */
wherry_status wh_recv_compare(wh_recv *recv, wherry_error *error);

/**
 * Asks `source` for the digests of chunks that have landed, and compares them.
 * @param chunks  with digests; in host memory.
 * @param equal   receives, per chunk of the set, whether the digests are equal.
 * @return WHERRY_OK, also if the source is lost: then the rest is not equal; see recv_source.h,
 * invariant 4.
 */
wherry_status wh_recv_confirm_by_digest(wh_recv *recv, wh_recv_source *source, const wh_chunk_set *chunks, bool *equal,
                                        wherry_error *error);

#endif
