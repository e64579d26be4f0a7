/**
 * @file lane_common.h  Functions that several lanes use: a cursor over the runs of a chunk, ends
 * and digests, time limits and their errors, pinning a worker to a processor, the identity of a
 * process on the wire, and the permission for a receiver to read this process.
 */
#ifndef WH_LANE_COMMON_H
#define WH_LANE_COMMON_H

#include "base/bytes.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lane.h"
#include "lane/lane_timing.h"

/* ---- a cursor over iovecs ---- */

/** A position within the runs of a chunk. */
typedef struct wh_run_cursor {
    const struct iovec *at;
    const struct iovec *end;
    size_t skip; /**< Offset of the position within the run `at`. */
} wh_run_cursor;

/** Returns a cursor at the beginning of the segments. */
wh_run_cursor wh_run_cursor_at(const wh_segments *segments);

/**
 * Fills `window` with the next runs after the cursor. Does not move the cursor.
 * @param landing  its scratch memory takes the bytes of runs without a destination; NULL if all
 *                 runs have a destination.
 * @param room     maximum number of entries in `window`.
 * @param most     maximum number of bytes.
 * @param bytes_p  the number of bytes in `window`; 0 only at the end of the chunk.
 * @return the number of entries.
 */
size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p);

void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes);

/** Returns the number of bytes left in the current run; 0 only at the end of the chunk. */
size_t wh_run_cursor_left(const wh_run_cursor *cursor);

/**
 * Returns the address at the cursor, or NULL if the bytes there have no destination. The cursor
 * must not be at the end.
 */
static inline void *wh_run_cursor_here(const wh_run_cursor *cursor) {
    return cursor->at->iov_base ? (char *)cursor->at->iov_base + cursor->skip : NULL;
}

/**
 * Copies the next bytes into one buffer and advances. All runs must have an address.
 * @param digester  hashes each run right after it was copied, while it is in the CPU cache; may be
 *                  NULL.
 */
void wh_run_cursor_pack(wh_run_cursor *cursor, void *to, size_t bytes, wh_digester *digester);

/**
 * Copies one buffer to the destinations of the next bytes, and advances. Bytes without a
 * destination are discarded. @param digester  as in wh_run_cursor_pack.
 */
void wh_run_cursor_unpack(wh_run_cursor *cursor, const void *from, size_t bytes, wh_digester *digester);

/** Hashes the next bytes. All runs must have an address. */
void wh_run_cursor_digest(wh_run_cursor cursor, wh_digester *digester, size_t bytes);

/* ---- ends and digests ---- */

/**
 * Ends a probe or an accept: stores the end in *end_p or, after a failure, closes it.
 * @param status  whether the end can be used.
 * @return status.
 */
wherry_status wh_lane_deliver(const wh_lane_ops *lane, wh_lane_end *end, wherry_status status, wh_lane_end **end_p);

/** Creates a worker's digester if chunks are checked and it has none yet. */
wherry_status wh_digester_need(bool verify, wh_digester **digester_p, wherry_error *error);

/**
 * Calls sink->close. @param digester  has hashed the bytes of the chunk. Not used without
 * sink->verify.
 */
wherry_status wh_sink_close(const wh_sink *sink, wh_landing *landing, const wh_digester *digester,
                            const wherry_digest *claimed, wherry_error *error);

/* ---- the site ---- */

/** Returns the first device in site->devices; -1 if there is none. */
int32_t wh_site_device(const wh_lane_site *site);

/**
 * Returns the time at which to give up if the peer moves no byte from now on. It is never later
 * than site->deadline.
 */
wh_deadline wh_site_patience(const wh_lane_site *site);

/** Fails with WHERRY_TIMED_OUT. The message says which time limit was exceeded. */
wherry_status wh_site_timed_out(const wh_lane_site *site, wherry_error *error);

/** Fails with WHERRY_UNSUPPORTED and the reason WHERRY_LANE_OTHER_HOST. */
wherry_status wh_site_other_host(const wh_lane_site *site, wherry_error *error);

/** Fails with WHERRY_CANCELLED. Call this after a stop request. */
wherry_status wh_site_cancelled(wherry_error *error);

/**
 * Sets the rank of an error to the peer. Does nothing if the status is WHERRY_OK or
 * WHERRY_CANCELLED. @return status.
 */
wherry_status wh_site_blame(const wh_lane_site *site, wherry_status status, wherry_error *error);

/* ---- processors ---- */

/**
 * If there are several processors, but fewer than `threads`, pins the calling thread to one of
 * those that it may use: to processor `number`, modulo their count. The two sides do not coordinate
 * this, but they count in the same way. The thread stays pinned until it ends, which is soon: pull
 * and push have threads of their own.
 * @return true if the thread was pinned.
 */
bool wh_worker_pin(uint32_t number, uint32_t threads);

/* ---- the identity of a process, and the permission to read it ---- */

/**
 * Size of an identity on the wire: boot id (36 bytes), process id (u64), device of the pid
 * namespace (u64), inode of the pid namespace (u64). Numbers are big-endian.
 */
enum { WH_IDENTITY_BYTES = WH_BOOT_BYTES + 24 };

void wh_identity_append(wh_string *string, const wh_identity *identity);

/** Parses an identity. Sets cursor->failed if the input is too short or the pid is out of range. */
void wh_identity_take(wh_cursor *cursor, wh_identity *identity_p);

/**
 * Source. Makes the receiver the ptracer of this process. With ptrace_scope 1, Yama then lets the
 * receiver read this process's memory and duplicate its file descriptors. If the receiver's pid is
 * unknown, or if another live process is the ptracer already, the function allows any process
 * instead.
 * @param receiver  the identity that the receiver has sent. Its pid is used only if the group does
 *                  not know the receiver's pid.
 * @return WHERRY_OK; WHERRY_REFUSED if site->keep_ptracer forbids it; WHERRY_UNSUPPORTED if the
 * kernel has no Yama or the receiver's process has ended; WHERRY_SYSTEM.
 */
wherry_status wh_ptracer_name(const wh_lane_site *site, const wh_identity *receiver, wherry_error *error);

/** Stands for any process, where a pid is expected. */
#define WH_PTRACER_ANYONE UINT64_MAX

/**
 * Chooses the ptracer of a source. A process can have only one ptracer. If a second live process
 * asks, the answer is WH_PTRACER_ANYONE, so that both can read. All later answers are then
 * WH_PTRACER_ANYONE too.
 * @param slot     holds the previous answer; 0: there is none. Receives the new answer.
 * @param process  the pid of the receiver, or WH_PTRACER_ANYONE.
 * @return the new answer: `process` or WH_PTRACER_ANYONE.
 */
uint64_t wh_ptracer_choose(_Atomic uint64_t *slot, uint64_t process);

#endif
