/**
 * @file endpoint.h  Sockets that listen, and sockets that dial: TCP and Unix, none of which ever
 * blocks.
 */
#ifndef WH_GROUP_SOCKETS_ENDPOINT_H
#define WH_GROUP_SOCKETS_ENDPOINT_H

#include <stdbool.h>
#include <sys/types.h>

#include "group/address.h"
#include "group/sockets/resolver.h"

/**
 * Bytes that the text of an address needs: "unix:/path", "10.0.0.7:4711", "[fe80::1%eth0]:4711".
 */
#define WH_PLACE_MAX 257

/** Which file the name of a Unix socket led to when it was made. */
typedef struct wh_name {
    dev_t device;
    ino_t file;
} wh_name;

/** Where a meeting point is, if no resolver need be asked. @return false for names of hosts. */
bool wh_meeting_address(const wh_group_address *address, size_t number, wh_socket_address *result);

/**
 * Listens at a meeting point, where it is on this host.
 * @param take_over  also where somebody else listens there, who does not answer. Of a Unix socket
 * the name is taken away from it; a TCP port is shared with it, so that whoever dials there finds
 * the one or the other.
 * @param name       UNIX: receives what wh_meeting_is_ours asks for.
 * @return the socket, or -1 where this process is not the one to listen there.
 */
int wh_meeting_listen(const wh_group_address *address, const wh_socket_address *at, bool take_over, wh_name *name);

/**
 * Whether whoever dials a meeting point still finds the socket that wh_meeting_listen made there.
 */
bool wh_meeting_is_ours(const wh_group_address *address, const wh_name *name);

/**
 * Listens where the other ranks can dial this one, at a port of the system's choice.
 * @param to     the first meeting point.
 * @param place  receives the address that they are told: the one that the way to the first meeting
 * point leaves from, or that of the interface named by WHERRY_INTERFACE.
 */
wherry_status wh_member_listen(const wh_group_address *address, const wh_socket_address *to, uint64_t incarnation,
                               int *socket_p, char place[WH_PLACE_MAX], wherry_error *error);

/**
 * Begins to connect to a meeting point, or to a place that wh_member_listen gave. @return the
 * socket, or -1 and errno: EAGAIN where so many knock there that it is to be tried again.
 */
int wh_dial(const wh_socket_address *to);
int wh_dial_place(const char *place);

/** Listens at an address. @return the socket, or -1 and errno. */
int wh_listen(const wh_socket_address *at);

/** The port of an address, which one that is listened at has from the system where it was 0. */
bool wh_listener_port(int listener, uint16_t *port_p);
void wh_set_port(wh_socket_address *at, uint16_t port);

/** Accepts a connection. @return the socket, or -1. */
int wh_accept(int listener);

/** Whether the system knows a way there. That somebody is there it does not tell. */
bool wh_has_way(const wh_socket_address *to);

/**
 * Replaces a TCP address by that at which other hosts reach this one: of the interface that
 * WHERRY_INTERFACE names, else of the default route.
 * @return false, and nothing is changed, where there is none of the same family but loopback.
 */
bool wh_turn_outward(wh_socket_address *at, uint16_t port);

/** Removes the name of a Unix socket from the file system; nothing for TCP. */
void wh_place_remove(const char *place);

/** Writes a meeting point for people. @return text. */
const char *wh_meeting_text(const wh_group_address *address, size_t number, char text[WH_PLACE_MAX]);

#endif
