/**
 * @file cancel.h  Cancel handles (wherry_cancel): a request from any thread reaches all present
 * listeners.
 */
#ifndef WH_BASE_CANCEL_H
#define WH_BASE_CANCEL_H

#include <wherry/base.h>

/** A listener for requests. Must not move in memory while it is added. */
typedef struct wh_cancel_listener {
    struct wh_cancel_listener *next;
    void (*tell)(void *context); /**< Called under the lock of the handle, in any thread. */
    void *context;               /**< Passed to `tell`. */
} wh_cancel_listener;

/**
 * Adds a listener, and tells it of an earlier request at once.
 * @param cancel    NULL: does nothing.
 * @param listener  filled here; borrowed until wh_cancel_remove.
 */
void wh_cancel_add(wherry_cancel *cancel, wh_cancel_listener *listener, void (*tell)(void *context), void *context);

/**
 * Removes a listener: later requests do not call it. Does nothing if it was not added, or if cancel
 * is NULL.
 */
void wh_cancel_remove(wherry_cancel *cancel, wh_cancel_listener *listener);

#endif
