/* Reads and writes channels. */
#include "group/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>

#include "base/error.h"

static wherry_status cancelled(wherry_error *error) {
    return wh_fail(error, WHERRY_CANCELLED, "reading or writing a channel was cancelled");
}

/*
 * The system calls do not pass MSG_DONTWAIT. A channel is non-blocking when the group opens it, but
 * its user may make it blocking with a short timeout (SO_RCVTIMEO, SO_SNDTIMEO). In both cases, a
 * call that moves nothing ends with EAGAIN.
 */

/**
 * Handles a system call that moved no bytes, or not all of them. Waits if the channel was not
 * ready. Does nothing if a signal interrupted the call. Fails in all other cases.
 */
static wherry_status wait_or_fail(const wh_socket *channel, short events, int errnum, const wh_stop *stop,
                                  wh_deadline deadline, wherry_error *error) {
    switch (errnum) {
    case EINTR:
        return WHERRY_OK;
    case EAGAIN:
        /* Checked before the wait, because a slow peer must not extend the deadline. */
        if (wh_deadline_passed(deadline)) {
            return wh_fail(error, WHERRY_TIMED_OUT, "timed out %s a channel; the peer may be slow or stopped",
                           events == POLLIN ? "reading from" : "writing to");
        }
        wh_stop_wait_fd(stop, channel->fd, events, deadline);
        return wh_stop_requested(stop) ? cancelled(error) : WHERRY_OK;
    case EPROTO:
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
        return wh_socket_fail(channel, errnum, "the connection of a channel was lost", error);
    default:
        return wh_fail_errno(error, WHERRY_SYSTEM, errnum, "cannot %s a channel",
                             events == POLLIN ? "read from" : "write to");
    }
}

/** Removes `moved` bytes and empty segments from the beginning of the list. */
static void cut(struct iovec **segments, size_t *count, size_t moved) {
    while (*count && moved >= (*segments)->iov_len) {
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
}

wherry_status wh_channel_write(const wh_socket *channel, struct iovec *segments, size_t count, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    cut(&segments, &count, 0);
    while (status == WHERRY_OK && (count || wh_socket_unsent(channel))) {
        if (wh_stop_requested(stop)) {
            return cancelled(error);
        }
        ssize_t moved = count ? wh_socket_write(channel, segments, count) : wh_socket_flush(channel);
        int errnum = moved < 0 ? errno : EAGAIN;
        cut(&segments, &count, moved > 0 ? (size_t)moved : 0);
        /*
         * Wait also after a partial write, because the wait checks the deadline. A slow peer may
         * cause many partial writes.
         */
        if (count || wh_socket_unsent(channel)) {
            status = wait_or_fail(channel, POLLOUT, errnum, stop, deadline, error);
        }
    }
    return status;
}

wherry_status wh_channel_read_some(const wh_socket *channel, const struct iovec *segments, size_t count,
                                   const wh_stop *stop, wh_deadline deadline, size_t *got_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    /* If all segments were empty, recvmsg would return 0, as it does at the end of the stream. */
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
        ssize_t moved = wh_socket_read(channel, segments, count);
        if (moved > 0) {
            *got_p = (size_t)moved;
            return WHERRY_OK;
        }
        if (moved == 0) {
            return wh_fail(error, WHERRY_PEER_LOST, "the peer closed a channel before all bytes had arrived");
        }
        status = wait_or_fail(channel, POLLIN, errno, stop, deadline, error);
    }
    return status;
}
