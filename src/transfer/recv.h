/**
 * @file recv.h  A receive: one call of wherry_checkpoint_recv_from.
 *
 *     agree (recv_plan) -> compare (recv_compare) -> move chunks -> confirm
 *
 * The call owns the target, the plan, the schedule and the result. Each source has its own
 * conversation and session (recv_source). One thread, the one inside the call, does everything
 * except moving bytes: it takes messages and hands out requests. The sources may be in different
 * groups. Then there is one inbox per group, and the thread waits on all of them.
 *
 * 1. A chunk counts only while its source holds the lease, or after that source has confirmed that
 *    its state was unchanged (RELEASED or CONFIRMED). If a source is lost before, its chunks count
 *    only if their digests equal those of another source with a lease.
 * 2. With one source, the conversation is: WANT, OFFER, PLAN, bytes, DONE, RELEASED. With several,
 *    CONFIRM goes to every source whose chunks are kept, and DONE to all when everybody has
 *    answered: so a source that is lost in between can still be replaced.
 * 3. A call ends in one way: wh_recv_pump notices the deadline, a cancel, an interrupt or that the
 *    only group is closed, and returns an error; the loss of a source, or of one of several groups,
 *    goes through wh_source_fail, and ends the call when no source is left. Then sessions are
 *    stopped and closed, and the sources are told.
 */
#ifndef WH_TRANSFER_RECV_H
#define WH_TRANSFER_RECV_H

#include "base/log.h"
#include "plan/schedule.h"
#include "plan/tensor_table.h"
#include "transfer/call.h"
#include "transfer/chunks.h"
#include "transfer/recv_plan.h"
#include "transfer/recv_source.h"

/** Indices of wh_recv.moments. */
enum { WH_AT_ASKED, WH_AT_OFFERED, WH_AT_DATA, WH_AT_LANDED, WH_AT_DONE, WH_AT_SHOWN, WH_AT_TOLD, WH_MOMENTS };

typedef struct wh_recv {
    wh_call call;
    wh_recv_source *sources;
    size_t source_count;
    /** One inbox per group. The inboxes of closed groups come last. */
    wh_inbox *inboxes[WHERRY_SOURCES_MAX];
    size_t inbox_count;
    size_t open_inboxes; /**< Number of inboxes whose groups are not closed. */
    wh_agreement *agreed;
    wh_chunks *chunks;     /**< {0} until chunks are requested. */
    wh_schedule *schedule; /**< Distributes the chunks that move now. */
    /** The chunks that move now: either those of host memory or those of devices. */
    wh_chunk_set moving;
    bool on_device; /**< True if `moving` has chunks of devices. */
    /**
     * A cancel requests this stop, and so does the end of the receive. It ends waits for devices.
     * It has no event.
     */
    wh_stop stop;
    wh_tensor_table table; /**< See wh_recv_table. */
    bool held;             /**< True if memory may still be written to: see wh_lane_site.held_p. */
    bool clear;            /**< True if bytes came over a lane that does not encrypt. */
    /** True if a source that has offered a state may be reached over a network. */
    bool remote;
    /** For logging that the call waits for sources that have not offered a state. */
    wh_wait_log wait;
    uint64_t ready_ns; /**< Time that it took to prepare the target. */
    uint64_t moments[WH_MOMENTS];
    wherry_stats stats;
} wh_recv;

/** The head of a loop over all sources of a receive: for (WH_EACH_SOURCE(one, recv)). */
#define WH_EACH_SOURCE(one, recv)                                                                                      \
    wh_recv_source *one = (recv)->sources;                                                                             \
    (one) < (recv)->sources + (recv)->source_count;                                                                    \
    (one)++

/** Returns why the receive must end by itself, if it must. @return as wh_call_must_end. */
wherry_status wh_recv_must_end(wh_recv *recv, const char *doing, wherry_error *error);

/**
 * Takes a message if one comes until the deadline, and passes it to its source.
 * @param doing  for the message of an error.
 * @return WHERRY_OK; WHERRY_CANCELLED, WHERRY_TIMED_OUT, WHERRY_CLOSED: the receive must end.
 */
wherry_status wh_recv_pump(wh_recv *recv, wh_deadline deadline, const char *doing, wherry_error *error);

/**
 * True if the whole receive must end with a status of one source: after a cancel, and if the only
 * group is closed.
 */
bool wh_recv_is_fatal(const wh_recv *recv, wherry_status status);

/**
 * True if a source opens no lane although it had time, and other sources can be asked. Before it
 * answers, this function passes arrived messages to their sources, because the thread does nothing
 * else meanwhile. A source whose offer arrives only now counts as one of the others.
 */
bool wh_recv_is_stalled(wh_recv *recv, const wh_recv_source *source);

/**
 * Fails if no source is left, if one is gone and all are required, and if one sends another state:
 * that ends the whole receive.
 */
wherry_status wh_recv_check_sources(wh_recv *recv, wherry_error *error);

/**
 * Sets `set` to the wanted chunks of host memory, or to those of devices.
 * @return false if there is no memory.
 */
bool wh_recv_select(const wh_recv *recv, bool device, wh_chunk_set *set);

/**
 * Fills an empty set with the chunks of `moving` that came from a source, or with all others.
 * @return false if there is no memory.
 */
bool wh_recv_landed(const wh_recv *recv, const wh_recv_source *source, bool from_it, wh_chunk_set *set);

/* ---- report.c ---- */

/** Shows progress to the user and to the sources. `last`: show it to the user in any case. */
void wh_recv_progress(wh_recv *recv, bool last);

/** The table of tensors, created when it is first needed; NULL if there is no memory. */
wh_tensor_table *wh_recv_table(wh_recv *recv);

/** Adds the path of a tensor in the chunk to an error that is already filled. */
void wh_recv_fail_chunk(wh_recv *recv, uint64_t chunk, wherry_error *error);

/** Fills the statistics, including those of the caller. */
void wh_recv_finish_stats(wh_recv *recv);

void wh_recv_log_success(const wh_recv *recv);

/**
 * Appends to the error which tensors the failure leaves half written, and fills options.report_p.
 */
void wh_recv_report_failure(wh_recv *recv, wherry_error *error);

/* ---- recv_compare.c ---- */

/** Digests of the same chunks at the target and at a source. */
typedef struct wh_comparing {
    wh_recv *recv;
    wh_chunk_set *chunks;
    wh_chunk_digests *digests; /**< By index in `chunks`. `landed` is the digest of the target. */
    /** Number of chunks for which the source has not claimed a digest. */
    uint64_t left;
    bool strong;        /**< By SHA-256. */
    wh_stop stop;       /**< Requested when the digests are not needed any more. */
    wh_workers workers; /**< Workers that compute digests of the target. */
} wh_comparing;

/**
 * Takes digests of the source. @param strict  refuse those that were not asked for; else ignore
 * them. @return false if one is refused.
 */
bool wh_comparing_take(wh_comparing *comparing, uint64_t first, const void *digests, size_t count, bool strict);

/**
 * Compares the target with a source by digests, and removes the chunks that are equal from the set.
 * @param chunks   in host memory: their bytes are at their destinations.
 * @param weak     XXH3 may decide, even over a network.
 * @param unknown  receives the chunks that cannot be read back from the target; NULL: they differ.
 * @return WHERRY_OK, also if the source is lost: then the rest is not equal; see recv_source.h,
 * invariant 4.
 */
wherry_status wh_recv_remove_equal(wh_recv *recv, wh_recv_source *source, wh_chunk_set *chunks, bool weak,
                                   wh_chunk_set *unknown, wherry_error *error);

/**
 * With WHERRY_RECV_COMPARE: finds out which chunks the target already has, and takes them out of
 * agreed.wanted.
 */
wherry_status wh_recv_compare(wh_recv *recv, wherry_error *error);

/**
 * With WHERRY_VERIFY_ALL: asks each source for the digests of the chunks that came from other
 * sources.
 */
wherry_status wh_recv_compare_sources(wh_recv *recv, wherry_error *error);

#endif
