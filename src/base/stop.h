/**
 * @file stop.h  Telling threads to stop, wherever they are: between two steps they look, and a poll() has a descriptor to wait for.
 *
 * Any thread. wh_stop_request may be called more than once; there is no way back.
 *
 * A stop may have a question, for waits that nobody else can end: whoever looks at the stop, or waits with it, then asks it as well.
 */
#ifndef WH_BASE_STOP_H
#define WH_BASE_STOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <wherry/base.h>

#include "base/clock.h"

/** How often whoever waits looks at a stop, or asks a question of its own, in milliseconds. */
enum { WH_STOP_LOOK_MS = 50 };

/** true: stop. Asked often, so that it must be quick, or say false until it is time to find out again. */
typedef bool (*wh_stop_fn)(void *context);

typedef struct wh_stop {
    atomic_bool requested;
    int event;      /**< An eventfd that is readable from the request on. */
    wh_stop_fn ask; /**< NULL: there is no question. */
    void *context;  /**< Of the question. */
} wh_stop;

/** @return WHERRY_OK; WHERRY_SYSTEM where there is no descriptor left. */
wherry_status wh_stop_init(wh_stop *stop, wherry_error *error);

/** After a failed init, or on {.event = -1}, it does nothing. */
void wh_stop_destroy(wh_stop *stop);

void wh_stop_request(wh_stop *stop);

/** Gives the stop a question, or none: NULL. Only while no other thread looks at it: the question is for the one that calls. */
void wh_stop_set_question(wh_stop *stop, wh_stop_fn ask, void *context);

/** Asks the question; true makes it a request. */
bool wh_stop_ask(const wh_stop *stop);

static inline bool wh_stop_requested(const wh_stop *stop) {
    return atomic_load_explicit(&stop->requested, memory_order_acquire) || (stop->ask && wh_stop_ask(stop));
}

/**
 * Waits until a descriptor is ready for `events` (POLLIN, POLLOUT), the stop is requested or the deadline comes.
 * @return true where it is ready, or has failed, which the next call on it will tell; false for the other two.
 */
bool wh_stop_wait_fd(const wh_stop *stop, int fd, short events, wh_deadline deadline);

/** Starts a thread with all signals blocked: signals are for the program's own threads. @return 0, or an errno. */
int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context);

#endif
