/**
 * @file socket.h  A connected socket, with TLS or without it. The code above it reads and writes in
 * the same way in both cases.
 *
 * A socket is a small value. The code that holds it must close it. One thread at a time may use a
 * socket with TLS; without TLS, one thread may read while another one writes.
 */
#ifndef WH_GROUP_SOCKET_H
#define WH_GROUP_SOCKET_H

#include "group/tls.h"

typedef struct wh_socket {
    int fd;      /**< -1: none. */
    wh_tls *tls; /**< NULL if the bytes are not encrypted. */
} wh_socket;

/** No socket. */
#define WH_NO_SOCKET ((wh_socket){.fd = -1})

/** Reads as recvmsg does, and as wh_tls_read. */
ssize_t wh_socket_read(const wh_socket *socket, const struct iovec *pieces, size_t count);

/** Writes as sendmsg does, and as wh_tls_write. Never raises SIGPIPE. */
ssize_t wh_socket_write(const wh_socket *socket, const struct iovec *pieces, size_t count);

/** Sends bytes that a former write has taken. @return 0 if none is left; -1 and errno. */
int wh_socket_flush(const wh_socket *socket);

/** True if bytes that a former write has taken wait to be sent. */
static inline bool wh_socket_unsent(const wh_socket *socket) {
    return socket->tls && wh_tls_unsent(socket->tls);
}

/** True if bytes have arrived that poll() does not report. */
static inline bool wh_socket_unread(const wh_socket *socket) {
    return socket->tls && wh_tls_unread(socket->tls);
}

/** True if the socket accepts bytes to write. During a handshake, it does not. */
static inline bool wh_socket_is_open(const wh_socket *socket) {
    return !socket->tls || wh_tls_is_open(socket->tls);
}

/**
 * Fills the error of a call that has failed with `errnum`. @return WHERRY_PEER_LOST, unless TLS
 * knows a better status (wh_tls_fault).
 */
wherry_status wh_socket_fail(const wh_socket *socket, int errnum, const char *what, wherry_error *error);

/** Tells the other side that nothing more follows, if possible. Then closes it. */
void wh_socket_close(wh_socket *socket);

#endif
