/**
 * @file fetch.h  A source's chunks of device memory, fetched into the host's ahead of the lane that
 * sends them.
 *
 * The chunks of a round are fetched in their order. Whoever comes for one begins the next ones too,
 * so that the device copies while the lane sends.
 */
#ifndef WH_TRANSFER_FETCH_H
#define WH_TRANSFER_FETCH_H

#include "range/chunkset.h"
#include "transfer/source.h"
#include "transfer/stage.h"

/** Starts as {0}. */
typedef struct wh_fetch {
    const wh_source *source;
    const wh_chunk_set *list;
    wh_stage stage;
    pthread_mutex_t lock; /**< For the following. */
    wh_slot **slots;      /**< By place in the list; NULL: not begun, or done. */
    uint64_t begun;       /**< Chunks, in the order of the list. */
    uint64_t done;
    uint64_t ahead; /**< So many more are begun than are done, at most. */
    /**
     * Why one could not be begun; then none is given out any more. Status WHERRY_OK: all could.
     */
    wherry_error failure;
} wh_fetch;

/**
 * @param list     of the round; borrowed, as source and stop.
 * @param workers  how many chunks the lane works on at once.
 * @return WHERRY_OK; WHERRY_NO_MEMORY.
 */
wherry_status wh_fetch_init(wh_fetch *fetch, const wh_source *source, const wh_chunk_set *list, uint32_t workers,
                            const wh_stop *stop, wh_deadline deadline, wherry_error *error);

/** Waits until nothing is under way. On {0} it does nothing. */
void wh_fetch_destroy(wh_fetch *fetch);

/** Whether it was made and not destroyed. */
static inline bool wh_fetch_exists(const wh_fetch *fetch) {
    return fetch->slots != NULL;
}

/**
 * Where the bytes of a chunk lie on the host, until wh_fetch_done; waits for them. Any worker.
 * Where it has failed once, it fails for all.
 */
wherry_status wh_fetch_gather(wh_fetch *fetch, uint64_t chunk, wh_segments *segments, wherry_error *error);

/** The chunk was read. Any worker. */
void wh_fetch_done(wh_fetch *fetch, uint64_t chunk);

#endif
