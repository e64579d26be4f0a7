/* The progress thread: accepts, dials, reads, writes, and notices who has fallen silent. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

/**
 * How long the thread waits at most: while joining, and afterwards. How long it sends when it
 * leaves. How long it accepts nobody where there are no descriptors.
 */
enum { WAIT_JOINING_MS = 20, WAIT_MS = 100, LEAVE_MS = 1000, DEAF_MS = 100 };

/**
 * Where the meeting points begin in what the thread waits for: behind the wake-up, the listener and
 * that of the shortcut.
 */
enum { FIRST_MEETING = 3 };

/**
 * Whoever was met at a meeting point and is silent for so many heartbeats may be stopped: then
 * somebody else is to be met there.
 */
enum { SUSPECT_HEARTBEATS = 2 };

/**
 * How often a connection that is given up is read at most: a rank that never ends is not heard out.
 */
enum { REST_READS = 64 };

static wh_refusal admit(void *context, const wh_hello_fields *peer, uint64_t *newer_p) {
    const wh_sockets *sockets = context;
    uint64_t known = sockets->members[peer->rank].incarnation;
    if (!wh_sockets_believes(peer->incarnation)) {
        return WH_REFUSAL_AHEAD;
    }
    *newer_p = peer->incarnation < known ? known : 0;
    return peer->incarnation < known ? WH_REFUSAL_STALE : WH_REFUSAL_NONE;
}

wh_hello_config wh_sockets_hello(const wh_sockets *sockets, wh_hello_purpose purpose, wh_hello_admit admitted,
                                 void *context) {
    return (wh_hello_config){
        .purpose = purpose,
        .rank = (uint32_t)sockets->base.rank,
        .size = (uint32_t)sockets->base.size,
        .incarnation = sockets->incarnation,
        .job = sockets->address.job,
        .address = sockets->place,
        .secret = sockets->options.secret,
        .secret_size = sockets->options.secret_size,
        .admit = admitted,
        .context = context,
    };
}

wh_connection *wh_sockets_add(wh_sockets *sockets, int fd, bool dialled) {
    wherry_error error;
    wh_hello_config config = wh_sockets_hello(sockets, WH_HELLO_CONTROL, admit, sockets);
    wh_connection *connection = wh_connection_create(fd, dialled, &config, &error);
    if (connection) {
        connection->next = sockets->connections;
        sockets->connections = connection;
    } else {
        wh_log(WHERRY_LOG_WARN, "rank %d: cannot keep a connection: %s", (int)sockets->base.rank, error.message);
    }
    return connection;
}

/** Whether the other side has closed the connection, whatever is left to be read of it. */
static bool has_gone(const wh_connection *connection) {
    struct pollfd at = {connection->fd, POLLRDHUP, 0};
    return poll(&at, 1, 0) == 1;
}

/**
 * Whether something has come that nobody has read yet: this process was stopped, or had no
 * processor.
 */
static bool has_unread(const wh_connection *connection) {
    struct pollfd at = {connection->fd, POLLIN, 0};
    return poll(&at, 1, 0) == 1;
}

/** Another connection that messages to a rank can go over. */
static wh_connection *find_up(const wh_sockets *sockets, int32_t rank, uint64_t incarnation) {
    wh_connection *one = sockets->connections;
    while (one && (one->doomed || !wh_connection_is_up(one) || one->rank != rank || one->incarnation != incarnation)) {
        one = one->next;
    }
    return one;
}

/**
 * Whether messages are to go over a connection. Where there is a shortcut to the rank, they wait
 * for that: one that was met at a meeting point, or has dialled this one's place, is left for the
 * tables. A connection that this side has dialled for messages is the best that can be had.
 */
static bool is_for_messages(const wh_sockets *sockets, const wh_connection *connection) {
    int family = 0;
    socklen_t size = sizeof(family);
    return connection->wanted >= 0 || !wh_shortcut_leads_to(sockets, sockets->members[connection->rank].place) ||
           (getsockopt(connection->fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX);
}

/** Notes that a rank cannot be reached; whoever waits on it is told. */
static void note_failure(wh_sockets *sockets, int32_t rank, uint64_t incarnation, const char *reason) {
    wh_member *member = sockets->members + rank;
    if (member->incarnation != incarnation) {
        return;
    }
    wh_log(WHERRY_LOG_DEBUG, "rank %d lost rank %d: %s", (int)sockets->base.rank, (int)rank, reason);
    member->failures++;
    member->wanted = false;
    snprintf(member->reason, sizeof(member->reason), "%.*s", (int)sizeof(member->reason) - 1, reason);
    wh_mailbox_lose(sockets->base.mailbox, rank, incarnation, reason);
    pthread_cond_broadcast(&sockets->changed);
}

/**
 * The rank has connected again, and the connection that was used for messages is silent: the rank
 * has given it up, and this side had not noticed yet. The loss is noted now. Noted later, it would
 * end conversations that have begun over the new connection.
 */
static void give_up_silent(wh_sockets *sockets, const wh_connection *fresh) {
    wh_connection *old = sockets->members[fresh->rank].connection;
    uint64_t limit = SUSPECT_HEARTBEATS * sockets->options.heartbeat_ms * MS;
    bool silent = old && !old->doomed && old->incarnation == fresh->incarnation &&
                  wh_clock_now() - old->heard > limit && !has_unread(old);
    if (!silent || fresh->dialled) {
        return;
    }
    sockets->members[fresh->rank].connection = NULL;
    old->doomed = old->mourned = true;
    note_failure(sockets, fresh->rank, fresh->incarnation, "it was silent, and has connected again");
}

static bool greeted(void *context, wh_connection *connection, const wh_hello_fields *peer) {
    wh_sockets *sockets = context;
    if ((connection->wanted >= 0 && connection->wanted != connection->rank) ||
        !wh_sockets_learn(sockets, peer->rank, peer->incarnation, peer->address)) {
        return false;
    }
    if (connection->data) {
        return true;
    }
    if (!wh_mailbox_incarnation(sockets->base.mailbox, connection->rank) && has_gone(connection)) {
        /* the greeting of a process that was lost meanwhile: it is not back */
        connection->doomed = true;
        return true;
    }
    wh_member *member = sockets->members + peer->rank;
    give_up_silent(sockets, connection);
    wh_mailbox_admit(sockets->base.mailbox, connection->rank, peer->incarnation);
    bool first = !member->connection || member->connection->doomed;
    if (connection->meeting >= 0) {
        wh_meeting_note_answer(sockets, connection->meeting);
        bool known = !first || find_up(sockets, connection->rank, connection->incarnation);
        /* it was met before */
        connection->doomed |= known && sockets->meetings[connection->meeting].shared;
    }
    if (first && !connection->doomed && is_for_messages(sockets, connection)) {
        member->connection = connection;
    }
    member->wanted = member->wanted && !member->connection;
    pthread_cond_broadcast(&sockets->changed);
    return wh_sockets_send_table(sockets, connection);
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

/**
 * What a failed greeting says: a newer incarnation of this rank is there, or the way it was
 * refused.
 */
static void heed_refusal(wh_sockets *sockets, const wh_connection *connection, const wherry_error *error) {
    if (wh_hello_refusal(connection->hello) == WH_REFUSAL_OWN_RANK) {
        return; /* this process has dialled itself, at a meeting point that it shares */
    }
    bool stale = error->status == WHERRY_REFUSED && wh_hello_refusal(connection->hello) == WH_REFUSAL_STALE &&
                 wh_hello_peer(connection->hello);
    if (stale) {
        wh_sockets_outdo(sockets, wh_hello_newer(connection->hello));
    } else if (connection->meeting >= 0 && error->status != WHERRY_PEER_LOST) {
        sockets->refusal = *error;
    }
    if (!connection->dialled && error->status != WHERRY_PEER_LOST) {
        wh_log(WHERRY_LOG_WARN, "rank %d turned a connection away: %s", (int)sockets->base.rank, error->message);
    }
}

/**
 * Takes what a rank has said already over a connection that is about to be given up, such as its
 * last words.
 */
static void hear_rest(wh_sockets *sockets, wh_connection *connection) {
    const wh_connection_events handlers = {greeted, take_message, wh_sockets_take_table, sockets};
    struct pollfd at = {connection->fd, POLLIN, 0};
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
 * What the end of a connection, which is in no list any more, means for the rank at its other end:
 * its loss, unless there is another way to it.
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
         * Messages were on their way over this one: the rank cannot be told from one that was lost.
         * It is dialled anew.
         */
        while (other) {
            other->doomed = other->mourned = true;
            hear_rest(sockets, other);
            other = find_up(sockets, rank, incarnation);
        }
    } else if (!member->connection && (used || connection->wanted == rank)) {
        member->connection = other; /* where the shortcut cannot be had, what there is has to do */
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
    if (connection->hello && error) {
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
 * Takes a connection for messages that was left unused for a better one, which cannot be had.
 * @return false where there is none.
 */
static bool use_another(wh_sockets *sockets, int32_t rank, uint64_t incarnation) {
    wh_member *member = sockets->members + rank;
    member->connection = find_up(sockets, rank, incarnation);
    if (member->connection) {
        member->wanted = false;
        pthread_cond_broadcast(&sockets->changed);
    }
    return member->connection != NULL;
}

/** Dials the members that somebody wants to talk to. */
static void serve_wanted(wh_sockets *sockets) {
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        wh_member *member = sockets->members + rank;
        if (!member->wanted || member->connection || !member->incarnation || is_dialled(sockets, rank)) {
            continue;
        }
        int fd = wh_sockets_dial(sockets, member->place);
        if (fd < 0 && errno == EAGAIN) {
            continue;
        }
        if (fd < 0) {
            const char *reason = strerror(errno);
            if (!use_another(sockets, rank, member->incarnation)) {
                note_failure(sockets, rank, member->incarnation, reason);
            }
            continue;
        }
        wh_connection *connection = wh_sockets_add(sockets, fd, true);
        if (connection) {
            connection->wanted = rank;
        }
    }
}

/** Whether nothing has come over a connection for too long. */
static bool is_silent(const wh_sockets *sockets, const wh_connection *one, uint64_t now) {
    bool up = wh_connection_is_up(one);
    uint64_t limit = sockets->options.dead_after_ms * MS;
    if (!up && one->meeting >= 0 && sockets->meetings[one->meeting].patience < limit) {
        limit = sockets->meetings[one->meeting].patience;
    }
    return now - (up ? one->heard : one->born) > limit && !has_unread(one);
}

/** Says that this side is alive, and gives up the other where it has not for too long. */
static void watch_silence(wh_sockets *sockets) {
    uint64_t now = wh_clock_now();
    wh_connection **at = &sockets->connections;
    while (*at) {
        wh_connection *one = *at;
        bool up = wh_connection_is_up(one);
        if (is_silent(sockets, one, now)) {
            wherry_error silent = {.status = WHERRY_PEER_LOST, .message = "nothing was heard from it for too long"};
            if (one->meeting >= 0) {
                wh_meeting_note_silence(sockets, one->meeting);
            }
            close_connection(sockets, at, &silent);
            continue;
        }
        if (up && one->meeting >= 0 && now - one->heard > SUSPECT_HEARTBEATS * sockets->options.heartbeat_ms * MS) {
            one->meeting = -1;
        }
        if (up && now - one->said > sockets->options.heartbeat_ms * MS) {
            wh_connection_queue(one, WH_FRAME_PING, NULL, 0);
        }
        at = &one->next;
    }
}

static void accept_all(wh_sockets *sockets, int listener) {
    int fd = -1;
    while (listener >= 0 && (fd = wh_accept(listener)) >= 0) {
        wh_sockets_add(sockets, fd, false);
    }
    if (listener >= 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
        wh_log(WHERRY_LOG_WARN, "rank %d cannot accept a connection: %s", (int)sockets->base.rank, strerror(errno));
        /* poll() would say at once that somebody is waiting */
        sockets->deaf_until = wh_clock_now() + DEAF_MS * MS;
    }
}

/** Makes a channel of the connection that *at points to, for whoever has an inbox open for it. */
static void hand_channel(wh_sockets *sockets, wh_connection **at) {
    wh_connection *connection = *at;
    *at = connection->next;
    wh_message message = {WH_MESSAGE_CHANNEL, connection->rank, connection->incarnation, connection->tag, NULL, 0,
                          connection->fd};
    uint8_t answer =
        wh_mailbox_has_inbox(sockets->base.mailbox, connection->tag) ? (uint8_t)WH_ATTACHED : (uint8_t)WH_NOT_ATTACHED;
    connection->fd = -1;
    wh_connection_destroy(connection);
    /* The first byte on this way: it always has room. */
    bool told = send(message.channel, &answer, 1, MSG_NOSIGNAL) == 1;
    wherry_error error;
    if (!told || answer != WH_ATTACHED) {
        wh_message_clear(&message);
    } else if (wh_mailbox_put(sockets->base.mailbox, &message, &error) != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "rank %d: cannot keep a channel: %s", (int)sockets->base.rank, error.message);
        wh_message_clear(&message);
    }
}

void wh_sockets_serve(wh_sockets *sockets, wh_connection **at, short events) {
    const wh_connection_events handlers = {greeted, take_message, wh_sockets_take_table, sockets};
    wh_connection *connection = *at;
    wherry_error error;
    wherry_status status = WHERRY_OK;
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        status = wh_connection_read(connection, &handlers, &error);
    }
    if (status == WHERRY_OK && wh_connection_wants_to_write(connection)) {
        status = wh_connection_write(connection, &error);
        pthread_cond_broadcast(&sockets->changed);
        /* the other side reads no more; what it has said before still holds */
        if (status != WHERRY_OK) {
            hear_rest(sockets, connection);
        }
    }
    if (status != WHERRY_OK) {
        close_connection(sockets, at, &error);
    } else if (connection->attached && !connection->hello) { /* this side's greeting has gone out */
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

/**
 * Watches the wake-up, the listeners and the connections, but for what a waiting thread reads from.
 */
static bool watch_all(wh_sockets *sockets, wh_watch *watch, uint64_t now) {
    bool guest = wh_sockets_has_guest(sockets, now);
    watch->count = 0;
    sockets->reading = !guest;
    bool deaf = now < sockets->deaf_until;
    bool ok = wh_watch_add(watch, sockets->wake, POLLIN) &&
              wh_watch_add(watch, deaf ? -1 : sockets->listener, POLLIN) &&
              wh_watch_add(watch, deaf ? -1 : sockets->shortcut, POLLIN);
    for (size_t i = 0; i < sockets->meeting_count && ok; i++) {
        ok = wh_watch_add(watch, deaf ? -1 : sockets->meetings[i].listener, POLLIN);
    }
    for (wh_connection *one = sockets->connections; one && ok; one = one->next) {
        bool writes = wh_connection_wants_to_write(one);
        bool left = guest && one->guest_slot && !writes;
        one->slot = watch->count;
        ok = wh_watch_add(watch, left ? -1 : one->fd, (short)(POLLIN | (writes ? POLLOUT : 0)));
    }
    return ok;
}

/** Serves what poll() found. Connections that came since have no slot. */
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
            accept_all(sockets, i == 1   ? sockets->listener
                                : i == 2 ? sockets->shortcut
                                         : sockets->meetings[i - FIRST_MEETING].listener);
        }
    }
}

static bool has_queued(const wh_sockets *sockets) {
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        if (wh_connection_is_up(one) && one->out.queued) {
            return true;
        }
    }
    return false;
}

/** Makes room for the incarnation that has taken this one's place. */
static void withdraw(wh_sockets *sockets) {
    wh_meetings_close(sockets);
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
        if (sockets->stopping) {
            leaving = wh_deadline_earlier(leaving, wh_deadline_in_ms(LEAVE_MS));
        } else if (sockets->fenced) {
            withdraw(sockets);
        } else {
            wh_meetings_serve(sockets, now);
            serve_wanted(sockets);
        }
        watch_silence(sockets);
        close_doomed(sockets);
        bool watching = watch_all(sockets, &watch, now);
        int wait = wh_sockets_guest_ms(sockets, now, sockets->joined ? WAIT_MS : WAIT_JOINING_MS);
        pthread_mutex_unlock(&sockets->lock);
        poll(watch.fds, watching ? watch.count : 0, wait);
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
