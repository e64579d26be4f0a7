/** @file stream_dial.h  Opening the channels of a pair, all at once. */
#ifndef WH_LANE_STREAM_DIAL_H
#define WH_LANE_STREAM_DIAL_H

#include "lane/site.h"

enum { WH_STREAM_CHANNELS_MAX = 4 };

/**
 * Opens up to `wanted` channels, 1 to WH_STREAM_CHANNELS_MAX. Each takes a few round trips, which is long where the peer is far away; so they are opened
 * at once. Where one can be opened the others are a matter of speed alone.
 * @param channels  the caller's to close, as many as were opened.
 * @return WHERRY_OK where at least one was; else as wh_group_connect of the first, and *opened_p is 0.
 */
wherry_status wh_stream_dial(const wh_lane_site *site, uint32_t wanted, int *channels, uint32_t *opened_p,
                             wherry_error *error);

#endif
