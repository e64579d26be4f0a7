/**
 * @file cancel.h  Private side of cancels: which inboxes a request wakes, and what it stops. See
 * wherry/checkpoint.h.
 */
#ifndef WH_TRANSFER_CANCEL_H
#define WH_TRANSFER_CANCEL_H

#include <wherry/checkpoint.h>

#include "base/stop.h"
#include "group/mailbox.h"

/** A call that a cancel ends; lives in the call. Starts as {0}. */
typedef struct wh_cancellable {
    struct wh_cancellable *next;
    wh_inbox *inbox;
    wh_stop *stop; /**< NULL: none. */
} wh_cancellable;

/** From now on a request wakes the inbox. cancel may be NULL. */
void wh_cancel_attach(wherry_cancel *cancel, wh_cancellable *call, wh_inbox *inbox);

/**
 * From now on a request, also an earlier one, requests the stop as well; NULL: none any more, so
 * that it may be destroyed. cancel may be NULL.
 */
void wh_cancel_aim(wherry_cancel *cancel, wh_cancellable *call, wh_stop *stop);

/** No more: the inbox may be closed, the stop destroyed. cancel may be NULL. */
void wh_cancel_detach(wherry_cancel *cancel, wh_cancellable *call);

#endif
