#include "base/workers.h"

#include "base/error.h"

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
    /* After the last worker is counted, the owner may join the workers and reuse the struct. */
    void (*ended)(void *) = workers->ended;
    void *ended_context = workers->ended_context;
    if (atomic_fetch_sub(&workers->running, 1) == 1 && ended) {
        ended(ended_context);
    }
    return NULL;
}

wherry_status wh_workers_start(wh_workers *workers, uint32_t count, wh_work_fn work, void *context, wh_stop *stop,
                               void (*ended)(void *context), void *ended_context, wherry_error *error) {
    *workers =
        (wh_workers){.work = work, .context = context, .stop = stop, .ended = ended, .ended_context = ended_context};
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
    for (uint32_t i = 0; i < workers->count; i++) {
        pthread_join(workers->threads[i], NULL);
    }
    if (wh_workers_exist(workers)) {
        workers->count = 0;
        pthread_mutex_destroy(&workers->lock);
    }
    if (workers->status != WHERRY_OK && error) {
        *error = workers->error;
    }
    return workers->status;
}
