/* A pipe over the group's messages: bytes are packed into large ones, and the receiver says how many it has worked off. */
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "group/inbox.h"
#include "lane/stream/stream_pipe.h"

enum {
    MESSAGE_BYTES = 4 << 20,
    OUTSTANDING = 8, /**< Messages that were sent and are not worked off: what lies in memory along the way. */
    CREDIT_BYTES = 8,
};

typedef struct message_pipe {
    wh_pipe base;
    wh_inbox *inbox;
    uint64_t tag; /**< Of what this end sends. */
    /* The source's: */
    uint8_t *packed;
    size_t packed_bytes;
    uint64_t sent;       /**< Messages. */
    uint64_t worked_off; /**< As the receiver says. */
    /* The receiver's: */
    wh_message message; /**< The one that is being read. */
    size_t used;        /**< So many of its bytes were. */
    uint64_t taken;     /**< Messages, that one included. */
} message_pipe;

/** Whether a message is one of the peer's. Others are none of this pipe's business, or tell that the peer is gone. */
static wherry_status sift(const wh_lane_site *site, const wh_message *message, bool *wanted_p, wherry_error *error) {
    *wanted_p = message->kind == WH_MESSAGE_BYTES && message->rank == site->peer;
    if (message->kind == WH_MESSAGE_LOST && message->rank == site->peer) {
        wherry_status status = wh_fail(error, WHERRY_PEER_LOST, "rank %d was lost: %.*s", (int)site->peer,
                                       (int)message->size, message->bytes ? (const char *)message->bytes : "");
        return wh_site_blame(site, status, error);
    }
    return WHERRY_OK;
}

/** Takes the next message of the peer. */
static wherry_status take(message_pipe *own, wh_message *message_p, wherry_error *error) {
    const wh_lane_site *site = own->base.site;
    wh_deadline patience = wh_site_patience(site);
    for (;;) {
        if (wh_stop_requested(site->stop)) {
            return wh_site_cancelled(error);
        }
        if (wh_deadline_passed(site->deadline)) {
            return wh_site_timed_out(site, error);
        }
        wh_deadline slice = wh_deadline_earlier(patience, wh_deadline_in_ms(WH_STOP_LOOK_MS));
        wherry_status status = wh_inbox_take(own->inbox, slice, message_p, error);
        if (status == WHERRY_OK) {
            bool wanted;
            status = sift(site, message_p, &wanted, error);
            if (status == WHERRY_OK && wanted) {
                return WHERRY_OK;
            }
            wh_message_clear(message_p);
        } else if (status == WHERRY_TIMED_OUT && !wh_deadline_passed(patience)) {
            status = WHERRY_OK;
        } else if (status == WHERRY_TIMED_OUT) {
            return wh_site_timed_out(site, error);
        }
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

/** Sends a message. */
static wherry_status send_message(const message_pipe *own, const void *bytes, size_t size, wherry_error *error) {
    const wh_lane_site *site = own->base.site;
    if (wh_stop_requested(site->stop)) {
        return wh_site_cancelled(error);
    }
    wherry_status status =
        wh_group_send_until(site->group, site->peer, own->tag, bytes, size, wh_site_patience(site), site->stop, error);
    return status == WHERRY_TIMED_OUT ? wh_site_timed_out(site, error) : wh_site_blame(site, status, error);
}

/** Waits for the receiver to have worked off enough. It may say any number at any time: only one that can be is believed. */
static wherry_status wait_for_room(message_pipe *own, wherry_error *error) {
    while (own->sent - own->worked_off >= OUTSTANDING) {
        wh_message message;
        wherry_status status = take(own, &message, error);
        if (status != WHERRY_OK) {
            return status;
        }
        uint64_t worked_off = message.size == CREDIT_BYTES ? wh_load_be64(message.bytes) : 0;
        wh_message_clear(&message);
        if (worked_off <= own->worked_off || worked_off > own->sent) {
            status = wh_fail(error, WHERRY_MALFORMED, "rank %d says that it has taken %llu messages of %llu",
                             (int)own->base.site->peer, (unsigned long long)worked_off, (unsigned long long)own->sent);
            return wh_site_blame(own->base.site, status, error);
        }
        own->worked_off = worked_off;
    }
    return WHERRY_OK;
}

static wherry_status message_flush(wh_pipe *pipe, wherry_error *error) {
    message_pipe *own = (message_pipe *)pipe;
    if (own->packed_bytes == 0) {
        return WHERRY_OK;
    }
    wherry_status status = wait_for_room(own, error);
    if (status == WHERRY_OK) {
        status = send_message(own, own->packed, own->packed_bytes, error);
    }
    if (status == WHERRY_OK) {
        own->sent++;
        own->packed_bytes = 0;
    }
    return status;
}

static wherry_status message_write(wh_pipe *pipe, struct iovec *segments, size_t count, wherry_error *error) {
    message_pipe *own = (message_pipe *)pipe;
    for (size_t i = 0; i < count; i++) {
        while (segments[i].iov_len) {
            size_t part = wh_min(MESSAGE_BYTES - own->packed_bytes, segments[i].iov_len);
            memcpy(own->packed + own->packed_bytes, segments[i].iov_base, part);
            own->packed_bytes += part;
            segments[i].iov_base = (char *)segments[i].iov_base + part;
            segments[i].iov_len -= part;
            wherry_status status = own->packed_bytes == MESSAGE_BYTES ? message_flush(pipe, error) : WHERRY_OK;
            if (status != WHERRY_OK) {
                return status;
            }
        }
    }
    return WHERRY_OK;
}

/** Takes the next message. The one before is told to be worked off only now: after the last one the source may be gone. */
static wherry_status next_message(message_pipe *own, wherry_error *error) {
    const wh_lane_site *site = own->base.site;
    wherry_status status = WHERRY_OK;
    wh_message_clear(&own->message);
    own->used = 0;
    if (own->taken) {
        uint8_t credit[CREDIT_BYTES];
        wh_store_be64(credit, own->taken);
        status = send_message(own, credit, sizeof(credit), error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    status = take(own, &own->message, error);
    if (status != WHERRY_OK) {
        own->message = (wh_message){.channel = -1};
        return status;
    }
    own->taken++;
    if (own->message.size == 0 || own->message.size > MESSAGE_BYTES) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d has sent a message of %zu bytes, which is not of this lane",
                         (int)site->peer, own->message.size);
        return wh_site_blame(site, status, error);
    }
    return WHERRY_OK;
}

static wherry_status message_read_some(wh_pipe *pipe, const struct iovec *segments, size_t count, size_t *got_p,
                                       wherry_error *error) {
    message_pipe *own = (message_pipe *)pipe;
    if (own->used == own->message.size) {
        wherry_status status = next_message(own, error);
        if (status != WHERRY_OK) {
            return status;
        }
    } else if (wh_stop_requested(pipe->site->stop)) {
        return wh_site_cancelled(error);
    }
    size_t got = 0;
    for (size_t i = 0; i < count && own->used < own->message.size; i++) {
        size_t part = wh_min(segments[i].iov_len, own->message.size - own->used);
        if (part) {
            memcpy(segments[i].iov_base, (const char *)own->message.bytes + own->used, part);
        }
        own->used += part;
        got += part;
    }
    *got_p = got;
    return WHERRY_OK;
}

static void message_close(wh_pipe *pipe) {
    message_pipe *own = (message_pipe *)pipe;
    wh_inbox_close(own->inbox);
    wh_message_clear(&own->message);
    wh_free(own->packed);
    wh_free(own);
}

wherry_status wh_pipe_over_messages(const wh_lane_site *site, uint64_t tag, bool source, wh_pipe **pipe_p,
                                    wherry_error *error) {
    static const wh_pipe_ops ops = {message_write, message_flush, message_read_some, message_close};
    message_pipe *own = wh_alloc_zeroed(1, sizeof(*own));
    if (!own) {
        return wh_fail_memory(error, "a lane");
    }
    /* A tag a direction, so that a rank may be its own peer. */
    own->base = (wh_pipe){&ops, site};
    own->tag = source ? tag : tag ^ 1;
    own->message.channel = -1;
    own->packed = source ? wh_alloc(MESSAGE_BYTES) : NULL;
    wherry_status status = source && !own->packed
                               ? wh_fail_memory(error, "a lane's messages")
                               : wh_inbox_open(site->group, source ? tag ^ 1 : tag, &own->inbox, error);
    if (status != WHERRY_OK) {
        message_close(&own->base);
        return status;
    }
    wh_group_watch(site->group, site->peer);
    *pipe_p = &own->base;
    return WHERRY_OK;
}
