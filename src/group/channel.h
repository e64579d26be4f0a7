/**
 * @file channel.h  Reading and writing a channel: a stream of bytes between two ranks, opened by
 * wh_group_connect. Every call ends at its deadline, or as soon as the stop is requested. One
 * thread may read while another one writes.
 */
#ifndef WH_GROUP_CHANNEL_H
#define WH_GROUP_CHANNEL_H

#include <sys/uio.h>

#include "base/stop.h"

/**
 * Writes all of the segments.
 * @param segments  changed: what was written is cut off.
 * @return WHERRY_OK; WHERRY_PEER_LOST; WHERRY_TIMED_OUT; WHERRY_CANCELLED if the stop was
 * requested.
 */
wherry_status wh_channel_write(int channel, struct iovec *segments, size_t count, const wh_stop *stop,
                               wh_deadline deadline, wherry_error *error);

/**
 * Waits for at least one byte, and reads what has come.
 * @param got_p  how many bytes; 0 only if the segments are empty.
 * @return as wh_channel_write; the end of the stream is WHERRY_PEER_LOST.
 */
wherry_status wh_channel_read_some(int channel, const struct iovec *segments, size_t count, const wh_stop *stop,
                                   wh_deadline deadline, size_t *got_p, wherry_error *error);

#endif
