/**
 * @file mailbox.h  Messages that have come and nobody has taken yet.
 *
 * Whoever reads from the peers puts messages in; whoever waits for one takes it out by its tag, and by its rank where that matters. A rank that is
 * lost is an error for everybody who waits on it, at once; one that comes back is another incarnation, and what its predecessor left is gone.
 * All functions may be called from any thread. Conversations have inboxes of their own: group/inbox.h.
 */
#ifndef WH_GROUP_MAILBOX_H
#define WH_GROUP_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "group/group.h"

/**
 * @param size   the number of ranks.
 * @param bytes  how many bytes of one rank's messages may lie here; it must be slow or hostile that fills them.
 * @return NULL where there is no memory.
 */
wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes);

/** A message may be near, such as the answer to one that was sent: for a moment whoever waits does so awake. Any thread. */
void wh_mailbox_expect(wh_mailbox *mailbox);

/** Says that the group is read by whoever waits: its `pump`. */
void wh_mailbox_set_pump(wh_mailbox *mailbox, wh_group *group);

/** Nobody may be inside it any more. mailbox may be NULL. */
void wh_mailbox_destroy(wh_mailbox *mailbox);

/**
 * Lets a rank in as an incarnation. What an earlier one left is dropped, but for what lies in an inbox, whose owner hears the end of the conversation
 * there before the loss; whoever waits on the earlier one gets its error. One that was lost and is back as the same incarnation (a link that was cut and
 * mended) may be waited on again.
 * @return false where it is older than the one that is known: that one is to be turned away.
 */
bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/** Gives a rank up, unless another incarnation has taken its place; what it sent before may still be taken. */
void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason);

/** Ends the waiting of everybody, for good. */
void wh_mailbox_close(wh_mailbox *mailbox);

/**
 * Puts a message in. One of an incarnation that is not the present one is dropped, which is a success.
 * @param message  its bytes are taken over on success.
 * @return WHERRY_OK; WHERRY_LIMIT where the rank has filled its share; WHERRY_NO_MEMORY.
 */
wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error);

/** The same for a message whose bytes stay the caller's: a copy is put in. */
wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error);

/**
 * Takes the oldest message with a tag, waiting for it until the deadline.
 * @param rank       from whom; WH_ANY_RANK: from anybody, and then nobody's loss is an error.
 * @param message_p  its bytes are the caller's: wh_message_clear.
 * @return WHERRY_OK; WHERRY_TIMED_OUT; WHERRY_PEER_LOST; WHERRY_CLOSED.
 */
wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error);

/** Whether an inbox is open for a tag now. */
bool wh_mailbox_expects(wh_mailbox *mailbox, uint64_t tag);

/** Whether a rank is there as that incarnation. */
bool wh_mailbox_is_present(const wh_mailbox *mailbox, int32_t rank, uint64_t incarnation);

/** The present incarnation of a rank; 0 where it is lost or was never here. */
uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank);

/**
 * Whether a rank was here and is lost now.
 * @param reason  receives why, up to `size` bytes with the final zero, where it is; may be NULL where that is 0.
 */
bool wh_mailbox_is_lost(const wh_mailbox *mailbox, int32_t rank, char *reason, size_t size);

#endif
