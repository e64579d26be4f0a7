/** @file sockets_place.h  Functions for a wh_group_kind: groups over sockets. */
#ifndef WH_TESTS_SOCKETS_PLACE_H
#define WH_TESTS_SOCKETS_PLACE_H

#include "group/group.h"

/** A Unix socket in a new folder; no secret. */
void *wh_open_unix_place(int32_t size);

/** A free port on loopback; with a secret. Everything goes over TCP. */
void *wh_open_tcp_place(int32_t size);

/** Like wh_open_tcp_place, with encrypt=all. */
void *wh_open_sealed_place(int32_t size);

/** Like wh_open_tcp_place, but the ranks use Unix sockets once they have met. */
void *wh_open_near_place(int32_t size);

wh_group *wh_join_place(void *place, int32_t rank);

/** Checks that no file is left. */
void wh_close_place(void *place);

#endif
