/**
 * @file stop.h  Telling threads to stop, wherever they are: between two steps they look, and a poll() has a descriptor to wait for.
 *
 * Any thread. wh_stop_request may be called more than once; there is no way back.
 */
#ifndef WH_BASE_STOP_H
#define WH_BASE_STOP_H

#include <stdatomic.h>
#include <stdbool.h>

#include <wherry/error.h>

#include "base/clock.h"

typedef struct wh_stop {
    atomic_bool requested;
    int event; /**< An eventfd that is readable from the request on. */
} wh_stop;

/** @return WHERRY_OK; WHERRY_SYSTEM where there is no descriptor left. */
wherry_status wh_stop_init(wh_stop *stop, wherry_error *error);

/** After a failed init, or on {.event = -1}, it does nothing. */
void wh_stop_destroy(wh_stop *stop);

void wh_stop_request(wh_stop *stop);

static inline bool wh_stop_requested(const wh_stop *stop) {
    return atomic_load_explicit(&stop->requested, memory_order_acquire);
}

/**
 * Waits until a descriptor is ready for `events` (POLLIN, POLLOUT), the stop is requested or the deadline comes.
 * @return true where it is ready, or has failed, which the next call on it will tell; false for the other two.
 */
bool wh_stop_wait_fd(const wh_stop *stop, int fd, short events, wh_deadline deadline);

#endif
