/**
 * @file hub_place.h  Functions for a wh_group_kind: groups whose members are threads of the test.
 */
#ifndef WH_TESTS_HUB_PLACE_H
#define WH_TESTS_HUB_PLACE_H

#include "group/group.h"

/** The group of support/local_group.h. */
void *wh_open_local_place(int32_t size);
wh_group *wh_join_local_place(void *place, int32_t rank);
void wh_close_local_place(void *place);

/**
 * Callback groups. table: all features. parts: also takes blocks in parts and as runs. plain: calls
 * must not overlap, deaths are not noticed and no rank comes back; it moves blocks.
 */
void *wh_open_table_place(int32_t size);
void *wh_open_parts_place(int32_t size);
void *wh_open_plain_place(int32_t size);

/**
 * Like table and plain, but without put and get: the library moves blocks with send and receive.
 */
void *wh_open_bare_place(int32_t size);
void *wh_open_bare_plain_place(int32_t size);

/** Works for all callback groups. */
wh_group *wh_join_table_place(void *place, int32_t rank);
void wh_close_table_place(void *place);

#endif
