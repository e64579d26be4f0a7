/**
 * @file stop.h  Starting threads, and asking them to stop.
 *
 * A thread checks the stop between two steps; a poll() waits for its descriptor too. Any thread may
 * request a stop, more than once. A request cannot be taken back.
 *
 * A stop may have a question: a callback that the waiting thread itself asks every WH_STOP_LOOK_MS.
 * A program that must check for signals in the calling thread, such as Python, ends a wait this
 * way.
 */
#ifndef WH_BASE_STOP_H
#define WH_BASE_STOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <wherry/base.h>

#include "base/clock.h"

/**
 * How often a waiting thread checks its stop or asks the question: short enough for Ctrl-C to feel
 * immediate.
 */
enum { WH_STOP_LOOK_MS = 50 };

/** @return true to stop. Called often: it must be quick, or return false until it is due again. */
typedef bool (*wh_stop_fn)(void *context);

typedef struct wh_stop {
    atomic_bool requested;
    int event;      /**< An eventfd, readable once a stop was requested. */
    wh_stop_fn ask; /**< The question; NULL: none. */
    void *context;  /**< For ask. */
} wh_stop;

/** @return WHERRY_OK; WHERRY_SYSTEM if there is no file descriptor left. */
wherry_status wh_stop_init(wh_stop *stop, wherry_error *error);

/** Does nothing after a failed init, or on {.event = -1}. */
void wh_stop_destroy(wh_stop *stop);

void wh_stop_request(wh_stop *stop);

/**
 * Sets the question, or removes it: NULL. Only while no other thread uses the stop: the caller's
 * thread is asked.
 */
void wh_stop_set_question(wh_stop *stop, wh_stop_fn ask, void *context);

/** Asks the question; true requests the stop. */
bool wh_stop_ask(const wh_stop *stop);

static inline bool wh_stop_requested(const wh_stop *stop) {
    return atomic_load_explicit(&stop->requested, memory_order_acquire) || (stop->ask && wh_stop_ask(stop));
}

/**
 * Waits until a descriptor is ready for `events` (POLLIN, POLLOUT), the stop is requested, or the
 * deadline passes.
 * @return true if it is ready or has failed, which the next call on it reports; false in the other
 * two cases.
 */
bool wh_stop_wait_fd(const wh_stop *stop, int fd, short events, wh_deadline deadline);

/**
 * Starts a thread with all signals blocked: signals are for the program's own threads.
 * @return 0, or an errno.
 */
int wh_thread_start(pthread_t *thread_p, void *(*run)(void *), void *context);

#endif
