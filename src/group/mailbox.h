/**
 * @file mailbox.h  The mailbox stores messages that have arrived until they are received. It also
 * has inboxes and services.
 *
 * The thread that reads from the peers puts messages in. Depending on its tag, a message goes to an
 * inbox, to a service, or into the mailbox itself. Any thread may call these functions, unless a
 * comment says otherwise.
 *
 * Invariants:
 * 1. A message is delivered only if it comes from the current incarnation of its rank.
 * 2. A message of a conversation (WH_TAG_CONVERSATION) goes to the inbox of its tag. Without such
 *    an inbox, it is dropped.
 * 3. Messages from one rank with one tag keep their order.
 * 4. The waiting messages of one rank never exceed the limit given to wh_mailbox_create.
 * 5. If a rank is lost, every wait for it fails at once. Every inbox reports the loss, after the
 *    messages that the rank had sent before. A loss is reported even if there is no memory.
 * 6. The lock is not held while a service is called. wh_service_close waits until no call is
 *    running.
 *
 * States of a rank:
 *
 *     unknown -> present   wh_mailbox_admit
 *     present -> lost      wh_mailbox_lose
 *     lost    -> present   wh_mailbox_admit, with the same incarnation or a newer one
 *     present -> present   wh_mailbox_admit, with a newer incarnation; counts as a loss
 */
#ifndef WH_GROUP_MAILBOX_H
#define WH_GROUP_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "group/group.h"

/**
 * Approximate memory of a waiting message in addition to its bytes. It limits empty messages too.
 */
enum { WH_MESSAGE_COST = 128 };

/** Number of channels of a rank that may wait to be used. A transfer opens a few. */
enum { WH_MAILBOX_CHANNELS = 256 };

/* ---- for the kinds of groups ---- */

/**
 * Creates an empty mailbox.
 * @param size   the number of ranks.
 * @param bytes  the maximum total size of waiting messages per rank; each counts WH_MESSAGE_COST
 *               more than its own bytes. Only a slow receiver or a
 *               hostile peer reaches this limit.
 * @return NULL if out of memory.
 */
wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes);

/** Frees a mailbox and its messages. No other thread may use it any more. `mailbox` may be NULL. */
void wh_mailbox_destroy(wh_mailbox *mailbox);

/**
 * For a group with ranks that are not trusted. Messages that nobody has asked for yet then have a
 * limit per rank, and are dropped when the rank is lost. Otherwise many ranks could fill the
 * memory. Call this before the first message.
 */
void wh_mailbox_distrust(wh_mailbox *mailbox, size_t bytes);

/** From now on, a thread that waits for a message calls the group's `pump` to read it. */
void wh_mailbox_set_pump(wh_mailbox *mailbox, wh_group *group);

/**
 * Admits an incarnation of a rank. Drops the messages of an earlier incarnation, except those in
 * inboxes. So the owner of an inbox still reads the end of a conversation before the loss. A rank
 * that was lost may come back as the same incarnation, for example when a network connection works
 * again.
 * @return false if a newer incarnation is known, so that this one must be refused.
 */
bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/**
 * Marks a rank as lost, unless another incarnation has taken its place. Messages that it sent
 * before can still be received (but see wh_mailbox_distrust).
 */
void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason);

/** Ends all waits. Later waits end at once. */
void wh_mailbox_close(wh_mailbox *mailbox);

/**
 * Delivers a message. Drops it if its incarnation is not the current one, and returns WHERRY_OK.
 * @param message  on success, the mailbox owns its bytes; on failure, the caller still owns them.
 * @return WHERRY_OK; WHERRY_LIMIT if too many bytes from that rank are waiting; WHERRY_NO_MEMORY.
 */
wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error);

/** Like wh_mailbox_put, but copies the bytes. */
wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error);

/** True if an inbox is open for the tag. */
bool wh_mailbox_has_inbox(wh_mailbox *mailbox, uint64_t tag);

/**
 * True if the rank is present and has this incarnation. For incarnation 0, true if the rank is lost
 * or unknown.
 */
bool wh_mailbox_is_present(const wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/** Returns the current incarnation of a rank; 0 if the rank is lost or unknown. */
uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank);

/**
 * Checks whether a rank is lost.
 * @param reason  if the rank is lost, receives the reason; may be NULL if size is 0.
 * @param size    size of the buffer `reason`.
 * @return true if the rank is lost.
 */
bool wh_mailbox_is_lost(const wh_mailbox *mailbox, int32_t rank, char *reason, size_t size);

/**
 * True if the loss of a rank must be reported: a thread waits for a message from it, or an inbox is
 * open.
 */
bool wh_mailbox_needs(wh_mailbox *mailbox, int32_t rank);

/** Takes the lock before a fork. @return false if another thread has held it for `seconds`. */
bool wh_mailbox_hold(wh_mailbox *mailbox, int seconds);

/** Releases the lock that wh_mailbox_hold took. */
void wh_mailbox_release(wh_mailbox *mailbox);

/**
 * Like wh_mailbox_close, but for a forked child, in which no thread waits. The caller holds the
 * lock.
 */
void wh_mailbox_close_in_child(wh_mailbox *mailbox);

/* ---- for the group's own calls ---- */

/**
 * Call this if a message should arrive soon, such as the answer to a message that was just sent.
 * For a short time, waiting threads then poll instead of sleeping.
 */
void wh_mailbox_stay_awake(wh_mailbox *mailbox);

/**
 * Takes the oldest message with a tag. Does not look into inboxes. Waits until the deadline at
 * most.
 * @param rank       the sender. WHERRY_ANY_RANK: any sender. The loss of a rank is then not an
 *                   error.
 * @param message_p  the caller frees it with wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_PEER_LOST; WHERRY_CLOSED.
 */
wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error);

/* ---- inboxes: the messages of one conversation ---- */

/**
 * Holds the messages with one tag, from any rank. Every inbox reports the loss of any rank, so that
 * one wait is enough for a conversation with several ranks. The process itself may post notes, for
 * example that a worker has ended or that the user has cancelled.
 */
typedef struct wh_inbox wh_inbox;

/**
 * Opens an inbox.
 * @param tag  must have WH_TAG_CONVERSATION set. No other inbox may be open for it. 0: a random
 *             one.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT; WHERRY_SYSTEM if the system has no
 * random numbers.
 */
wherry_status wh_inbox_open(wh_group *group, uint64_t tag, wh_inbox **inbox_p, wherry_error *error);

/**
 * Closes an inbox and drops its messages. No other thread may use the inbox any more. `inbox` may
 * be NULL.
 */
void wh_inbox_close(wh_inbox *inbox);

uint64_t wh_inbox_tag(const wh_inbox *inbox);

/**
 * Takes the oldest message, or reports the loss of a rank. Waits until the deadline at most.
 * @param message_p  the caller frees it with wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CLOSED if this process has left the group or cannot
 * read from it any more, or a newer incarnation has replaced it. In that case, messages that have
 * already arrived are returned first, and losses are not reported.
 */
wherry_status wh_inbox_take(wh_inbox *inbox, wh_deadline deadline, wh_message *message_p, wherry_error *error);

/**
 * Like wh_inbox_take, for several inboxes, which may be of different groups. Only one thread at a
 * time may wait on an inbox in this way.
 * @param count   at least 1.
 * @param from_p  receives, with any result, the number of the inbox that the result is of.
 */
wherry_status wh_inbox_take_any(wh_inbox *const *inboxes, size_t count, wh_deadline deadline, wh_message *message_p,
                                size_t *from_p, wherry_error *error);

/**
 * Like wh_inbox_take, but never waits for a message, and does not read from the peers. @return
 * false if there is neither a message nor a loss.
 */
bool wh_inbox_poll(wh_inbox *inbox, wh_message *message_p);

/**
 * Posts a message. The inbox owns its bytes, also on failure.
 * @return false if out of memory.
 */
bool wh_inbox_post(wh_inbox *inbox, wh_message *message);

/**
 * Ends the current wait on the inbox, or the next one: wh_inbox_take returns WHERRY_TIMED_OUT once,
 * before its deadline. Needs no memory.
 */
void wh_inbox_wake(wh_inbox *inbox);

/* ---- services: functions that handle messages as they arrive ---- */

/**
 * Handles a message, and owns it. Must be fast, because the thread that reads from the peers calls
 * it. Threads that call wh_service_open or send to their own rank may call it too.
 */
typedef void (*wh_service_fn)(void *context, wh_message *message);

/**
 * Passes every message with a tag to a function, beginning with those that have arrived already.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if the tag has a service already.
 */
wherry_status wh_service_open(wh_group *group, uint64_t tag, wh_service_fn fn, void *context, wherry_error *error);

/** Ends a service. Waits until no call of its function is running. */
void wh_service_close(wh_group *group, uint64_t tag);

#endif
