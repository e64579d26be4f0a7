/* The progress thread: accepts, dials, reads, writes, and notices silent ranks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

enum {
    WAIT_MS = 100,   /**< Maximum wait of the thread. */
    LEAVE_MS = 1000, /**< How long the thread sends when the process leaves the group. */
    DEAF_MS = 100,   /**< How long the thread accepts no connection if there are no descriptors. */
    /** How long the thread accepts no connection if too many connections have not greeted. */
    FULL_MS = 10,
};

enum {
    /**
     * Maximum number of connections that have not greeted. A thousand ranks that join at once wait
     * in the listener's queue.
     */
    STRANGERS_MAX = 64,
    /**
     * After this long without a byte, such a connection is closed when a new one comes. If a
     * thousand processes join at once, each of them waits that long for a processor.
     */
    STRANGER_MS = 1000,
    /**
     * After this long, such a connection is closed even if it sends something. So a few bytes now
     * and then do not keep others out.
     */
    STRANGER_OLD_MS = 2000,
};

/**
 * Index of the first meeting point in the list that the thread polls. Before it: the eventfd, the
 * listener, and the listener for members on this host.
 */
enum { FIRST_MEETING = 3 };

/** A connection without messages for IDLE times dead_after_ms is closed. */
enum { IDLE = 2 };

/**
 * How many connections one process may have made to this one: for messages, and for data whose
 * inbox it has not named yet. It needs a few of the former, also if links have failed, and some of
 * the latter for each transfer. A server does not know its readers, so they get fewer of the
 * former: one over TCP and one over a Unix socket, and those that have fallen silent.
 */
enum { CONTROL_MAX = 16, READER_CONTROL_MAX = 4, DATA_MAX = 256 };

/**
 * If the incomplete messages of readers fill the pool of a server, one that is older than this is
 * given up for another. So readers that never complete theirs do not keep others out.
 */
enum { UNFINISHED_MS = 1000 };

/** Maximum number of reads from a connection that will be closed. A rank may send without end. */
enum { REST_READS = 64 };

wh_connection *wh_sockets_add(wh_sockets *sockets, int fd, const char *host, int32_t wanted) {
    wherry_error error;
    wh_connection *connection = wh_connection_create(fd, host);
    wherry_status status = wh_check_memory(connection, &error, "a connection");
    if (connection) {
        connection->wanted = wanted;
        connection->owner = sockets;
    }
    WH_THEN(status, wh_sockets_secure(sockets, connection, host, &error));
    if (status != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "rank %d: cannot keep a connection: %s", (int)sockets->base.rank, error.message);
        if (connection) {
            wh_connection_destroy(connection);
        }
        return NULL;
    }
    if (sockets->security.serves) {
        connection->message_max = WH_READER_SHARE;
        connection->pool = &sockets->pool;
    }
    connection->number = ++sockets->numbers;
    connection->told = sockets->news;
    connection->next = sockets->connections;
    sockets->connections = connection;
    return connection;
}

/** Returns another connection to a rank that can carry messages. */
static wh_connection *find_up(const wh_sockets *sockets, int32_t rank, uint64_t incarnation) {
    wh_connection *one = sockets->connections;
    while (one && (one->doomed || one->parting || !wh_connection_is_up(one) || one->rank != rank ||
                   one->incarnation != incarnation)) {
        one = one->next;
    }
    return one;
}

/**
 * True if a connection may carry messages. A connection that this side has dialled for messages is
 * the best possible one. If there is a shortcut to the rank, messages wait for the shortcut, and
 * other connections carry only tables.
 */
static bool is_for_messages(const wh_sockets *sockets, const wh_connection *connection) {
    return connection->wanted >= 0 || !wh_shortcut_leads_to(sockets, sockets->members[connection->rank].place) ||
           wh_is_unix(connection->socket.fd);
}

/** Records that a rank cannot be reached, and wakes the threads that wait for it. */
static void note_failure(wh_sockets *sockets, int32_t rank, uint64_t incarnation, const char *reason) {
    wh_member *member = sockets->members + rank;
    if (member->incarnation != incarnation) {
        return;
    }
    wh_log(WHERRY_LOG_DEBUG, "rank %d lost rank %d: %s", (int)sockets->base.rank, (int)rank, reason);
    member->failures++;
    member->wanted = false;
    member->gone = true;
    snprintf(member->reason, sizeof(member->reason), "%.*s", (int)sizeof(member->reason) - 1, reason);
    wh_mailbox_lose(sockets->base.mailbox, rank, incarnation, reason);
    pthread_cond_broadcast(&sockets->changed);
}

/**
 * The rank has connected again after a long silence of the former connection. So the rank has given
 * up the former connection, and this side has not noticed yet. This side records the loss now,
 * because a later loss would end conversations that began over the new connection.
 *
 * There are also two connections if both ranks dial at once. If one of the ranks then has no
 * processor for a while, the first connection is silent until the second greeting ends. So what
 * counts is the silence before the second connection was made. A rank that has given up a
 * connection was silent for about dead_after_ms.
 */
static void give_up_silent(wh_sockets *sockets, const wh_connection *fresh) {
    wh_connection *old = sockets->members[fresh->rank].connection;
    bool silent =
        old && !old->doomed && old->incarnation == fresh->incarnation && wh_sockets_is_suspect(sockets, old, fresh);
    if (!silent || fresh->dialled) {
        return;
    }
    sockets->members[fresh->rank].connection = NULL;
    old->doomed = old->mourned = true;
    note_failure(sockets, fresh->rank, fresh->incarnation, "it was silent, and has connected again");
}

/** True if the process at the other end has made too many connections. */
static bool is_one_too_many(const wh_sockets *sockets, const wh_connection *connection) {
    const wh_hello_fields *peer = wh_hello_peer(connection->hello);
    size_t count = 0;
    size_t most = connection->data ? DATA_MAX : sockets->security.serves ? READER_CONTROL_MAX : CONTROL_MAX;
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        count += !one->dialled && !one->doomed && one->rank == connection->rank &&
                 one->incarnation == connection->incarnation && one->data == connection->data;
    }
    /* The reader may have greeted several times at once, so admit() did not notice. */
    return !connection->dialled && (count > most || wh_sockets_is_intruder(sockets, connection, peer));
}

static bool greeted(void *context, wh_connection *connection, const wh_hello_fields *peer) {
    wh_sockets *sockets = context;
    if (is_one_too_many(sockets, connection) ||
        !wh_sockets_learn(sockets, peer->rank, peer->incarnation, peer->address, connection->number)) {
        return false;
    }
    if (connection->data) {
        return true;
    }
    if (!wh_mailbox_incarnation(sockets->base.mailbox, connection->rank) && wh_connection_has_gone(connection)) {
        /* The greeting is from a process that was lost in the meantime. It is not back. */
        connection->doomed = true;
        return true;
    }
    wh_member *member = sockets->members + peer->rank;
    const uint8_t *ticket_key = wh_hello_ticket_key_of(connection->hello);
    if (ticket_key) {
        memcpy(member->ticket_key, ticket_key, sizeof(member->ticket_key));
        member->ticket_key_of = peer->incarnation;
    }
    give_up_silent(sockets, connection);
    wh_mailbox_admit(sockets->base.mailbox, connection->rank, peer->incarnation);
    member->gone = false;
    if (connection->meeting >= 0) {
        wh_meeting_note_answer(sockets, connection->meeting);
    }
    if ((!member->connection || member->connection->doomed) && is_for_messages(sockets, connection)) {
        member->connection = connection;
    }
    member->wanted = member->wanted && !member->connection;
    wh_members_begin(sockets, connection, peer->table);
    pthread_cond_broadcast(&sockets->changed);
    return true;
}

/**
 * True if no messages have used a connection for a long time, and nobody needs to notice its end.
 */
static bool is_idle(wh_sockets *sockets, const wh_connection *one, uint64_t now) {
    return !one->met && !one->out.first && !one->in_message && !sockets->members[one->rank].wanted &&
           now - one->used > IDLE * sockets->options.dead_after_ms * MS &&
           !wh_mailbox_needs(sockets->base.mailbox, one->rank) && !wh_barrier_needs(sockets, one->rank);
}

/** Stops using a connection for messages. Its end is then no loss. */
static void part(wh_sockets *sockets, wh_connection *connection) {
    wh_member *member = sockets->members + connection->rank;
    connection->parting = connection->mourned = true;
    if (member->connection == connection) {
        member->connection = NULL;
    }
    pthread_cond_broadcast(&sockets->changed);
}

/**
 * The side that dialled asks to close the connection. This side agrees with an answer. Until the
 * answer has come, the other side may not ask again: answers that it does not read would pile up.
 */
static bool take_idle(wh_sockets *sockets, wh_connection *connection) {
    if (connection->dialled) {
        int32_t rank = connection->rank;
        wh_member *member = sockets->members + rank;
        part(sockets, connection);
        connection->doomed = true;
        /* A wait that began after this side asked must still learn of the rank's death. */
        bool needed = wh_mailbox_needs(sockets->base.mailbox, rank) || wh_barrier_needs(sockets, rank);
        member->wanted |= needed && !member->connection;
        return true;
    }
    if (connection->parting || connection->declines) {
        return false;
    }
    if (connection->out.first) {
        connection->declines = true;
        return true;
    }
    /* Wait only half as long here, because the two sides measure from different moments. */
    bool agreed = is_idle(sockets, connection, wh_clock_now() + sockets->options.dead_after_ms * MS);
    if (agreed) {
        part(sockets, connection);
    }
    return wh_connection_queue(connection, agreed ? WH_FRAME_IDLE : WH_FRAME_PONG, NULL, 0);
}

/** Queues a PING or a PONG with the hash of the table. */
static bool queue_hash(const wh_sockets *sockets, wh_connection *connection, uint8_t type) {
    uint8_t hash[8];
    wh_store_be64(hash, sockets->hash);
    return wh_connection_queue(connection, type, hash, sizeof(hash));
}

static bool take_hash(wh_sockets *sockets, wh_connection *connection, uint8_t type, const uint8_t *bytes, size_t size) {
    if (type == WH_FRAME_PONG && !size && connection->dialled) {
        connection->parting = false; /* The other side needs the connection. */
        connection->used = wh_clock_now();
        pthread_cond_broadcast(&sockets->changed);
        return true;
    }
    if (size != 8) {
        return false;
    }
    wh_members_compare(sockets, connection, wh_load_be64(bytes));
    /* A side that does not read answers gets no more of them. */
    return type != WH_FRAME_PING || connection->out.first || connection->parting ||
           queue_hash(sockets, connection, WH_FRAME_PONG);
}

static bool take_frame(void *context, wh_connection *connection, uint8_t type, const uint8_t *bytes, size_t size) {
    wh_sockets *sockets = context;
    switch (type) {
    case WH_FRAME_TABLE:
        return wh_sockets_take_table(sockets, connection, bytes, size);
    case WH_FRAME_PING:
    case WH_FRAME_PONG:
        return take_hash(sockets, connection, type, bytes, size);
    case WH_FRAME_IDLE:
        return size == 0 && (connection->parting || !connection->dialled) && take_idle(sockets, connection);
    case WH_FRAME_ARRIVED:
        return !wh_sockets_is_star(sockets) && wh_barrier_take_arrived(sockets, connection, bytes, size);
    case WH_FRAME_MISSING:
        return !wh_sockets_is_star(sockets) && wh_barrier_take_missing(sockets, bytes, size);
    default:
        return false;
    }
}

static bool take_message(void *context, wh_message *message) {
    wh_sockets *sockets = context;
    wherry_error error;
    if (wh_mailbox_put(sockets->base.mailbox, message, &error) == WHERRY_OK) {
        return true;
    }
    wh_log(WHERRY_LOG_ERROR, "rank %d: %s", (int)sockets->base.rank, error.message);
    wh_message_clear(message);
    return false;
}

/** Gives up the oldest incomplete message that fills the pool. */
static bool make_room_for_message(void *context) {
    wh_sockets *sockets = context;
    wh_connection *oldest = NULL;
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->pooled && !one->reading && (!oldest || one->began < oldest->began)) {
            oldest = one;
        }
    }
    if (!oldest || wh_clock_now() - oldest->began < UNFINISHED_MS * MS) {
        return false;
    }
    wh_connection_give_up(oldest, "its message takes too long, and others need the memory");
    oldest->doomed = true;
    return true;
}

/** The functions that handle what comes over the connections of a group. */
static wh_connection_events events_of(wh_sockets *sockets) {
    return (wh_connection_events){wh_sockets_begin, greeted, take_message, take_frame, make_room_for_message, sockets};
}

/**
 * True if a refusal from there may end this process's rank. Over a data connection in clear text,
 * it may be forged. What a reader says of a server's rank does not count.
 */
static bool is_believed(const wh_sockets *sockets, const wh_connection *connection) {
    const wh_security *security = &sockets->security;
    return !security->serves && (!security->tls || connection->socket.tls || wh_is_unix(connection->socket.fd));
}

/**
 * Records why a greeting failed: a newer incarnation of this rank exists, or the other side has
 * refused.
 */
static void heed_refusal(wh_sockets *sockets, const wh_connection *connection, const wherry_error *error) {
    wh_refusal refusal = connection->hello ? wh_hello_refusal(connection->hello) : WH_REFUSAL_NONE;
    if (refusal == WH_REFUSAL_OWN_RANK) {
        return; /* This process has dialled itself. */
    }
    bool stale = error->status == WHERRY_REFUSED && refusal == WH_REFUSAL_STALE && wh_hello_peer(connection->hello) &&
                 is_believed(sockets, connection);
    if (stale) {
        wh_sockets_outdo(sockets, wh_hello_newer(connection->hello));
    } else if (connection->meeting >= 0 && error->status != WHERRY_PEER_LOST) {
        sockets->refusal = *error;
        sockets->other_user = refusal == WH_REFUSAL_USER;
        if (refusal == WH_REFUSAL_SECRET) {
            /* It does not matter which side has noticed this first. */
            sockets->refusal.status = WHERRY_BAD_SECRET;
        }
        pthread_cond_broadcast(&sockets->changed);
    }
    if (!connection->dialled && error->status != WHERRY_PEER_LOST) {
        wh_log(WHERRY_LOG_WARN, "rank %d turned a connection away: %s", (int)sockets->base.rank, error->message);
    }
}

/**
 * Reads what a rank has already sent over a connection that will be closed, such as its last
 * message.
 */
static void hear_rest(wh_sockets *sockets, wh_connection *connection) {
    const wh_connection_events handlers = events_of(sockets);
    struct pollfd at = {connection->socket.fd, POLLIN, 0};
    bool up = wh_connection_is_up(connection) && !connection->reading;
    for (int i = 0; up && i < REST_READS && poll(&at, 1, 0) == 1; i++) {
        up = wh_connection_read(connection, &handlers, NULL) == WHERRY_OK;
    }
}

void wh_sockets_hear_out(wh_sockets *sockets, int64_t rank) {
    uint64_t incarnation = sockets->members[rank].incarnation;
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        if (one->rank == rank && one->incarnation == incarnation && !one->mourned) {
            hear_rest(sockets, one);
        }
    }
}

/**
 * A connection has ended and is in no list any more. The rank at its other end is lost, unless
 * another connection can carry messages.
 */
static void note_end(wh_sockets *sockets, const wh_connection *connection, int32_t rank, const char *reason) {
    wh_member *member = sockets->members + rank;
    uint64_t incarnation = connection->rank >= 0 ? connection->incarnation : member->incarnation;
    bool used = member->connection == connection;
    if (used) {
        member->connection = NULL;
    }
    wh_connection *other = find_up(sockets, rank, incarnation);
    if (used && wh_connection_is_up(connection)) {
        /*
         * Messages were on their way over this connection, so it counts as a loss. The rank is
         * dialled again.
         */
        while (other) {
            other->doomed = other->mourned = true;
            hear_rest(sockets, other);
            other = find_up(sockets, rank, incarnation);
        }
    } else if (!member->connection && (used || connection->wanted == rank)) {
        member->connection = other; /* Without a shortcut, use the connection that exists. */
        pthread_cond_broadcast(&sockets->changed);
    }
    if (!member->connection && !other) {
        note_failure(sockets, rank, incarnation, reason);
    }
}

/** Closes the connection that *at points to. */
static void close_connection(wh_sockets *sockets, wh_connection **at, const wherry_error *error) {
    wh_connection *connection = *at;
    *at = connection->next;
    wh_log(WHERRY_LOG_DEBUG, "rank %d: connection to rank %d ends: %s", (int)sockets->base.rank, (int)connection->rank,
           error ? error->message : "given up");
    if ((connection->hello || connection->rank < 0) && error) {
        heed_refusal(sockets, connection, error);
        if (connection->meeting >= 0 && error->status == WHERRY_PEER_LOST) {
            wh_meeting_note_fault(sockets, error->message);
        }
    }
    int32_t rank = connection->rank >= 0 ? connection->rank : connection->wanted;
    if (rank >= 0 && !connection->data && !connection->mourned) {
        note_end(sockets, connection, rank, error ? error->message : "the connection was given up");
    }
    wh_connection_destroy(connection);
}

static void close_doomed(wh_sockets *sockets) {
    wh_connection **at = &sockets->connections;
    while (*at) {
        if ((*at)->doomed) {
            wh_connection_write(*at, NULL);
            hear_rest(sockets, *at);
            close_connection(sockets, at, NULL);
        } else {
            at = &(*at)->next;
        }
    }
}

static bool is_dialled(const wh_sockets *sockets, int32_t rank) {
    const wh_connection *one = sockets->connections;
    while (one && one->wanted != rank) {
        one = one->next;
    }
    return one != NULL;
}

/**
 * Uses a connection that is there but is not used for messages. After two ranks have dialled each
 * other at once, there are two connections, and the other one may have ended as idle.
 * @param any  also a connection that does not carry messages if there is a better one.
 * @return false if there is none.
 */
static bool use_another(wh_sockets *sockets, int32_t rank, bool any) {
    wh_member *member = sockets->members + rank;
    for (wh_connection *one = sockets->connections; one && !member->connection; one = one->next) {
        bool usable = wh_connection_is_up(one) && !one->data && !one->doomed && !one->parting && one->rank == rank &&
                      one->incarnation == member->incarnation;
        if (usable && (any || is_for_messages(sockets, one))) {
            member->connection = one;
            member->wanted = false;
            pthread_cond_broadcast(&sockets->changed);
        }
    }
    return member->connection != NULL;
}

/** Dials the members that threads wait for. */
static void serve_wanted(wh_sockets *sockets) {
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        wh_member *member = sockets->members + rank;
        if (!member->wanted || member->connection || !member->incarnation || use_another(sockets, rank, false) ||
            is_dialled(sockets, rank)) {
            continue;
        }
        int fd = sockets->security.serves ? -1 : wh_sockets_dial(sockets, member->place);
        if (fd < 0 && !sockets->security.serves && errno == EAGAIN) {
            continue;
        }
        if (fd < 0) {
            const char *reason =
                sockets->security.serves ? "a server does not connect to its readers" : strerror(errno);
            if (!use_another(sockets, rank, true)) {
                note_failure(sockets, rank, member->incarnation, reason);
            }
            continue;
        }
        char host[WH_PLACE_MAX];
        wh_sockets_add(sockets, fd, wh_sockets_host(sockets, member->place, host), rank);
    }
}

/** True if nothing has come over a connection for too long. */
static bool is_silent(const wh_sockets *sockets, const wh_connection *one, uint64_t now) {
    bool up = wh_connection_is_up(one);
    uint64_t since = up ? one->heard : one->born;
    uint64_t limit = sockets->options.dead_after_ms * MS;
    /* A connection that has not greeted gets no third chance, whatever it sends. */
    return now > since + limit && ((!up && now > since + 2 * limit) || !wh_connection_has_unread(one));
}

/**
 * Gives up connections over which nothing has come for too long. The side that dialled sends a PING
 * if nothing was sent or received for a while, and the other side answers. So nobody pings more
 * ranks than it has dialled.
 */
static void watch_silence(wh_sockets *sockets, uint64_t now) {
    uint64_t beat = sockets->options.heartbeat_ms * MS;
    wh_connection **at = &sockets->connections;
    while (*at) {
        wh_connection *one = *at;
        if (is_silent(sockets, one, now)) {
            wherry_error silent = {.status = WHERRY_PEER_LOST, .message = "nothing was heard from it for too long"};
            if (one->meeting >= 0 && one->rank < 0) {
                wh_meeting_note_silence(sockets, one);
            }
            close_connection(sockets, at, &silent);
            continue;
        }
        at = &one->next;
        if (one->declines && !one->out.first) {
            one->declines = false;
            one->doomed |= !wh_connection_queue(one, WH_FRAME_PONG, NULL, 0);
        }
        if (!wh_connection_is_up(one) || !one->dialled || one->doomed || one->parting) {
            continue;
        }
        if (is_idle(sockets, one, now)) {
            one->parting = true;
            one->doomed = !wh_connection_queue(one, WH_FRAME_IDLE, NULL, 0);
        } else if (now > one->pinged + beat && (now > one->said + beat || now > one->heard + beat)) {
            one->pinged = now;
            one->doomed = !queue_hash(sockets, one, WH_FRAME_PING);
        }
    }
}

/**
 * Makes room for another connection that has not greeted: closes the oldest silent one. If none is
 * silent, closes the oldest one, unless it is still young. @return false if there is no room now.
 */
static bool make_room(wh_sockets *sockets, uint64_t now) {
    size_t strangers = 0;
    wh_connection **oldest = NULL;
    wh_connection **silent = NULL;
    for (wh_connection **at = &sockets->connections; *at; at = &(*at)->next) {
        /* A reader could otherwise greet for data without end, and never name an inbox. */
        bool waits = sockets->security.serves && (*at)->data;
        if (!(*at)->dialled && ((*at)->rank < 0 || waits)) {
            strangers++;
            /* New connections are put at the front, also after `now`. */
            oldest = at;
            silent = now >= (*at)->heard + STRANGER_MS * MS ? at : silent;
        }
    }
    if (strangers < STRANGERS_MAX) {
        return true;
    }
    bool old = now >= (*oldest)->born + STRANGER_OLD_MS * MS;
    if (silent || old) {
        close_connection(sockets, silent ? silent : oldest, NULL);
    }
    return silent || old;
}

static void accept_all(wh_sockets *sockets, int listener, bool met) {
    int fd = -1;
    uint64_t now = wh_clock_now();
    bool room = true;
    while (listener >= 0 && (room = make_room(sockets, now)) && (fd = wh_accept(listener)) >= 0) {
        if (sockets->security.reads) {
            close(fd); /* Nobody has a reason to connect to a reader. */
            continue;
        }
        wh_connection *connection = wh_sockets_add(sockets, fd, NULL, -1);
        if (connection) {
            connection->met = met;
        }
    }
    if (!room) {
        sockets->deaf_until = now + FULL_MS * MS;
        return;
    }
    if (listener >= 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
        wh_log(WHERRY_LOG_WARN, "rank %d cannot accept a connection: %s", (int)sockets->base.rank, strerror(errno));
        /* Otherwise poll() would report the waiting connection at once. */
        sockets->deaf_until = wh_clock_now() + DEAF_MS * MS;
    }
}

/** Makes the connection that *at points to a channel, and gives it to the inbox. */
static void hand_channel(wh_sockets *sockets, wh_connection **at) {
    wh_connection *connection = *at;
    *at = connection->next;
    wh_message message = {WH_MESSAGE_CHANNEL, connection->rank, connection->incarnation, connection->tag, NULL, 0,
                          connection->socket};
    uint8_t answer =
        wh_mailbox_has_inbox(sockets->base.mailbox, connection->tag) ? (uint8_t)WH_ATTACHED : (uint8_t)WH_NOT_ATTACHED;
    connection->socket = WH_NO_SOCKET;
    wh_connection_destroy(connection);
    if (message.channel.tls) {
        wh_tls_set_bulk(message.channel.tls);
    }
    /* This is the first byte in this direction, so it always fits. */
    struct iovec first = {&answer, 1};
    bool told = wh_socket_write(&message.channel, &first, 1) == 1 && wh_socket_flush(&message.channel) == 0;
    wherry_error error;
    if (!told || answer != WH_ATTACHED) {
        wh_message_clear(&message);
    } else if (wh_mailbox_put(sockets->base.mailbox, &message, &error) != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "rank %d: cannot keep a channel: %s", (int)sockets->base.rank, error.message);
        wh_message_clear(&message);
    }
}

void wh_sockets_serve(wh_sockets *sockets, wh_connection **at, short events) {
    const wh_connection_events handlers = events_of(sockets);
    wh_connection *connection = *at;
    wherry_error error;
    wherry_status status = WHERRY_OK;
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        status = wh_connection_read(connection, &handlers, &error);
    }
    if (status == WHERRY_OK && wh_connection_wants_to_write(connection)) {
        status = wh_connection_write(connection, &error);
        pthread_cond_broadcast(&sockets->changed);
        /*
         * The other side reads no more. But the bytes that it has sent are still valid, and may say
         * why.
         */
        if (status != WHERRY_OK) {
            hear_rest(sockets, connection);
            if (connection->broken != WHERRY_OK && connection->broken != WHERRY_PEER_LOST) {
                status = wh_connection_read(connection, &handlers, &error);
            }
        }
    }
    if (status != WHERRY_OK) {
        close_connection(sockets, at, &error);
    } else if (connection->attached && !connection->hello) { /* This side has sent its greeting. */
        hand_channel(sockets, at);
    }
}

bool wh_watch_add(wh_watch *watch, int fd, short events) {
    if (!WH_GROW(watch->fds, watch->capacity, watch->count)) {
        return false;
    }
    watch->fds[watch->count++] = (struct pollfd){fd, events, 0};
    return true;
}

/** Watches the eventfd, the listeners, and the connections that no waiting thread reads. */
static bool watch_all(wh_sockets *sockets, wh_watch *watch, uint64_t now) {
    bool pumped = wh_sockets_is_pumped(sockets, now);
    watch->count = 0;
    sockets->reading = !pumped;
    bool deaf = now < sockets->deaf_until;
    bool ok = wh_watch_add(watch, sockets->wake, POLLIN) &&
              wh_watch_add(watch, deaf ? -1 : sockets->listener, POLLIN) &&
              wh_watch_add(watch, deaf ? -1 : sockets->shortcut, POLLIN);
    for (size_t i = 0; i < sockets->meeting_count && ok; i++) {
        ok = wh_watch_add(watch, deaf ? -1 : sockets->meetings[i].listener, POLLIN);
    }
    for (wh_connection *one = sockets->connections; one && ok; one = one->next) {
        bool writes = wh_connection_wants_to_write(one);
        bool left = pumped && one->pump_slot && !writes;
        one->slot = watch->count;
        ok = wh_watch_add(watch, left ? -1 : one->socket.fd, (short)(POLLIN | (writes ? POLLOUT : 0)));
    }
    return ok;
}

/** Serves what poll() has found. Connections that were added meanwhile have no slot. */
static void serve_ready(wh_sockets *sockets, const wh_watch *watch) {
    uint64_t wakes;
    if (watch->fds[0].revents && read(sockets->wake, &wakes, sizeof(wakes)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the wake-up was gone already");
    }
    for (wh_connection **at = &sockets->connections; *at;) {
        wh_connection *one = *at;
        if (one->slot) {
            wh_sockets_serve(sockets, at, watch->fds[one->slot].revents);
        }
        at = *at == one ? &one->next : at;
    }
    for (size_t i = 1; i < FIRST_MEETING + sockets->meeting_count; i++) {
        if (watch->fds[i].revents) {
            bool met = i >= FIRST_MEETING;
            accept_all(sockets,
                       met      ? sockets->meetings[i - FIRST_MEETING].listener
                       : i == 1 ? sockets->listener
                                : sockets->shortcut,
                       met);
        }
    }
}

/**
 * Before this process accepts or dials, looks whether the file of the secret has changed. It dials
 * when it is woken, or after a wait. Without the lock.
 */
static void look(wh_sockets *sockets, const wh_watch *watch, int ready) {
    bool connects = ready <= 0;
    for (size_t i = 0; i < FIRST_MEETING + sockets->meeting_count && !connects; i++) {
        connects = watch->fds[i].revents;
    }
    if (connects) {
        wh_sockets_look(sockets);
    }
}

static bool has_queued(const wh_sockets *sockets) {
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        if (wh_connection_is_up(one) && (one->out.queued || wh_socket_unsent(&one->socket))) {
            return true;
        }
    }
    return wh_barrier_owes(sockets);
}

/**
 * Closes everything because a newer incarnation has taken this rank. Sends the remaining news
 * first, because nobody else may have it.
 */
static void withdraw(wh_sockets *sockets) {
    wh_meetings_close(sockets);
    wh_members_tell(sockets, INT64_MAX);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->doomed = true;
    }
}

void *wh_sockets_progress(void *context) {
    wh_sockets *sockets = context;
    wh_watch watch = {0};
    wh_deadline leaving = wh_deadline_never();
    pthread_mutex_lock(&sockets->lock);
    while (!sockets->stopping || (has_queued(sockets) && !wh_deadline_passed(leaving))) {
        uint64_t now = wh_clock_now();
        uint64_t next = now + WAIT_MS * MS;
        if (sockets->stopping) {
            leaving = wh_deadline_earlier(leaving, wh_deadline_in_ms(LEAVE_MS));
            wh_members_tell(sockets, INT64_MAX);
        } else if (sockets->fenced) {
            withdraw(sockets);
        } else {
            wh_meetings_serve(sockets, now);
            next = wh_min(next, wh_meetings_next(sockets));
        }
        if (!sockets->fenced) {
            next = wh_min(next, wh_barrier_tell(sockets, now));
            serve_wanted(sockets);
            next = wh_min(next, wh_members_tell(sockets, now));
        }
        next = wh_min(next, now < sockets->deaf_until ? sockets->deaf_until : next);
        watch_silence(sockets, now);
        close_doomed(sockets);
        bool watching = watch_all(sockets, &watch, now);
        int wait = wh_sockets_wait_ms(sockets, now, (int)((next > now ? next - now : 0) / MS) + 1);
        pthread_mutex_unlock(&sockets->lock);
        look(sockets, &watch, poll(watch.fds, watching ? watch.count : 0, wait));
        pthread_mutex_lock(&sockets->lock);
        if (watching) {
            serve_ready(sockets, &watch);
        }
    }
    pthread_mutex_unlock(&sockets->lock);
    wh_free(watch.fds);
    return NULL;
}

void wh_sockets_close_all(wh_sockets *sockets) {
    while (sockets->connections) {
        close_connection(sockets, &sockets->connections, NULL);
    }
    wh_meetings_close(sockets);
    if (sockets->listener >= 0) {
        wh_place_remove(sockets->place);
        close(sockets->listener);
    }
    if (sockets->shortcut >= 0) {
        close(sockets->shortcut);
    }
}
