/** @file site.h  What lanes have to do with a site: which device, how long to wait, and what to say when it does not get on. */
#ifndef WH_LANE_SITE_H
#define WH_LANE_SITE_H

#include "lane/lane.h"

/** The first CUDA device that has some of the memory, or gets some; -1: none. */
int32_t wh_site_device(const wh_lane_site *site);

/** When a peer that moves no byte from now on is given up. */
wh_deadline wh_site_patience(const wh_lane_site *site);

/** WHERRY_TIMED_OUT, in words that say which limit it was. */
wherry_status wh_site_timed_out(const wh_lane_site *site, wherry_error *error);

/** WHERRY_UNSUPPORTED with the reason WHERRY_LANE_OTHER_HOST, for lanes within one host. */
wherry_status wh_site_other_host(const wh_lane_site *site, wherry_error *error);

/** WHERRY_CANCELLED: the stop was requested. */
wherry_status wh_site_cancelled(wherry_error *error);

/** Says in an error that it is about the peer, unless it is this side that stopped. @return status. */
wherry_status wh_site_blame(const wh_lane_site *site, wherry_status status, wherry_error *error);

#endif
