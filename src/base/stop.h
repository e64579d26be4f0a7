/**
 * @file stop.h  Starting threads, and asking them to stop.
 *
 * A thread checks its stop regularly. If it waits in poll(), it also polls the descriptor of the
 * stop. Any thread may request a stop, also repeatedly. A request cannot be undone.
 *
 * A stop may have a question: a callback that the waiting thread itself calls every
 * WH_STOP_LOOK_MS. For example, Python must check for signals in the calling thread, and ends a
 * wait with the question.
 */
#ifndef WH_BASE_STOP_H
#define WH_BASE_STOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <wherry/base.h>

#include "base/clock.h"

/**
 * The interval at which a waiting thread checks its stop or asks the question. It is so short that
 * Ctrl-C seems to work at once.
 */
enum { WH_STOP_LOOK_MS = 50 };

/**
 * The question of a stop. It is called often and must be quick. If the check is expensive, most
 * calls should return false at once. @return true to stop.
 */
typedef bool (*wh_stop_fn)(void *context);

typedef struct wh_stop {
    atomic_bool requested;
    int event;      /**< An eventfd, readable once a stop was requested. */
    wh_stop_fn ask; /**< The question; NULL if there is none. */
    void *context;  /**< Passed to ask. */
} wh_stop;

/** Initializes a stop. @return WHERRY_OK; WHERRY_SYSTEM if the eventfd cannot be created. */
wherry_status wh_stop_init(wh_stop *stop, wherry_error *error);

/** Destroys a stop. Does nothing if wh_stop_init has failed, or if the stop is {.event = -1}. */
void wh_stop_destroy(wh_stop *stop);

void wh_stop_request(wh_stop *stop);

/**
 * Sets the question, or removes it if `ask` is NULL. Call it only while no other thread uses the
 * stop, because the question must be asked in the thread of the caller.
 */
void wh_stop_set_question(wh_stop *stop, wh_stop_fn ask, void *context);

/** Asks the question. If the answer is true, requests the stop. */
bool wh_stop_ask(const wh_stop *stop);

static inline bool wh_stop_requested(const wh_stop *stop) {
    return atomic_load_explicit(&stop->requested, memory_order_acquire) || (stop->ask && wh_stop_ask(stop));
}

/**
 * Waits until a descriptor is ready for `events` (POLLIN, POLLOUT), the stop is requested, or the
 * deadline passes.
 * @return true if the descriptor is ready or has failed (the next call on it reports the failure);
 * false in the other two cases.
 */
bool wh_stop_wait_fd(const wh_stop *stop, int fd, short events, wh_deadline deadline);

/**
 * Starts a thread with all signals blocked, so that only the program's own threads handle signals;
 * except those of the thread's own faults, such as SIGBUS for a mapped file that got shorter.
 * @return 0, or an errno.
 */
int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context);

#endif
