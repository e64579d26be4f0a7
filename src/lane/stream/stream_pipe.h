/**
 * @file stream_pipe.h  A pipe: bytes in order from a source's worker to a receiver's. What frames travel over, whatever carries them.
 *
 * Two carriers: a channel of the group, where it has channels, else its messages. A pipe's calls end when the stop is requested
 * (WHERRY_CANCELLED), at the site's deadline and when the peer has moved no byte for too long (WHERRY_TIMED_OUT), and when the peer is lost
 * (WHERRY_PEER_LOST). One thread at a time.
 */
#ifndef WH_LANE_STREAM_PIPE_H
#define WH_LANE_STREAM_PIPE_H

#include "lane/site.h"

typedef struct wh_pipe wh_pipe;

typedef struct wh_pipe_ops {
    /** Writes all of the segments, which are changed on the way. */
    wherry_status (*write)(wh_pipe *pipe, struct iovec *segments, size_t count, wherry_error *error);

    /** Sends off what was written and lies here still. NULL: nothing ever does. */
    wherry_status (*flush)(wh_pipe *pipe, wherry_error *error);

    /** Reads what has come, at least a byte, waiting for it. @param got_p  how many bytes. */
    wherry_status (*read_some)(wh_pipe *pipe, const struct iovec *segments, size_t count, size_t *got_p,
                               wherry_error *error);

    void (*close)(wh_pipe *pipe);
} wh_pipe_ops;

/** What both kinds begin with. */
struct wh_pipe {
    const wh_pipe_ops *ops;
    const wh_lane_site *site;
};

/** A pipe that still lacks its channel. @return NULL where there is no memory. */
wh_pipe *wh_pipe_over_channel(const wh_lane_site *site);

/** Gives it its channel, which it closes from now on. Cannot fail. */
void wh_pipe_attach(wh_pipe *pipe, int channel);

/**
 * Either end of a pipe that is made of messages.
 * @param tag     of the bytes, picked by the receiver; the tag next to it is that of the way back.
 * @param source  this end writes.
 * @return WHERRY_OK; WHERRY_NO_MEMORY; WHERRY_INVALID_ARGUMENT for a tag that is in use or none of a conversation.
 */
wherry_status wh_pipe_over_messages(const wh_lane_site *site, uint64_t tag, bool source, wh_pipe **pipe_p,
                                    wherry_error *error);

#endif
