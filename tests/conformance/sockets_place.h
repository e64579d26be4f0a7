/** @file sockets_place.h  Where the members of a sockets group meet in tests: the functions of a wh_group_kind. */
#ifndef WH_TESTS_SOCKETS_PLACE_H
#define WH_TESTS_SOCKETS_PLACE_H

#include "group/group.h"

/** A folder of its own with a Unix socket; no secret. */
void *wh_open_unix_place(int32_t size);

/** A free port of the loopback; with a secret. All goes over TCP. */
void *wh_open_tcp_place(int32_t size);

/** The same, and the ranks, which share a host, talk over Unix sockets when they have met. */
void *wh_open_near_place(int32_t size);

wh_group *wh_join_place(void *place, int32_t rank);

/** Nothing may be left behind. */
void wh_close_place(void *place);

#endif
