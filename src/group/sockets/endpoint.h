/**
 * @file endpoint.h  Sockets that listen and sockets that connect, TCP and Unix. None of them
 * blocks.
 */
#ifndef WH_GROUP_SOCKETS_ENDPOINT_H
#define WH_GROUP_SOCKETS_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "group/address.h"

/** A socket address of any family. */
typedef struct wh_socket_address {
    struct sockaddr_storage storage;
    socklen_t size; /**< 0: not known. */
} wh_socket_address;

/**
 * True if the process at the other end of a Unix socket belongs to this user, or if nobody can
 * tell: in a user namespace, users of other namespaces read as 65534.
 */
bool wh_is_same_user(int fd);

/** True for a Unix socket and for an address on loopback: other hosts cannot reach them. */
bool wh_is_private(const wh_socket_address *at);

/** A query that resolves a name. */
typedef struct wh_question wh_question;

/** Parses a numeric address. @return false for a name. */
bool wh_resolve_numbers(const char *host, uint16_t port, wh_socket_address *result);

/**
 * Starts to resolve a name in a thread. @return NULL if out of memory, or if no thread can be
 * started.
 */
wh_question *wh_resolve_begin(const char *host, uint16_t port);

/**
 * Waits for the result until a deadline, which may be in the past.
 * @param result  its size is 0 if the name is unknown.
 * @return false if there is no result yet.
 */
bool wh_resolve_wait(wh_question *question, wh_deadline deadline, wh_socket_address *result);

/** Gives a query up, with or without a result. question may be NULL. */
void wh_resolve_end(wh_question *question);

/** Size of the text of an address: "unix:/path", "10.0.0.7:4711", "[fe80::1%eth0]:4711". */
#define WH_PLACE_MAX 257

/** The address of a meeting point for this process: where it listens or connects. */
const wh_endpoint *wh_meeting_endpoint(const wh_group_address *address, size_t number);

/**
 * The address of a meeting point, if it is known without a resolver. @return false for a host name.
 */
bool wh_meeting_address(const wh_group_address *address, size_t number, wh_socket_address *result);

/**
 * Listens at a meeting point, if it is on this host and nobody listens there. For a Unix socket, it
 * locks the file PATH.lock. Only the holder of the lock may touch the socket.
 * @param lock_p  UNIX: receives the descriptor that holds the lock.
 * @return the socket, or -1 and errno.
 */
int wh_meeting_listen(const wh_group_address *address, const wh_socket_address *at, int *lock_p);

/**
 * Removes the sockets of env:// groups that killed processes of this user have left in a folder, or
 * only counts them. wh_meeting_listen does the same for the folder where it listens.
 */
size_t wh_leftovers_clean(const char *folder, bool remove);

/** Fails if the path of a meeting point is a file that is not a socket. */
wherry_status wh_meeting_check(const wh_group_address *address, wherry_error *error);

/** Stops listening, and removes the socket and the lock. */
void wh_meeting_unlisten(const wh_group_address *address, int listener, int lock);

/** True if an address is an address of this host. */
bool wh_is_here(const wh_socket_address *at);

/**
 * Listens where the other ranks can reach this one, at a port that the system chooses.
 * @param to          the first meeting point.
 * @param stays_here  it is on loopback, and so must be this socket: WHERRY_INTERFACE does not count
 *                    if it leads elsewhere.
 * @param place       receives the address for the other ranks: the one from which the system
 *                    reaches the first meeting point, or that of the interface named by
 *                    WHERRY_INTERFACE.
 */
wherry_status wh_member_listen(const wh_group_address *address, const wh_socket_address *to, bool stays_here,
                               uint64_t incarnation, int *socket_p, char place[WH_PLACE_MAX], wherry_error *error);

/**
 * Begins to connect to a meeting point, or to a place from wh_member_listen. @return the socket, or
 * -1 and errno. EAGAIN: the listener's queue is full, so try again.
 */
int wh_dial(const wh_socket_address *to);
int wh_dial_place(const char *place);

/** Copies the host of a place: the text before the port, without brackets. @return host. */
const char *wh_place_host(const char *place, char host[WH_PLACE_MAX]);

/** Listens at an address. @return the socket, or -1 and errno. */
int wh_listen(const wh_socket_address *at);

/** Writes an address as text in numbers. @return false if it has none or needs more room. */
bool wh_place_text(const wh_socket_address *at, char place[WH_PLACE_MAX]);

/** The port on which a socket listens, which the system has chosen if it was 0. */
bool wh_listener_port(int listener, uint16_t *port_p);
void wh_set_port(wh_socket_address *at, uint16_t port);

/** Accepts a connection. @return the socket, or -1. */
int wh_accept(int listener);

/**
 * True if the system has a route to this address. This does not tell whether a process listens
 * there.
 */
bool wh_has_way(const wh_socket_address *to);

/**
 * Replaces a TCP address by the one at which other hosts reach this one: that of the interface
 * WHERRY_INTERFACE, otherwise that of the default route.
 * @return false, and no change, if this host has only loopback in that address family.
 */
bool wh_turn_outward(wh_socket_address *at, uint16_t port);

/** Removes the file of a Unix socket. Does nothing for TCP. */
void wh_place_remove(const char *place);

/** Writes a meeting point as text for error messages. @return text. */
const char *wh_meeting_text(const wh_group_address *address, size_t number, char text[WH_PLACE_MAX]);

#endif
