/**
 * @file schedule.h  Decides which chunk to request from which source next.
 *
 * Pure: no I/O, no clock, no thread. The caller passes the time in nanoseconds and reports what
 * happened; the same calls give the same requests. So the library, the unit tests and a simulator
 * run the same code.
 *
 *     missing   -> requested: wh_schedule_next
 *     requested -> landed:    wh_schedule_landed
 *     requested -> missing:   wh_schedule_rejected, wh_schedule_recall, wh_schedule_remove
 *     landed    -> missing:   wh_schedule_rejected, wh_schedule_forget
 *     landed    -> landed:    wh_schedule_confirm, which counts it for another source
 *
 * Invariants:
 * 1. A chunk is missing, or requested from one source, or landed from one source.
 * 2. A chunk is never requested from a source that lacks it, or that was removed.
 * 3. A landed chunk counts for the source that it came from. If that source is removed, the chunk
 *    does not count until another source confirms it, and is missing again after
 *    wh_schedule_forget.
 * 4. If its rate is known, a source is not asked for more than it can deliver before the others
 *    have finished. So all sources end at about the same time.
 */
#ifndef WH_PLAN_SCHEDULE_H
#define WH_PLAN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "range/chunkset.h"

/** The most sources at a time. Removed ones count until wh_schedule_forget. */
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
 * @return its number, below WH_SCHEDULE_SOURCES; those of forgotten sources are used again in the
 *         end. -1 if there are too many, or out of memory.
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
 * Chooses what to request from a source now. From the only source that can be used, this is
 * everything. From one of several, it is about what the source delivers in its latency plus a tenth
 * of a second, and at least 2 chunks if enough are missing.
 * @param most    how many chunks at most.
 * @param chunks  an empty set, which receives the chunks. If there are less than `most`, there is
 *                nothing more to request for now.
 * @return false if out of memory: some of the chunks are requested, but not in the set.
 */
bool wh_schedule_next(wh_schedule *schedule, int source, uint64_t now, uint64_t most, wh_chunk_set *chunks);

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
 * Finds a source whose requests others would deliver clearly sooner. The reason is one of these:
 * 1. It has not moved a byte for a second beyond its latency (twice as long after each recall).
 * 2. No chunk is missing, and an idle source needs less than half of its time.
 * 3. No chunk is missing, and idle sources could share the requests that it got when it was the
 *    only source.
 * The caller ends the requests of the source and calls wh_schedule_recall. Reasons 2 and 3 waste at
 * most 5% of all bytes. For reason 1, a source that was itself recalled counts as a replacement
 * only after this source has been silent for as long as that one was. All of them may have been
 * slow for the same reason.
 * @return its number; -1: none.
 */
int wh_schedule_late(wh_schedule *schedule, uint64_t now);

/**
 * All requests of a source are missing again. It gets no more requests until bytes move, unless no
 * other source that works has a missing chunk. If all other sources were recalled before, they get
 * requests again. There are two exceptions, if bytes moved recently: a source that had more than
 * its share continues with its share, and a slow source helps again once another one is removed.
 */
void wh_schedule_recall(wh_schedule *schedule, int source);

/**
 * The first reason of wh_schedule_late, for one source: it has moved nothing for long, and a source
 * that works has some of its requests.
 */
bool wh_schedule_is_stalled(wh_schedule *schedule, int source, uint64_t now);

/** How many chunks are requested from a source and have not landed. */
uint64_t wh_schedule_pending(const wh_schedule *schedule, int source);

/**
 * Iterates over the chunks that are requested from a source, in ascending order. The caller may
 * report what happened to a chunk before it asks for the next one.
 * @param at_p     starts as 0.
 * @param chunk_p  receives the next chunk.
 * @return false if there are no more.
 */
bool wh_schedule_next_pending(const wh_schedule *schedule, int source, uint64_t *at_p, uint64_t *chunk_p);

/** True if all chunks have landed from sources that were not removed. */
bool wh_schedule_is_done(const wh_schedule *schedule);

/** True if every chunk has landed or is requested. */
bool wh_schedule_is_all_requested(const wh_schedule *schedule);

/**
 * When to look again (wh_schedule_late, wh_schedule_next) although nothing happened.
 * @return a time after the last one that was passed to wh_schedule_late or wh_schedule_next, so a
 *         caller that calls one of them whenever it wakes does not spin; UINT64_MAX if nothing is
 *         requested.
 */
uint64_t wh_schedule_wake_at(const wh_schedule *schedule);

/** The measured rate of a source in bytes per second; 0 before the first bytes have moved. */
double wh_schedule_rate(const wh_schedule *schedule, int source);

/** Number of landed chunks that count for a source. For a removed source: that counted for it. */
uint64_t wh_schedule_landed_count(const wh_schedule *schedule, int source);

/** The source that a landed chunk counts for; -1 if it has not landed. */
int wh_schedule_source_of(const wh_schedule *schedule, uint64_t chunk);

#endif
