/**
 * @file channel.h  Reads and writes a channel: a stream of bytes between two ranks, opened with
 * wh_group_connect. Every call ends at its deadline, or soon after a stop request. socket.h says
 * which threads may use it at once.
 */
#ifndef WH_GROUP_CHANNEL_H
#define WH_GROUP_CHANNEL_H

#include <sys/uio.h>

#include "base/stop.h"
#include "group/socket.h"

/**
 * Writes all of the segments.
 * @param segments  bytes that were written are removed from the list, also on failure.
 * @return WHERRY_OK; WHERRY_PEER_LOST; WHERRY_TIMED_OUT; WHERRY_CANCELLED after a stop request;
 * WHERRY_CORRUPT if bytes were altered on their way (only with TLS); WHERRY_SYSTEM.
 */
wherry_status wh_channel_write(const wh_socket *channel, struct iovec *segments, size_t count, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error);

/**
 * Waits for at least one byte, and reads all bytes that have arrived and fit.
 * @param got_p  the number of bytes read; 0 only if the segments are empty.
 * @return as wh_channel_write. At the end of the stream, WHERRY_PEER_LOST.
 */
wherry_status wh_channel_read_some(const wh_socket *channel, const struct iovec *segments, size_t count,
                                   const wh_stop *stop, wh_deadline deadline, size_t *got_p, wherry_error *error);

#endif
