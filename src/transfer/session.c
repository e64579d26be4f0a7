#include "transfer/session.h"

#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lane/lane_timing.h"
#include "transfer/transfer_timing.h"

void wh_wake_inbox(void *inbox) {
    wh_inbox_wake(inbox);
}

/* ---- the queue ---- */

static bool is_exhausted(const wh_request_queue *queue) {
    const wh_chunk_set *current = queue->current < queue->count ? &queue->requests[queue->current].chunks : NULL;
    return !current || atomic_load(&current->given) >= current->total;
}

bool wh_session_request(wh_session *session, const wherry_interval *intervals, size_t count, bool last) {
    wh_request_queue *queue = &session->queue;
    wh_chunk_set added = {0};
    if (count && !wh_chunk_set_init(&added, intervals, count)) {
        wh_chunk_set_destroy(&added);
        return false;
    }
    pthread_mutex_lock(&queue->lock);
    bool ok = !count || WH_GROW(queue->requests, queue->capacity, queue->count);
    if (ok) {
        if (count) {
            queue->requests[queue->count++] = (wh_request){added, added.total};
        }
        queue->last = queue->last || last;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    if (!ok) {
        wh_chunk_set_destroy(&added);
    }
    return ok;
}

bool wh_session_next(void *context, uint64_t *chunk_p) {
    wh_session *session = context;
    wh_request_queue *queue = &session->queue;
    if (wh_deadline_passed(session->site.deadline)) {
        wh_stop_request(&session->stop); /* It shows that the requests are not done. */
    }
    if (wh_stop_requested(&session->stop)) {
        return false;
    }
    pthread_mutex_lock(&queue->lock);
    bool found = queue->current < queue->count && wh_chunk_set_next(&queue->requests[queue->current].chunks, chunk_p);
    pthread_mutex_unlock(&queue->lock);
    return found;
}

/** Continues with the next request if there is one. The lock is held. */
static wh_more find_more(wh_session *session) {
    wh_request_queue *queue = &session->queue;
    if (wh_stop_requested(&session->stop)) {
        return WH_MORE_NEVER;
    }
    while (is_exhausted(queue) && queue->current + 1 < queue->count) {
        queue->current++;
    }
    return !is_exhausted(queue) ? WH_MORE_NOW : queue->last ? WH_MORE_NEVER : WH_MORE_LATER;
}

wh_more wh_session_more(void *context, uint32_t wait_ms) {
    wh_session *session = context;
    wh_request_queue *queue = &session->queue;
    pthread_mutex_lock(&queue->lock);
    wh_more more = find_more(session);
    bool waits = more == WH_MORE_LATER && wait_ms;
    if (waits && !session->in_caller) {
        wh_wait(&queue->changed, &queue->lock, wh_deadline_in_ms(wait_ms));
        more = find_more(session);
    }
    pthread_mutex_unlock(&queue->lock);
    if (waits && session->in_caller) {
        /* Only this thread appends requests. A short pause keeps its loop from spinning. */
        nanosleep(&(struct timespec){0, WH_SESSION_PAUSE_NS}, NULL);
    }
    return more;
}

bool wh_session_finish(wh_session *session, uint64_t chunk) {
    wh_request_queue *queue = &session->queue;
    bool completes = false;
    pthread_mutex_lock(&queue->lock);
    for (size_t i = 0; i < queue->count; i++) {
        wh_request *one = queue->requests + i;
        if (one->left && wh_chunk_set_has(&one->chunks, chunk)) {
            completes = --one->left == 0;
            break;
        }
    }
    pthread_mutex_unlock(&queue->lock);
    return completes;
}

bool wh_session_is_complete(wh_session *session, size_t request) {
    wh_request_queue *queue = &session->queue;
    pthread_mutex_lock(&queue->lock);
    bool complete = request < queue->count && !queue->requests[request].left;
    pthread_mutex_unlock(&queue->lock);
    return complete;
}

bool wh_session_is_finishing(wh_session *session) {
    wh_request_queue *queue = &session->queue;
    pthread_mutex_lock(&queue->lock);
    bool finishing = queue->last && is_exhausted(queue) && queue->current + 1 >= queue->count;
    pthread_mutex_unlock(&queue->lock);
    return finishing;
}

/* ---- the session ---- */

wherry_status wh_session_prepare(wh_session *session, const wh_lane_ops *lane, const wh_lane_site *site,
                                 wh_inbox *inbox, wherry_error *error) {
    *session = (wh_session){.site = *site, .stop.event = -1, .inbox = inbox, .opened_at = wh_clock_now()};
    session->site.stop = &session->stop;
    WH_TRY(wh_stop_init(&session->stop, error));
    session->lane = lane;
    pthread_mutex_init(&session->queue.lock, NULL);
    wh_condition_init(&session->queue.changed);
    return WHERRY_OK;
}

/** A worker. */
static wherry_status move_all(void *context, uint32_t worker, wherry_error *error) {
    wh_session *session = context;
    wherry_status status = WHERRY_OK;
    for (bool again = true; again && status == WHERRY_OK;) {
        again = false;
        status = session->move(session, worker, WH_BLOCKS_WAIT_MS, &again, error);
    }
    return status;
}

wherry_status wh_session_start(wh_session *session, uint32_t workers, wh_move_fn move, wherry_error *error) {
    session->move = move;
    session->in_caller = workers == 0;
    if (session->in_caller) {
        atomic_store(&session->workers.running, 1);
        return WHERRY_OK;
    }
    return wh_workers_start(&session->workers, workers, move_all, session, &session->stop, wh_wake_inbox,
                            session->inbox, error);
}

bool wh_session_needs_step(wh_session *session) {
    return wh_session_is_open(session) && session->in_caller && !wh_session_has_ended(session);
}

void wh_session_step(wh_session *session, uint32_t wait_ms) {
    wh_workers *workers = &session->workers;
    bool again = false;
    workers->status = session->move(session, 0, wait_ms, &again, &workers->error);
    if (!again || workers->status != WHERRY_OK) {
        atomic_store(&workers->running, 0);
    }
}

void wh_session_stop(wh_session *session) {
    if (wh_session_is_open(session)) {
        wh_stop_request(&session->stop);
        pthread_mutex_lock(&session->queue.lock);
        pthread_cond_broadcast(&session->queue.changed);
        pthread_mutex_unlock(&session->queue.lock);
    }
}

void wh_session_close(wh_session *session) {
    wh_request_queue *queue = &session->queue;
    if (!wh_session_is_open(session)) {
        return;
    }
    if (wh_workers_exist(&session->workers)) {
        wh_session_stop(session);
        wh_workers_join(&session->workers, NULL);
    }
    session->lane->close(session->end);
    for (size_t i = 0; i < queue->count; i++) {
        wh_chunk_set_destroy(&queue->requests[i].chunks);
    }
    wh_free(queue->requests);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    wh_stop_destroy(&session->stop);
    *session = (wh_session){.stop.event = -1};
}
