/**
 * @file wherry/cancel.h  Ending calls from another thread.
 *
 * A cancel is handed to any number of calls in their options; one request ends all of them, and every later call that is given it. All since 0.1.
 */
#ifndef WHERRY_CANCEL_H
#define WHERRY_CANCEL_H

#include <stdbool.h>

#include <wherry/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Opaque. */
typedef struct wherry_cancel wherry_cancel;

/**
 * Asked by a call that waits, in the thread that called, every 50 milliseconds or so: for a host language that wants to look at its signals.
 * It may take as long as it likes, but the call does not honour its timeout meanwhile. It must not call what would wait for this very call.
 * @return true: the call shall end, with WHERRY_CANCELLED.
 */
typedef bool (*wherry_interrupt_fn)(void *context);

/**
 * @param cancel_p  belongs to the caller: wherry_cancel_destroy, when no call has it any more.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT. Does not block. Any thread.
 */
WHERRY_API wherry_status wherry_cancel_create(wherry_cancel **cancel_p, wherry_error *error);

/**
 * Ends the calls that have it: they return WHERRY_CANCELLED, soon, after telling the other side. There is no way back; a second request does nothing.
 * Does not block. Any thread; not from a signal handler.
 */
WHERRY_API void wherry_cancel_request(wherry_cancel *cancel);

/** Whether it was requested. Any thread. */
WHERRY_API bool wherry_cancel_requested(const wherry_cancel *cancel);

/** cancel may be NULL. */
WHERRY_API void wherry_cancel_destroy(wherry_cancel *cancel);

#ifdef __cplusplus
}
#endif
#endif
