/* A pipe over a channel of the group. */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "group/channel.h"
#include "lane/stream/stream_pipe.h"

enum { SLICE_US = 20000 };

typedef struct channel_pipe {
    wh_pipe base;
    int channel;
} channel_pipe;

static uint64_t bytes_of(const struct iovec *segments, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += segments[i].iov_len;
    }
    return bytes;
}

/** A peer that is slow but moves bytes goes on: only what is left after the patience tells whether it did. */
static wherry_status channel_write(wh_pipe *pipe, struct iovec *segments, size_t count, wherry_error *error) {
    const channel_pipe *own = (channel_pipe *)pipe;
    const wh_lane_site *site = pipe->site;
    uint64_t left = bytes_of(segments, count);
    for (;;) {
        wherry_status status =
            wh_channel_write(own->channel, segments, count, site->stop, wh_site_patience(site), error);
        if (status != WHERRY_TIMED_OUT) {
            return wh_site_blame(site, status, error);
        }
        uint64_t before = left;
        left = bytes_of(segments, count);
        if (left == before || wh_deadline_passed(site->deadline)) {
            return wh_site_timed_out(site, error);
        }
    }
}

static wherry_status channel_read_some(wh_pipe *pipe, const struct iovec *segments, size_t count, size_t *got_p,
                                       wherry_error *error) {
    const channel_pipe *own = (channel_pipe *)pipe;
    const wh_lane_site *site = pipe->site;
    if (wh_deadline_passed(site->deadline)) {
        return wh_site_timed_out(site, error);
    }
    wherry_status status =
        wh_channel_read_some(own->channel, segments, count, site->stop, wh_site_patience(site), got_p, error);
    return status == WHERRY_TIMED_OUT ? wh_site_timed_out(site, error) : wh_site_blame(site, status, error);
}

static void channel_close(wh_pipe *pipe) {
    const channel_pipe *own = (channel_pipe *)pipe;
    if (own->channel >= 0) {
        close(own->channel);
    }
    wh_free(pipe);
}

wh_pipe *wh_pipe_over_channel(const wh_lane_site *site) {
    static const wh_pipe_ops ops = {channel_write, NULL, channel_read_some, channel_close};
    channel_pipe *own = wh_alloc(sizeof(*own));
    if (!own) {
        return NULL;
    }
    *own = (channel_pipe){{&ops, site}, -1};
    return &own->base;
}

/**
 * Lets the kernel wait within a call, for a slice of time. Reader and writer hand over to each other much faster so than by poll(), up to twice on Unix
 * sockets. The stop is looked at after each slice. Where the limits cannot be set the channel stays one that never blocks, which works as well.
 */
static void wait_in_kernel(int channel) {
    struct timeval slice = {0, SLICE_US};
    int flags = fcntl(channel, F_GETFL);
    if (flags >= 0 && setsockopt(channel, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) == 0 &&
        setsockopt(channel, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof(slice)) == 0) {
        (void)fcntl(channel, F_SETFL, flags & ~O_NONBLOCK);
    }
}

void wh_pipe_attach(wh_pipe *pipe, int channel) {
    ((channel_pipe *)pipe)->channel = channel;
    wait_in_kernel(channel);
    /* The end of a round is a few bytes, which must not wait for an acknowledgement. Sockets of other kinds refuse it. */
    int on = 1;
    (void)setsockopt(channel, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}
