/**
 * @file schedule.h  Decides which chunk to request from which source next.
 *
 * Pure: no I/O, no clock, no thread. The caller passes the time in nanoseconds and reports what
 * happened; the same calls give the same requests. So the library, the unit tests and a simulator
 * run the same code.
 *
 *     missing   -> requested: wh_schedule_next
 *     requested -> landed:    wh_schedule_landed
 *     requested -> missing:   wh_schedule_rejected, wh_schedule_recall, wh_schedule_suspend,
 *                             wh_schedule_remove
 *     landed    -> missing:   wh_schedule_rejected, wh_schedule_forget
 *     landed    -> landed:    wh_schedule_confirm, which counts it for another source
 *
 * Invariants:
 * 1. A chunk is missing, or requested from one source, or landed from one source.
 * 2. A chunk is never requested from a source that lacks it, or that was removed.
 * 3. A landed chunk counts for the source that it came from. If that source is removed, the chunk
 *    does not count until another source confirms it, and is missing again after
 *    wh_schedule_forget.
 * 4. A source is requested to do no more than it can do before the others have finished, as far as
 *    its rate is known: so all sources end at about the same time.
 */
#ifndef WH_PLAN_SCHEDULE_H
#define WH_PLAN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "range/chunkset.h"

/** The most sources, removed ones included. */
enum { WH_SCHEDULE_SOURCES = 64 };

typedef struct wh_schedule wh_schedule;

/** Returns the number of bytes of a chunk. */
typedef uint64_t (*wh_chunk_bytes_fn)(const void *context, uint64_t chunk);

/**
 * @param wanted       the chunks to fetch; borrowed until the schedule is destroyed.
 * @param local_limit  how many sources on this host to use at once; memory bandwidth does not feed
 *                     more. At least 1.
 * @return NULL if out of memory.
 */
wh_schedule *wh_schedule_create(const wh_chunk_set *wanted, wh_chunk_bytes_fn bytes, const void *context,
                                uint32_t local_limit);

/** schedule may be NULL. */
void wh_schedule_destroy(wh_schedule *schedule);

/**
 * Adds a source, at the start or later.
 * @param have   the chunks that it has; read during the call only. NULL: all.
 * @param local  it is on this host.
 * @return its number, counted from 0; -1 if there are too many, or out of memory.
 */
int wh_schedule_add(wh_schedule *schedule, const wh_chunk_set *have, bool local, uint64_t now);

/**
 * Removes a source that was lost or dropped. Its requests go to the others. Chunks that landed from
 * it wait for wh_schedule_confirm or wh_schedule_forget. Does nothing the second time.
 */
void wh_schedule_remove(wh_schedule *schedule, int source);

/** The chunks that landed from a removed source and were not confirmed are missing again. */
void wh_schedule_forget(wh_schedule *schedule, int source);

/** A landed chunk equals that of source `by`, as its digest shows: it counts for `by`. */
void wh_schedule_confirm(wh_schedule *schedule, uint64_t chunk, int by);

/**
 * Chooses what to request from a source now. If it is the only source that can be used, that is
 * everything; otherwise about as much as it delivers in its latency and a tenth of a second, at
 * least 2 chunks while there are enough.
 * @param chunks  receives up to `capacity` chunk numbers.
 * @return how many; less than `capacity`: nothing more for now.
 */
size_t wh_schedule_next(wh_schedule *schedule, int source, uint64_t now, uint64_t *chunks, size_t capacity);

/**
 * Bytes of requested chunks have moved. Call it at least a few times per second while they do, and
 * before wh_schedule_landed for the same bytes. Report late bytes of recalled requests too: they
 * show that the source works again.
 */
void wh_schedule_moved(wh_schedule *schedule, int source, uint64_t bytes, uint64_t now);

/** A chunk is complete. Does nothing if it was not requested from this source. */
void wh_schedule_landed(wh_schedule *schedule, int source, uint64_t chunk);

/**
 * A chunk arrived damaged, or the source cannot serve it: it is missing again. Another source that
 * is in use and has it is preferred.
 */
void wh_schedule_rejected(wh_schedule *schedule, int source, uint64_t chunk);

/**
 * Finds a source whose requests others would deliver clearly sooner. Either it has not moved a byte
 * for a second beyond its latency (twice as long after each recall). Or nothing is missing, and an
 * idle source needs less than half of its time, or could share what it was given when it was the
 * only one. The caller ends its requests and calls wh_schedule_recall. The last two reasons waste
 * at most 5% of all bytes.
 * @return its number; -1: none.
 */
int wh_schedule_late(const wh_schedule *schedule, uint64_t now);

/**
 * All requests of a source are missing again. It gets no more requests until bytes move, unless no
 * other source that works has a missing chunk. There are two exceptions, if bytes moved recently: a
 * source that had more than its share goes on with its share, and one that was slow helps again
 * once another source is removed.
 */
void wh_schedule_recall(wh_schedule *schedule, int source);

/** As wh_schedule_recall, for a source that does not answer: it counts as stalled at once. */
void wh_schedule_suspend(wh_schedule *schedule, int source);

/** True if all chunks have landed from sources that were not removed. */
bool wh_schedule_is_done(const wh_schedule *schedule);

/** True if every chunk has landed or is requested. */
bool wh_schedule_is_all_requested(const wh_schedule *schedule);

/** True if no remaining source has some missing chunk. *chunk_p is the first such chunk. */
bool wh_schedule_is_stuck(const wh_schedule *schedule, uint64_t *chunk_p);

/**
 * When to look again (wh_schedule_late, wh_schedule_next) although nothing happened.
 * @return a time after the last one that was passed to wh_schedule_late or wh_schedule_next, so a
 *         caller that calls one of them whenever it wakes does not spin; UINT64_MAX if nothing is
 *         requested.
 */
uint64_t wh_schedule_wake_at(const wh_schedule *schedule);

/** The measured rate of a source in bytes per second; 0 before the first bytes have moved. */
double wh_schedule_rate(const wh_schedule *schedule, int source);

/** The source that a landed chunk counts for; -1 if it has not landed. */
int wh_schedule_source_of(const wh_schedule *schedule, uint64_t chunk);

#endif
