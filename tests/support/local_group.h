/**
 * @file local_group.h  A group within one process: ranks are threads, messages are copies in
 * memory.
 */
#ifndef WH_TESTS_LOCAL_GROUP_H
#define WH_TESTS_LOCAL_GROUP_H

#include "group/group.h"

/**
 * The place where the ranks of one group meet. It is freed when its creator has released it and the
 * last member has left.
 */
typedef struct wh_local_hub wh_local_hub;

/** @return NULL if there is no memory. */
wh_local_hub *wh_local_hub_create(int32_t size);

void wh_local_hub_release(wh_local_hub *hub);

/**
 * Joins as a rank. A present member with that rank is replaced: its calls return WHERRY_CLOSED.
 * @return NULL if there is no memory.
 */
wh_group *wh_local_join(wh_local_hub *hub, int32_t rank);

#endif
