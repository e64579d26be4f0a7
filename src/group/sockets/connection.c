#include "group/sockets/connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"

enum { HEAD = WH_FRAME_HEAD, MESSAGE_HEAD = WH_MESSAGE_HEAD, READ_SIZE = 64 << 10 };

/**
 * Memory for a message is taken at once up to here; beyond, in proportion to what has come of it.
 */
enum { TRUSTED_SIZE = 4 << 20 };

wh_connection *wh_connection_create(int fd, bool dialled, const wh_hello_config *config, wherry_error *error) {
    wh_connection *connection = wh_alloc_zeroed(1, sizeof(*connection));
    if (!connection || wh_hello_create(config, dialled, &connection->hello, error) != WHERRY_OK) {
        wh_free(connection);
        close(fd);
        return NULL;
    }
    connection->fd = fd;
    connection->dialled = dialled;
    connection->meeting = -1;
    connection->wanted = -1;
    connection->rank = -1;
    wh_outbox_init(&connection->out);
    connection->born = connection->heard = connection->said = wh_clock_now();
    return connection;
}

void wh_connection_destroy(wh_connection *connection) {
    wh_outbox_clear(&connection->out);
    if (connection->fd >= 0) {
        close(connection->fd);
    }
    wh_hello_destroy(connection->hello);
    wh_free(connection->in);
    wh_message_clear(&connection->message);
    wh_free(connection);
}

bool wh_connection_wants_to_write(const wh_connection *connection) {
    const uint8_t *bytes;
    size_t size = 0;
    if (connection->hello) {
        wh_hello_output(connection->hello, &bytes, &size);
    }
    return size > 0 || (!connection->hello && connection->out.first);
}

bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size) {
    connection->said = wh_clock_now();
    return wh_outbox_add(&connection->out, type, body, size);
}

bool wh_connection_lend(wh_connection *connection, uint64_t tag, const void *bytes, size_t size, wh_loan *loan) {
    connection->said = wh_clock_now();
    return wh_outbox_lend(&connection->out, WH_FRAME_MESSAGE, tag, bytes, size, loan);
}

/** Whether a failed call only means that there is nothing to do now. */
static bool is_for_later(int errnum) {
    return errnum == EAGAIN || errnum == EWOULDBLOCK || errnum == EINTR || errnum == ENOTCONN;
}

static wherry_status write_hello(wh_connection *connection, wherry_error *error) {
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(connection->hello, &bytes, &size);
    ssize_t sent = size ? send(connection->fd, bytes, size, MSG_NOSIGNAL) : 0;
    if (sent < 0 && !is_for_later(errno)) {
        return wh_fail_errno(error, WHERRY_PEER_LOST, errno, "the connection broke");
    }
    wh_hello_sent(connection->hello, sent > 0 ? (size_t)sent : 0);
    return WHERRY_OK;
}

/** The greeting is over when both sides have agreed and the last of it is sent. */
static void end_hello(wh_connection *connection) {
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(connection->hello, &bytes, &size);
    if (connection->rank >= 0 && size == 0) {
        wh_hello_destroy(connection->hello);
        connection->hello = NULL;
    }
}

wherry_status wh_connection_write(wh_connection *connection, wherry_error *error) {
    if (connection->hello) {
        wherry_status status = write_hello(connection, error);
        end_hello(connection);
        if (status != WHERRY_OK || connection->hello) {
            return status;
        }
    }
    return wh_outbox_send(&connection->out, connection->fd, error);
}

/** Hands the message on where it is whole. */
static wherry_status end_part(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (connection->part_left || connection->to_come) {
        return WHERRY_OK;
    }
    wh_message whole = connection->message;
    whole.rank = connection->rank;
    whole.incarnation = connection->incarnation;
    connection->message = (wh_message){0};
    connection->message_capacity = 0;
    connection->in_message = false;
    return events->message(events->context, &whole)
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT, "rank %d sends messages that nobody takes", (int)connection->rank);
}

/** Makes room for a part of the message, and for those to come as far as they can be trusted to. */
static bool reserve_message(wh_connection *connection, size_t part) {
    size_t needed = connection->message.size + part;
    size_t ahead = (size_t)wh_min(connection->to_come, wh_max(connection->message.size, TRUSTED_SIZE));
    return needed <= connection->message_capacity ||
           wh_reserve(&connection->message.bytes, &connection->message_capacity, needed + ahead + 1, 1);
}

/** Begins a MESSAGE frame, whose body has so many bytes, of which the head is here. */
static wherry_status begin_part(wh_connection *connection, const uint8_t *head, size_t size, wherry_error *error) {
    wh_message *message = &connection->message;
    uint64_t tag = wh_load_be64(head);
    uint64_t to_come = wh_load_be64(head + 8);
    size_t part = size - MESSAGE_HEAD;
    bool first = !connection->in_message;
    bool fits = first ? to_come <= WH_MESSAGE_MAX : message->tag == tag && connection->to_come - to_come == part;
    /* A part without bytes is a whole message; otherwise one could send them for ever. */
    if (!fits || (to_come && !part)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of no known form", (int)connection->rank);
    }
    message->tag = tag;
    connection->in_message = true;
    connection->to_come = to_come;
    connection->part_left = part;
    return reserve_message(connection, part) ? WHERRY_OK : wh_fail_memory(error, "a message");
}

/** Takes bytes of the present part. @return how many. */
static size_t take_part(wh_connection *connection, const uint8_t *bytes, size_t size) {
    size_t taken = wh_min(size, connection->part_left);
    if (taken) {
        memcpy((char *)connection->message.bytes + connection->message.size, bytes, taken);
        connection->message.size += taken;
        connection->part_left -= taken;
    }
    return taken;
}

/** The one frame of a connection for data; nothing may follow it. */
static wherry_status take_attach(wh_connection *connection, uint8_t type, const uint8_t *body, size_t size,
                                 wherry_error *error) {
    if (type != WH_FRAME_ATTACH || size != sizeof(connection->tag) || connection->attached) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d does not say what a connection for data is for",
                       (int)connection->rank);
    }
    connection->tag = wh_load_be64(body);
    connection->attached = true;
    return WHERRY_OK;
}

static wherry_status take_frame(wh_connection *connection, uint8_t type, const uint8_t *body, size_t size,
                                const wh_connection_events *events, wherry_error *error) {
    if (connection->data) {
        return take_attach(connection, type, body, size, error);
    }
    switch (type) {
    case WH_FRAME_TABLE:
        return events->table(events->context, body, size)
                   ? WHERRY_OK
                   : wh_fail(error, WHERRY_MALFORMED, "rank %d sent a bad table", (int)connection->rank);
    case WH_FRAME_PING:
        return WHERRY_OK;
    default:
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a frame of no known type", (int)connection->rank);
    }
}

static wherry_status greet(wh_connection *connection, size_t *used, const wh_connection_events *events,
                           wherry_error *error) {
    wherry_status status = wh_hello_input(connection->hello, connection->in, connection->in_size, used, error);
    if (status != WHERRY_OK) {
        write_hello(connection, NULL);
        return status;
    }
    if (wh_hello_state_of(connection->hello) == WH_HELLO_DONE) {
        const wh_hello_fields *peer = wh_hello_peer(connection->hello);
        connection->rank = (int32_t)peer->rank;
        connection->incarnation = peer->incarnation;
        connection->data = !connection->dialled && peer->purpose == WH_HELLO_DATA;
        if (!events->greeted(events->context, connection, peer)) {
            return wh_fail(error, WHERRY_REFUSED, "rank %d is not wanted here", (int)peer->rank);
        }
    }
    return WHERRY_OK;
}

/**
 * Takes one frame, or the part of a message that is there. @return in *used_p how many bytes; 0:
 * more must come first.
 */
static wherry_status take_next(wh_connection *connection, const uint8_t *at, size_t there, size_t *used_p,
                               const wh_connection_events *events, wherry_error *error) {
    if (connection->part_left) {
        *used_p = take_part(connection, at, there);
        return end_part(connection, events, error);
    }
    *used_p = 0;
    if (there < HEAD) {
        return WHERRY_OK;
    }
    size_t size = wh_load_be32(at);
    bool message = at[4] == WH_FRAME_MESSAGE && !connection->data;
    if (size > WH_FRAME_MAX || (message && size < MESSAGE_HEAD)) {
        return wh_fail(error, WHERRY_LIMIT, "rank %d sent a frame of %zu bytes", (int)connection->rank, size);
    }
    if (there < HEAD + (message ? MESSAGE_HEAD : size)) {
        return WHERRY_OK;
    }
    *used_p = HEAD + (message ? MESSAGE_HEAD : size);
    if (!message) {
        return take_frame(connection, at[4], at + HEAD, size, events, error);
    }
    wherry_status status = begin_part(connection, at + HEAD, size, error);
    return status == WHERRY_OK ? end_part(connection, events, error) : status;
}

/** Takes out of what has come in what is whole. */
static wherry_status take_frames(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    size_t used = 0;
    size_t taken = 1;
    wherry_status status = WHERRY_OK;
    if (connection->rank < 0) {
        status = greet(connection, &used, events, error);
        if (status == WHERRY_OK) {
            end_hello(connection);
        }
    }
    while (status == WHERRY_OK && connection->rank >= 0 && taken && used < connection->in_size) {
        status = take_next(connection, connection->in + used, connection->in_size - used, &taken, events, error);
        used += taken;
    }
    memmove(connection->in, connection->in + used, connection->in_size - used);
    connection->in_size -= used;
    if (status == WHERRY_OK && connection->attached && connection->in_size) {
        status = wh_fail(error, WHERRY_MALFORMED, "rank %d writes to a channel before its time", (int)connection->rank);
    }
    return status;
}

/**
 * Reads what has come: of a message that is coming in straight to its place, the rest into the
 * buffer.
 */
static ssize_t read_now(wh_connection *connection) {
    size_t direct = connection->in_size ? 0 : connection->part_left;
    struct iovec pieces[2] = {
        {direct ? (char *)connection->message.bytes + connection->message.size : NULL, direct},
        {connection->in + connection->in_size, connection->in_capacity - connection->in_size},
    };
    struct msghdr into = {.msg_iov = pieces + (direct ? 0 : 1), .msg_iovlen = direct ? 2 : 1};
    ssize_t got = recvmsg(connection->fd, &into, 0);
    if (got > 0) {
        size_t placed = wh_min((size_t)got, direct);
        connection->message.size += placed;
        connection->part_left -= placed;
        connection->in_size += (size_t)got - placed;
    }
    return got;
}

static wherry_status read_frames(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (!WH_RESERVE(connection->in, connection->in_capacity, WH_FRAME_MAX + HEAD + READ_SIZE)) {
        return wh_fail_memory(error, "a connection");
    }
    bool in_part = connection->part_left > 0;
    ssize_t got = read_now(connection);
    if (got < 0) {
        return is_for_later(errno) ? WHERRY_OK : wh_fail_errno(error, WHERRY_PEER_LOST, errno, "the connection broke");
    }
    if (got == 0) {
        return wh_fail(error, WHERRY_PEER_LOST, "the process ended, or closed the connection");
    }
    connection->heard = wh_clock_now();
    wherry_status status = in_part && !connection->part_left ? end_part(connection, events, error) : WHERRY_OK;
    return status == WHERRY_OK ? take_frames(connection, events, error) : status;
}

wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (connection->broken) {
        return wh_fail(error, WHERRY_PEER_LOST, "the connection could not be read before");
    }
    connection->reading = true;
    wherry_status status = read_frames(connection, events, error);
    connection->reading = false;
    connection->broken = status != WHERRY_OK;
    return status;
}
