#include "transfer/crew.h"

#include "base/error.h"
#include "base/stop.h"

static void note_failure(wh_crew *crew, const wherry_error *error, wherry_status status) {
    pthread_mutex_lock(&crew->lock);
    if (crew->status == WHERRY_OK) {
        crew->status = status;
        crew->error = *error;
    }
    pthread_mutex_unlock(&crew->lock);
    wh_stop_request(crew->stop);
}

static void *work(void *context) {
    wh_crew *crew = context;
    wherry_error error = {.status = WHERRY_OK};
    wherry_status status = crew->work(crew->context, atomic_fetch_add(&crew->next, 1), &error);
    if (status != WHERRY_OK) {
        note_failure(crew, &error, status);
    }
    wh_inbox *inbox = crew->inbox;
    if (atomic_fetch_sub(&crew->working, 1) == 1 && inbox) {
        wh_inbox_wake(inbox);
    }
    return NULL;
}

wherry_status wh_crew_start(wh_crew *crew, uint32_t count, wh_work_fn work_fn, void *context, wh_stop *stop,
                            wh_inbox *inbox, wherry_error *error) {
    *crew = (wh_crew){.work = work_fn, .context = context, .stop = stop, .inbox = inbox};
    pthread_mutex_init(&crew->lock, NULL);
    atomic_store(&crew->working, count);
    int result = 0;
    while (crew->count < count && result == 0) {
        result = wh_thread_start(crew->threads + crew->count, work, crew);
        crew->count += result == 0;
    }
    if (result == 0) {
        return WHERRY_OK;
    }
    wh_stop_request(stop);
    atomic_fetch_sub(&crew->working, count - crew->count);
    wh_crew_join(crew, NULL);
    return wh_fail_errno(error, WHERRY_SYSTEM, result, "cannot start a thread to move bytes");
}

wherry_status wh_crew_join(wh_crew *crew, wherry_error *error) {
    if (!wh_crew_exists(crew)) {
        return WHERRY_OK;
    }
    for (uint32_t i = 0; i < crew->count; i++) {
        pthread_join(crew->threads[i], NULL);
    }
    crew->count = 0;
    pthread_mutex_destroy(&crew->lock);
    if (crew->status != WHERRY_OK && error) {
        *error = crew->error;
    }
    return crew->status;
}
