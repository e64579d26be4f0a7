/**
 * @file ucx_pool.h  Stations of earlier transfers, kept with their connections: making one takes about 6 ms, and connecting some round trips.
 *
 * No two workers are ever connected twice: UCX counts the connections between two workers at both sides, and where one side was not there for one of them they
 * never match again. So a source uses a station for one peer's station alone, for as long as the connection holds.
 *
 * A fork must find nothing of UCX in the process, since its threads and its sockets do not survive one: what is kept is released before, where no transfer is
 * under way. Where one is, or where UCX is others' too, the child has no UCX.
 */
#ifndef WH_LANE_UCX_POOL_H
#define WH_LANE_UCX_POOL_H

#include "lane/ucx/ucx_station.h"

/**
 * @param peer_id   SOURCE: the receiver's station; one that is connected with it is taken, else it is a new one. RECEIVER: NULL, any that a receiver
 *                  used before.
 * @param long_segments  as both sides have agreed.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED where there is no UCX or it finds nothing to talk over, with the reason; WHERRY_NO_MEMORY, WHERRY_SYSTEM. May take some
 * milliseconds. Any thread.
 */
wherry_status wh_ucx_station_take(const uint8_t *peer_id, bool long_segments, wh_ucx_station **station_p,
                                  wherry_error *error);

/** Gives a station back, which is kept where it is clean. NULL is allowed. Any thread. */
void wh_ucx_station_give(wh_ucx_station *station);

#endif
