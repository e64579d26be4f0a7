/**
 * @file crew.h  Threads that work on one thing together, and the inbox of whoever waits for them.
 *
 * The crew's starter goes on meanwhile; its inbox is woken when the last has ended. The first error
 * of any of them is the crew's, and requests the stop that the others look at.
 */
#ifndef WH_TRANSFER_CREW_H
#define WH_TRANSFER_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/stop.h"
#include "group/mailbox.h"

enum { WH_CREW_MAX = 64 };

/** One thread's work; workers have numbers from 0 on. */
typedef wherry_status (*wh_work_fn)(void *context, uint32_t worker, wherry_error *error);

/** Starts as {0}. Must not move while it works. */
typedef struct wh_crew {
    wh_work_fn work;
    void *context;
    wh_stop *stop;
    wh_inbox *inbox;
    atomic_uint next;    /**< Numbers for the workers. */
    atomic_uint working; /**< How many have not ended. */
    uint32_t count;      /**< Threads that were started and not joined. */
    pthread_t threads[WH_CREW_MAX];
    pthread_mutex_t lock; /**< For the following. */
    wherry_status status;
    wherry_error error;
} wh_crew;

/**
 * Starts `count` threads, 1 to WH_CREW_MAX, all signals blocked.
 * @param stop   requested when one of them fails; borrowed until the crew is joined.
 * @param inbox  woken when all have ended; NULL: nobody is.
 * @return WHERRY_OK where all run; WHERRY_SYSTEM where that failed: those that ran have been
 * stopped and joined.
 */
wherry_status wh_crew_start(wh_crew *crew, uint32_t count, wh_work_fn work, void *context, wh_stop *stop,
                            wh_inbox *inbox, wherry_error *error);

/** Whether a crew was started and not joined. */
static inline bool wh_crew_exists(const wh_crew *crew) {
    return crew->count > 0;
}

/** Whether all of its threads have ended. */
static inline bool wh_crew_ended(wh_crew *crew) {
    return atomic_load(&crew->working) == 0;
}

/**
 * Waits for the threads. @return WHERRY_OK, or the first error of any of them. A crew that does not
 * exist is WHERRY_OK.
 */
wherry_status wh_crew_join(wh_crew *crew, wherry_error *error);

#endif
