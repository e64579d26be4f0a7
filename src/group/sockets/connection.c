#include "group/sockets/connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/byteorder.h"
#include "base/checked.h"
#include "base/fail.h"

enum { HEAD = 5, MESSAGE_HEAD = 9, READ_SIZE = 64 << 10 };

struct wh_out_frame {
    wh_out_frame *next;
    size_t size;
    size_t sent;
    uint8_t bytes[];
};

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
    connection->out_last = &connection->out;
    connection->born = connection->heard = connection->said = wh_clock_now();
    return connection;
}

void wh_connection_destroy(wh_connection *connection) {
    while (connection->out) {
        wh_out_frame *frame = connection->out;
        connection->out = frame->next;
        wh_free(frame);
    }
    close(connection->fd);
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
    return size > 0 || (!connection->hello && connection->out);
}

static wh_out_frame *new_frame(uint8_t type, size_t size) {
    wh_out_frame *frame = wh_alloc(sizeof(*frame) + HEAD + size);
    if (frame) {
        *frame = (wh_out_frame){NULL, HEAD + size, 0};
        for (int i = 0; i < 4; i++) {
            frame->bytes[i] = (uint8_t)(size >> (24 - 8 * i));
        }
        frame->bytes[4] = type;
    }
    return frame;
}

static void append_frame(wh_connection *connection, wh_out_frame *frame) {
    *connection->out_last = frame;
    connection->out_last = &frame->next;
    connection->queued += frame->size;
    connection->said = wh_clock_now();
}

bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size) {
    wh_out_frame *frame = new_frame(type, size);
    if (frame) {
        if (size) {
            memcpy(frame->bytes + HEAD, body, size);
        }
        append_frame(connection, frame);
    }
    return frame != NULL;
}

bool wh_connection_queue_message(wh_connection *connection, uint64_t tag, const void *bytes, size_t size) {
    wh_out_frame *first = NULL;
    wh_out_frame **last = &first;
    size_t done = 0;
    do {
        size_t part = wh_min(size - done, WH_FRAME_MAX - MESSAGE_HEAD);
        wh_out_frame *frame = new_frame(WH_FRAME_MESSAGE, MESSAGE_HEAD + part);
        if (!frame) {
            while (first) {
                wh_out_frame *next = first->next;
                wh_free(first);
                first = next;
            }
            return false;
        }
        wh_store_be64(frame->bytes + HEAD, tag);
        frame->bytes[HEAD + 8] = done + part == size;
        if (part) {
            memcpy(frame->bytes + HEAD + MESSAGE_HEAD, (const char *)bytes + done, part);
        }
        *last = frame;
        last = &frame->next;
        done += part;
    } while (done < size);
    while (first) {
        wh_out_frame *next = first->next;
        first->next = NULL;
        append_frame(connection, first);
        first = next;
    }
    return true;
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
    while (connection->out) {
        wh_out_frame *frame = connection->out;
        ssize_t sent = send(connection->fd, frame->bytes + frame->sent, frame->size - frame->sent, MSG_NOSIGNAL);
        if (sent < 0) {
            return is_for_later(errno) ? WHERRY_OK
                                       : wh_fail_errno(error, WHERRY_PEER_LOST, errno, "the connection broke");
        }
        frame->sent += (size_t)sent;
        connection->queued -= (size_t)sent;
        if (frame->sent < frame->size) {
            return WHERRY_OK;
        }
        connection->out = frame->next;
        if (!connection->out) {
            connection->out_last = &connection->out;
        }
        wh_free(frame);
    }
    return WHERRY_OK;
}

/** Adds the body of a MESSAGE frame to the message that is coming in, and hands it on when it is whole. */
static wherry_status take_message(wh_connection *connection, const uint8_t *body, size_t size,
                                  const wh_connection_events *events, wherry_error *error) {
    wh_message *message = &connection->message;
    bool last = size >= MESSAGE_HEAD && body[8] == 1;
    if (size < MESSAGE_HEAD || body[8] > 1 || size - MESSAGE_HEAD > WH_MESSAGE_MAX - message->size) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of no known form", (int)connection->rank);
    }
    uint64_t tag = wh_load_be64(body);
    if (message->size && message->tag != tag) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent two messages at once", (int)connection->rank);
    }
    size_t more = size - MESSAGE_HEAD;
    if (!wh_grow(&message->bytes, &connection->message_capacity, message->size + more, 1)) {
        return wh_fail_memory(error, "a message");
    }
    memcpy((char *)message->bytes + message->size, body + MESSAGE_HEAD, more);
    message->size += more;
    message->tag = tag;
    if (!last) {
        return WHERRY_OK;
    }
    message->rank = connection->rank;
    message->incarnation = connection->incarnation;
    wh_message whole = *message;
    *message = (wh_message){0};
    connection->message_capacity = 0;
    return events->message(events->context, &whole)
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT, "rank %d sends messages that nobody takes", (int)connection->rank);
}

static wherry_status take_frame(wh_connection *connection, uint8_t type, const uint8_t *body, size_t size,
                                const wh_connection_events *events, wherry_error *error) {
    switch (type) {
    case WH_FRAME_MESSAGE:
        return take_message(connection, body, size, events, error);
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
        if (!events->greeted(events->context, connection, peer)) {
            return wh_fail(error, WHERRY_REFUSED, "rank %d is not wanted here", (int)peer->rank);
        }
    }
    return WHERRY_OK;
}

/** Takes all whole frames out of what has come in. */
static wherry_status take_frames(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    size_t used = 0;
    wherry_status status = WHERRY_OK;
    if (connection->rank < 0) {
        status = greet(connection, &used, events, error);
    }
    while (status == WHERRY_OK && connection->rank >= 0 && connection->in_size - used >= HEAD) {
        const uint8_t *head = connection->in + used;
        size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (size > WH_FRAME_MAX) {
            status = wh_fail(error, WHERRY_LIMIT, "rank %d sent a frame of %zu bytes", (int)connection->rank, size);
        } else if (connection->in_size - used < HEAD + size) {
            break;
        } else {
            status = take_frame(connection, head[4], head + HEAD, size, events, error);
            used += HEAD + size;
        }
    }
    memmove(connection->in, connection->in + used, connection->in_size - used);
    connection->in_size -= used;
    if (connection->hello && status == WHERRY_OK) {
        end_hello(connection);
    }
    return status;
}

wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (!WH_RESERVE(connection->in, connection->in_capacity, WH_FRAME_MAX + HEAD + READ_SIZE)) {
        return wh_fail_memory(error, "a connection");
    }
    ssize_t got =
        recv(connection->fd, connection->in + connection->in_size, connection->in_capacity - connection->in_size, 0);
    if (got < 0) {
        return is_for_later(errno) ? WHERRY_OK : wh_fail_errno(error, WHERRY_PEER_LOST, errno, "the connection broke");
    }
    if (got == 0) {
        return wh_fail(error, WHERRY_PEER_LOST, "the process ended, or closed the connection");
    }
    connection->heard = wh_clock_now();
    connection->in_size += (size_t)got;
    return take_frames(connection, events, error);
}
