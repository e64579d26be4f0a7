/**
 * @file outbox.h  Frames that wait to be sent over one connection. Used under the group's lock.
 *
 * The bytes of a message stay its sender's while they wait: the sender either waits until they are
 * gone, or has the rest copied (wh_outbox_keep).
 */
#ifndef WH_GROUP_SOCKETS_OUTBOX_H
#define WH_GROUP_SOCKETS_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

enum {
    WH_FRAME_MAX = 256 << 10, /**< Bytes of a body. */
    WH_FRAME_HEAD = 5,
    WH_MESSAGE_HEAD = 16, /**< Of the body of a MESSAGE frame. */
};

typedef struct wh_out_frame wh_out_frame;

typedef struct wh_outbox {
    wh_out_frame *first;
    wh_out_frame **last;
    size_t queued; /**< Bytes in it. */
} wh_outbox;

/**
 * A message whose bytes are borrowed. It stays where it is until no frame is left of it, or it is
 * broken, or kept.
 */
typedef struct wh_loan {
    size_t frames; /**< That are not sent yet. */
    bool broken;   /**< The connection has ended before they were. */
} wh_loan;

void wh_outbox_init(wh_outbox *outbox);

/** Drops what is in it; its loans are broken. */
void wh_outbox_clear(wh_outbox *outbox);

/** Writes the head of a frame whose body has so many bytes. */
void wh_frame_head(uint8_t head[WH_FRAME_HEAD], uint8_t type, size_t size);

/** Adds a frame with a copy of its body. @return false where there is no memory. */
bool wh_outbox_add(wh_outbox *outbox, uint8_t type, const void *body, size_t size);

/**
 * Adds a message as frames of a type, whose bytes are borrowed.
 * @param loan  the caller's, and set here.
 * @return false where there is no memory; then none of it is sent.
 */
bool wh_outbox_lend(wh_outbox *outbox, uint8_t type, uint64_t tag, const void *bytes, size_t size, wh_loan *loan);

/**
 * Copies what is left of a loan, whose bytes are the caller's again. @return false where there is
 * no memory: the connection must be ended.
 */
bool wh_outbox_keep(wh_outbox *outbox, wh_loan *loan);

/** Sends what can be sent now. @return WHERRY_OK; WHERRY_PEER_LOST. */
wherry_status wh_outbox_send(wh_outbox *outbox, int fd, wherry_error *error);

#endif
