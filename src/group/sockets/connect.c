/*
 * Opening a channel. The calling thread itself dials, greets and asks for the inbox. It never holds
 * the group's lock while it waits. The progress thread has no part in it.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/bytes.h"
#include "base/error.h"
#include "group/sockets/internal.h"

enum {
    /** How often a waiting thread checks whether the rank was lost, or a stop was requested. */
    LOOK_MS = 100,
    KNOCK_MS = 2, /**< Pause before the next try if the listener's queue is full. */
};

/** A channel that is being opened. */
typedef struct attempt {
    wh_sockets *sockets;
    int32_t rank;
    const char *place;
    uint64_t incarnation;
    uint64_t failures; /**< The number of failures of the member at the start. */
    wh_deadline deadline;
    const wh_stop *stop; /**< May be NULL. */
    wh_tls_context *tls; /**< NULL: the group has no TLS. Holds a reference. */
    bool has_ticket;     /**< The rank has given a key of tickets, and clear text is allowed. */
    wh_group_key ticket; /**< `proof` is that key, and `id` the number of a ticket. */
    wh_socket socket;
    wherry_error *error;
} attempt;

static wherry_status lost(const attempt *a, const char *reason) {
    return wh_fail_rank(a->error, a->rank,
                        wh_fail(a->error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)a->rank, reason));
}

/** Length of the address as messages show it, without the shortcut. */
static int place_length(const attempt *a) {
    return (int)strcspn(a->place, ";");
}

/** No route leads to the rank's place. Its address may be valid only in another network. */
static wherry_status unreachable(const attempt *a, int errnum) {
    return wh_fail_rank(a->error, a->rank,
                        wh_fail(a->error, WHERRY_PEER_LOST,
                                "rank %d: lost: no connection to it at %.*s: %s; if that is the wrong network, set "
                                "WHERRY_INTERFACE to the right one",
                                (int)a->rank, place_length(a), a->place, strerror(errnum)));
}

/** Checks whether it is useful to continue. */
static wherry_status look(const attempt *a) {
    wh_sockets *sockets = a->sockets;
    wherry_status status = WHERRY_OK;
    char reason[sizeof(sockets->members->reason)];
    pthread_mutex_lock(&sockets->lock);
    const wh_member *member = sockets->members + a->rank;
    bool fenced = sockets->fenced;
    bool failed = member->failures != a->failures || member->incarnation != a->incarnation;
    snprintf(reason, sizeof(reason), "%s",
             member->incarnation != a->incarnation ? "it has started anew" : member->reason);
    pthread_mutex_unlock(&sockets->lock);
    if (fenced) {
        status = wh_fail(a->error, WHERRY_CLOSED, "another incarnation of rank %d has taken this one's place",
                         (int)sockets->base.rank);
    } else if (a->stop && wh_stop_requested(a->stop)) {
        status = wh_fail(a->error, WHERRY_CANCELLED, "opening a channel was stopped");
    } else if (failed) {
        status = lost(a, reason);
    } else if (wh_deadline_passed(a->deadline)) {
        status = wh_fail_rank(a->error, a->rank,
                              wh_fail(a->error, WHERRY_TIMED_OUT, "rank %d: timed out opening a channel to %.*s",
                                      (int)a->rank, place_length(a), a->place));
    }
    return status;
}

/** Waits until the socket is ready. */
static wherry_status wait_for(const attempt *a, short events) {
    for (;;) {
        struct pollfd at = {a->socket.fd, events, 0};
        wh_deadline slice = wh_deadline_earlier(a->deadline, wh_deadline_in_ms(LOOK_MS));
        if (poll(&at, 1, wh_deadline_poll_ms(slice)) > 0) {
            return WHERRY_OK;
        }
        wherry_status status = look(a);
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

static wherry_status fail_socket(const attempt *a, int errnum) {
    wherry_error fault;
    wherry_status status = wh_socket_fail(&a->socket, errnum, "", &fault);
    return status == WHERRY_PEER_LOST
               ? lost(a, strerror(errnum))
               : wh_fail_rank(a->error, a->rank, wh_fail(a->error, status, "rank %d: %s", (int)a->rank, fault.message));
}

/** Sends the encrypted bytes that the socket has accepted. */
static wherry_status flush(const attempt *a) {
    while (wh_socket_flush(&a->socket) < 0) {
        if (!wh_is_for_later(errno)) {
            return fail_socket(a, errno);
        }
        WH_TRY(wait_for(a, POLLOUT));
    }
    return WHERRY_OK;
}

static wherry_status write_all(const attempt *a, const uint8_t *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        struct iovec rest = {(void *)(bytes + done), size - done};
        ssize_t sent = wh_socket_write(&a->socket, &rest, 1);
        if (sent < 0 && !wh_is_for_later(errno)) {
            return fail_socket(a, errno);
        }
        done += sent > 0 ? (size_t)sent : 0;
        WH_TRY(sent < 0 ? wait_for(a, POLLOUT) : WHERRY_OK);
    }
    return flush(a);
}

/** Reads between 1 and `size` bytes. */
static wherry_status read_some(const attempt *a, uint8_t *bytes, size_t size, size_t *got_p) {
    for (;;) {
        struct iovec into = {bytes, size};
        ssize_t got = wh_socket_read(&a->socket, &into, 1);
        if (got > 0) {
            *got_p = (size_t)got;
            return WHERRY_OK;
        }
        if (got == 0) {
            return lost(a, "the process ended, or closed the connection");
        }
        if (!wh_is_for_later(errno)) {
            return fail_socket(a, errno);
        }
        WH_TRY(wait_for(a, POLLIN));
    }
}

/** Does the TLS handshake, unless a ticket opens the channel in clear text. */
static wherry_status secure(attempt *a) {
    char host[WH_PLACE_MAX];
    if (!a->tls || a->has_ticket || wh_is_unix(a->socket.fd)) {
        return WHERRY_OK;
    }
    WH_TRY(wh_tls_create(a->tls, a->socket.fd, true, wh_sockets_host(a->sockets, a->place, host), &a->socket.tls,
                         a->error));
    wh_tls_set_bulk(a->socket.tls);
    while (!wh_tls_is_open(a->socket.tls)) {
        WH_TRY(flush(a));
        ssize_t got = wh_socket_read(&a->socket, NULL, 0);
        bool open = wh_tls_is_open(a->socket.tls);
        if (got == 0 && !open) {
            return lost(a, "it closed the connection during the handshake of TLS");
        }
        if (got < 0 && !wh_is_for_later(errno)) {
            return fail_socket(a, errno);
        }
        WH_TRY(open ? WHERRY_OK : wait_for(a, POLLIN));
    }
    return WHERRY_OK;
}

/** Connects to the place. Tries again while the listener's queue is full. */
static wherry_status dial(attempt *a) {
    while ((a->socket.fd = wh_sockets_dial(a->sockets, a->place)) < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            return wh_fail_errno(a->error, WHERRY_SYSTEM, errno, "cannot open a channel to rank %d", (int)a->rank);
        }
        if (errno != EAGAIN) {
            return unreachable(a, errno);
        }
        wherry_status status = look(a);
        if (status != WHERRY_OK) {
            return status;
        }
        poll(NULL, 0, KNOCK_MS);
    }
    wherry_status status = wait_for(a, POLLOUT);
    int fault = 0;
    socklen_t size = sizeof(fault);
    if (status == WHERRY_OK && getsockopt(a->socket.fd, SOL_SOCKET, SO_ERROR, &fault, &size) == 0 && fault) {
        status = unreachable(a, fault);
    }
    return status;
}

/** Handles received bytes of the greeting. An unexpected process counts as the loss of the rank. */
static wherry_status hear(const attempt *a, wh_hello *hello, const uint8_t *bytes, size_t size) {
    size_t used = 0;
    wherry_status status = wh_hello_input(hello, bytes, size, &used, a->error);
    if (status != WHERRY_OK) {
        const uint8_t *refusal;
        struct iovec piece;
        wh_hello_output(hello, &refusal, &piece.iov_len);
        piece.iov_base = (void *)refusal;
        /* This is best effort, because this side has failed already. */
        wh_socket_write(&a->socket, &piece, 1);
    }
    if (wh_hello_refusal(hello) == WH_REFUSAL_USER) {
        return wh_fail_rank(a->error, a->rank, status);
    }
    return status == WHERRY_MISMATCH ? lost(a, "another process is in its place") : status;
}

/** Tells the other side which inbox the channel is for. */
static wherry_status attach(const attempt *a, uint64_t tag) {
    uint8_t frame[WH_FRAME_HEAD + sizeof(tag)];
    wh_frame_head(frame, WH_FRAME_ATTACH, sizeof(tag));
    wh_store_be64(frame + WH_FRAME_HEAD, tag);
    return write_all(a, frame, sizeof(frame));
}

/**
 * Greets. Sends ATTACH together with this side's proof, as soon as the other side has proven who it
 * is, which saves a round trip. Reads no bytes of the channel itself.
 */
static wherry_status greet(const attempt *a, wh_hello *hello, uint64_t tag) {
    bool attached = false;
    for (;;) {
        const uint8_t *bytes;
        size_t size;
        wh_hello_output(hello, &bytes, &size);
        wherry_status status = write_all(a, bytes, size);
        wh_hello_sent(hello, status == WHERRY_OK ? size : 0);
        if (status == WHERRY_OK && !attached && wh_hello_peer(hello)) {
            status = attach(a, tag);
            attached = true;
        }
        if (status != WHERRY_OK || wh_hello_state_of(hello) == WH_HELLO_DONE) {
            return status;
        }
        uint8_t in[WH_HELLO_FRAME_MAX];
        size_t got = 0;
        status = read_some(a, in, wh_hello_missing(hello), &got);
        if (status == WHERRY_OK) {
            status = hear(a, hello, in, got);
        }
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

/** Reads whether the other side has such an inbox. */
static wherry_status hear_answer(const attempt *a) {
    uint8_t answer = WH_NOT_ATTACHED;
    size_t got = 0;
    wherry_status status = read_some(a, &answer, 1, &got);
    if (status == WHERRY_OK && answer != WH_ATTACHED) {
        status =
            wh_fail_rank(a->error, a->rank,
                         wh_fail(a->error, WHERRY_ABORTED,
                                 "rank %d has refused a channel: its side of the conversation is over; receive again",
                                 (int)a->rank));
    }
    return status;
}

/**
 * Returns the configuration of this side's greeting, once TLS is open or was left out. Takes the
 * group's lock.
 */
static wherry_status begin_greeting(attempt *a, wh_hello **hello_p) {
    uint8_t binding[WH_KEY_BYTES];
    pthread_mutex_lock(&a->sockets->lock);
    wh_hello_config config = wh_sockets_hello(a->sockets, WH_HELLO_DATA, NULL, NULL);
    wh_sockets_choose_peer(a->sockets, &a->socket, &config, a->rank, a->incarnation);
    config.wanted_incarnation = a->incarnation; /* the incarnation that the caller talks to */
    wh_security_greet(&a->sockets->security, &a->socket, binding, &config);
    if (config.method == WH_HELLO_METHOD_TICKET) {
        config.keys = &a->ticket;
        config.key_count = 1;
    }
    wherry_status status = wh_hello_create(&config, true, hello_p, a->error);
    pthread_mutex_unlock(&a->sockets->lock);
    OPENSSL_cleanse(binding, sizeof(binding));
    return status;
}

static wherry_status open_channel(attempt *a, uint64_t tag) {
    wh_hello *hello = NULL;
    wherry_status status = dial(a);
    WH_THEN(status, secure(a));
    WH_THEN(status, begin_greeting(a, &hello));
    WH_THEN(status, greet(a, hello, tag));
    wh_hello_destroy(hello);
    WH_THEN(status, hear_answer(a));
    if (status != WHERRY_OK) {
        wh_socket_close(&a->socket);
    }
    return status;
}

/** Opens a channel from this process to itself. */
static wherry_status connect_to_self(wh_sockets *sockets, uint64_t tag, wh_socket *channel_p, wherry_error *error) {
    int ends[2];
    if (!wh_mailbox_has_inbox(sockets->base.mailbox, tag)) {
        return wh_fail_rank(error, sockets->base.rank,
                            wh_fail(error, WHERRY_ABORTED, "no conversation is open for the channel"));
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open a channel");
    }
    wh_message message = {WH_MESSAGE_CHANNEL, sockets->base.rank, sockets->incarnation, tag, NULL, 0, {ends[1], NULL}};
    wherry_status status = wh_mailbox_put(sockets->base.mailbox, &message, error);
    if (status != WHERRY_OK) {
        wh_message_clear(&message);
        close(ends[0]);
        return status;
    }
    *channel_p = (wh_socket){.fd = ends[0]};
    return WHERRY_OK;
}

wherry_status wh_sockets_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                                 wh_socket *channel_p, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return connect_to_self(sockets, tag, channel_p, error);
    }
    char place[WH_PLACE_MAX];
    wh_sockets_look(sockets);
    pthread_mutex_lock(&sockets->lock);
    wh_member *member = sockets->members + rank;
    attempt a = {.sockets = sockets,
                 .rank = rank,
                 .place = place,
                 .incarnation = member->incarnation,
                 .failures = member->failures,
                 .deadline = deadline,
                 .stop = stop,
                 .tls = wh_tls_context_ref(sockets->security.tls),
                 .has_ticket = !sockets->security.encrypt_all && member->ticket_key_of &&
                               member->ticket_key_of == member->incarnation,
                 .ticket.id = ++member->tickets,
                 .socket = WH_NO_SOCKET,
                 .error = error};
    memcpy(a.ticket.proof, member->ticket_key, sizeof(member->ticket_key));
    snprintf(place, sizeof(place), "%s", member->place);
    pthread_mutex_unlock(&sockets->lock);
    wherry_status status = a.incarnation ? look(&a) : lost(&a, "it has never come");
    WH_THEN(status, open_channel(&a, tag));
    if (status == WHERRY_OK) {
        *channel_p = a.socket;
    }
    wh_tls_context_unref(a.tls);
    OPENSSL_cleanse(&a.ticket, sizeof(a.ticket));
    return status;
}
