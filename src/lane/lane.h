/**
 * @file lane.h  A lane moves chunks from a source to a receiver. Each has one table of operations;
 * nothing outside its folder knows more about it.
 *
 * How both sides use a lane:
 *
 *     source                              receiver
 *     offer: how it can be reached
 *              ------ OFFER ----------->  probe: tries the real peer, makes the pulling end
 *     assist   <----- only if refused --  (a probe may ask for help, and is then tried again)
 *     accept   <----- PLAN: request ----  what the probe wants the source to know
 *     push, by `workers` threads =======  pull, by `workers` threads
 *     close                               close
 *
 * 1. A lane without push is one-sided: the receiver reads the source's memory, and the source does
 *    nothing.
 * 2. Pull and push run once per round. The first round has all chunks of the plan, later ones the
 *    chunks that must come again. Each is called by as many threads at once as its end has workers,
 *    numbered from 0.
 * 3. Pull and push return when all chunks of the round have moved, within 100 ms after site.stop
 *    was requested (WHERRY_CANCELLED), or with an error. They never wait without checking the stop.
 * 4. A lane writes only to memory that wh_sink.open gave. It reads and writes nothing after an
 *    error was returned or the end was closed.
 */
#ifndef WH_LANE_LANE_H
#define WH_LANE_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <wherry/base.h>

#include "base/stop.h"
#include "base/text.h"
#include "group/group.h"
#include "memory/cuda_share.h"
#include "range/digest.h"

/**
 * Runs of memory that together are a chunk, in order. Starts as {0}; reused from chunk to chunk.
 */
typedef struct wh_segments {
    struct iovec *items;
    size_t count;
    size_t capacity;
    uint64_t bytes; /**< The sum of all lengths. */
} wh_segments;

/**
 * Appends a run, merging it with the previous one if contiguous. A NULL base means the bytes are
 * discarded.
 * @return false if there is no memory.
 */
bool wh_segments_add(wh_segments *segments, void *base, size_t length);

/** Removes the runs, but keeps the memory for the next ones. */
void wh_segments_clear(wh_segments *segments);

void wh_segments_destroy(wh_segments *segments);

/** Where the bytes of a chunk go. One per worker, which reuses it. Starts as {0}. */
typedef struct wh_landing {
    uint64_t chunk;
    wh_segments segments; /**< All bytes of the chunk. */
    void *scratch;        /**< For bytes without a destination; belongs to the sink. */
    size_t scratch_bytes; /**< Its size. */
    /** The whole chunk goes to scratch, and from there to its destination when it is closed. */
    bool staged;
    /** Of the sink: the whole chunk goes there, and to a device when it is closed. */
    void *slot;
} wh_landing;

void wh_landing_destroy(wh_landing *landing);

/** A run of bytes from the source to an address of this process, which may be on a device. */
typedef struct wh_route {
    /** An address at the source; for a lane with push, a position: see wh_routes.span. */
    uint64_t from;
    void *to;
    uint64_t length;
    int32_t device; /**< Of `to`; -1: host memory. */
} wh_route;

/** Starts as {0}; reused from batch to batch. */
typedef struct wh_routes {
    wh_route *items;
    size_t count;
    size_t capacity;
    uint64_t bytes; /**< The sum of all lengths. */
    /** Bytes of all chunks that were opened. Positions count through them, in order. */
    uint64_t span;
    wh_segments origin; /**< For the sink only, as the next two. */
    uint64_t *begins;
    size_t begin_capacity;
} wh_routes;

/** Removes the routes, but keeps the memory for the next ones. */
void wh_routes_clear(wh_routes *routes);

void wh_routes_destroy(wh_routes *routes);

/**
 * The receiver's side of the data, made by the transfer for the lane. Several threads may call the
 * functions at once.
 */
typedef struct wh_sink {
    void *context;
    bool verify; /**< close wants the digest of what landed, and open gives no NULL. */

    /**
     * The next chunk to fetch, in ascending order, each once per round. False: there are no more,
     * or the stop was requested. For one-sided lanes, and for those that rely on the order: with
     * one worker at each side, sink and feed give the same chunks in the same order.
     */
    bool (*next)(void *context, uint64_t *chunk_p);

    /**
     * Where the bytes of a chunk are in the source's memory. For one-sided lanes. Replaces the
     * segments.
     */
    wherry_status (*origin)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /**
     * Opens a chunk for writing to landing->segments, which never leave the planned destinations.
     * Without verify, a segment with a NULL base has no destination: skip it, or read it into
     * landing->scratch, which has room for the longest one.
     * @return WHERRY_OK; WHERRY_MALFORMED for a chunk that this round does not expect (a hostile
     * source), or that was opened before; WHERRY_NO_MEMORY.
     */
    wherry_status (*open)(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error);

    /**
     * All bytes of the chunk have landed.
     * @param digest   of what landed; NULL without verify.
     * @param claimed  the source's digest, if the lane carries it; NULL: it comes by message.
     */
    wherry_status (*close)(void *context, wh_landing *landing, const wh_digest *digest, const wh_digest *claimed,
                           wherry_error *error);

    /** Reports bytes that landed. Call it at least every few MiB. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /**
     * Tells whether a chunk begins at the source where the previous one, by number, ends: both are
     * one run of one storage, and a lane may move them as one. Depends only on the manifest, so
     * sink and feed agree. `open` says where they land. NULL: no chunk does.
     * @return the bytes of the chunk; 0: it does not.
     */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /**
     * Opens a chunk for a lane with WH_LANE_DEVICE, instead of `open`: adds where each wanted byte
     * comes from and goes to, merging contiguous routes. Routes may come in any order, and several
     * from the same bytes. Errors as `open`. May be NULL for lanes without that trait.
     */
    wherry_status (*route)(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error);

    /** All bytes of a chunk that `route` opened have arrived. */
    wherry_status (*arrived)(void *context, uint64_t chunk, wherry_error *error);
} wh_sink;

/** The source's side of the data. Several threads may call the functions at once. */
typedef struct wh_feed {
    void *context;
    bool verify; /**< A lane with WH_LANE_DIGESTS sends digests. */

    /** The next chunk to send, as wh_sink.next. */
    bool (*next)(void *context, uint64_t *chunk_p);

    /** Where the bytes of a chunk are. Replaces the segments. */
    wherry_status (*gather)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /** Reports bytes that were sent. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /** As wh_sink.continues; `gather` then gives contiguous runs. NULL if that of the sink is. */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /** The lane has read the chunk (WH_LANE_STAGES). Never blocks. May be NULL. */
    void (*done)(void *context, uint64_t chunk);
} wh_feed;

/** Calls feed->done if there is one. */
static inline void wh_feed_done(const wh_feed *feed, uint64_t chunk) {
    if (feed->done) {
        feed->done(feed->context, chunk);
    }
}

/** Device memory of a source, as other processes can open it. */
typedef struct wh_shared_memory {
    wh_cuda_allocation *items; /**< Sorted by address, without overlaps. */
    size_t count;
    bool keeps; /**< The source has promised to keep it allocated. */
    /** Why there is none; status WHERRY_OK: the state has no device memory. */
    wherry_error reason;
} wh_shared_memory;

/** The context of a lane, borrowed by an end until it is closed. */
typedef struct wh_lane_site {
    wh_group *group;
    int32_t peer; /**< The other rank. */
    /** Of the source's inbox, where channels that the receiver opens arrive. */
    uint64_t tag;
    uint32_t threads;     /**< Threads that may be used; at least 1. */
    bool keep_ptracer;    /**< Do not set the process's ptracer (cma). */
    const wh_stop *stop;  /**< Ends everything. */
    wh_deadline deadline; /**< Of the whole call. */
    /** Give up on a peer that moves no byte for this long: WHERRY_TIMED_OUT. */
    uint32_t no_progress_ms;
    /** SOURCE, accept: channels of this receiver. accept sets those that it takes over to -1. */
    int *channels;
    size_t channel_count;
    const wh_shared_memory *shared; /**< SOURCE, offer; NULL: not collected. */
    uint64_t devices;               /**< One bit per CUDA device with some of the memory. */
    bool ordered;                   /**< The user named the lanes: speed does not matter. */
    /**
     * RECEIVER. Set if memory that wh_sink.open gave may still be written after the end is closed,
     * because the group cannot stop it. Then that memory is never freed.
     */
    bool *held_p;
} wh_lane_site;

/** One end of a lane between two ranks. Each lane has a struct that begins with this. */
typedef struct wh_lane_end {
    uint32_t workers; /**< Threads that pull or push with it at once. */
} wh_lane_end;

/** Traits of a lane. */
enum {
    /** No push: the receiver reads the source's memory by wh_sink.origin. */
    WH_LANE_ONE_SIDED = 1,
    WH_LANE_NETWORK = 2, /**< Bytes may cross a network: they are checked by default. */
    /** Carries digests with the bytes. Otherwise the source sends them by message. */
    WH_LANE_DIGESTS = 4,
    WH_LANE_GROUP = 8, /**< Its workers use the group itself. Needs pull_some and push_some. */
    /** Calls wh_feed.done, so that device memory can be staged through host memory. */
    WH_LANE_STAGES = 16,
    WH_LANE_DEVICE = 32, /**< Moves only device memory, by wh_sink.route, without digests. */
};

typedef struct wh_lane_ops {
    const char *name;
    uint32_t traits; /**< WH_LANE_* */
    /** With shorter runs on average, another lane of the same host is faster; 0: never. */
    uint32_t run_bytes;

    /**
     * How long a source's worker may take to finish when the receiver has everything. Stopping it
     * earlier would destroy what the next transfer needs. Other destinations wait meanwhile. 0:
     * stop it at once.
     */
    uint32_t finish_ms;

    /**
     * SOURCE. Appends to `offer` what a receiver needs for probing: at most WH_LANE_OFFER_MAX
     * bytes, or WH_LANE_LONG_OFFER_MAX for a lane with WH_LANE_DEVICE. May be empty. Must be quick,
     * never blocks.
     * @return WHERRY_OK; another status, with the reason, if this lane cannot work here.
     */
    wherry_status (*offer)(const wh_lane_site *site, wh_string *offer, wherry_error *error);

    /**
     * RECEIVER. Tries the lane with the real peer. The offer is hostile. Blocks at most until the
     * deadline.
     * @param request   receives what goes to the source's accept: at most WH_LANE_OFFER_MAX bytes,
     *                  may be empty.
     * @param assist_p  set to true if it may work once the source has run `assist` with `request`.
     * @param end_p     the pulling end, for `pull` and `close`.
     * @return WHERRY_OK; WHERRY_ABORTED if the source has ended the conversation, which ends the
     * receive; any other status is the reason, for the log, and the next lane is tried.
     */
    wherry_status (*probe)(const wh_lane_site *site, const void *offer, size_t size, wh_string *request, bool *assist_p,
                           wh_lane_end **end_p, wherry_error *error);

    /** SOURCE. Allows what a probe was refused. NULL: there is nothing to allow. Never blocks. */
    wherry_status (*assist)(const wh_lane_site *site, const void *request, size_t size, wherry_error *error);

    /**
     * SOURCE. The receiver has chosen this lane. NULL for a one-sided lane. Never waits for the
     * receiver. A lane that loads a library does so here.
     * @param ready_p  set to false if channels are missing: it is called again when the next one
     *                 comes.
     * @param end_p    the pushing end, for `push` and `close`.
     * @return WHERRY_OK; any other status goes to the receiver as the reason, and it tries the next
     * lane.
     */
    wherry_status (*accept)(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                            wh_lane_end **end_p, wherry_error *error);

    /** RECEIVER. One worker's share of a round. */
    wherry_status (*pull)(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

    /**
     * SOURCE. One worker's share of a round. NULL for a one-sided lane. If it finds that the
     * receiver cannot be reached, before any byte has moved, it returns WHERRY_REFUSED: the lane is
     * refused as by accept, and the receiver tries the next one.
     */
    wherry_status (*push)(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);

    /**
     * As pull and push, but do only what is possible at once, and return. For lanes that the
     * calling thread runs (wh_lane_runs_in_caller): between two calls it handles messages and, at a
     * source, the other destinations, so that none of them waits for the end of a round. Required
     * with WH_LANE_GROUP, else NULL.
     * @param wait_ms  how long to wait if nothing is possible; a few milliseconds.
     * @param done_p   set to true when the round is complete; the next call begins the next round.
     */
    wherry_status (*pull_some)(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                               wherry_error *error);
    wherry_status (*push_some)(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                               wherry_error *error);

    /**
     * Both, after a round, while no worker runs. Appends how the bytes travel, for people, such as
     * the transport that a library chose. NULL: there is nothing to add to the lane's name.
     */
    void (*describe)(const wh_lane_end *end, wh_string *text);

    /**
     * Both. Releases what the lane keeps for later transfers: of processes that have ended, and, if
     * group is not NULL, of one of its ranks (-1: all) that is lost or whose last transfer used
     * another lane. Never blocks. NULL: it keeps nothing.
     */
    void (*forget)(const wh_group *group, int32_t rank, bool lost);

    /**
     * Both, when no worker runs. Ends what pull_some or push_some have under way. end may be NULL.
     */
    void (*close)(wh_lane_end *end);
} wh_lane_ops;

/**
 * True if only the thread inside a call of the library may run the lane, because other threads must
 * not use the group.
 */
static inline bool wh_lane_runs_in_caller(const wh_lane_ops *lane, const wh_group *group) {
    return (lane->traits & WH_LANE_GROUP) && !wh_group_can(group, WH_GROUP_CONCURRENT);
}

/**
 * The most bytes of an offer or a request; and of an offer of a lane with WH_LANE_DEVICE, which
 * lists allocations.
 */
enum { WH_LANE_OFFER_MAX = 4096, WH_LANE_LONG_OFFER_MAX = 1 << 20 };

#endif
