/** @file endpoint.h  Sockets that listen, and sockets that dial: TCP and Unix, none of which ever blocks. */
#ifndef WH_GROUP_SOCKETS_ENDPOINT_H
#define WH_GROUP_SOCKETS_ENDPOINT_H

#include <stdbool.h>

#include "group/address.h"

/** Bytes that the text of an address needs: "unix:/path", "10.0.0.7:4711", "[fe80::1%eth0]:4711". */
#define WH_PLACE_MAX 257

/**
 * Listens at a meeting point, where it is on this host and nobody else does.
 * @param lock_p  UNIX: a file that says who listens, held open for as long as the socket; -1 otherwise.
 * @return the socket, or -1 where this process is not the one to listen there.
 */
int wh_meeting_listen(const wh_group_address *address, size_t number, int *lock_p);

/**
 * Listens where the other ranks can dial this one, at a port of the system's choice.
 * @param place  receives the address that they are told: the one that the way to the first meeting point leaves from, or that of the interface
 *               named by WHERRY_INTERFACE.
 */
wherry_status wh_member_listen(const wh_group_address *address, uint64_t incarnation, int *socket_p,
                               char place[WH_PLACE_MAX], wherry_error *error);

/** Begins to connect to a meeting point, or to a place that wh_member_listen gave. @return the socket, or -1 and errno. */
int wh_dial_meeting(const wh_group_address *address, size_t number);
int wh_dial_place(const char *place);

/** Accepts a connection. @return the socket, or -1. */
int wh_accept(int listener);

/** Whether every meeting point is a Unix socket or on this host's loopback, out of reach of other hosts. */
bool wh_meeting_is_private(const wh_group_address *address);

/** Removes the name of a Unix socket from the file system; nothing for TCP. */
void wh_place_remove(const char *place);

/** Writes a meeting point for people. @return text. */
const char *wh_meeting_text(const wh_group_address *address, size_t number, char text[WH_PLACE_MAX]);

#endif
