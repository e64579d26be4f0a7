/* The progress thread: accepts, dials, reads, writes, and notices who has fallen silent. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "group/sockets/internal.h"

#define MS UINT64_C(1000000)

/** How often a meeting point is tried again: while joining, and afterwards. How long the thread waits at most. How long it sends when it leaves. */
enum { RETRY_JOINING_MS = 20, RETRY_MS = 500, WAIT_MS = 100, LEAVE_MS = 1000 };

static wh_refusal admit(void *context, const wh_hello_fields *peer) {
    const wh_sockets *sockets = context;
    return peer->incarnation < sockets->members[peer->rank].incarnation ? WH_REFUSAL_STALE : WH_REFUSAL_NONE;
}

static wh_connection *add_connection(wh_sockets *sockets, int fd, bool dialled) {
    wherry_error error;
    wh_hello_config config = {
        .purpose = WH_HELLO_CONTROL,
        .rank = (uint32_t)sockets->base.rank,
        .size = (uint32_t)sockets->base.size,
        .incarnation = sockets->incarnation,
        .job = sockets->address.job,
        .address = sockets->place,
        .secret = sockets->options.secret,
        .secret_size = sockets->options.secret_size,
        .admit = admit,
        .context = sockets,
    };
    wh_connection *connection = wh_connection_create(fd, dialled, &config, &error);
    if (connection) {
        connection->next = sockets->connections;
        sockets->connections = connection;
    } else {
        wh_log(WHERRY_LOG_WARN, "rank %d: cannot keep a connection: %s", (int)sockets->base.rank, error.message);
    }
    return connection;
}

static bool greeted(void *context, wh_connection *connection, const wh_hello_fields *peer) {
    wh_sockets *sockets = context;
    if ((connection->wanted >= 0 && connection->wanted != connection->rank) ||
        !wh_sockets_learn(sockets, peer->rank, peer->incarnation, peer->address)) {
        return false;
    }
    wh_member *member = sockets->members + peer->rank;
    wh_mailbox_admit(sockets->base.mailbox, connection->rank, peer->incarnation);
    if (!member->connection || member->connection->doomed) {
        member->connection = connection;
    }
    member->wanted = false;
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

/** Notes that a rank cannot be reached; whoever waits on it is told. */
static void note_failure(wh_sockets *sockets, int32_t rank, uint64_t incarnation, const char *reason) {
    wh_member *member = sockets->members + rank;
    if (member->incarnation != incarnation) {
        return;
    }
    wh_log(WHERRY_LOG_DEBUG, "rank %d lost rank %d: %s", (int)sockets->base.rank, (int)rank, reason);
    member->failures++;
    member->wanted = false;
    snprintf(member->reason, sizeof(member->reason), "%s", reason);
    wh_mailbox_lose(sockets->base.mailbox, rank, incarnation, reason);
    pthread_cond_broadcast(&sockets->changed);
}

/** What a failed greeting says: a newer incarnation of this rank is there, or the way it was refused. */
static void heed_refusal(wh_sockets *sockets, const wh_connection *connection, const wherry_error *error) {
    bool stale = error->status == WHERRY_REFUSED && wh_hello_refusal(connection->hello) == WH_REFUSAL_STALE &&
                 wh_hello_peer(connection->hello);
    if (stale) {
        wh_sockets_fence(sockets);
    } else if (connection->meeting >= 0 && error->status != WHERRY_PEER_LOST) {
        sockets->refusal = *error;
    }
    if (!connection->dialled && error->status != WHERRY_PEER_LOST) {
        wh_log(WHERRY_LOG_WARN, "rank %d turned a connection away: %s", (int)sockets->base.rank, error->message);
    }
}

/** Another connection that messages to a rank can go over. */
static wh_connection *find_up(const wh_sockets *sockets, int32_t rank, uint64_t incarnation) {
    wh_connection *one = sockets->connections;
    while (one && (one->doomed || !wh_connection_is_up(one) || one->rank != rank || one->incarnation != incarnation)) {
        one = one->next;
    }
    return one;
}

/** Closes the connection that *at points to. */
static void close_connection(wh_sockets *sockets, wh_connection **at, const wherry_error *error) {
    wh_connection *connection = *at;
    *at = connection->next;
    wh_log(WHERRY_LOG_DEBUG, "rank %d: connection to rank %d ends: %s", (int)sockets->base.rank, (int)connection->rank,
           error ? error->message : "given up");
    if (connection->meeting >= 0) {
        sockets->meetings[connection->meeting].dialled = false;
    }
    if (connection->hello && error) {
        heed_refusal(sockets, connection, error);
    }
    int32_t rank = connection->rank >= 0 ? connection->rank : connection->wanted;
    if (rank >= 0) {
        wh_member *member = sockets->members + rank;
        uint64_t incarnation = connection->rank >= 0 ? connection->incarnation : member->incarnation;
        if (member->connection == connection) {
            member->connection = find_up(sockets, rank, member->incarnation);
        }
        if (!member->connection) {
            note_failure(sockets, rank, incarnation, error ? error->message : "the connection was given up");
        }
    }
    wh_connection_destroy(connection);
}

static void close_doomed(wh_sockets *sockets) {
    wh_connection **at = &sockets->connections;
    while (*at) {
        if ((*at)->doomed) {
            wh_connection_write(*at, NULL);
            close_connection(sockets, at, NULL);
        } else {
            at = &(*at)->next;
        }
    }
}

/** Listens at each meeting point that is free and on this host, and dials the others. */
static void serve_meetings(wh_sockets *sockets, uint64_t now) {
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        if (meeting->listener >= 0 || meeting->dialled || now < meeting->next_try) {
            continue;
        }
        meeting->next_try = now + (sockets->joined ? RETRY_MS : RETRY_JOINING_MS) * MS;
        meeting->listener = wh_meeting_listen(&sockets->address, i, &meeting->lock);
        int fd = meeting->listener < 0 ? wh_dial_meeting(&sockets->address, i) : -1;
        wh_connection *connection = fd >= 0 ? add_connection(sockets, fd, true) : NULL;
        if (connection) {
            connection->meeting = (int32_t)i;
            meeting->dialled = true;
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

/** Dials the members that somebody wants to talk to. */
static void serve_wanted(wh_sockets *sockets) {
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        wh_member *member = sockets->members + rank;
        if (!member->wanted || member->connection || !member->incarnation || is_dialled(sockets, rank)) {
            continue;
        }
        int fd = wh_dial_place(member->place);
        if (fd < 0) {
            note_failure(sockets, rank, member->incarnation, strerror(errno));
            continue;
        }
        wh_connection *connection = add_connection(sockets, fd, true);
        if (connection) {
            connection->wanted = rank;
        }
    }
}

/** Says that this side is alive, and gives up the other where it has not for too long. */
static void watch_silence(wh_sockets *sockets) {
    uint64_t now = wh_clock_now();
    wh_connection **at = &sockets->connections;
    while (*at) {
        wh_connection *one = *at;
        bool up = wh_connection_is_up(one);
        if (now - (up ? one->heard : one->born) > sockets->options.dead_after_ms * MS) {
            wherry_error silent = {.status = WHERRY_PEER_LOST, .message = "nothing was heard from it for too long"};
            close_connection(sockets, at, &silent);
            continue;
        }
        if (up && now - one->said > sockets->options.heartbeat_ms * MS) {
            wh_connection_queue(one, WH_FRAME_PING, NULL, 0);
        }
        at = &one->next;
    }
}

static void accept_all(wh_sockets *sockets, int listener) {
    int fd;
    while (listener >= 0 && (fd = wh_accept(listener)) >= 0) {
        add_connection(sockets, fd, false);
    }
}

static void serve_connection(wh_sockets *sockets, wh_connection **at, short events) {
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
    }
    if (status != WHERRY_OK) {
        close_connection(sockets, at, &error);
    }
}

/** What poll() waits for: the wake-up, the listeners, then the connections in the order of their list. */
typedef struct watch {
    struct pollfd *fds;
    size_t count;
    size_t capacity;
} watch;

static bool watch_add(watch *w, int fd, short events) {
    if (!WH_GROW(w->fds, w->capacity, w->count)) {
        return false;
    }
    w->fds[w->count++] = (struct pollfd){fd, events, 0};
    return true;
}

static bool watch_all(const wh_sockets *sockets, watch *w) {
    w->count = 0;
    bool ok = watch_add(w, sockets->wake, POLLIN) && watch_add(w, sockets->listener, POLLIN);
    for (size_t i = 0; i < sockets->meeting_count && ok; i++) {
        ok = watch_add(w, sockets->meetings[i].listener, POLLIN);
    }
    for (const wh_connection *one = sockets->connections; one && ok; one = one->next) {
        ok = watch_add(w, one->fd, (short)(POLLIN | (wh_connection_wants_to_write(one) ? POLLOUT : 0)));
    }
    return ok;
}

/** Serves what poll() found. Connections that came since are not in the list; those at its head are skipped. */
static void serve_ready(wh_sockets *sockets, const watch *w) {
    uint64_t wakes;
    if (w->fds[0].revents && read(sockets->wake, &wakes, sizeof(wakes)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the wake-up was gone already");
    }
    wh_connection **at = &sockets->connections;
    for (size_t i = 2 + sockets->meeting_count; i < w->count && *at; i++) {
        wh_connection *before = *at;
        serve_connection(sockets, at, w->fds[i].revents);
        at = *at == before ? &before->next : at;
    }
    accept_all(sockets, sockets->listener);
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        accept_all(sockets, sockets->meetings[i].listener);
    }
}

static bool has_queued(const wh_sockets *sockets) {
    for (const wh_connection *one = sockets->connections; one; one = one->next) {
        if (wh_connection_is_up(one) && one->queued) {
            return true;
        }
    }
    return false;
}

static void close_meetings(wh_sockets *sockets) {
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        wh_meeting *meeting = sockets->meetings + i;
        if (meeting->listener >= 0) {
            char place[WH_PLACE_MAX];
            wh_place_remove(wh_meeting_text(&sockets->address, i, place));
            close(meeting->listener);
            meeting->listener = -1;
        }
        if (meeting->lock >= 0) {
            close(meeting->lock);
            meeting->lock = -1;
        }
    }
}

/** Makes room for the incarnation that has taken this one's place. */
static void withdraw(wh_sockets *sockets) {
    close_meetings(sockets);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->doomed = true;
    }
}

void *wh_sockets_progress(void *context) {
    wh_sockets *sockets = context;
    watch w = {0};
    wh_deadline leaving = wh_deadline_never();
    pthread_mutex_lock(&sockets->lock);
    while (!sockets->stopping || (has_queued(sockets) && !wh_deadline_passed(leaving))) {
        uint64_t now = wh_clock_now();
        if (sockets->stopping) {
            leaving = wh_deadline_earlier(leaving, wh_deadline_in_ms(LEAVE_MS));
        } else if (sockets->fenced) {
            withdraw(sockets);
        } else {
            serve_meetings(sockets, now);
            serve_wanted(sockets);
        }
        watch_silence(sockets);
        close_doomed(sockets);
        bool watching = watch_all(sockets, &w);
        int wait = sockets->joined ? WAIT_MS : RETRY_JOINING_MS;
        pthread_mutex_unlock(&sockets->lock);
        poll(w.fds, watching ? w.count : 0, wait);
        pthread_mutex_lock(&sockets->lock);
        if (watching) {
            serve_ready(sockets, &w);
        }
    }
    pthread_mutex_unlock(&sockets->lock);
    wh_free(w.fds);
    return NULL;
}

void wh_sockets_close_all(wh_sockets *sockets) {
    while (sockets->connections) {
        close_connection(sockets, &sockets->connections, NULL);
    }
    close_meetings(sockets);
    if (sockets->listener >= 0) {
        wh_place_remove(sockets->place);
        close(sockets->listener);
    }
}
