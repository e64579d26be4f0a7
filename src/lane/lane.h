/**
 * @file lane.h  A lane: one way to move chunks from a source to a receiver. One table of operations each; nobody outside its folder knows more.
 *
 * How a lane is used, both sides together:
 *
 *   source                                receiver
 *   offer: bytes that say how it can be
 *   reached  ------- OFFER ------------>  probe: tries it for real, as the pulling end of the lane
 *   assist   <------ only if refused ---  (a probe may ask the source to open a door, and is tried again)
 *   accept   <------ PLAN: request -----  what the probe wants the source to know
 *   push, by `workers` threads =========  pull, by `workers` threads: each takes chunks until there are none
 *   close                                 close
 *
 * A lane without push is one-sided: the receiver reads the source's memory, and the source does nothing.
 *
 * Pull and push run once a round: the first for all chunks of the plan, later ones for chunks that have to come again. Each is called by as many
 * threads at once as its end has workers, with numbers from 0 on. They end when all chunks of the round are through, when site.stop is requested
 * (WHERRY_CANCELLED, within 100 ms), or with an error; they never wait without looking at the stop. Nothing is written but what wh_sink.open gave, and nothing
 * is read or written once they have returned an error, or the end is closed.
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

/** Runs of memory that lie end to end in a chunk. Starts as {0}; reused from chunk to chunk. */
typedef struct wh_segments {
    struct iovec *items;
    size_t count;
    size_t capacity;
    uint64_t bytes; /**< All lengths together. */
} wh_segments;

/** Adds a run, or lengthens the last one where it goes on there. base may be NULL: bytes that have no place. @return false where there is no memory. */
bool wh_segments_add(wh_segments *segments, void *base, size_t length);

/** Forgets the runs, and keeps the room for the next. */
void wh_segments_clear(wh_segments *segments);

void wh_segments_destroy(wh_segments *segments);

/** Where the bytes of a chunk land. Belongs to one worker, which reuses it. Starts as {0}. */
typedef struct wh_landing {
    uint64_t chunk;
    wh_segments segments; /**< As many bytes as the chunk has. */
    void *scratch;        /**< For bytes that have no place of their own; the sink's. */
    size_t scratch_bytes; /**< How much room there is. */
    bool staged;          /**< The whole chunk lands in scratch, and is placed from there when it is closed. */
    void *slot;           /**< The sink's: the whole chunk lands there, and goes to a device when it is closed. */
} wh_landing;

void wh_landing_destroy(wh_landing *landing);

/** A run of bytes that come from the source and go to an address of this process, which may be a device's. */
typedef struct wh_route {
    uint64_t from; /**< An address of the source's; over a lane that has a push, a position: see wh_routes.span. */
    void *to;
    uint64_t length;
    int32_t device; /**< Of `to`; -1: it is the host's. */
} wh_route;

/** Starts as {0}; reused from batch to batch. */
typedef struct wh_routes {
    wh_route *items;
    size_t count;
    size_t capacity;
    uint64_t bytes;     /**< All lengths together. */
    uint64_t span;      /**< Of all chunks that were opened, which lie end to end there: positions are within it. */
    wh_segments origin; /**< The sink's own, as the next two. */
    uint64_t *begins;
    size_t begin_capacity;
} wh_routes;

/** Forgets the routes, and keeps the room for the next. */
void wh_routes_clear(wh_routes *routes);

void wh_routes_destroy(wh_routes *routes);

/** A receiver's side of the data: made by the transfer, filled by a lane. Functions may be called by several threads at once. */
typedef struct wh_sink {
    void *context;
    bool
        verify; /**< Digests are checked: wh_sink.close wants the digest of what landed, and wh_sink.open gives no NULL. */

    /**
     * The next chunk to fetch, each given once a round, in the order of their numbers; false: there are no more, or the stop was requested. For lanes that are
     * one-sided, and for those that go by the order: where each side has one worker, sink and feed give both the same chunks in the same order.
     */
    bool (*next)(void *context, uint64_t *chunk_p);

    /** Where the bytes of a chunk lie in the source's memory: addresses there. For lanes that are one-sided. Replaces what the segments held. */
    wherry_status (*origin)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /**
     * Opens a chunk for writing. landing->segments says where to: it never has a byte outside the planned destinations. Without verify, segments with
     * a NULL base are bytes that have no place: skip them, or read them into landing->scratch, which then has room for the longest.
     * @return WHERRY_OK; WHERRY_MALFORMED for a chunk that this round does not wait for (a hostile source), or that is open or closed already;
     * WHERRY_NO_MEMORY.
     */
    wherry_status (*open)(void *context, uint64_t chunk, wh_landing *landing, wherry_error *error);

    /**
     * All bytes of the chunk have landed.
     * @param digest   of what landed, or NULL without verify.
     * @param claimed  what the source says it is, where the lane carries that; NULL: it comes by another way.
     */
    wherry_status (*close)(void *context, wh_landing *landing, const wh_digest *digest, const wh_digest *claimed,
                           wherry_error *error);

    /** So many bytes more have landed: call it at least every few MiB. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /**
     * Whether a chunk lies at the source where the one before it, by number, ends: both are one run of one storage there, without a gap. A lane may then
     * move them as one. Follows from the manifest alone, so that sink and feed say the same. Where they land is for `open` to say. May be NULL: none does.
     * @return the bytes of the chunk; 0: it does not.
     */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /**
     * Opens a chunk for a lane that knows device memory (WH_LANE_DEVICE): adds where each byte that is wanted comes from and where it goes, the last route
     * lengthened where one goes on there. Routes may come in any order, and several from one place. Instead of `open`; errors as its. May be NULL for lanes
     * without that trait.
     */
    wherry_status (*route)(void *context, uint64_t chunk, wh_routes *routes, wherry_error *error);

    /** All bytes of a chunk that `route` opened have come. */
    wherry_status (*arrived)(void *context, uint64_t chunk, wherry_error *error);
} wh_sink;

/** A source's side of the data. Functions may be called by several threads at once. */
typedef struct wh_feed {
    void *context;
    bool verify; /**< The lane sends digests along, where it can. */

    /** The next chunk to send, each given once a round, in the order of their numbers; false: there are no more, or the stop was requested. */
    bool (*next)(void *context, uint64_t *chunk_p);

    /** Where the bytes of a chunk lie here. Replaces what the segments held. */
    wherry_status (*gather)(void *context, uint64_t chunk, wh_segments *segments, wherry_error *error);

    /** So many bytes more are on their way. Never blocks. */
    void (*moved)(void *context, uint64_t bytes);

    /** As wh_sink.continues; `gather` then gives runs that lie end to end. May be NULL where that of the sink is. */
    uint64_t (*continues)(void *context, uint64_t chunk);

    /** The lane reads what `gather` gave for a chunk no more (WH_LANE_STAGES). Never blocks. May be NULL. */
    void (*done)(void *context, uint64_t chunk);
} wh_feed;

/** Says that a chunk was read, to a feed that wants to know. */
static inline void wh_feed_done(const wh_feed *feed, uint64_t chunk) {
    if (feed->done) {
        feed->done(feed->context, chunk);
    }
}

/** The memory of devices that a source has, as other processes can reach it. */
typedef struct wh_shared_memory {
    wh_cuda_allocation *items; /**< By address; they do not overlap. */
    size_t count;
    bool keeps;          /**< The source has promised that it stays allocated. */
    wherry_error reason; /**< Why there is none; status WHERRY_OK: no memory is a device's. */
} wh_shared_memory;

/** Where a lane is at work: borrowed by an end until it is closed. */
typedef struct wh_lane_site {
    wh_group *group;
    int32_t peer;            /**< The rank at the other side. */
    uint64_t tag;            /**< Of the source's inbox: channels that the receiver opens with it arrive there. */
    uint32_t threads;        /**< How many threads may be used; at least 1. */
    bool keep_ptracer;       /**< The process's ptracer must not be set (cma). */
    const wh_stop *stop;     /**< Ends everything. */
    wh_deadline deadline;    /**< Of the whole call. */
    uint32_t no_progress_ms; /**< A peer that has not moved a byte for so long is given up: WHERRY_TIMED_OUT. */
    int *
        channels; /**< SOURCE, accept: the channels that this receiver has opened; what accept takes over it owns, and sets to -1. */
    size_t channel_count;
    const wh_shared_memory *shared; /**< SOURCE, offer; NULL: nobody has asked for it. */
    uint64_t devices;               /**< A bit for each CUDA device that has some of the memory, or gets some. */
    bool ordered; /**< The user has named the lanes: one that works need not give way to others that are faster. */
    bool *
        held_p; /**< RECEIVER: set where memory that wh_sink.open gave may still be written to when the end is closed, against all that is said above, since
                     nobody can stop it: then nothing of that is ever freed. */
} wh_lane_site;

/** One end of a lane between two ranks. Each lane has its own struct that begins with this. */
typedef struct wh_lane_end {
    uint32_t workers; /**< How many threads pull or push with it at once. */
} wh_lane_end;

/** What a lane is like. */
enum {
    WH_LANE_ONE_SIDED = 1, /**< No push: the receiver reads the source's memory by wh_sink.origin. */
    WH_LANE_NETWORK = 2,   /**< Bytes may cross a network: they are verified unless told otherwise. */
    WH_LANE_DIGESTS = 4,   /**< Carries digests along with the bytes. Without it the source tells them by message. */
    WH_LANE_MESSAGES = 8,  /**< Its workers send and receive messages of the group. */
    WH_LANE_STAGES =
        16, /**< Says when it has read a chunk (wh_feed.done): so chunks of device memory can go by way of the host's. */
    WH_LANE_DEVICE =
        32, /**< Moves device memory by itself, by wh_sink.route, and nothing else; digests are not made. */
};

typedef struct wh_lane_ops {
    const char *name;
    uint32_t traits; /**< WH_LANE_* */
    uint32_t
        run_bytes; /**< Where runs are shorter than this on average, another lane of the same host is faster; 0: it does not matter. */

    /**
     * How long a source's worker is given to end by itself when the receiver has all that was sent: stopped before, it takes with it what the next transfer
     * would need. Other destinations wait meanwhile, so it must be what a thread's turn takes. 0: it need not be given any time.
     */
    uint32_t finish_ms;

    /**
     * SOURCE. Appends to `offer` what a receiver needs for probing: at most WH_LANE_OFFER_MAX bytes, or WH_LANE_LONG_OFFER_MAX of a lane for devices, perhaps
     * none. Must be quick, never blocks.
     * @return WHERRY_OK; another status, with the reason, where this lane cannot work from here.
     */
    wherry_status (*offer)(const wh_lane_site *site, wh_string *offer, wherry_error *error);

    /**
     * RECEIVER. Tries the lane with the real peer; treats the offer's bytes as hostile. Blocks no longer than until the deadline.
     * @param request   receives what goes to the source's accept: at most WH_LANE_OFFER_MAX bytes, perhaps none.
     * @param assist_p  set to true where it fails now and may work once the source has run `assist` with what `request` holds.
     * @param end_p     the pulling end, for `pull` and `close`.
     * @return WHERRY_OK; WHERRY_ABORTED where the source's side of the conversation is over, which ends the receive; any other status is the reason why not,
     * in words for the log, and the next lane is tried.
     */
    wherry_status (*probe)(const wh_lane_site *site, const void *offer, size_t size, wh_string *request, bool *assist_p,
                           wh_lane_end **end_p, wherry_error *error);

    /** SOURCE. Opens a door that a probe found shut. NULL: there is nothing to open. Never blocks. */
    wherry_status (*assist)(const wh_lane_site *site, const void *request, size_t size, wherry_error *error);

    /**
     * SOURCE. The receiver has taken this lane. NULL for one that is one-sided. Never waits for the receiver; a lane that loads a library does so here.
     * @param ready_p  set to false where channels are still to come: it is called again when the next has.
     * @param end_p    the pushing end, for `push` and `close`.
     * @return WHERRY_OK; any other status goes to the receiver as the reason, which tries the next lane.
     */
    wherry_status (*accept)(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                            wh_lane_end **end_p, wherry_error *error);

    /** RECEIVER. One worker's share of a round. */
    wherry_status (*pull)(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error);

    /**
     * SOURCE. One worker's share of a round. NULL for one that is one-sided. Where it finds out only here that the receiver cannot be reached, and nothing has
     * moved, it returns WHERRY_REFUSED: the lane is refused as by accept, and the receiver tries the next.
     */
    wherry_status (*push)(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error);

    /**
     * A part of a round, for the thread inside a call of the library where that one has to do all of a lane's work (wh_lane_works_alone): it looks after
     * the conversation between two parts, and a source after its other destinations, so that neither a message nor another receiver waits for the end of a
     * round. Both or none; NULL: that thread calls pull or push, and is away until the round is through. As these, but that it does what can be done at
     * once and returns.
     * @param wait_ms  how long it may wait where nothing can be done; a few milliseconds.
     * @param done_p   set to true when the round is through; the next call begins the next round.
     */
    wherry_status (*pull_some)(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                               wherry_error *error);
    wherry_status (*push_some)(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                               wherry_error *error);

    /**
     * Both, after a round, while no worker is at work: appends what people should know of how the bytes go, such as what a library underneath has chosen. NULL:
     * its name says all.
     */
    void (*describe)(const wh_lane_end *end, wh_string *text);

    /**
     * Both. Gives back what the lane has kept for the next transfers: of processes that are gone, and, where group is not NULL, of a rank of it (-1: of all)
     * that a transfer has ended with over another lane, or that is lost. Waits for nobody. NULL: it keeps nothing that is another's.
     */
    void (*forget)(const wh_group *group, int32_t rank, bool lost);

    /** Both. No worker is at work any more. What is still under way, where the work was done in parts, ends. end may be NULL. */
    void (*close)(wh_lane_end *end);
} wh_lane_ops;

/** Whether only the thread that is inside a call of the library may do a lane's work: it uses a group that others must not use meanwhile. */
static inline bool wh_lane_works_alone(const wh_lane_ops *lane, const wh_group *group) {
    return (lane->traits & WH_LANE_MESSAGES) && !wh_group_can(group, WH_GROUP_CONCURRENT);
}

/** An offer or a request has no more bytes than this; an offer of a lane for devices, which lists their memory, than that. */
enum { WH_LANE_OFFER_MAX = 4096, WH_LANE_LONG_OFFER_MAX = 1 << 20 };

#endif
