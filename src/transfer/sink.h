/**
 * @file sink.h  The receiver's side of the data: which chunks have come, where their bytes go, and
 * whether they are what the source has.
 *
 * A chunk is opened by the lane, filled, closed; each once a round. With verify, what landed is
 * compared with what the source says it has: at once where the lane carries digests, else when the
 * source's message with them has come. Chunks that are wrong are a round of their own.
 *
 * A chunk that goes to a device, by a lane that knows host memory alone, lands in a slot (stage.h).
 * Closing it begins its copies; it has landed when they are done, which those who need its slot and
 * whoever ends the round see to.
 */
#ifndef WH_TRANSFER_SINK_H
#define WH_TRANSFER_SINK_H

#include <pthread.h>
#include <stdatomic.h>

#include <wherry/expert.h>

#include "lane/lane.h"
#include "range/chunkset.h"
#include "transfer/stage.h"
#include "transfer/trace.h"

typedef enum wh_chunk_state {
    WH_CHUNK_AWAITED,
    WH_CHUNK_AGAIN,  /**< Awaited, after its bytes were wrong. */
    WH_CHUNK_OPEN,   /**< Its bytes are landing, or are on their way to a device. */
    WH_CHUNK_LANDED, /**< All are here. */
    WH_CHUNK_BAD,    /**< They are, and are not what the source has. */
} wh_chunk_state;

/** Starts as {0}. */
typedef struct wh_chunk_sink {
    const wherry_plan *plan;
    /** Addresses of the source's storages: wh_origin_gather. NULL: nobody reads there. */
    const void *bases;
    const wh_stop *stop;
    bool verify;
    bool in_band;         /**< The lane carries digests. */
    wh_chunk_set wanted;  /**< All chunks that are asked for. */
    wh_chunk_set round;   /**< Those of this round. */
    atomic_uchar *states; /**< By place in `wanted`. */
    wh_digest *landed;    /**< Likewise, with verify: of what landed, */
    wh_digest *claimed;   /**< and what the source says. */
    /** Only used by the thread that takes messages, and under no lock: not in band. */
    bool *has_claim;
    _Atomic uint64_t moved;   /**< Bytes, those that came again included. */
    _Atomic uint64_t current; /**< The chunk that was opened last. */
    bool to_device;           /**< Some of the plan's destinations are a device's. */
    wh_stage stage;           /**< With to_device. */
    pthread_mutex_t lock;     /**< With to_device, for the following two: */
    wh_slot *flying;          /**< chunks that are on their way to a device, the oldest first, */
    wh_slot **flying_end;     /**< and where the next is linked. */
    /** Told of each chunk, once it is known what became of it; NULL: nobody is. */
    const wh_trace *trace;
    uint64_t *opened; /**< Where somebody is told: when each was, by place in `wanted`. */
} wh_chunk_sink;

/**
 * @param sink    starts as {0}; wh_chunk_sink_destroy in any case.
 * @param wanted  chunks, some of the plan's; copied.
 * @param stop    ends waiting for a device; borrowed.
 * @return false where there is no memory.
 */
bool wh_chunk_sink_init(wh_chunk_sink *sink, const wherry_plan *plan, const wh_chunk_set *wanted, const wh_stop *stop,
                        wh_deadline deadline);

/**
 * Begins a leg: these chunks are the next round, over a lane of its own; those of them that had
 * landed are awaited again.
 * @return false where there is no memory.
 */
bool wh_chunk_sink_begin(wh_chunk_sink *sink, const wherry_interval *intervals, size_t count, bool verify,
                         bool in_band);

/**
 * Waits until what is on its way to a device has arrived; no worker is at work. @return WHERRY_OK;
 * as wh_cuda_queue_wait.
 */
wherry_status wh_chunk_sink_settle(wh_chunk_sink *sink, wherry_error *error);

/** It is {0} again. */
void wh_chunk_sink_destroy(wh_chunk_sink *sink);

/**
 * The same, where somebody may still write to memory that it gave: that is kept for ever. Nothing
 * goes on to a device.
 */
void wh_chunk_sink_keep(wh_chunk_sink *sink);

/** What a lane is given. Valid as long as the sink. */
wh_sink wh_chunk_sink_face(wh_chunk_sink *sink);

/**
 * Takes digests from the source, in chunks from `first` on. @return false where they are not of
 * this plan.
 */
bool wh_chunk_sink_claim(wh_chunk_sink *sink, uint64_t first, const void *digests, size_t count);

/** What became of a round. */
typedef struct wh_round_result {
    uint64_t missing;   /**< Chunks that did not land: the lane failed. */
    uint64_t unclaimed; /**< That landed, and whose digest the source has not told yet. */
    uint64_t bad;       /**< That are wrong. */
    uint64_t first_bad;
} wh_round_result;

/** Judges the chunks; no worker is at work. */
wh_round_result wh_chunk_sink_judge(wh_chunk_sink *sink);

/** Makes the bad chunks the next round. @return false where there is no memory. */
bool wh_chunk_sink_retry(wh_chunk_sink *sink);

/** The state of a chunk. */
static inline wh_chunk_state wh_chunk_sink_state(const wh_chunk_sink *sink, uint64_t place) {
    return (wh_chunk_state)atomic_load(sink->states + place);
}

#endif
