/**
 * @file mailbox.h  Messages that have arrived and that nobody has taken yet; inboxes and services.
 *
 * Whoever reads from the peers puts messages in. A message goes, by its tag, to an inbox, to a
 * service, or into the mailbox itself. All functions may be called from any thread, unless they say
 * otherwise.
 *
 * Invariants:
 * 1. A message is delivered only if its sender's incarnation is the current one of that rank.
 * 2. A message of a conversation (WH_TAG_CONVERSATION) goes to the inbox of its tag, or nowhere.
 * 3. Messages of one rank with one tag keep their order.
 * 4. The messages of one rank take at most as many bytes as wh_mailbox_create says.
 * 5. A loss is an error for everybody who waits for that rank, at once. It reaches every inbox,
 *    behind the messages that the rank had sent before. It needs no memory.
 * 6. A service is called without the lock held. wh_service_close waits until no call is running.
 *
 * States of a rank:
 *
 *     unknown -> present   wh_mailbox_admit
 *     present -> lost      wh_mailbox_lose
 *     lost    -> present   wh_mailbox_admit, with the same incarnation or a newer one
 *     present -> present   wh_mailbox_admit, with a newer incarnation: counts as a loss
 */
#ifndef WH_GROUP_MAILBOX_H
#define WH_GROUP_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "group/group.h"

/* ---- for the kinds of groups ---- */

/**
 * @param size   the number of ranks.
 * @param bytes  the most bytes of one rank's messages that may wait here. Only a slow or hostile
 *               peer reaches this limit.
 * @return NULL if there is no memory.
 */
wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes);

/** Nobody may be inside it any more. mailbox may be NULL. */
void wh_mailbox_destroy(wh_mailbox *mailbox);

/** From now on, whoever waits for a message reads from the peers by the group's `pump`. */
void wh_mailbox_set_pump(wh_mailbox *mailbox, wh_group *group);

/**
 * Admits an incarnation of a rank. The messages of an earlier incarnation are dropped, except those
 * in an inbox: its owner reads the end of the conversation before it hears of the loss. A rank that
 * was lost and is back as the same incarnation, because a link was cut and repaired, is present
 * again.
 * @return false if a newer incarnation is known: this one is to be turned away.
 */
bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/**
 * Marks a rank as lost, unless another incarnation has taken its place. Messages that it has sent
 * can still be taken.
 */
void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason);

/** Ends all waits, for good. */
void wh_mailbox_close(wh_mailbox *mailbox);

/**
 * Delivers a message, or drops it if its incarnation is not the current one, which is a success.
 * @param message  its bytes are taken over on success; on failure they stay the caller's.
 * @return WHERRY_OK; WHERRY_LIMIT if too many bytes of that rank wait here; WHERRY_NO_MEMORY.
 */
wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error);

/** As wh_mailbox_put, for a copy of the bytes. */
wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error);

/** @return true if an inbox is open for the tag. */
bool wh_mailbox_has_inbox(wh_mailbox *mailbox, uint64_t tag);

/** @return true if the rank is present as that incarnation. */
bool wh_mailbox_is_present(const wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/** @return the current incarnation of a rank; 0 if it is lost or unknown. */
uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank);

/**
 * @param reason  receives why the rank is lost, if it is; may be NULL if size is 0.
 * @param size    bytes of `reason`, including the final zero.
 * @return true if the rank is lost.
 */
bool wh_mailbox_is_lost(const wh_mailbox *mailbox, int32_t rank, char *reason, size_t size);

/** Takes the mailbox's lock for a fork. @return false if it is still held after so many seconds. */
bool wh_mailbox_hold(wh_mailbox *mailbox, int seconds);

/** Releases the lock that wh_mailbox_hold took. */
void wh_mailbox_release(wh_mailbox *mailbox);

/** As wh_mailbox_close, in a forked child and with the lock held: nobody waits there. */
void wh_mailbox_close_in_child(wh_mailbox *mailbox);

/* ---- for the group's own calls ---- */

/**
 * Says that a message is near, such as the answer to one that was just sent: for a moment, whoever
 * waits polls instead of sleeping.
 */
void wh_mailbox_stay_awake(wh_mailbox *mailbox);

/**
 * Takes the oldest message with a tag that is in no inbox. Blocks until the deadline.
 * @param rank       from that rank; WH_ANY_RANK: from any, and then no loss is an error.
 * @param message_p  the caller's: wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_PEER_LOST; WHERRY_CLOSED.
 */
wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error);

/* ---- inboxes: the messages of one conversation ---- */

/**
 * Holds the messages with one tag, from any rank. The loss of any rank reaches every inbox, so that
 * one wait is enough for somebody who talks to several ranks. The process itself may post notes: a
 * worker has ended, the user has cancelled.
 */
typedef struct wh_inbox wh_inbox;

/**
 * @param tag  with WH_TAG_CONVERSATION; no other inbox is open for it.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT.
 */
wherry_status wh_inbox_open(wh_group *group, uint64_t tag, wh_inbox **inbox_p, wherry_error *error);

/** Drops what is in it. Nobody may wait on it or post to it any more. inbox may be NULL. */
void wh_inbox_close(wh_inbox *inbox);

uint64_t wh_inbox_tag(const wh_inbox *inbox);

/**
 * Takes the oldest message. Blocks until the deadline.
 * @param message_p  the caller's: wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CLOSED if this process has left the group, or a newer
 * incarnation has replaced it: behind what had come before, and instead of losses.
 */
wherry_status wh_inbox_take(wh_inbox *inbox, wh_deadline deadline, wh_message *message_p, wherry_error *error);

/** Takes the oldest message if there is one. Never waits, and does not read from the peers. */
bool wh_inbox_poll(wh_inbox *inbox, wh_message *message_p);

/**
 * Posts a message. Its bytes are taken over, also on failure.
 * @return false if there is no memory.
 */
bool wh_inbox_post(wh_inbox *inbox, wh_message *message);

/**
 * Ends the current wait on the inbox, or the next one: wh_inbox_take returns WHERRY_TIMED_OUT once,
 * early. Needs no memory.
 */
void wh_inbox_wake(wh_inbox *inbox);

/* ---- services: messages that nobody waits for ---- */

/**
 * Called for each message by the thread that reads from the peers. Must be quick. Owns the message.
 */
typedef void (*wh_service_fn)(void *context, wh_message *message);

/**
 * Hands every message with a tag to a function, beginning with those that are here already.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT if the tag has a service.
 */
wherry_status wh_service_open(wh_group *group, uint64_t tag, wh_service_fn fn, void *context, wherry_error *error);

/** Ends a service. Waits for a call of the function that is running. */
void wh_service_close(wh_group *group, uint64_t tag);

#endif
