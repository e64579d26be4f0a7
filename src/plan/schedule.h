/**
 * @file schedule.h  Decides which chunk to request from which source next.
 *
 * Pure: no I/O, no clock, no thread. The caller passes the time in nanoseconds and reports what
 * happened; the same calls give the same requests. So the library, the unit tests and a simulator
 * run the same code.
 *
 * Invariants:
 *   1. A chunk has landed, or is requested from one or two active sources, or is missing. A source is
 *      active if it was not removed and has not stalled; requests to a stalled source do not count.
 *   2. A chunk is never requested from a source that lacks it, nor from the same source again before it has answered.
 *   3. A landed chunk counts for the source that it came from. If that source is removed without
 *      its chunks having been confirmed, they are missing again.
 *   4. While no source stalls or is removed, at most one in WH_SCHEDULE_WASTE bytes is requested twice.
 *
 *   missing   -> requested: wh_schedule_next
 *   requested -> landed:    wh_schedule_landed
 *   requested -> missing:   wh_schedule_rejected, wh_schedule_remove, or its source stalls
 *   landed    -> missing:   wh_schedule_remove, unless wh_schedule_confirm moved it to another source
 */
#ifndef WH_PLAN_SCHEDULE_H
#define WH_PLAN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "range/chunkset.h"

enum {
    WH_SCHEDULE_SOURCES = 64, /**< The most sources, removed ones included. */
    WH_SCHEDULE_WASTE = 20,   /**< One in so many bytes may be requested twice. */
};

typedef struct wh_schedule wh_schedule;

/** The bytes of a chunk. */
typedef uint64_t (*wh_chunk_bytes_fn)(const void *context, uint64_t chunk);

/**
 * @param wanted       the chunks to fetch; borrowed until the schedule is destroyed.
 * @param local_limit  how many sources on this host to use at once; memory bandwidth does not feed
 *                     more. At least 1.
 * @return NULL if out of memory.
 */
wh_schedule *wh_schedule_create(const wh_chunk_set *wanted, wh_chunk_bytes_fn bytes, const void *context,
                                uint32_t local_limit);

void wh_schedule_destroy(wh_schedule *schedule);

/**
 * Adds a source, at the start or later.
 * @param have   the chunks that it has; borrowed. NULL: all.
 * @param local  it is on this host.
 * @return its number; -1 if there are too many, or out of memory.
 */
int wh_schedule_add(wh_schedule *schedule, const wh_chunk_set *have, bool local, uint64_t now);

/**
 * Removes a source that was lost or dropped. Its requests go to the others, and so do the chunks that
 * landed from it and are not confirmed.
 */
void wh_schedule_remove(wh_schedule *schedule, int source);

/** A landed chunk equals that of `by`, as its digest shows: it counts for `by` from here on. */
void wh_schedule_confirm(wh_schedule *schedule, uint64_t chunk, int by);

/**
 * Chooses what to request from a source now.
 * @param chunks    receives up to `capacity` chunk numbers.
 * @return how many; 0: nothing for now.
 */
size_t wh_schedule_next(wh_schedule *schedule, int source, uint64_t now, uint64_t *chunks, size_t capacity);

/** Bytes of requested chunks have moved. Call it at least a few times per second while they do. */
void wh_schedule_moved(wh_schedule *schedule, int source, uint64_t bytes, uint64_t now);

/** A chunk is complete. @return true if it is the first copy; false if it is a duplicate or was not requested. */
bool wh_schedule_landed(wh_schedule *schedule, int source, uint64_t chunk);

/** A chunk arrived damaged, or the source cannot serve it: it is missing again. */
void wh_schedule_rejected(wh_schedule *schedule, int source, uint64_t chunk);

/** True if all chunks have landed. */
bool wh_schedule_is_done(const wh_schedule *schedule);

/** True if some missing chunk is held by no remaining source. *chunk_p is the first one. */
bool wh_schedule_is_stuck(const wh_schedule *schedule, uint64_t *chunk_p);

/**
 * When to call wh_schedule_next again although nothing happened: a source may count as stalled by then.
 * @return a time, perhaps in the past; UINT64_MAX if nothing is requested.
 */
uint64_t wh_schedule_wake_at(const wh_schedule *schedule);

/** The measured rate of a source in bytes per second; 0 before the first bytes have moved. */
double wh_schedule_rate(const wh_schedule *schedule, int source);

/** The number of landed chunks that count for a source. */
uint64_t wh_schedule_landed_from(const wh_schedule *schedule, int source);

#endif
