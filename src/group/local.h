/**
 * @file local.h  A group within one process: ranks are threads, messages are copies in memory. For tests of everything that stands on a group.
 */
#ifndef WH_GROUP_LOCAL_H
#define WH_GROUP_LOCAL_H

#include "group/group.h"

/** Where the ranks of one group meet. Lives until it is released and the last member has left. */
typedef struct wh_local_hub wh_local_hub;

/** @return NULL where there is no memory. */
wh_local_hub *wh_local_hub_create(int32_t size);

void wh_local_hub_release(wh_local_hub *hub);

/**
 * Joins as a rank. One that is there already is replaced: from now on it is a former incarnation, and its calls answer WHERRY_CLOSED.
 * @return NULL where there is no memory.
 */
wh_group *wh_local_join(wh_local_hub *hub, int32_t rank);

#endif
