/**
 * @file lane.h  A lane moves chunks from a source to a receiver. Each lane has one table of
 * operations. Code outside the lane's folder uses only this table.
 *
 * How both sides use a lane:
 *
 *     source                              receiver
 *     offer: how to reach it
 *              ------ OFFER ----------->  probe: tries the real peer, creates the pulling end
 *     assist   <----- only if refused --  (a probe may ask for help, and is then tried again)
 *     accept   <----- PLAN: request ----  what the probe tells the source
 *     push, in `workers` threads =======  pull, in `workers` threads
 *     close                               close
 *
 * 1. A lane without push is one-sided: the receiver reads the source's memory, and the source does
 *    nothing.
 * 2. Chunks come in requests. PLAN has the first request of a session, REQUEST messages have more.
 *    `next` returns the chunks of one request; `more` continues with the next request, and waits
 *    for it. Workers run until `more` says that no request follows. As many threads call pull (or
 *    push) at once as the end has workers. Workers are numbered from 0.
 * 3. Pull and push return when the last request is done, or with an error. After a stop request,
 *    they return WHERRY_CANCELLED within 100 ms. Every wait checks for a stop request.
 * 4. A lane writes received bytes only to its own buffers and to memory that it got from
 *    wh_sink.open or wh_sink.route. After pull or push has returned an error, and after the end was
 *    closed, it neither reads nor writes tensors. The only exception is wh_lane_site.held_p.
 *
 * An operation that only one side uses is marked "Source" or "Receiver".
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
 * The runs of memory of a chunk, in order. Initialize with {0}. Can be reused for the next chunk.
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
 * @return false if out of memory.
 */
bool wh_segments_add(wh_segments *segments, void *base, size_t length);

/** Removes all runs. The array stays allocated for the next chunk. */
void wh_segments_clear(wh_segments *segments);

void wh_segments_destroy(wh_segments *segments);

/**
 * Where the bytes of a chunk go. Each worker has one and reuses it for each chunk. Initialize with
 * {0}.
 */
typedef struct wh_landing {
    uint64_t chunk;
    wh_segments segments; /**< The destinations of all bytes of the chunk. */
    void *scratch;        /**< For bytes without a destination, or staged. The sink allocates it. */
    size_t scratch_bytes; /**< Size of `scratch`. */
    /** The whole chunk goes to `scratch` or `slot`. wh_sink.close copies it to its destination. */
    bool staged;
    /** Only for the sink: a buffer for the whole chunk, which wh_sink.close copies to a device. */
    void *slot;
} wh_landing;

void wh_landing_destroy(wh_landing *landing);

/**
 * A part of a chunk: its address at the source, and its destination in this process, which may be
 * on a device.
 */
typedef struct wh_route {
    /** An address at the source. For a lane with push, an offset within wh_routes.span. */
    uint64_t from;
    void *to;
    uint64_t length;
    int32_t device; /**< The device of `to`; -1: host memory. */
} wh_route;

/** A list of routes. Initialize with {0}. Can be reused for the next batch of chunks. */
typedef struct wh_routes {
    wh_route *items;
    size_t count;
    size_t capacity;
    uint64_t bytes; /**< The sum of all lengths. */
    /** Total size of the opened chunks, laid out one after the other in the order of opening. */
    uint64_t span;
    wh_segments origin;    /**< Used only by the sink. */
    uint64_t *begins;      /**< Used only by the sink. */
    size_t begin_capacity; /**< Used only by the sink. */
} wh_routes;

/** Removes all routes. The memory stays allocated for the next batch. */
void wh_routes_clear(wh_routes *routes);

/**
 * Appends a route, merging it with the previous one if contiguous. @return false if out of memory.
 */
bool wh_routes_add(wh_routes *routes, uint64_t from, void *to, uint64_t length, int32_t device);

/** Finds where in the chunk each run of `origin` begins. @return false if out of memory. */
bool wh_routes_locate(wh_routes *routes);

/**
 * Appends routes from a part of the chunk, which begins at `position`: one for each run of `origin`
 * that it lies in. @return false if out of memory.
 */
bool wh_routes_add_run(wh_routes *routes, uint64_t position, char *to, uint64_t length, int32_t device);

void wh_routes_destroy(wh_routes *routes);

/** Whether chunks follow, after wh_sink.next or wh_feed.next has returned false. */
typedef enum wh_more {
    WH_MORE_NEVER, /**< The last request is done, or a stop was requested. */
    WH_MORE_LATER, /**< The next request has not arrived yet. */
    WH_MORE_NOW,   /**< `next` returns a chunk of the next request. */
} wh_more;

/**
 * The receiver's side of the data. The transfer implements it, and the lane calls it. Several
 * threads may call the functions at once.
 */
typedef struct wh_sink {
    void *context;
    /** `close` needs a digest of the received bytes. `open` then returns no NULL segments. */
    bool verify;
    /** Only for a lane with WH_LANE_GROUP: see wh_lane_ops.pull. */
    uint32_t wait_ms;
    bool *again_p;

    /**
     * Returns the next chunk of the request. Each chunk comes once, in ascending order. Never
     * blocks. Used by one-sided lanes and by lanes that rely on the order: with one worker on each
     * side, sink and feed return the same chunks in the same order.
     * @return false if the request has no more chunks (see `more`) or a stop was requested.
     */
    bool (*next)(void *context, uint64_t *chunk_p);

    /**
     * Continues with the next request, after `next` has returned false. Waits for it at most
     * wait_ms. NULL: no request follows. wh_sink_more and wh_feed_more call it.
     */
    wh_more (*more)(void *context, uint32_t wait_ms);

    /**
     * Sets `segments` to the addresses of a chunk in the source's memory. For one-sided lanes that
     * use `open`.
     */
    wherry_status (*origin)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /**
     * Opens a chunk. The lane then writes its bytes to landing->segments, which are always within
     * the planned destinations. A segment with a NULL base (never with `verify`) has no
     * destination: skip it, or write it to landing->scratch, which has room for the longest one.
     * @return WHERRY_OK; WHERRY_MALFORMED for a chunk that was not requested (a hostile source), or
     * that was opened before; WHERRY_NO_MEMORY.
     */
    wherry_status (*open)(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error);

    /**
     * Call this when all bytes of the chunk are written.
     * @param digest   the digest of the received bytes; NULL without `verify`.
     * @param claimed  the source's digest, if the lane carries it; NULL: it comes by message.
     */
    wherry_status (*close)(void *context, wh_landing *landing, const wherry_digest *digest,
                           const wherry_digest *claimed, wherry_error *error);

    /** Reports that `bytes` more bytes were written. Call it often. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /**
     * Tells whether a chunk continues the chunk before it (the one with the previous number): in
     * the source's memory both are one contiguous run of one storage. A lane may move such chunks
     * as one block. The answer depends only on the manifest, so sink and feed agree. At the
     * receiver, the chunks may have separate destinations. NULL: no chunk continues another.
     * @return the size of the chunk if it continues the previous one, else 0.
     */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /**
     * Opens a chunk for a lane with WH_LANE_DEVICE, instead of `open`. Appends routes for the
     * wanted bytes, and merges contiguous ones. Routes are in no particular order, and several may
     * read the same bytes. May be NULL if the lane does not have WH_LANE_DEVICE.
     * @return as `open`.
     */
    wherry_status (*route)(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error);

    /** Call this when all bytes of a chunk that `route` opened are written. */
    wherry_status (*arrived)(void *context, uint64_t chunk, wherry_error *error);
} wh_sink;

/** The source's side of the data. Several threads may call the functions at once. */
typedef struct wh_feed {
    void *context;
    bool verify; /**< A lane with WH_LANE_DIGESTS must send digests. */
    /** As in wh_sink. */
    uint32_t wait_ms;
    bool *again_p;

    /** Returns the next chunk to send, in the same way as wh_sink.next. */
    bool (*next)(void *context, uint64_t *chunk_p);

    /**
     * Like wh_sink.more. Before a lane waits here, it must have sent all that the receiver needs to
     * complete the chunks so far: the receiver may wait for them before it sends its next request.
     */
    wh_more (*more)(void *context, uint32_t wait_ms);

    /** Sets `segments` to the addresses of a chunk. */
    wherry_status (*gather)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /** Reports that `bytes` more bytes were sent. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /**
     * The same as wh_sink.continues; NULL if that is NULL. For a chunk that continues the previous
     * one, `gather` returns a run that follows the previous chunk in memory.
     */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /** Reports that the lane has read the chunk (WH_LANE_STAGES). Never blocks. May be NULL. */
    void (*done)(void *context, uint64_t chunk);
} wh_feed;

/**
 * Waits for the next request. @return false if none follows: then the worker's share is done, or a
 * stop was requested.
 */
static inline bool wh_await_request(wh_more (*more)(void *context, uint32_t wait_ms), void *context) {
    wh_more follows = WH_MORE_LATER;
    while (more && follows == WH_MORE_LATER) {
        follows = more(context, WH_STOP_LOOK_MS);
    }
    return follows == WH_MORE_NOW;
}

static inline bool wh_sink_more(const wh_sink *sink) {
    return wh_await_request(sink->more, sink->context);
}

static inline bool wh_feed_more(const wh_feed *feed) {
    return wh_await_request(feed->more, feed->context);
}

/** Calls feed->done if there is one. */
static inline void wh_feed_done(const wh_feed *feed, uint64_t chunk) {
    if (feed->done) {
        feed->done(feed->context, chunk);
    }
}

/** The context of a lane. It must stay valid until the end that uses it is closed. */
typedef struct wh_lane_site {
    wh_group *group;
    int32_t peer; /**< The other rank. */
    /** The tag of the source's inbox. The channels that the receiver opens arrive there. */
    uint64_t tag;
    uint32_t threads;     /**< Maximum number of worker threads; at least 1. */
    bool keep_ptracer;    /**< Do not change the ptracer of this process. */
    const wh_stop *stop;  /**< All waits must end when this is requested. */
    wh_deadline deadline; /**< The deadline of the whole call. */
    /** If the peer moves no byte for this long, give up with WHERRY_TIMED_OUT. */
    uint32_t no_progress_ms;
    /**
     * Source, for `accept`: channels from this receiver. `accept` sets those it takes over to
     * WH_NO_SOCKET.
     */
    wh_socket *channels;
    size_t channel_count;
    /** Source, for `offer`: the device memory to share; NULL: not collected. */
    const wh_shared_memory *shared;
    uint64_t devices; /**< A bit mask of the CUDA devices that hold tensors of this side. */
    bool ordered;     /**< The user chose the lanes, so do not refuse a slow one. */
    /**
     * Receiver; may be NULL. The lane sets it to true if memory from wh_sink.open may still be
     * written after the end is closed, because the group cannot cancel an operation. Such memory is
     * never freed.
     */
    bool *held_p;
} wh_lane_site;

/** One end of a lane between two ranks. Each lane has its own struct that begins with this one. */
typedef struct wh_lane_end {
    uint32_t workers; /**< Number of threads that call pull or push at once. */
    /** All bytes are encrypted and authenticated on their way, so they need no digests. */
    bool encrypted;
} wh_lane_end;

/** Traits of a lane. */
enum {
    /** Has no push: the receiver reads the source's memory, and the source does nothing. */
    WH_LANE_ONE_SIDED = 1,
    WH_LANE_NETWORK = 2, /**< Bytes may cross a network, so digests are checked by default. */
    /** Carries digests with the bytes. Without this, the source sends digests by message. */
    WH_LANE_DIGESTS = 4,
    /** Moves bytes with the operations of the group. Its pull and push work in steps. */
    WH_LANE_GROUP = 8,
    /** Calls wh_feed.done, so that device memory can be staged through host memory. */
    WH_LANE_STAGES = 16,
    /**
     * The source's memory must be on devices. The destinations may be in host memory. Uses
     * wh_sink.route; has no digests.
     */
    WH_LANE_DEVICE = 32,
    /**
     * Its bytes stay on this host, or are encrypted if the group says so (wh_group.encrypts_all).
     */
    WH_LANE_PRIVATE = 64,
};

/**
 * The operations of a lane. "Caller" is the thread inside the send or the receive; "worker" is a
 * thread that the transfer starts for this end. Operations under "optional" may be NULL or 0.
 */
typedef struct wh_lane_ops {
    /* ---- every lane ---- */

    const char *name;
    uint32_t traits; /**< WH_LANE_* */

    /**
     * Source, caller. Appends to `offer` what a receiver needs for probing: at most
     * WH_LANE_OFFER_MAX bytes, or WH_LANE_LONG_OFFER_MAX for a lane with WH_LANE_DEVICE. The offer
     * may be empty. Must be fast and must not block.
     * @return WHERRY_OK; any other status, with the reason, if this lane cannot work here.
     */
    wherry_status (*offer)(const wh_lane_site *site, wh_string *offer, wherry_error *error);

    /**
     * Receiver, caller. Tries the lane with the real peer. Check the offer, because it may be
     * hostile. Blocks at most until the deadline.
     * @param request   append to it what the source's `accept` needs: at most WH_LANE_OFFER_MAX
     *                  bytes; may stay empty.
     * @param assist_p  set it to true if a second probe may succeed after the source has run
     *                  `assist` with `request`.
     * @param end_p     the pulling end, for `pull` and `close`.
     * @return WHERRY_OK; WHERRY_ABORTED if the source has ended the conversation, which ends the
     * receive from it; any other status, with the reason for the log: the next lane is tried.
     */
    wherry_status (*probe)(const wh_lane_site *site, const void *offer, size_t size, wh_string *request, bool *assist_p,
                           wh_lane_end **end_p, wherry_error *error);

    /**
     * Receiver, worker. Does one worker's share of all requests. Blocks.
     *
     * With WH_LANE_GROUP, it does some work and returns soon, because only the caller may use some
     * groups (wh_lane_runs_in_caller). The caller then runs the lane between messages, so that one
     * receiver does not have to wait for another. It waits at most sink->wait_ms if nothing is
     * possible now. As long as the last request is not done, it sets *sink->again_p to true, and is
     * called again.
     * @return WHERRY_OK; WHERRY_CANCELLED after a stop request; WHERRY_PEER_LOST;
     * WHERRY_TIMED_OUT; WHERRY_MALFORMED; the errors of the sink; WHERRY_NO_MEMORY; WHERRY_SYSTEM.
     */
    wherry_status (*pull)(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

    /**
     * Both sides, caller, while no worker runs. Ends operations that are in flight and frees the
     * end. Must not wait for the peer. `end` may be NULL.
     */
    void (*close)(wh_lane_end *end);

    /* ---- lanes with a pushing side (not WH_LANE_ONE_SIDED) ---- */

    /**
     * Source, caller. Called when the receiver has chosen this lane. Must not wait for the
     * receiver. If the lane needs a library, load it here or in `assist`, not in `offer`.
     * @param ready_p  set it to false if channels are missing. `accept` is then called again when
     *                 the next channel arrives.
     * @param end_p    the pushing end, for `push` and `close`.
     * @return WHERRY_OK; any other status, with the reason: the receiver learns it and tries the
     * next lane.
     */
    wherry_status (*accept)(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                            wh_lane_end **end_p, wherry_error *error);

    /**
     * Source, worker. Does one worker's share of all requests, in the same way as pull.
     * @return as pull. If the receiver cannot be reached and no byte has moved yet, it may return
     * WHERRY_REFUSED: the receiver then tries the next lane, as it does when `accept` fails.
     */
    wherry_status (*push)(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);

    /* ---- optional ---- */

    /**
     * If the average run has fewer bytes than this, other lanes on the same host are faster. 0:
     * there is no such limit.
     */
    uint32_t run_bytes;

    /**
     * Source, caller. Called after a refused probe. Does what the receiver asks for in `request`,
     * so that a second probe may succeed. Must not wait for the receiver. NULL: the source cannot
     * help.
     * @return WHERRY_OK; any other status, with the reason, which the receiver learns.
     */
    wherry_status (*assist)(const wh_lane_site *site, const void *request, size_t size, wherry_error *error);

    /**
     * Both sides, caller, while no worker runs. Appends text for users that says how the bytes
     * travel, such as the transport that a library chose. NULL: there is nothing to add to the
     * lane's name.
     */
    void (*describe)(const wh_lane_end *end, wh_string *text);

    /**
     * Both sides, caller. Releases resources that the lane caches for later transfers: those of
     * processes that have ended and, if `group` is not NULL, those of one of its ranks. A lane may
     * keep what is still safe to use. Must not wait for the peer. NULL: nothing has to be released.
     * @param rank  -1: all ranks of the group.
     * @param lost  true if the rank is lost; false if its last transfer used another lane, or if
     *              the transport is destroyed.
     */
    void (*forget)(const wh_group *group, int32_t rank, bool lost);
} wh_lane_ops;

/**
 * True if the lane must run in the thread that called the library, because other threads must not
 * use the group.
 */
static inline bool wh_lane_runs_in_caller(const wh_lane_ops *lane, const wh_group *group) {
    return (lane->traits & WH_LANE_GROUP) && !wh_group_can(group, WH_GROUP_CONCURRENT);
}

/**
 * Maximum sizes in bytes. WH_LANE_OFFER_MAX is for offers and requests. WH_LANE_LONG_OFFER_MAX is
 * for offers of lanes with WH_LANE_DEVICE, which list allocations.
 */
enum { WH_LANE_OFFER_MAX = 4096, WH_LANE_LONG_OFFER_MAX = 1 << 20 };

#endif
