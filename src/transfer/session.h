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
 *    wh_session_next and wh_session_more.
 *
 * Lock order: the lock of the queue is innermost; no other lock is taken under it.
 */
#ifndef WH_TRANSFER_SESSION_H
#define WH_TRANSFER_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/stop.h"
#include "group/mailbox.h"
#include "lane/lane.h"
#include "range/chunkset.h"

/* ---- workers ---- */

enum { WH_WORKERS_MAX = 64 };

/** The work of one thread. Workers are numbered from 0. */
typedef wherry_status (*wh_work_fn)(void *context, uint32_t worker, wherry_error *error);

/** Threads that work on one thing together. Starts as {0}. Must not move while they run. */
typedef struct wh_workers {
    wh_work_fn work;
    void *context;
    wh_stop *stop;
    wh_inbox *inbox;
    atomic_uint next;    /**< The number of the next worker. */
    atomic_uint running; /**< How many have not ended. */
    uint32_t count;      /**< Threads that were started and not joined. */
    pthread_t threads[WH_WORKERS_MAX];
    pthread_mutex_t lock; /**< For the following. */
    wherry_status status; /**< The first error of a worker. */
    wherry_error error;
} wh_workers;

/**
 * Starts `count` threads, 1 to WH_WORKERS_MAX, with all signals blocked.
 * @param stop   requested when one of them fails; borrowed until they are joined.
 * @param inbox  woken when all have ended; NULL: none.
 * @return WHERRY_OK if all run; WHERRY_SYSTEM: those that ran were stopped and joined.
 */
wherry_status wh_workers_start(wh_workers *workers, uint32_t count, wh_work_fn work, void *context, wh_stop *stop,
                               wh_inbox *inbox, wherry_error *error);

/** True from wh_workers_start until wh_workers_join. */
static inline bool wh_workers_exist(const wh_workers *workers) {
    return workers->count > 0;
}

/** True if all threads have ended, or none were started. */
static inline bool wh_workers_have_ended(const wh_workers *workers) {
    return atomic_load(&workers->running) == 0;
}

/**
 * Waits for the threads. @return WHERRY_OK, also if there are none; the first error of a worker.
 */
wherry_status wh_workers_join(wh_workers *workers, wherry_error *error);

/* ---- the session ---- */

/** Chunks to move, in the order in which they were requested. */
typedef struct wh_request_queue {
    pthread_mutex_t lock; /**< For all of the following. */
    pthread_cond_t changed;
    wh_chunk_set *requests;
    size_t count;
    size_t capacity;
    size_t current; /**< The request whose chunks are being handed out. */
    bool last;      /**< No request follows. */
} wh_request_queue;

/** Starts as {0}. Must not move while it is open. */
typedef struct wh_session {
    const wh_lane_ops *lane; /**< NULL: closed. */
    uint32_t number;         /**< Source: of its PLAN in the conversation, counted from 1. */
    uint64_t opened_at;      /**< By wh_clock_now. */
    wh_lane_end *end;
    wh_lane_site site; /**< site.stop is &stop. */
    wh_stop stop;
    wh_inbox *inbox; /**< Woken when the workers have ended. */
    wh_request_queue queue;
    wh_workers workers;
    /** The thread inside the call does the work, in steps. */
    bool in_caller;
    bool stepped_to_end; /**< in_caller: the work has ended, with step_status. */
    wherry_status step_status;
    wherry_error step_error;
    _Atomic uint64_t moved; /**< Bytes, in either direction. */
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

/** Returns the next chunk of the current request: implements wh_sink.next and wh_feed.next. */
bool wh_session_next(wh_session *session, uint64_t *chunk_p);

/** Goes on to the next request: implements wh_sink.more and wh_feed.more. */
wh_more wh_session_more(wh_session *session, uint32_t wait_ms);

/**
 * Finds the oldest request, from number `from` on, that has the chunk. @return its number;
 * SIZE_MAX: none.
 */
size_t wh_session_find(wh_session *session, uint64_t chunk, size_t from);

/** True if a last request was appended, and all chunks were handed out. */
bool wh_session_is_finishing(wh_session *session);

static inline bool wh_session_is_open(const wh_session *session) {
    return session->lane != NULL;
}

/** Starts the work, in threads. @return as wh_workers_start. */
wherry_status wh_session_start(wh_session *session, uint32_t workers, wh_work_fn work, void *context,
                               wherry_error *error);

/** True if the work has begun and has ended, or has not begun. */
bool wh_session_has_ended(const wh_session *session);

/** True if the thread inside the call should call a step now, because there are chunks to move. */
bool wh_session_needs_step(wh_session *session);

/** Records the result of a step. @param done  the work has ended. */
void wh_session_note_step(wh_session *session, bool done, wherry_status status, const wherry_error *error);

/**
 * Joins the workers of a session that has ended. @return WHERRY_OK, or the first error of a worker.
 */
wherry_status wh_session_join(wh_session *session, wherry_error *error);

/** Requests the stop, and wakes workers that wait for requests. */
void wh_session_stop(wh_session *session);

/**
 * Stops the workers if they run, waits for them, closes the lane and frees everything. Workers end
 * within 100 ms after a stop request. Does nothing if the session is closed.
 */
void wh_session_close(wh_session *session);

#endif
