/**
 * @file chunks.h  The chunks that a receiver wants: which source each of them comes from, which
 * have landed, where their bytes go, and whether their digests are those of the source.
 *
 *     AWAITED --open--> OPEN --close--> LANDED                (not checked, or the digest is right)
 *        ^               |  '--close--> UNCHECKED --> LANDED  (the digest comes by message)
 *     AGAIN <--take back-'                  '-------> BAD --assign--> AGAIN
 *
 *     AWAITED, AGAIN -> OPEN:         sink_open, sink_route
 *     OPEN -> LANDED, UNCHECKED, BAD: finish
 *     UNCHECKED -> LANDED, BAD:       wh_chunks_judge
 *     OPEN, UNCHECKED, BAD -> AGAIN:  wh_chunks_take_back; also LANDED, if its source was lost
 *     BAD -> AGAIN:                   wh_chunks_assign
 *
 * 1. A chunk is assigned to one source at a time. Only the session of that source can open it,
 *    once.
 * 2. With verify, a chunk is good only if the digest of what landed equals the one that its source
 *    claims. If the lane carries digests, they are compared when the chunk is closed, otherwise
 *    when both the chunk and the source's DIGESTS message have come.
 * 3. A chunk for a device that comes over a lane for host memory goes through a slot
 *    (plan/staging.h). Closing it begins the copies to the device; it has landed when these have
 *    completed.
 *
 * Threads: workers of a session call the functions of its sink. All others are for the thread
 * inside the call. It takes chunks back only while no worker of their session runs.
 */
#ifndef WH_TRANSFER_CHUNKS_H
#define WH_TRANSFER_CHUNKS_H

#include <stdatomic.h>

#include <wherry/checkpoint.h>
#include <wherry/expert.h>

#include "lane/lane.h"
#include "plan/staging.h"
#include "range/chunkset.h"
#include "transfer/session.h"
#include "transfer/trace.h"

typedef enum wh_chunk_state {
    WH_CHUNK_AWAITED,
    WH_CHUNK_AGAIN,     /**< Like AWAITED, but some of its bytes were written before. */
    WH_CHUNK_OPEN,      /**< Its bytes are landing, or are being copied to a device. */
    WH_CHUNK_UNCHECKED, /**< All bytes are at their destinations; the digest has not come. */
    WH_CHUNK_LANDED,    /**< All bytes are at their destinations. */
    WH_CHUNK_BAD,       /**< All bytes have come, but they differ from the source's. */
} wh_chunk_state;

/** The owner of a chunk that is assigned to no source. */
enum { WH_NO_SOURCE = 255 };

/** The digests of a chunk. */
typedef struct wh_chunk_digests {
    wherry_digest landed;  /**< The digest of the bytes that have landed. */
    wherry_digest claimed; /**< The digest that the source claims. */
    bool has_landed;
    bool has_claimed;
    bool by_message; /**< `claimed` comes in a DIGESTS message. */
} wh_chunk_digests;

/** Starts as {0}. "By place" means: indexed by the chunk's place in `wanted`. */
typedef struct wh_chunks {
    const wherry_plan *plan;
    wh_chunk_set wanted;  /**< All chunks of the receive. */
    atomic_uchar *states; /**< By place: a wh_chunk_state. */
    atomic_uchar *owners; /**< By place: the number of the source that it is assigned to. */
    /**
     * By place; NULL without verify. Workers may read it while another session begins to verify.
     */
    wh_chunk_digests *_Atomic digests;
    _Atomic uint64_t moved;   /**< Bytes, including those that came more than once. */
    _Atomic uint64_t current; /**< The chunk that was opened last; UINT64_MAX: none. */
    wh_delivery delivery;     /**< Delivers the chunks of devices. */
    /** May have a trace callback. */
    const wherry_transfer_options *options;
    uint64_t *opened; /**< By place, with trace: when the chunk was opened. */
    /** The sources, by number. Changes only while the source has no session. */
    struct {
        int32_t rank;
        const wh_lane_ops *lane; /**< The lane of its last session; NULL: none. */
        /** Of its storages, for wh_origin_gather; NULL if the lane has push. */
        const void *addresses;
    } sources[WHERRY_SOURCES_MAX];
} wh_chunks;

/** The receiver's side of a session: chunks that come from one source. Starts as {0}. */
typedef struct wh_pull {
    wh_session session; /**< First: see wh_move_fn and wh_session_next. */
    wh_chunks *chunks;
    uint8_t source; /**< The number of the source. */
} wh_pull;

/**
 * @param chunks  starts as {0}; needs wh_chunks_destroy even on failure. Must not move afterwards.
 * @param plan    borrowed.
 * @param wanted  some of the chunks of the plan; copied.
 * @param options  may have a trace callback, which receives an event per chunk; borrowed.
 * @param stop    ends waiting for a device; borrowed.
 * @return false if there is no memory.
 */
bool wh_chunks_init(wh_chunks *chunks, const wherry_plan *plan, const wh_chunk_set *wanted,
                    const wherry_transfer_options *options, const wh_stop *stop, wh_deadline deadline);

/** Frees everything and resets to {0}. */
void wh_chunks_destroy(wh_chunks *chunks);

/**
 * Resets to {0} without freeing the memory that was handed out, because somebody may still write to
 * it. Copies to devices end.
 */
void wh_chunks_leak(wh_chunks *chunks);

/** Prepares for digests. @return false if there is no memory. */
bool wh_chunks_reserve_digests(wh_chunks *chunks);

/**
 * Assigns a chunk to a source: from now on its session may open the chunk. The chunk must be wanted
 * and must not be open.
 */
void wh_chunks_assign(wh_chunks *chunks, uint64_t chunk, uint8_t source);

/** Takes a chunk back from its source: it is awaited again. Nobody may open it then. */
void wh_chunks_take_back(wh_chunks *chunks, uint64_t chunk);

/** The interface for the lane of a session. Valid as long as `pull`. */
wh_sink wh_pull_sink(wh_pull *pull);

/**
 * Records digests that a source claims, for the chunks from `first` on, and judges those that have
 * landed.
 * @param strict  refuse chunks that are not assigned to this source. Otherwise ignore them: they
 *                were taken back before their digests came.
 * @return false if digests are not wanted, or if a chunk is refused.
 */
bool wh_chunks_claim(wh_chunks *chunks, uint8_t source, uint64_t first, const void *digests, size_t count, bool strict);

/** Judges a chunk that has landed, if its digest has arrived. @return its state. */
wh_chunk_state wh_chunks_judge(wh_chunks *chunks, uint64_t chunk);

/** @param place  of the chunk in `wanted`. */
static inline wh_chunk_state wh_chunks_state(const wh_chunks *chunks, uint64_t place) {
    return (wh_chunk_state)atomic_load(chunks->states + place);
}

/** True if a byte may have been written: a chunk was opened. */
bool wh_chunks_have_begun(const wh_chunks *chunks);

#endif
