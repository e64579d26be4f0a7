#include "transfer/session.h"

#include <errno.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

/** How long the thread inside the call waits for requests if it does the work itself. */
enum { PAUSE_NS = 1000000 };

/* ---- workers ---- */

static void note_failure(wh_workers *workers, const wherry_error *error, wherry_status status) {
    pthread_mutex_lock(&workers->lock);
    if (workers->status == WHERRY_OK) {
        workers->status = status;
        workers->error = *error;
    }
    pthread_mutex_unlock(&workers->lock);
    wh_stop_request(workers->stop);
}

static void *run_worker(void *context) {
    wh_workers *workers = context;
    wherry_error error = {.status = WHERRY_OK};
    wherry_status status = workers->work(workers->context, atomic_fetch_add(&workers->next, 1), &error);
    if (status != WHERRY_OK) {
        note_failure(workers, &error, status);
    }
    /* After the last worker is counted, the owner may join and reuse the struct. */
    wh_inbox *inbox = workers->inbox;
    if (atomic_fetch_sub(&workers->running, 1) == 1 && inbox) {
        wh_inbox_wake(inbox);
    }
    return NULL;
}

wherry_status wh_workers_start(wh_workers *workers, uint32_t count, wh_work_fn work, void *context, wh_stop *stop,
                               wh_inbox *inbox, wherry_error *error) {
    *workers = (wh_workers){.work = work, .context = context, .stop = stop, .inbox = inbox};
    pthread_mutex_init(&workers->lock, NULL);
    atomic_store(&workers->running, count);
    int result = 0;
    while (workers->count < count && result == 0) {
        result = wh_thread_start(workers->threads + workers->count, run_worker, workers);
        workers->count += result == 0;
    }
    if (result == 0) {
        return WHERRY_OK;
    }
    wh_stop_request(stop);
    atomic_fetch_sub(&workers->running, count - workers->count);
    if (wh_workers_exist(workers)) {
        wh_workers_join(workers, NULL);
    } else {
        pthread_mutex_destroy(&workers->lock);
    }
    return wh_fail_errno(error, WHERRY_SYSTEM, result, "cannot start a thread to move bytes");
}

wherry_status wh_workers_join(wh_workers *workers, wherry_error *error) {
    if (!wh_workers_exist(workers)) {
        return WHERRY_OK;
    }
    for (uint32_t i = 0; i < workers->count; i++) {
        pthread_join(workers->threads[i], NULL);
    }
    workers->count = 0;
    pthread_mutex_destroy(&workers->lock);
    if (workers->status != WHERRY_OK && error) {
        *error = workers->error;
    }
    return workers->status;
}

/* ---- the queue ---- */

static bool is_exhausted(const wh_request_queue *queue) {
    return queue->current == queue->count ||
           atomic_load(&queue->requests[queue->current].given) >= queue->requests[queue->current].total;
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
            queue->requests[queue->count++] = added;
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

bool wh_session_next(wh_session *session, uint64_t *chunk_p) {
    wh_request_queue *queue = &session->queue;
    if (wh_stop_requested(&session->stop)) {
        return false;
    }
    pthread_mutex_lock(&queue->lock);
    bool found = queue->current < queue->count && wh_chunk_set_next(queue->requests + queue->current, chunk_p);
    pthread_mutex_unlock(&queue->lock);
    return found;
}

static void wait_for_change(wh_request_queue *queue, uint32_t wait_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
}

wh_more wh_session_more(wh_session *session, uint32_t wait_ms) {
    wh_request_queue *queue = &session->queue;
    wh_more more = WH_MORE_NEVER;
    if (session->in_caller && wait_ms) {
        /* Nobody else appends a request meanwhile. A short pause keeps the loop from spinning. */
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        wait_ms = 0;
    }
    pthread_mutex_lock(&queue->lock);
    for (int tries = 0; tries < 2 && !wh_stop_requested(&session->stop); tries++) {
        while (queue->current < queue->count && is_exhausted(queue) && queue->current + 1 < queue->count) {
            queue->current++;
        }
        more = !is_exhausted(queue) ? WH_MORE_NOW : queue->last ? WH_MORE_NEVER : WH_MORE_LATER;
        if (more != WH_MORE_LATER || !wait_ms || tries) {
            break;
        }
        wait_for_change(queue, wait_ms);
        more = WH_MORE_NEVER;
    }
    pthread_mutex_unlock(&queue->lock);
    return more;
}

size_t wh_session_find(wh_session *session, uint64_t chunk, size_t from) {
    wh_request_queue *queue = &session->queue;
    pthread_mutex_lock(&queue->lock);
    size_t at = from;
    while (at < queue->count && !wh_chunk_set_has(queue->requests + at, chunk)) {
        at++;
    }
    size_t found = at < queue->count ? at : SIZE_MAX;
    pthread_mutex_unlock(&queue->lock);
    return found;
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
    pthread_condattr_t monotonic;
    *session = (wh_session){.site = *site, .stop.event = -1, .inbox = inbox, .opened_at = wh_clock_now()};
    session->site.stop = &session->stop;
    WH_TRY(wh_stop_init(&session->stop, error));
    session->lane = lane;
    pthread_mutex_init(&session->queue.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&session->queue.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return WHERRY_OK;
}

wherry_status wh_session_start(wh_session *session, uint32_t workers, wh_work_fn work, void *context,
                               wherry_error *error) {
    return wh_workers_start(&session->workers, workers, work, context, &session->stop, session->inbox, error);
}

bool wh_session_has_ended(const wh_session *session) {
    return session->in_caller ? session->stepped_to_end : wh_workers_have_ended(&session->workers);
}

bool wh_session_needs_step(wh_session *session) {
    return wh_session_is_open(session) && session->in_caller && !session->stepped_to_end;
}

void wh_session_note_step(wh_session *session, bool done, wherry_status status, const wherry_error *error) {
    session->stepped_to_end = done || status != WHERRY_OK;
    session->step_status = status;
    if (status != WHERRY_OK) {
        session->step_error = *error;
    }
}

wherry_status wh_session_join(wh_session *session, wherry_error *error) {
    if (!session->in_caller) {
        return wh_workers_join(&session->workers, error);
    }
    if (session->step_status != WHERRY_OK && error) {
        *error = session->step_error;
    }
    return session->step_status;
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
        wh_chunk_set_destroy(queue->requests + i);
    }
    wh_free(queue->requests);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    wh_stop_destroy(&session->stop);
    *session = (wh_session){.stop.event = -1};
}
