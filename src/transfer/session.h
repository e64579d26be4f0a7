/**
 * @file session.h  A session: one open lane between two processes. Source and receiver use the same
 * object.
 *
 *     CLOSED --prepare--> PREPARED --start--> RUNNING --all workers have ended--> OVER
 *        ^                                       |                                 |
 *        '---------------- close ----------------'---------------------------------'
 *
 *     CLOSED -> PREPARED:  wh_session_prepare; then the caller probes or accepts the lane
 *     PREPARED -> RUNNING: wh_session_start
 *     RUNNING -> OVER:     the last worker ends, and wakes the inbox
 *     any -> CLOSED:       wh_session_close, which never waits for the peer
 *
 * 1. Chunks move in requests, which both sides append in the same order (wh_session_request).
 *    Workers take chunks from the oldest request, and wait if there are none.
 * 2. Workers end when the request that was marked as the last is done, when one of them fails, or
 *    after a stop request. The first error of a worker is that of the session.
 * 3. Only the thread inside the call opens, appends, steps and closes. Workers only call
 *    wh_session_next, wh_session_more and wh_session_finish.
 *
 * Lock order: the lock of the queue is innermost; no other lock is taken under it.
 */
#ifndef WH_TRANSFER_SESSION_H
#define WH_TRANSFER_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/workers.h"
#include "group/mailbox.h"
#include "lane/lane.h"
#include "range/chunkset.h"

typedef struct wh_request {
    wh_chunk_set chunks;
    uint64_t left; /**< Number of chunks for which wh_session_finish was not called yet. */
} wh_request;

/** Chunks to move, in the order in which they were requested. */
typedef struct wh_request_queue {
    pthread_mutex_t lock; /**< Protects the members below. */
    pthread_cond_t changed;
    wh_request *requests;
    size_t count;
    size_t capacity;
    size_t current;   /**< The request whose chunks are being handed out. */
    atomic_bool last; /**< True if no request follows. Any thread may read it. */
} wh_request_queue;

/** Wakes an inbox: a function for wh_cancel_add and wh_workers_start. */
void wh_wake_inbox(void *inbox);

struct wh_session;

/**
 * Moves chunks until no request follows. Workers call it, or the thread inside the call.
 * @param session  part of a wh_push or a wh_pull, which begin with it.
 * @param wait_ms, again_p  as in wh_sink.
 */
typedef wherry_status (*wh_move_fn)(struct wh_session *session, uint32_t worker, uint32_t wait_ms, bool *again_p,
                                    wherry_error *error);

/** Starts as {0}. Must not move in memory while it is open. */
typedef struct wh_session {
    const wh_lane_ops *lane; /**< NULL: closed. */
    /** For a source: the number of its PLAN in the conversation, counted from 1. */
    uint32_t number;
    uint64_t opened_at; /**< By wh_clock_now. */
    wh_lane_end *end;
    wh_lane_site site; /**< site.stop is &stop. */
    bool verify;       /**< The receiver wants digests. */
    wh_stop stop;
    wh_inbox *inbox; /**< The inbox to wake when the workers have ended. */
    wh_request_queue queue;
    wh_move_fn move;
    wh_workers workers; /**< Join them when the session has ended, to learn the first error. */
    /** True if there are no threads: the thread inside the call does the work, in steps. */
    bool in_caller;
    _Atomic uint64_t moved; /**< Number of bytes moved, in either direction. */
} wh_session;

/**
 * Prepares a session for a lane: creates its stop and its queue.
 * @param site   copied; its stop is replaced.
 * @param inbox  borrowed until the session is closed.
 * @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_session_prepare(wh_session *session, const wh_lane_ops *lane, const wh_lane_site *site,
                                 wh_inbox *inbox, wherry_error *error);

/**
 * Appends a request. Wakes workers that wait.
 * @param count  may be 0 if `last`.
 * @param last   no request follows.
 * @return false if out of memory.
 */
bool wh_session_request(wh_session *session, const wherry_interval *intervals, size_t count, bool last);

/**
 * Returns the next chunk of the current request: implements wh_sink.next and wh_feed.next. When the
 * deadline of the site has passed, it requests the stop.
 * @param session  a wh_session, or what begins with one.
 */
bool wh_session_next(void *session, uint64_t *chunk_p);

/** Continues with the next request: implements wh_sink.more and wh_feed.more. */
wh_more wh_session_more(void *session, uint32_t wait_ms);

/**
 * Counts a chunk as finished, in the oldest request that has it and is not complete.
 * @return true if that completes the request.
 */
bool wh_session_finish(wh_session *session, uint64_t chunk);

/** True if there is a request with this number, and all its chunks are finished. */
bool wh_session_is_complete(wh_session *session, size_t request);

/** True if a last request was appended, and all chunks were handed out. */
bool wh_session_is_finishing(wh_session *session);

static inline bool wh_session_is_open(const wh_session *session) {
    return session->lane != NULL;
}

/**
 * Starts the work.
 * @param workers  number of threads; 0: the thread inside the call does it (wh_session_step).
 * @return as wh_workers_start.
 */
wherry_status wh_session_start(wh_session *session, uint32_t workers, wh_move_fn move, wherry_error *error);

/** True if the work has ended, or has not begun. */
static inline bool wh_session_has_ended(const wh_session *session) {
    return wh_workers_have_ended(&session->workers);
}

/** True if the thread inside the call should call a step now, because there are chunks to move. */
bool wh_session_needs_step(wh_session *session);

/** Does some of the work in this thread. @param wait_ms  if nothing is possible now. */
void wh_session_step(wh_session *session, uint32_t wait_ms);

/** Requests the stop, and wakes workers that wait for requests. */
void wh_session_stop(wh_session *session);

/**
 * Stops the workers if they run, waits for them, closes the lane and frees everything. Workers end
 * within 100 ms after a stop request. Does nothing if the session is closed.
 */
void wh_session_close(wh_session *session);

#endif
