#include "group/sockets/outbox.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"

/** Pieces that one call sends. */
enum { PIECES = 16 };

struct wh_out_frame {
    wh_out_frame *next;
    uint8_t head[WH_FRAME_HEAD + WH_MESSAGE_HEAD];
    size_t head_size;
    const uint8_t *body; /**< Borrowed, or `copy`. */
    size_t body_size;
    void *copy;
    size_t sent;   /**< Of both together. */
    wh_loan *loan; /**< NULL: the body is not borrowed. */
};

void wh_outbox_init(wh_outbox *outbox) {
    *outbox = (wh_outbox){NULL, &outbox->first, 0};
}

void wh_frame_head(uint8_t head[WH_FRAME_HEAD], uint8_t type, size_t size) {
    wh_store_be32(head, (uint32_t)size);
    head[4] = type;
}

static void release(wh_out_frame *frame) {
    wh_free(frame->copy);
    wh_free(frame);
}

void wh_outbox_clear(wh_outbox *outbox) {
    while (outbox->first) {
        wh_out_frame *frame = outbox->first;
        outbox->first = frame->next;
        if (frame->loan) {
            frame->loan->broken = true;
        }
        release(frame);
    }
    wh_outbox_init(outbox);
}

static void append(wh_outbox *outbox, wh_out_frame *frame) {
    *outbox->last = frame;
    outbox->last = &frame->next;
    outbox->queued += frame->head_size + frame->body_size;
}

bool wh_outbox_add(wh_outbox *outbox, uint8_t type, const void *body, size_t size) {
    wh_out_frame *frame = wh_alloc_zeroed(1, sizeof(*frame));
    void *copy = frame && size ? wh_copy_text(body, size) : NULL;
    if (!frame || (size && !copy)) {
        wh_free(frame);
        return false;
    }
    wh_frame_head(frame->head, type, size);
    frame->head_size = WH_FRAME_HEAD;
    frame->body = frame->copy = copy;
    frame->body_size = size;
    append(outbox, frame);
    return true;
}

bool wh_outbox_lend(wh_outbox *outbox, uint8_t type, uint64_t tag, const void *bytes, size_t size, wh_loan *loan) {
    wh_outbox added;
    size_t done = 0;
    wh_outbox_init(&added);
    *loan = (wh_loan){0};
    do {
        size_t part = wh_min(size - done, WH_FRAME_MAX - WH_MESSAGE_HEAD);
        wh_out_frame *frame = wh_alloc_zeroed(1, sizeof(*frame));
        if (!frame) {
            wh_outbox_clear(&added);
            return false;
        }
        wh_frame_head(frame->head, type, WH_MESSAGE_HEAD + part);
        wh_store_be64(frame->head + WH_FRAME_HEAD, tag);
        wh_store_be64(frame->head + WH_FRAME_HEAD + 8, size - done - part);
        frame->head_size = sizeof(frame->head);
        frame->body = part ? (const uint8_t *)bytes + done : NULL;
        frame->body_size = part;
        frame->loan = loan;
        loan->frames++;
        append(&added, frame);
        done += part;
    } while (done < size);
    *outbox->last = added.first;
    outbox->last = added.last;
    outbox->queued += added.queued;
    return true;
}

bool wh_outbox_keep(wh_outbox *outbox, wh_loan *loan) {
    for (wh_out_frame *frame = outbox->first; frame; frame = frame->next) {
        if (frame->loan != loan) {
            continue;
        }
        if (frame->body_size) {
            frame->copy = wh_copy_text((const char *)frame->body, frame->body_size);
            if (!frame->copy) {
                return false;
            }
            frame->body = frame->copy;
        }
        frame->loan = NULL;
        loan->frames--;
    }
    return true;
}

/** What is left of the frames at the front, up to so many pieces. @return how many. */
static size_t gather(const wh_outbox *outbox, struct iovec pieces[PIECES]) {
    size_t count = 0;
    for (const wh_out_frame *frame = outbox->first; frame && count + 2 <= PIECES; frame = frame->next) {
        size_t in_body = frame->sent > frame->head_size ? frame->sent - frame->head_size : 0;
        if (frame->sent < frame->head_size) {
            pieces[count++] = (struct iovec){(void *)(frame->head + frame->sent), frame->head_size - frame->sent};
        }
        if (in_body < frame->body_size) {
            pieces[count++] = (struct iovec){(void *)(frame->body + in_body), frame->body_size - in_body};
        }
    }
    return count;
}

/** Takes so many bytes off the front. */
static void forget(wh_outbox *outbox, size_t sent) {
    outbox->queued -= sent;
    while (sent && outbox->first) {
        wh_out_frame *frame = outbox->first;
        size_t left = frame->head_size + frame->body_size - frame->sent;
        if (sent < left) {
            frame->sent += sent;
            return;
        }
        sent -= left;
        if (frame->loan) {
            frame->loan->frames--;
        }
        outbox->first = frame->next;
        outbox->last = outbox->first ? outbox->last : &outbox->first;
        release(frame);
    }
}

wherry_status wh_outbox_send(wh_outbox *outbox, int fd, wherry_error *error) {
    while (outbox->first) {
        struct iovec pieces[PIECES];
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = gather(outbox, pieces)};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOTCONN;
            return later ? WHERRY_OK : wh_fail_errno(error, WHERRY_PEER_LOST, errno, "the connection broke");
        }
        forget(outbox, (size_t)sent);
    }
    return WHERRY_OK;
}
