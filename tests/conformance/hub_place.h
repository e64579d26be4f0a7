/** @file hub_place.h  Groups whose members are threads of one test: the functions of a wh_group_kind, as those of sockets_place.h. */
#ifndef WH_TESTS_HUB_PLACE_H
#define WH_TESTS_HUB_PLACE_H

#include "group/group.h"

/** The group within one process. */
void *wh_open_local_place(int32_t size);
wh_group *wh_join_local_place(void *place, int32_t rank);
void wh_close_local_place(void *place);

/**
 * Over a table that can do everything, blocks included; and over one whose calls do not overlap, that notices no death and to which nobody comes back, but that
 * moves blocks. In between, one that takes blocks in parts, and as runs.
 */
void *wh_open_table_place(int32_t size);
void *wh_open_parts_place(int32_t size);
void *wh_open_plain_place(int32_t size);

/** As the first and the last of these, without put and get: the library moves blocks over send and receive. */
void *wh_open_bare_place(int32_t size);
void *wh_open_bare_plain_place(int32_t size);

/** Over whatever callback_hub_open gave. */
wh_group *wh_join_table_place(void *place, int32_t rank);
void wh_close_table_place(void *place);

#endif
