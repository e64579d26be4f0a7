/**
 * @file staging.h  Moves device memory through pinned host buffers, for lanes that only know host
 * memory.
 *
 * A slot is a host buffer for one chunk. The device copies while the lane works on other chunks.
 *
 *     source:    device --wh_fetch--> slot --lane-->
 *     receiver:                             --lane--> slot --wh_delivery--> device
 *
 * A slot (memory/cuda_slots.h) belongs to one thread, to the list of free slots, or to the fetch or
 * delivery that waits for its copies.
 *
 * Threads: any number of workers may use one fetch or delivery at once, except for its init and
 * destroy functions. Lock order: the lock of the fetch or delivery, then that of its slots. The
 * callback of a delivery runs under the lock of the delivery.
 */
#ifndef WH_PLAN_STAGING_H
#define WH_PLAN_STAGING_H

#include <pthread.h>
#include <sys/uio.h>

#include <wherry/expert.h>

#include "memory/cuda_slots.h"
#include "range/chunkset.h"

/* ---- source ---- */

/**
 * Fetches chunks from devices, in the order in which they were added and ahead of the lane: a
 * worker that asks for a chunk also starts the copies of the next ones. Starts as {0}.
 */
typedef struct wh_fetch {
    const wherry_prepared *prepared; /**< NULL: not initialized. */
    wh_slots slots;
    pthread_mutex_t lock; /**< Protects the members below. */
    uint64_t *order;      /**< The numbers of all chunks that were added. */
    size_t count;
    size_t capacity;
    size_t begun;    /**< How many of these chunks have been begun. */
    wh_slot *active; /**< The slots of chunks that are begun and not done. */
    uint64_t active_count;
    uint64_t ahead; /**< How many chunks may be begun before the lane asks for them. */
    /** The reason why a chunk could not be begun. All later calls fail, too. */
    wherry_error failure;
} wh_fetch;

/**
 * @param prepared, stop  borrowed.
 * @param workers         threads of the lane.
 */
void wh_fetch_init(wh_fetch *fetch, const wherry_prepared *prepared, uint32_t workers, const wh_stop *stop,
                   wh_deadline deadline);

/** Adds chunks, which the lane will ask for in this order. @return false if out of memory. */
bool wh_fetch_add(wh_fetch *fetch, const wherry_interval *intervals, size_t count);

/** Waits for all copies, even if the stop was requested. Does nothing on {0}. */
void wh_fetch_destroy(wh_fetch *fetch);

/** True between wh_fetch_init and wh_fetch_destroy. */
static inline bool wh_fetch_exists(const wh_fetch *fetch) {
    return fetch->prepared != NULL;
}

/**
 * Waits until the chunk is in host memory.
 * @param run_p  receives its bytes, which stay valid until wh_fetch_done.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; as wh_cuda_queue_copy and wh_cuda_queue_wait.
 */
wherry_status wh_fetch_gather(wh_fetch *fetch, uint64_t chunk, struct iovec *run_p, wherry_error *error);

/** The lane has read the chunk. */
void wh_fetch_done(wh_fetch *fetch, uint64_t chunk);

/* ---- receiver ---- */

/** Called when all bytes of a chunk are at their destinations. */
typedef void (*wh_delivered_fn)(void *context, uint64_t chunk);

/** Copies chunks from slots to the destinations of a plan. Starts as {0}. */
typedef struct wh_delivery {
    const wherry_plan *plan;
    wh_delivered_fn delivered;
    void *context; /**< Passed to `delivered`. */
    wh_slots slots;
    pthread_mutex_t lock;    /**< Protects the members below. */
    wh_slot *in_flight;      /**< Slots with copies under way, oldest first. */
    wh_slot **in_flight_end; /**< Where the next slot is linked. */
} wh_delivery;

/** Stays {0} if no destination of the plan is on a device. plan and stop are borrowed. */
void wh_delivery_init(wh_delivery *delivery, const wherry_plan *plan, wh_delivered_fn delivered, void *context,
                      const wh_stop *stop, wh_deadline deadline);

/** Waits for all copies, even if the stop was requested. Does nothing on {0}. */
void wh_delivery_destroy(wh_delivery *delivery);

/** Waits for all copies and allows no new ones, but keeps the memory of the slots. */
void wh_delivery_end_copies(wh_delivery *delivery);

/** True if a byte of the chunk goes to a device. */
bool wh_delivery_takes(const wh_delivery *delivery, uint64_t chunk);

/**
 * Takes a slot for a chunk. Waits for older chunks if all slots are in use.
 * @param slot_p  the caller fills slot->memory, and then calls wh_delivery_close or
 *                wh_delivery_discard.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; as wh_cuda_queue_wait.
 */
wherry_status wh_delivery_open(wh_delivery *delivery, uint64_t chunk, wh_slot **slot_p, wherry_error *error);

/** Begins to copy the chunk to its destinations. `delivered` is called when that has completed. */
wherry_status wh_delivery_close(wh_delivery *delivery, wh_slot *slot, wherry_error *error);

/** Drops the bytes of the slot. */
void wh_delivery_discard(wh_delivery *delivery, wh_slot *slot);

/** Calls `delivered` for chunks whose copies have completed. Does not wait. */
void wh_delivery_poll(wh_delivery *delivery);

/**
 * Waits until all chunks are at their destinations, and calls `delivered` for each. No worker may
 * run.
 * @return WHERRY_OK; as wh_cuda_queue_wait.
 */
wherry_status wh_delivery_settle(wh_delivery *delivery, wherry_error *error);

#endif
