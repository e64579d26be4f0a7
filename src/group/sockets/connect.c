/*
 * Opening a channel. The caller's own thread dials, greets and asks for the inbox; the group's lock
 * is never held while it waits, and the progress thread has no part in it.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "group/sockets/internal.h"

/**
 * How often a waiting thread looks whether the rank was lost, or it is to stop. How long it leaves
 * a listener in peace that too many knock at.
 */
enum { LOOK_MS = 100, KNOCK_MS = 2 };

/** A channel on its way. */
typedef struct attempt {
    wh_sockets *sockets;
    int32_t rank;
    const char *place;
    uint64_t incarnation;
    uint64_t failures; /**< Of the member, when it began. */
    wh_deadline deadline;
    const wh_stop *stop; /**< May be NULL. */
    int fd;
    wherry_error *error;
} attempt;

static wherry_status lost(const attempt *a, const char *reason) {
    return wh_fail_rank(a->error, a->rank,
                        wh_fail(a->error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)a->rank, reason));
}

/** Where the rank was dialled, as a reader of messages wants it. */
static int place_length(const attempt *a) {
    return (int)strcspn(a->place, ";");
}

/**
 * There is no way to its place: a rank that lives may have told one that leads nowhere from here.
 */
static wherry_status unreachable(const attempt *a, int errnum) {
    return wh_fail_rank(a->error, a->rank,
                        wh_fail(a->error, WHERRY_PEER_LOST,
                                "rank %d: lost: no connection to it at %.*s: %s; where that is the wrong network, set "
                                "WHERRY_INTERFACE to the right one",
                                (int)a->rank, place_length(a), a->place, strerror(errnum)));
}

/** Whether there is use in going on. */
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
        struct pollfd at = {a->fd, events, 0};
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

static bool is_for_later(int errnum) {
    return errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR;
}

static wherry_status write_all(const attempt *a, const uint8_t *bytes, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t sent = send(a->fd, bytes + done, size - done, MSG_NOSIGNAL);
        if (sent < 0 && !is_for_later(errno)) {
            return lost(a, strerror(errno));
        }
        done += sent > 0 ? (size_t)sent : 0;
        wherry_status status = sent < 0 ? wait_for(a, POLLOUT) : WHERRY_OK;
        if (status != WHERRY_OK) {
            return status;
        }
    }
    return WHERRY_OK;
}

/** Reads at least one byte, and at most so many. */
static wherry_status read_some(const attempt *a, uint8_t *bytes, size_t size, size_t *got_p) {
    for (;;) {
        ssize_t got = recv(a->fd, bytes, size, 0);
        if (got > 0) {
            *got_p = (size_t)got;
            return WHERRY_OK;
        }
        if (got == 0 || !is_for_later(errno)) {
            return lost(a, got == 0 ? "the process ended, or closed the connection" : strerror(errno));
        }
        wherry_status status = wait_for(a, POLLIN);
        if (status != WHERRY_OK) {
            return status;
        }
    }
}

/** Connects to the place; a listener that too many knock at is tried again. */
static wherry_status dial(attempt *a) {
    while ((a->fd = wh_sockets_dial(a->sockets, a->place)) < 0) {
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
    if (status == WHERRY_OK && getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &fault, &size) == 0 && fault) {
        status = unreachable(a, fault);
    }
    return status;
}

/** Only the process that the caller talks to is wanted, not whoever else listens at its place. */
static wh_refusal admit(void *context, const wh_hello_fields *peer, uint64_t *newer_p) {
    (void)newer_p;
    const attempt *a = context;
    return peer->rank != (uint32_t)a->rank       ? WH_REFUSAL_OTHER
           : peer->incarnation != a->incarnation ? WH_REFUSAL_STALE
                                                 : WH_REFUSAL_NONE;
}

/**
 * Takes what the other side said. Whoever else was found there is not the one that the caller talks
 * to.
 */
static wherry_status hear(const attempt *a, wh_hello *hello, const uint8_t *bytes, size_t size) {
    size_t used = 0;
    wherry_status status = wh_hello_input(hello, bytes, size, &used, a->error);
    if (status != WHERRY_OK) {
        const uint8_t *refusal;
        size_t refusal_size;
        wh_hello_output(hello, &refusal, &refusal_size);
        send(a->fd, refusal, refusal_size, MSG_NOSIGNAL); /* a courtesy; this side has its answer */
    }
    return status == WHERRY_MISMATCH ? lost(a, "another process is in its place") : status;
}

/** Says which inbox the channel is for. */
static wherry_status attach(const attempt *a, uint64_t tag) {
    uint8_t frame[WH_FRAME_HEAD + sizeof(tag)];
    wh_frame_head(frame, WH_FRAME_ATTACH, sizeof(tag));
    wh_store_be64(frame + WH_FRAME_HEAD, tag);
    return write_all(a, frame, sizeof(frame));
}

/**
 * Greets, and says what the channel is for as soon as the other side has proven who it is, along
 * with this side's own proof: that saves a round trip. Reads nothing that belongs to the channel.
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

/** Hears whether there is such an inbox. */
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

static wherry_status open_channel(attempt *a, uint64_t tag) {
    wh_hello_config config = wh_sockets_hello(a->sockets, WH_HELLO_DATA, admit, a);
    wh_hello *hello = NULL;
    wherry_status status = dial(a);
    if (status == WHERRY_OK) {
        status = wh_hello_create(&config, true, &hello, a->error);
    }
    if (status == WHERRY_OK) {
        status = greet(a, hello, tag);
    }
    wh_hello_destroy(hello);
    if (status == WHERRY_OK) {
        status = hear_answer(a);
    }
    if (status != WHERRY_OK && a->fd >= 0) {
        close(a->fd);
    }
    return status;
}

/** A channel from this process to itself. */
static wherry_status connect_to_self(wh_sockets *sockets, uint64_t tag, int *channel_p, wherry_error *error) {
    int ends[2];
    if (!wh_mailbox_has_inbox(sockets->base.mailbox, tag)) {
        return wh_fail_rank(error, sockets->base.rank,
                            wh_fail(error, WHERRY_ABORTED, "no conversation is open for the channel"));
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        return wh_fail_errno(error, WHERRY_SYSTEM, errno, "cannot open a channel");
    }
    wh_message message = {WH_MESSAGE_CHANNEL, sockets->base.rank, sockets->incarnation, tag, NULL, 0, ends[1]};
    wherry_status status = wh_mailbox_put(sockets->base.mailbox, &message, error);
    if (status != WHERRY_OK) {
        wh_message_clear(&message);
        close(ends[0]);
        return status;
    }
    *channel_p = ends[0];
    return WHERRY_OK;
}

wherry_status wh_sockets_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                                 int *channel_p, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return connect_to_self(sockets, tag, channel_p, error);
    }
    char place[WH_PLACE_MAX];
    pthread_mutex_lock(&sockets->lock);
    const wh_member *member = sockets->members + rank;
    attempt a = {sockets, rank, place, member->incarnation, member->failures, deadline, stop, -1, error};
    snprintf(place, sizeof(place), "%s", member->place);
    pthread_mutex_unlock(&sockets->lock);
    wherry_status status = a.incarnation ? look(&a) : lost(&a, "it has never come");
    if (status == WHERRY_OK) {
        status = open_channel(&a, tag);
    }
    if (status == WHERRY_OK) {
        *channel_p = a.fd;
    }
    return status;
}
