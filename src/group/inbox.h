/**
 * @file inbox.h  Where the messages of one conversation land, whoever sends them, and what else its owner waits for.
 *
 * An inbox is open for one tag. The loss of any rank lands in every inbox, so that one wait is enough for whoever talks to several ranks. The process
 * itself may post notes: a worker has ended, the user wants to cancel. Services are for messages that nobody waits for.
 */
#ifndef WH_GROUP_INBOX_H
#define WH_GROUP_INBOX_H

#include "group/group.h"

typedef struct wh_inbox wh_inbox;

/** Opens an inbox for a tag with WH_TAG_CONVERSATION that no other is open for. @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT. */
wherry_status wh_inbox_open(wh_group *group, uint64_t tag, wh_inbox **inbox_p, wherry_error *error);

/** Closes it; what lies there is dropped. inbox may be NULL. Nobody may wait on it or post to it any more. */
void wh_inbox_close(wh_inbox *inbox);

uint64_t wh_inbox_tag(const wh_inbox *inbox);

/**
 * Takes the oldest message, waiting for it until the deadline.
 * @param message_p  the caller's: wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_CLOSED where the group was left or fenced, behind what had come, and in place of losses.
 */
wherry_status wh_inbox_take(wh_inbox *inbox, wh_deadline deadline, wh_message *message_p, wherry_error *error);

/** Takes the oldest message if there is one; never waits, never reads from the peers. */
bool wh_inbox_poll(wh_inbox *inbox, wh_message *message_p);

/** Puts a message in, whose bytes are taken over, also on failure. Any thread. @return false where there is no memory. */
bool wh_inbox_post(wh_inbox *inbox, wh_message *message);

/**
 * Ends the wait of whoever waits on it, or of the next who does: wh_inbox_take then answers WHERRY_TIMED_OUT once, early. Needs no memory, any thread.
 */
void wh_inbox_wake(wh_inbox *inbox);

/** Called for each message by the thread that reads from the peers: it must be quick, and takes the message over. */
typedef void (*wh_service_fn)(void *context, wh_message *message);

/**
 * Hands every message with a tag, those that lie there already first, to a function from now on.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT where the tag has a service already.
 */
wherry_status wh_service_open(wh_group *group, uint64_t tag, wh_service_fn fn, void *context, wherry_error *error);

/** Ends it, when the function has returned. */
void wh_service_close(wh_group *group, uint64_t tag);

#endif
