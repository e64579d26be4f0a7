#include "group/channel.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

static wherry_status cancelled(wherry_error *error) {
    return wh_fail(error, WHERRY_CANCELLED, "a channel's work was stopped");
}

/*
 * The calls do not say MSG_DONTWAIT: a channel never blocks as it comes from the group, and whoever moves much over it may let the kernel wait for a short
 * while instead (SO_RCVTIMEO, SO_SNDTIMEO). That too ends with EAGAIN.
 */

/** What came of a call that moved no byte: waits where it would have blocked, else says why it failed. */
static wherry_status wait_or_fail(int channel, short events, int errnum, const wh_stop *stop, wh_deadline deadline,
                                  wherry_error *error) {
    switch (errnum) {
    case EINTR:
        return WHERRY_OK;
    case EAGAIN:
        /* A peer that gives a byte now and then must not carry a call beyond its deadline: it counts before readiness. */
        if (wh_deadline_passed(deadline)) {
            return wh_fail(error, WHERRY_TIMED_OUT, "timed out %s a channel; the other side is slow or stopped",
                           events == POLLIN ? "reading from" : "writing to");
        }
        wh_stop_wait_fd(stop, channel, events, deadline);
        return wh_stop_requested(stop) ? cancelled(error) : WHERRY_OK;
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EHOSTDOWN:
        return wh_fail_errno(error, WHERRY_PEER_LOST, errnum, "a channel to the peer was lost");
    default:
        return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot %s a channel",
                             events == POLLIN ? "read from" : "write to");
    }
}

/** Passes over what is empty. */
static void skip_empty(struct iovec **segments, size_t *count) {
    while (*count && (*segments)->iov_len == 0) {
        ++*segments;
        --*count;
    }
}

/** Cuts off what was moved. */
static void cut(struct iovec **segments, size_t *count, size_t moved) {
    while (moved && moved >= (*segments)->iov_len) {
        moved -= (*segments)->iov_len;
        (*segments)->iov_base = (char *)(*segments)->iov_base + (*segments)->iov_len;
        (*segments)->iov_len = 0;
        ++*segments;
        --*count;
    }
    if (moved) {
        (*segments)->iov_base = (char *)(*segments)->iov_base + moved;
        (*segments)->iov_len -= moved;
    }
    skip_empty(segments, count);
}

static struct msghdr message_of(const struct iovec *segments, size_t count) {
    return (struct msghdr){.msg_iov = (struct iovec *)segments, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
}

wherry_status wh_channel_write(int channel, struct iovec *segments, size_t count, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    skip_empty(&segments, &count);
    while (status == WHERRY_OK && count) {
        if (wh_stop_requested(stop)) {
            return cancelled(error);
        }
        struct msghdr message = message_of(segments, count);
        ssize_t moved = sendmsg(channel, &message, MSG_NOSIGNAL);
        int errnum = moved < 0 ? errno : EAGAIN;
        cut(&segments, &count, moved > 0 ? (size_t)moved : 0);
        /* Also behind a part of it: a slow peer takes some at each call, and none of them would ever have to wait. */
        if (count) {
            status = wait_or_fail(channel, POLLOUT, errnum, stop, deadline, error);
        }
    }
    return status;
}

wherry_status wh_channel_read_some(int channel, const struct iovec *segments, size_t count, const wh_stop *stop,
                                   wh_deadline deadline, size_t *got_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    /* A vector that begins with as many empty runs as a call takes would read nothing, as at the end of the stream. */
    while (count && segments->iov_len == 0) {
        segments++;
        count--;
    }
    if (count == 0) {
        *got_p = 0;
        return WHERRY_OK;
    }
    while (status == WHERRY_OK) {
        if (wh_stop_requested(stop)) {
            return cancelled(error);
        }
        struct msghdr message = message_of(segments, count);
        ssize_t moved = recvmsg(channel, &message, 0);
        if (moved > 0) {
            *got_p = (size_t)moved;
            return WHERRY_OK;
        }
        if (moved == 0) {
            return wh_fail(error, WHERRY_PEER_LOST, "the peer has closed a channel before all had come over it");
        }
        status = wait_or_fail(channel, POLLIN, errno, stop, deadline, error);
    }
    return status;
}
