/**
 * @file lane_common.h  What lanes share: walking along the runs of a chunk, limits of time and
 * their errors, the identity of a process on the wire, and letting a receiver into this process.
 */
#ifndef WH_LANE_COMMON_H
#define WH_LANE_COMMON_H

#include "base/bytes.h"
#include "base/process.h"
#include "base/text.h"
#include "lane/lane.h"
#include "lane/lane_timing.h"

/* ---- a cursor over iovecs ---- */

/** A position among the runs of a chunk. */
typedef struct wh_run_cursor {
    const struct iovec *at;
    const struct iovec *end;
    size_t skip; /**< Bytes of `at` before the position. */
} wh_run_cursor;

/** The beginning of the segments. */
wh_run_cursor wh_run_cursor_at(const wh_segments *segments);

/**
 * Collects runs from the cursor on, without moving it.
 * @param landing  bytes without a destination go to its scratch; NULL if there are none.
 * @param room     entries of the window.
 * @param most     bytes that are wanted.
 * @param bytes_p  how many bytes the window has; 0 only at the end.
 * @return the number of runs.
 */
size_t wh_run_cursor_window(const wh_run_cursor *cursor, const wh_landing *landing, struct iovec *window, size_t room,
                            size_t most, size_t *bytes_p);

void wh_run_cursor_advance(wh_run_cursor *cursor, size_t bytes);

/** Bytes left of the current run; 0 only at the end. */
size_t wh_run_cursor_left(const wh_run_cursor *cursor);

/** The address at the cursor, which is not at the end; NULL if the bytes have no destination. */
static inline void *wh_run_cursor_here(const wh_run_cursor *cursor) {
    return cursor->at->iov_base ? (char *)cursor->at->iov_base + cursor->skip : NULL;
}

/** Copies the next bytes, whose runs all have addresses, into one buffer, and advances. */
void wh_run_cursor_pack(wh_run_cursor *cursor, void *to, size_t bytes);

/**
 * Copies one buffer to where the next bytes belong, and advances. Bytes without a destination are
 * dropped.
 */
void wh_run_cursor_unpack(wh_run_cursor *cursor, const void *from, size_t bytes);

/* ---- the site ---- */

/** The first CUDA device that holds some of the memory; -1: none. */
int32_t wh_site_device(const wh_lane_site *site);

/** When to give up on a peer that moves no byte from now on. */
wh_deadline wh_site_patience(const wh_lane_site *site);

/** WHERRY_TIMED_OUT; the message says which limit it was. */
wherry_status wh_site_timed_out(const wh_lane_site *site, wherry_error *error);

/** WHERRY_UNSUPPORTED with the reason WHERRY_LANE_OTHER_HOST, for lanes within one host. */
wherry_status wh_site_other_host(const wh_lane_site *site, wherry_error *error);

/** WHERRY_CANCELLED: the stop was requested. */
wherry_status wh_site_cancelled(wherry_error *error);

/** Sets the rank of an error to the peer, unless this side stopped by itself. @return status. */
wherry_status wh_site_blame(const wh_lane_site *site, wherry_status status, wherry_error *error);

/* ---- the identity of a process, and entering it ---- */

/**
 * On the wire: boot id (36 bytes), process (u64), device (u64) and inode (u64) of its pid
 * namespace, big endian.
 */
enum { WH_IDENTITY_BYTES = WH_BOOT_BYTES + 24 };

void wh_identity_append(wh_string *string, const wh_identity *identity);

/** Takes an identity. The cursor fails if it is too short or the process is not a pid. */
void wh_identity_take(wh_cursor *cursor, wh_identity *identity_p);

/**
 * SOURCE. Names the receiver the ptracer of this process, so that Yama (ptrace_scope 1) lets it
 * read memory and fetch descriptors here.
 * @param receiver  as it describes itself; what the group knows of its process takes precedence.
 * @return WHERRY_OK; WHERRY_REFUSED if the site forbids it; WHERRY_UNSUPPORTED if the kernel has no
 * Yama.
 */
wherry_status wh_ptracer_name(const wh_lane_site *site, const wh_identity *receiver, wherry_error *error);

/**
 * Which process a source names its ptracer. There is one slot; if a second live process asks, both
 * get in only by WH_PTRACER_ANYONE.
 * @param slot  what was named last, 0: nobody; becomes the answer.
 */
#define WH_PTRACER_ANYONE UINT64_MAX
uint64_t wh_ptracer_choose(_Atomic uint64_t *slot, uint64_t process);

#endif
