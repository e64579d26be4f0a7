/**
 * @file resolver.h  Names of hosts to addresses, which may take as long as it likes: each question
 * has a thread of its own, that nobody has to wait for.
 */
#ifndef WH_GROUP_SOCKETS_RESOLVER_H
#define WH_GROUP_SOCKETS_RESOLVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/clock.h"

/** A socket address of any family. */
typedef struct wh_socket_address {
    struct sockaddr_storage storage;
    socklen_t size; /**< 0: not known. */
} wh_socket_address;

/** Whether an address is a Unix socket or on this host's loopback, out of reach of other hosts. */
bool wh_is_private(const wh_socket_address *at);

/** A question that is under way. */
typedef struct wh_question wh_question;

/** Reads an address that is written in numbers. @return false for names. */
bool wh_resolve_numbers(const char *host, uint16_t port, wh_socket_address *result);

/** Asks for a name. @return NULL where there is no memory or thread. */
wh_question *wh_resolve_begin(const char *host, uint16_t port);

/**
 * Waits for the answer until a deadline, which may have passed.
 * @param result  its size is 0 where the name is not known.
 * @return false where there is none yet.
 */
bool wh_resolve_wait(wh_question *question, wh_deadline deadline, wh_socket_address *result);

/** Gives a question up, answered or not. question may be NULL. */
void wh_resolve_end(wh_question *question);

#endif
