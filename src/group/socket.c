#include "group/socket.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

static struct msghdr message_of(const struct iovec *pieces, size_t count) {
    return (struct msghdr){.msg_iov = (struct iovec *)pieces, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
}

ssize_t wh_socket_read(const wh_socket *socket, const struct iovec *pieces, size_t count) {
    struct msghdr message = message_of(pieces, count);
    return socket->tls ? wh_tls_read(socket->tls, pieces, count) : recvmsg(socket->fd, &message, 0);
}

ssize_t wh_socket_write(const wh_socket *socket, const struct iovec *pieces, size_t count) {
    struct msghdr message = message_of(pieces, count);
    return socket->tls ? wh_tls_write(socket->tls, pieces, count) : sendmsg(socket->fd, &message, MSG_NOSIGNAL);
}

int wh_socket_flush(const wh_socket *socket) {
    return socket->tls ? wh_tls_flush(socket->tls) : 0;
}

wherry_status wh_socket_fail(const wh_socket *socket, int errnum, const char *what, wherry_error *error) {
    wherry_error fault;
    if (socket->tls && wh_tls_fault(socket->tls, &fault)) {
        if (error) {
            *error = fault;
        }
        return fault.status;
    }
    return wh_fail_errno(error, WHERRY_PEER_LOST, errnum, "%s", what);
}

void wh_socket_close(wh_socket *socket) {
    if (socket->tls) {
        wh_tls_end(socket->tls);
        wh_tls_destroy(socket->tls);
    }
    if (socket->fd >= 0) {
        close(socket->fd);
    }
    *socket = WH_NO_SOCKET;
}
