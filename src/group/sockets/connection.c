#include "group/sockets/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"

/** READ_SIZE is small because the listener at a meeting point has a connection to every rank. */
enum { HEAD = WH_FRAME_HEAD, MESSAGE_HEAD = WH_MESSAGE_HEAD, READ_SIZE = 16 << 10 };

/**
 * Memory for a message of up to this size is allocated at once. For longer messages, it grows with
 * the received bytes.
 */
enum { TRUSTED_SIZE = 4 << 20 };

wh_connection *wh_connection_create(int fd, bool dialled) {
    wh_connection *connection = wh_alloc_zeroed(1, sizeof(*connection));
    if (!connection) {
        close(fd);
        return NULL;
    }
    connection->socket.fd = fd;
    connection->dialled = dialled;
    connection->meeting = -1;
    connection->wanted = -1;
    connection->rank = -1;
    connection->message_max = WH_MESSAGE_MAX;
    wh_outbox_init(&connection->out);
    connection->born = connection->heard = connection->said = connection->used = wh_clock_now();
    connection->told_at = connection->born;
    return connection;
}

wherry_status wh_connection_greet(wh_connection *connection, const wh_hello_config *config, wherry_error *error) {
    connection->peeking = false;
    return wh_hello_create(config, connection->dialled, &connection->hello, error);
}

/**
 * The message is complete or was dropped, so its memory does not belong to this connection any
 * more.
 */
static void leave_pool(wh_connection *connection) {
    if (connection->pool) {
        *connection->pool += connection->pooled;
        connection->pooled = 0;
    }
}

void wh_connection_destroy(wh_connection *connection) {
    leave_pool(connection);
    wh_outbox_clear(&connection->out);
    wh_socket_close(&connection->socket);
    wh_hello_destroy(connection->hello);
    if (connection->in) {
        OPENSSL_cleanse(connection->in, connection->in_capacity); /* a ticket */
    }
    wh_free(connection->in);
    wh_message_clear(&connection->message);
    wh_free(connection);
}

bool wh_connection_has_unread(const wh_connection *connection) {
    struct pollfd at = {connection->socket.fd, POLLIN, 0};
    return poll(&at, 1, 0) == 1;
}

bool wh_connection_has_gone(const wh_connection *connection) {
    struct pollfd at = {connection->socket.fd, POLLRDHUP, 0};
    return poll(&at, 1, 0) == 1;
}

/** True if the greeting is over. */
static bool has_greeted(const wh_connection *connection) {
    return !connection->hello && connection->rank >= 0;
}

bool wh_connection_wants_to_write(const wh_connection *connection) {
    const uint8_t *bytes;
    size_t size = 0;
    if (connection->hello) {
        wh_hello_output(connection->hello, &bytes, &size);
    }
    return wh_socket_unsent(&connection->socket) ||
           (wh_socket_is_open(&connection->socket) && (size > 0 || (has_greeted(connection) && connection->out.first)));
}

bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size) {
    connection->said = wh_clock_now();
    return wh_outbox_add(&connection->out, type, body, size);
}

bool wh_connection_lend(wh_connection *connection, uint64_t tag, const void *bytes, size_t size, wh_loan *loan) {
    connection->said = connection->used = wh_clock_now();
    return wh_outbox_lend(&connection->out, WH_FRAME_MESSAGE, tag, bytes, size, loan);
}

static wherry_status fail_broken(const wh_connection *connection, int errnum, wherry_error *error) {
    return wh_socket_fail(&connection->socket, errnum, "the connection broke", error);
}

static wherry_status write_hello(wh_connection *connection, wherry_error *error) {
    const uint8_t *bytes;
    size_t size;
    wh_hello_output(connection->hello, &bytes, &size);
    struct iovec piece = {(void *)bytes, size};
    ssize_t sent = size ? wh_socket_write(&connection->socket, &piece, 1) : 0;
    if (sent < 0 && !wh_is_for_later(errno)) {
        return fail_broken(connection, errno, error);
    }
    wh_hello_sent(connection->hello, sent > 0 ? (size_t)sent : 0);
    return WHERRY_OK;
}

/** Ends the greeting if both sides have accepted and the last bytes of the greeting are sent. */
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
    if (wh_socket_flush(&connection->socket) < 0) {
        return wh_is_for_later(errno) ? WHERRY_OK : fail_broken(connection, errno, error);
    }
    if (connection->hello) {
        wherry_status status = write_hello(connection, error);
        end_hello(connection);
        if (status != WHERRY_OK || connection->hello) {
            return status;
        }
    }
    return has_greeted(connection) ? wh_outbox_send(&connection->out, &connection->socket, error) : WHERRY_OK;
}

/** Passes the message to the owner if it is complete. */
static wherry_status end_part(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (connection->part_left || connection->to_come) {
        return WHERRY_OK;
    }
    wh_message whole = connection->message;
    connection->used = connection->heard;
    whole.rank = connection->rank;
    whole.incarnation = connection->incarnation;
    connection->message = (wh_message){0};
    connection->message_capacity = 0;
    leave_pool(connection);
    connection->in_message = false;
    return events->message(events->context, &whole)
               ? WHERRY_OK
               : wh_fail(error, WHERRY_LIMIT, "rank %d sends messages that nobody takes", (int)connection->rank);
}

void wh_connection_give_up(wh_connection *connection, const char *why) {
    connection->broken = WHERRY_LIMIT;
    snprintf(connection->why, sizeof(connection->why), "%s", why);
    wh_message_clear(&connection->message);
    connection->message_capacity = 0;
    leave_pool(connection);
}

/** Takes room for a message of this size from the pool. @return false if too little is left. */
static bool take_from_pool(wh_connection *connection, size_t size, const wh_connection_events *events) {
    size_t wanted = size > WH_MESSAGE_FREE ? size : 0;
    size_t more = wanted > connection->pooled ? wanted - connection->pooled : 0;
    while (connection->pool && more > *connection->pool) {
        if (!events->make_room(events->context)) {
            return false;
        }
    }
    if (connection->pool) {
        *connection->pool -= more;
        connection->pooled += more;
    }
    return true;
}

/**
 * Makes room for a part of the message. Makes room for later parts too, within TRUSTED_SIZE, unless
 * the memory is from a pool.
 */
static wherry_status reserve_message(wh_connection *connection, size_t part, const wh_connection_events *events,
                                     wherry_error *error) {
    size_t needed = connection->message.size + part;
    size_t trusted = connection->pool ? 0 : TRUSTED_SIZE;
    size_t ahead = (size_t)wh_min(connection->to_come, wh_max(connection->message.size, trusted));
    if (needed <= connection->message_capacity) {
        return WHERRY_OK;
    }
    if (!take_from_pool(connection, needed + ahead, events)) {
        return wh_fail(error, WHERRY_LIMIT, "too many large messages are incomplete, such as one of rank %d",
                       (int)connection->rank);
    }
    bool grown = wh_reserve(&connection->message.bytes, &connection->message_capacity, needed + ahead + 1, 1);
    return grown ? WHERRY_OK : wh_fail_memory(error, "a message");
}

/**
 * Begins a MESSAGE frame.
 * @param head  the first bytes of the frame's body, which describe the message.
 * @param size  size of the body.
 */
static wherry_status begin_part(wh_connection *connection, const uint8_t *head, size_t size,
                                const wh_connection_events *events, wherry_error *error) {
    wh_message *message = &connection->message;
    uint64_t tag = wh_load_be64(head);
    uint64_t to_come = wh_load_be64(head + 8);
    size_t part = size - MESSAGE_HEAD;
    bool first = !connection->in_message;
    bool fits = first ? to_come <= WH_MESSAGE_MAX - part : message->tag == tag && connection->to_come - to_come == part;
    /*
     * An empty part must be a whole message. Otherwise a peer could send empty parts without end.
     */
    if (!fits || (to_come && !part)) {
        return wh_fail(error, WHERRY_MALFORMED, "rank %d sent a message of no known form", (int)connection->rank);
    }
    if (first && to_come + part > connection->message_max) {
        return wh_fail(error, WHERRY_LIMIT, "rank %d sends a message of %zu bytes, which is too long here",
                       (int)connection->rank, (size_t)to_come + part);
    }
    message->tag = tag;
    connection->began = first ? wh_clock_now() : connection->began;
    connection->in_message = true;
    connection->to_come = to_come;
    connection->part_left = part;
    return reserve_message(connection, part, events, error);
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

/** The only frame of a data connection. Nothing may follow it. */
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
    return events->frame(events->context, connection, type, body, size)
               ? WHERRY_OK
               : wh_fail(error, WHERRY_MALFORMED, "rank %d sent a bad frame of type %u", (int)connection->rank, type);
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
 * Handles one frame, or the part of a message that has arrived. @return the number of bytes in
 * *used_p; 0 if more bytes must arrive first.
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
    wherry_status status = begin_part(connection, at + HEAD, size, events, error);
    return status == WHERRY_OK ? end_part(connection, events, error) : status;
}

/** Handles all complete frames in the buffer. */
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
 * Reads what has come: bytes of a message directly into the message, everything else into the
 * buffer.
 */
static ssize_t read_now(wh_connection *connection) {
    size_t direct = connection->in_size ? 0 : connection->part_left;
    struct iovec pieces[2] = {
        {direct ? (char *)connection->message.bytes + connection->message.size : NULL, direct},
        {connection->in + connection->in_size, connection->in_capacity - connection->in_size},
    };
    ssize_t got = wh_socket_read(&connection->socket, pieces + (direct ? 0 : 1), direct ? 2 : 1);
    if (got > 0) {
        size_t placed = wh_min((size_t)got, direct);
        connection->message.size += placed;
        connection->part_left -= placed;
        connection->in_size += (size_t)got - placed;
    }
    return got;
}

/**
 * Reads once. @param more_p receives true if there may be more to read that poll() does not report.
 */
static wherry_status read_frames(wh_connection *connection, const wh_connection_events *events, bool *more_p,
                                 wherry_error *error) {
    size_t frame = connection->in_size < HEAD ? 0 : wh_min(wh_load_be32(connection->in), WH_FRAME_MAX);
    if (!WH_RESERVE(connection->in, connection->in_capacity, HEAD + wh_max(frame, READ_SIZE))) {
        return wh_fail_memory(error, "a connection");
    }
    bool in_part = connection->part_left > 0;
    ssize_t got = read_now(connection);
    int errnum = errno;
    bool greets = connection->hello || connection->rank >= 0;
    if (!greets && wh_socket_is_open(&connection->socket)) {
        WH_TRY(events->begin(events->context, connection, WH_TLS_FIRST_BYTE, error));
    }
    *more_p = got > 0 && wh_socket_unread(&connection->socket);
    if (got < 0) {
        return wh_is_for_later(errnum) ? WHERRY_OK : fail_broken(connection, errnum, error);
    }
    if (got == 0) {
        return wh_fail(error, WHERRY_PEER_LOST, "the process ended, or closed the connection%s",
                       greets ? "" : " during the handshake of TLS");
    }
    connection->heard = wh_clock_now();
    wherry_status status = in_part && !connection->part_left ? end_part(connection, events, error) : WHERRY_OK;
    return status == WHERRY_OK ? take_frames(connection, events, error) : status;
}

/** Looks at the first byte without taking it. */
static wherry_status peek(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    uint8_t first;
    ssize_t got = recv(connection->socket.fd, &first, 1, MSG_PEEK);
    if (got < 0) {
        return wh_is_for_later(errno) ? WHERRY_OK : fail_broken(connection, errno, error);
    }
    return got == 0 ? wh_fail(error, WHERRY_PEER_LOST, "the process ended, or closed the connection")
                    : events->begin(events->context, connection, first, error);
}

wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error) {
    if (connection->broken != WHERRY_OK) {
        return wh_fail(error, connection->broken, "%s", connection->why);
    }
    wherry_error fault;
    connection->reading = true;
    wherry_status status = connection->peeking ? peek(connection, events, &fault) : WHERRY_OK;
    bool more = !connection->peeking;
    while (status == WHERRY_OK && more) {
        status = read_frames(connection, events, &more, &fault);
        more = more && !connection->attached;
    }
    connection->reading = false;
    if (status != WHERRY_OK) {
        connection->broken = status;
        snprintf(connection->why, sizeof(connection->why), "%.*s", (int)sizeof(connection->why) - 1, fault.message);
        if (error) {
            *error = fault;
        }
    }
    return status;
}

/** Number of pieces per call. */
enum { PIECES = 16 };

struct wh_out_frame {
    wh_out_frame *next;
    uint8_t head[WH_FRAME_HEAD + WH_MESSAGE_HEAD];
    size_t head_size;
    const uint8_t *body; /**< Borrowed, or `copy`. */
    size_t body_size;
    void *copy;
    size_t sent;   /**< Bytes of head and body that were sent. */
    wh_loan *loan; /**< NULL: the body is not borrowed. */
};

void wh_outbox_init(wh_outbox *outbox) {
    *outbox = (wh_outbox){NULL, &outbox->first, 0};
}

void wh_frame_head(uint8_t head[WH_FRAME_HEAD], uint8_t type, size_t size) {
    wh_store_be32(head, (uint32_t)size);
    head[4] = type;
}

static void release(wh_out_frame *frame) {
    wh_free(frame->copy);
    wh_free(frame);
}

void wh_outbox_clear(wh_outbox *outbox) {
    while (outbox->first) {
        wh_out_frame *frame = outbox->first;
        outbox->first = frame->next;
        if (frame->loan) {
            frame->loan->broken = true;
        }
        release(frame);
    }
    wh_outbox_init(outbox);
}

static void append(wh_outbox *outbox, wh_out_frame *frame) {
    *outbox->last = frame;
    outbox->last = &frame->next;
    outbox->queued += frame->head_size + frame->body_size;
}

bool wh_outbox_add(wh_outbox *outbox, uint8_t type, const void *body, size_t size) {
    wh_out_frame *frame = wh_alloc_zeroed(1, sizeof(*frame));
    void *copy = frame && size ? wh_text_copy(body, size) : NULL;
    if (!frame || (size && !copy)) {
        wh_free(frame);
        return false;
    }
    wh_frame_head(frame->head, type, size);
    frame->head_size = WH_FRAME_HEAD;
    frame->body = frame->copy = copy;
    frame->body_size = size;
    append(outbox, frame);
    return true;
}

bool wh_outbox_lend(wh_outbox *outbox, uint8_t type, uint64_t tag, const void *bytes, size_t size, wh_loan *loan) {
    wh_outbox added;
    size_t done = 0;
    wh_outbox_init(&added);
    *loan = (wh_loan){0};
    do {
        size_t part = wh_min(size - done, WH_FRAME_MAX - WH_MESSAGE_HEAD);
        wh_out_frame *frame = wh_alloc_zeroed(1, sizeof(*frame));
        if (!frame) {
            wh_outbox_clear(&added);
            return false;
        }
        wh_frame_head(frame->head, type, WH_MESSAGE_HEAD + part);
        wh_store_be64(frame->head + WH_FRAME_HEAD, tag);
        wh_store_be64(frame->head + WH_FRAME_HEAD + 8, size - done - part);
        frame->head_size = sizeof(frame->head);
        frame->body = part ? (const uint8_t *)bytes + done : NULL;
        frame->body_size = part;
        frame->loan = loan;
        loan->frames++;
        append(&added, frame);
        done += part;
    } while (done < size);
    *outbox->last = added.first;
    outbox->last = added.last;
    outbox->queued += added.queued;
    return true;
}

bool wh_outbox_keep(wh_outbox *outbox, wh_loan *loan) {
    for (wh_out_frame *frame = outbox->first; frame; frame = frame->next) {
        if (frame->loan != loan) {
            continue;
        }
        if (frame->body_size) {
            frame->copy = wh_text_copy((const char *)frame->body, frame->body_size);
            if (!frame->copy) {
                return false;
            }
            frame->body = frame->copy;
        }
        frame->loan = NULL;
        loan->frames--;
    }
    return true;
}

/** Lists the unsent bytes of the first frames. @return the number of pieces. */
static size_t gather(const wh_outbox *outbox, struct iovec pieces[PIECES]) {
    size_t count = 0;
    for (const wh_out_frame *frame = outbox->first; frame && count + 2 <= PIECES; frame = frame->next) {
        size_t in_body = frame->sent > frame->head_size ? frame->sent - frame->head_size : 0;
        if (frame->sent < frame->head_size) {
            pieces[count++] = (struct iovec){(void *)(frame->head + frame->sent), frame->head_size - frame->sent};
        }
        if (in_body < frame->body_size) {
            pieces[count++] = (struct iovec){(void *)(frame->body + in_body), frame->body_size - in_body};
        }
    }
    return count;
}

/** Removes sent bytes from the front. */
static void forget(wh_outbox *outbox, size_t sent) {
    outbox->queued -= sent;
    while (sent && outbox->first) {
        wh_out_frame *frame = outbox->first;
        size_t left = frame->head_size + frame->body_size - frame->sent;
        if (sent < left) {
            frame->sent += sent;
            return;
        }
        sent -= left;
        if (frame->loan) {
            frame->loan->frames--;
        }
        outbox->first = frame->next;
        outbox->last = outbox->first ? outbox->last : &outbox->first;
        release(frame);
    }
}

wherry_status wh_outbox_send(wh_outbox *outbox, const wh_socket *socket, wherry_error *error) {
    while (outbox->first) {
        struct iovec pieces[PIECES];
        ssize_t sent = wh_socket_write(socket, pieces, gather(outbox, pieces));
        if (sent < 0) {
            return wh_is_for_later(errno) ? WHERRY_OK : wh_socket_fail(socket, errno, "the connection broke", error);
        }
        forget(outbox, (size_t)sent);
    }
    return WHERRY_OK;
}
