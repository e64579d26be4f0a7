/**
 * @file workers.h  Threads that work on one thing together. The first error of one of them is that
 * of all, and stops the others. One thread starts and joins them.
 */
#ifndef WH_BASE_WORKERS_H
#define WH_BASE_WORKERS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/stop.h"

enum { WH_WORKERS_MAX = 64 };

/** The work of one thread. Workers are numbered from 0. */
typedef wherry_status (*wh_work_fn)(void *context, uint32_t worker, wherry_error *error);

/** Threads that work on one thing together. Starts as {0}. Must not move while they run. */
typedef struct wh_workers {
    wh_work_fn work;
    void *context;
    wh_stop *stop;
    void (*ended)(void *context);
    void *ended_context;
    atomic_uint next;    /**< The number that the next worker gets. */
    atomic_uint running; /**< Number of workers that have not ended. */
    uint32_t count;      /**< Number of threads that were started and not joined. */
    pthread_t threads[WH_WORKERS_MAX];
    pthread_mutex_t lock; /**< Protects the members below. */
    wherry_status status; /**< The first error of a worker. */
    wherry_error error;
} wh_workers;

/**
 * Starts `count` threads, 1 to WH_WORKERS_MAX, with all signals blocked.
 * @param stop   requested when one of them fails; borrowed until they are joined.
 * @param ended  called by the last of them, when all have ended; may be NULL.
 * @return WHERRY_OK if all run; WHERRY_SYSTEM: those that ran were stopped and joined.
 */
wherry_status wh_workers_start(wh_workers *workers, uint32_t count, wh_work_fn work, void *context, wh_stop *stop,
                               void (*ended)(void *context), void *ended_context, wherry_error *error);

/** True from wh_workers_start until wh_workers_join. */
static inline bool wh_workers_exist(const wh_workers *workers) {
    return workers->count > 0;
}

/** True if all threads have ended, or none were started. */
static inline bool wh_workers_have_ended(const wh_workers *workers) {
    return atomic_load(&workers->running) == 0;
}

/** Waits for the threads, if there are any. @return the first error of a worker. */
wherry_status wh_workers_join(wh_workers *workers, wherry_error *error);

#endif
