#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "demo_control.h"

bool wh_demo_control_pair(int ends[2]) {
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
}

bool wh_demo_control_send(int end, const wh_demo_message *message) {
    ssize_t sent;
    do {
        sent = send(end, message, sizeof(*message), MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*message);
}

wh_demo_got wh_demo_control_receive(int end, int wait_ms, wh_demo_message *message) {
    struct pollfd ready = {.fd = end, .events = POLLIN};
    if (poll(&ready, 1, wait_ms) <= 0) {
        return WH_DEMO_GOT_NONE;
    }
    ssize_t got = recv(end, message, sizeof(*message), MSG_DONTWAIT);
    if (got == (ssize_t)sizeof(*message)) {
        message->text[WH_DEMO_TEXT_MAX - 1] = '\0';
        return WH_DEMO_GOT_ONE;
    }
    return got < 0 && (errno == EINTR || errno == EAGAIN) ? WH_DEMO_GOT_NONE : WH_DEMO_GOT_END;
}
