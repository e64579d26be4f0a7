/* Joining, sending, receiving and leaving. */
#include "group/sockets/sockets.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/stop.h"
#include "base/text.h"
#include "group/group_timing.h"
#include "group/mailbox.h"
#include "group/sockets/internal.h"

/** Limits at a server, which has thousands of unknown readers. */
enum {
    LOOSE_SHARE = 16 << 10,   /**< For messages of a reader that nobody has asked for. */
    READERS_POOL = 256 << 20, /**< For the incomplete messages of all readers together. */
};

#define MS UINT64_C(1000000)

/** Maximum size of the waiting bytes per rank. */
enum { MAILBOX_SHARE = 256 << 20, QUEUE_MAX = 64 << 20 };

enum {
    SMALL = 64 << 10, /**< A message of up to this size is copied if it cannot be sent at once. */
    STUCK_MS = 10,    /**< A larger message is copied if no byte of it was sent for this long. */
};

/** A message to send. The bytes belong to the caller. */
typedef struct outgoing {
    int32_t rank;
    uint64_t tag;
    const void *bytes;
    size_t size;
} outgoing;

void wh_sockets_wake(wh_sockets *sockets) {
    uint64_t one = 1;
    if (write(sockets->wake, &one, sizeof(one)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the progress thread is awake already");
    }
}

/** True if a stop was requested. Releases the lock meanwhile. */
static bool is_stopped(wh_sockets *sockets, const wh_stop *stop) {
    pthread_mutex_unlock(&sockets->lock);
    bool stopped = wh_stop_requested(stop);
    pthread_mutex_lock(&sockets->lock);
    return stopped;
}

static wherry_status fail_stopped(int32_t rank, wherry_error *error) {
    return wh_fail_rank(
        error, rank, wh_fail(error, WHERRY_CANCELLED, "rank %d: cancelled while sending a message to it", (int)rank));
}

static wherry_status fail_lost(int32_t rank, const char *reason, wherry_error *error) {
    return wh_fail_rank(error, rank, wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)rank, reason));
}

/**
 * True if a message belongs to a conversation that has ended with the loss of the rank. The sender
 * may not know of the loss yet. Then the rank must not be dialled: if the link drops all packets,
 * that takes as long as noticing the loss did.
 */
static bool is_over(const wh_sockets *sockets, int32_t rank, uint64_t tag) {
    return (tag & WH_TAG_CONVERSATION) && wh_mailbox_is_lost(sockets->base.mailbox, rank, NULL, 0);
}

/** Waits for a connection to a rank with room in its queue. */
static wherry_status find_way(wh_sockets *sockets, int32_t rank, uint64_t tag, wh_deadline deadline,
                              const wh_stop *stop, wh_connection **connection_p, wherry_error *error) {
    wh_member *member = sockets->members + rank;
    uint64_t failures = member->failures;
    bool in_time = true;
    for (;;) {
        if (sockets->fenced) {
            return wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d has taken this one's place",
                           (int)sockets->base.rank);
        }
        wh_connection *connection = member->connection;
        if (connection && !connection->doomed && !connection->parting && connection->out.queued < QUEUE_MAX) {
            *connection_p = connection;
            return WHERRY_OK;
        }
        if (member->failures != failures || (!connection && is_over(sockets, rank, tag))) {
            return fail_lost(rank, member->reason, error);
        }
        if (!in_time) {
            return wh_fail_rank(error, rank,
                                wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out sending a message", (int)rank));
        }
        member->wanted = !connection;
        wh_sockets_wake(sockets);
        wh_deadline slice = stop ? wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_STOP_LOOK_MS)) : deadline;
        in_time = wh_wait(&sockets->changed, &sockets->lock, slice) || !wh_deadline_passed(deadline);
        if (stop && is_stopped(sockets, stop)) {
            return fail_stopped(rank, error);
        }
    }
}

/**
 * Waits until a loan is sent, while bytes move. @return true if a stop was requested. The
 * connection may be gone, which breaks the loan.
 */
static bool await_loan(wh_sockets *sockets, const wh_connection *connection, const wh_loan *loan, wh_deadline deadline,
                       const wh_stop *stop) {
    wh_deadline look = {0};
    bool moved = true;
    while (moved && !loan->broken && loan->frames) {
        if (stop && wh_deadline_passed(look)) {
            look = wh_deadline_in_ms(WH_STOP_LOOK_MS);
            if (is_stopped(sockets, stop)) {
                return true;
            }
            continue; /* The lock was released in the meantime. */
        }
        size_t before = connection->out.queued;
        wh_deadline pause = wh_deadline_earlier(deadline, wh_deadline_in_ms(STUCK_MS));
        while (!loan->broken && loan->frames && connection->out.queued == before &&
               wh_wait(&sockets->changed, &sockets->lock, pause)) {
        }
        moved = !loan->broken && loan->frames && connection->out.queued != before;
    }
    return false;
}

/**
 * Sends as many bytes as the socket takes at once from the calling thread. This is usually all of a
 * small message. The progress thread sends the rest. For a large message, the caller waits while
 * bytes move, so that the message need not be copied. If no bytes move, or at the deadline, the
 * rest is copied, so that the caller does not wait. A message that has begun is sent completely,
 * even if the caller was stopped.
 */
static wherry_status send_over(wh_sockets *sockets, wh_connection *connection, const outgoing *message,
                               wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    wh_loan loan;
    int32_t rank = message->rank;
    bool idle = !connection->out.first && wh_connection_is_up(connection);
    if (!wh_connection_lend(connection, message->tag, message->bytes, message->size, &loan)) {
        return wh_fail_memory(error, "a message");
    }
    if (idle) {
        /* If the connection is broken, the progress thread notices it too. */
        wh_connection_write(connection, NULL);
    }
    if (!loan.frames) {
        return WHERRY_OK;
    }
    wh_sockets_wake(sockets);
    bool stopped = message->size > SMALL && await_loan(sockets, connection, &loan, deadline, stop);
    if (loan.broken) {
        return fail_lost(rank, "the connection ended in the middle of a message", error);
    }
    if (!loan.frames) {
        return WHERRY_OK; /* The connection may be gone too. */
    }
    if (!wh_outbox_keep(&connection->out, &loan)) {
        wh_outbox_clear(&connection->out);
        connection->doomed = true;
        return wh_fail_memory(error, "a message");
    }
    return stopped ? fail_stopped(rank, error) : WHERRY_OK;
}

static wherry_status sockets_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, const wh_stop *stop, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return wh_mailbox_put_copy(sockets->base.mailbox, rank, sockets->incarnation, tag, bytes, size, error);
    }
    wh_connection *connection = NULL;
    pthread_mutex_lock(&sockets->lock);
    wherry_status status = find_way(sockets, rank, tag, deadline, stop, &connection, error);
    if (connection) {
        status = send_over(sockets, connection, &(outgoing){rank, tag, bytes, size}, deadline, stop, error);
    }
    pthread_mutex_unlock(&sockets->lock);
    return status;
}

/*
 * Reading by waiting threads. If a thread itself reads the message that it waits for, this saves
 * one switch between threads. The progress thread does not read meanwhile. It reads again if no
 * thread has read for a short time, so that other messages are read too.
 */

enum {
    /**
     * How long a thread that has its message may stay away: it often waits for the next one at
     * once.
     */
    AWAY_MS = 1,
    /**
     * A thread that read for this long wakes the progress thread when it leaves, so that the
     * progress thread need not check so often.
     */
    LONG_MS = 10,
    MEMORY_MS = 5, /**< Length of the pause if out of memory. */
};

bool wh_sockets_is_pumped(const wh_sockets *sockets, uint64_t now) {
    return sockets->pump.inside || now < sockets->pump.until;
}

int wh_sockets_wait_ms(const wh_sockets *sockets, uint64_t now, int most) {
    bool settled = sockets->pump.inside && now - sockets->pump.since > LONG_MS * MS;
    return wh_sockets_is_pumped(sockets, now) && !settled ? AWAY_MS : most;
}

void wh_sockets_nudge(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    uint64_t one = 1;
    if (write(sockets->pump.nudge, &one, sizeof(one)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the waiting thread is awake already");
    }
}

/** Watches the connections that carry messages. @return false if out of memory. */
static bool enter(wh_sockets *sockets) {
    wh_pump *pump = &sockets->pump;
    pump->watch.count = 0;
    bool ok = wh_watch_add(&pump->watch, pump->nudge, POLLIN);
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        one->pump_slot = 0;
        if (ok && wh_connection_is_up(one) && !one->doomed) {
            size_t slot = pump->watch.count;
            ok = wh_watch_add(&pump->watch, one->socket.fd, POLLIN);
            one->pump_slot = ok ? slot : 0;
        }
    }
    pump->inside = ok;
    pump->since = wh_clock_now();
    return ok;
}

static void leave(wh_sockets *sockets) {
    wh_pump *pump = &sockets->pump;
    uint64_t now = wh_clock_now();
    pump->inside = false;
    pump->until = now + AWAY_MS * MS;
    if (now - pump->since > LONG_MS * MS) {
        wh_sockets_wake(sockets);
    }
}

static void serve(wh_sockets *sockets) {
    const wh_watch *watch = &sockets->pump.watch;
    uint64_t nudges;
    if (watch->fds[0].revents && read(sockets->pump.nudge, &nudges, sizeof(nudges)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "cannot read the eventfd of a group; another thread may have read it");
    }
    for (wh_connection **at = &sockets->connections; *at;) {
        wh_connection *one = *at;
        if (one->pump_slot && watch->fds[one->pump_slot].revents) {
            wh_sockets_serve(sockets, at, watch->fds[one->pump_slot].revents);
        }
        at = *at == one ? &one->next : at;
    }
}

wherry_status wh_sockets_pump(wh_group *group, wh_deadline deadline, wherry_error *error) {
    (void)error;
    wh_sockets *sockets = (wh_sockets *)group;
    const wh_watch *watch = &sockets->pump.watch;
    pthread_mutex_lock(&sockets->lock);
    if (!enter(sockets)) {
        pthread_mutex_unlock(&sockets->lock);
        poll(NULL, 0, MEMORY_MS); /* The progress thread reads. */
        return WHERRY_OK;
    }
    if (sockets->reading) {
        wh_sockets_wake(sockets);
    }
    pthread_mutex_unlock(&sockets->lock);
    poll(watch->fds, watch->count, wh_deadline_poll_ms(deadline));
    pthread_mutex_lock(&sockets->lock);
    serve(sockets);
    leave(sockets);
    pthread_mutex_unlock(&sockets->lock);
    return WHERRY_OK;
}

/* The other operations of the group. */

static void sockets_watch(wh_group *group, int32_t rank) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return;
    }
    pthread_mutex_lock(&sockets->lock);
    bool missing = !sockets->members[rank].connection;
    sockets->members[rank].wanted |= missing;
    pthread_mutex_unlock(&sockets->lock);
    if (missing) {
        wh_sockets_wake(sockets);
    }
}

/**
 * The kernel knows which process called connect() or listen() on a Unix socket. In both directions
 * that is the process that joined, because its forked children cannot use the group. A process in
 * another pid namespace has the number 0.
 */
static int32_t sockets_process(wh_group *group, int32_t rank) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return getpid();
    }
    struct ucred peer = {0};
    socklen_t peer_size = sizeof(peer);
    pthread_mutex_lock(&sockets->lock);
    const wh_member *member = sockets->members + rank;
    const wh_connection *connection = member->connection;
    bool present = connection && !connection->doomed && connection->incarnation == member->incarnation;
    bool known = present && wh_is_unix(connection->socket.fd) &&
                 getsockopt(connection->socket.fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0;
    pthread_mutex_unlock(&sockets->lock);
    return known ? peer.pid : 0;
}

static wherry_status sockets_token(const wh_group *group, char text[WHERRY_GROUP_TOKEN_MAX], wherry_error *error) {
    const wh_sockets *sockets = (const wh_sockets *)group;
    if (!sockets->security.serves) {
        return wh_fail(error, WHERRY_UNSUPPORTED, "this process is no server: it joined without an identity");
    }
    wh_token_encode(&sockets->security.identity.token, text);
    return WHERRY_OK;
}

/** Reads the files of secret and certificates. On failure, what was read before stays in use. */
static wherry_status sockets_reload(wh_group *group, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    wh_security *security = &sockets->security;
    wherry_status status;
    bool latest;
    do {
        wh_security_files files;
        pthread_mutex_lock(&sockets->lock);
        uint64_t updates = security->updates;
        pthread_mutex_unlock(&sockets->lock);
        status = wh_security_read(security, &files, error);
        pthread_mutex_lock(&sockets->lock);
        /* Otherwise another thread was faster, and perhaps with an older file. */
        latest = security->updates == updates;
        if (latest && status == WHERRY_OK) {
            wh_security_update(security, &files);
        } else if (latest) {
            security->secret_time = files.secret_time; /* Do not try again until it changes. */
        }
        pthread_mutex_unlock(&sockets->lock);
        wh_security_drop(&files);
    } while (!latest);
    return status;
}

void wh_sockets_look(wh_sockets *sockets) {
    wh_security *security = &sockets->security;
    wherry_error error;
    if (!security->secret_path) {
        return;
    }
    struct timespec now = wh_security_time(security);
    pthread_mutex_lock(&sockets->lock);
    struct timespec then = security->secret_time;
    pthread_mutex_unlock(&sockets->lock);
    if (now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec) {
        return;
    }
    if (sockets_reload(&sockets->base, &error) != WHERRY_OK) {
        wh_log(WHERRY_LOG_WARN, "the former secrets stay in use: %s", error.message);
    } else {
        wh_log(WHERRY_LOG_INFO, "rank %d read %s again", (int)sockets->base.rank, security->secret_path);
    }
}

static wherry_status sockets_describe(wh_group *group, int32_t rank, wherry_group_link *link_p, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    wherry_group_link link = {.local = rank == group->rank};
    wh_tls_facts facts = {.cipher = ""};
    pthread_mutex_lock(&sockets->lock);
    const wh_connection *connection = sockets->members[rank].connection;
    bool found = connection && wh_connection_is_up(connection) && !connection->doomed;
    link.local |= found && wh_is_unix(connection->socket.fd);
    if (found && connection->socket.tls) {
        wh_tls_describe(connection->socket.tls, &facts);
    }
    pthread_mutex_unlock(&sockets->lock);
    if (!found && !link.local) {
        return wh_fail_rank(error, rank,
                            wh_fail(error, WHERRY_PEER_LOST, "rank %d: there is no connection to it", (int)rank));
    }
    memcpy(link.cipher, facts.cipher, sizeof(link.cipher));
    memcpy(link.subject, facts.subject, sizeof(link.subject));
    memcpy(link.key_digest, facts.pin, sizeof(link.key_digest));
    link.expires = facts.expires;
    if (rank == group->rank && sockets->security.tls) {
        const char *certificate = sockets->security.setup.certificate;
        memcpy(link.cipher, "TLSv1.3", sizeof("TLSv1.3"));
        link.expires = certificate ? wh_tls_expiry(certificate) : 0;
    }
    *link_p = link;
    return WHERRY_OK;
}

/** Frees everything. The thread has ended, or has never started. */
static void dispose(wh_sockets *sockets) {
    wh_sockets_delist(sockets);
    wh_sockets_close_all(sockets);
    wh_close(sockets->wake);
    wh_close(sockets->pump.nudge);
    wh_free(sockets->pump.watch.fds);
    wh_security_clear(&sockets->security);
    wh_mailbox_destroy(sockets->base.mailbox);
    wh_group_address_clear(&sockets->address);
    wh_free(sockets->meetings);
    /* This wipes the keys of tickets. */
    OPENSSL_cleanse(sockets->members, (size_t)sockets->base.size * sizeof(*sockets->members));
    pthread_cond_destroy(&sockets->changed);
    pthread_mutex_destroy(&sockets->lock);
    wh_free(sockets);
}

static void sockets_destroy(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    pthread_mutex_lock(&sockets->lock);
    sockets->stopping = true;
    pthread_mutex_unlock(&sockets->lock);
    wh_sockets_wake(sockets);
    if (sockets->running) {
        pthread_join(sockets->thread, NULL);
    }
    dispose(sockets);
}

static const wh_group_backend sockets_ops = {
    .name = "sockets",
    .capabilities = WH_GROUP_BACKGROUND | WH_GROUP_DEATH | WH_GROUP_REJOIN | WH_GROUP_CONCURRENT,
    .send = sockets_send,
    .pump = wh_sockets_pump,
    .nudge = wh_sockets_nudge,
    .watch = sockets_watch,
    .connect = wh_sockets_connect,
    .process = sockets_process,
    .barrier = wh_sockets_barrier,
    .meeting = wh_sockets_meeting,
    .token = sockets_token,
    .reload = sockets_reload,
    .describe = sockets_describe,
    .destroy = sockets_destroy,
};

/**
 * Without a secret or certificates, other hosts may not connect unless the caller allows it. On
 * this host, only processes of this user may connect, which know its key. If the group meets on
 * loopback, all its ports stay there, also with allow_insecure.
 */
static wherry_status check_privacy(wh_sockets *sockets, wherry_error *error) {
    wh_security *security = &sockets->security;
    if (security->outward) {
        return WHERRY_OK;
    }
    if (security->encrypt_all && sockets->options.allow_insecure) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "encrypt=all needs a secret or certificates, and allow_insecure uses none; set WHERRY_SECRET or "
                       "WHERRY_SECRET_FILE on all ranks");
    }
    if (wh_meetings_are_private(sockets)) {
        sockets->stays_here = true;
        if (!sockets->options.allow_insecure) {
            return wh_security_use_user_key(security, error);
        }
        wh_log(WHERRY_LOG_WARN, "the group has no secret: all users of this host can join it, and nothing is "
                                "encrypted; leave out allow_insecure to use the key of this user");
        return WHERRY_OK;
    }
    if (!sockets->options.allow_insecure) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "without a secret the group stays on this host; set WHERRY_SECRET or WHERRY_SECRET_FILE on all "
                       "ranks, or meet on loopback, or set allow_insecure in the options of the group");
    }
    wh_log(WHERRY_LOG_WARN,
           "the group has no secret: anyone who can reach its ports can join it, and nothing is encrypted; "
           "set WHERRY_SECRET or WHERRY_SECRET_FILE on all ranks");
    return WHERRY_OK;
}

static void set_options(wh_sockets *sockets, const wh_sockets_options *options) {
    sockets->options = *options;
    sockets->options.wait_for = options->wait_for ? options->wait_for : (uint32_t)sockets->base.size;
    sockets->options.heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : WH_GROUP_HEARTBEAT_MS;
    sockets->options.dead_after_ms = options->dead_after_ms ? options->dead_after_ms : WH_GROUP_DEAD_AFTER_MS;
}

/** Creates a group that has not joined. Takes over the address. @return NULL if out of memory. */
static wh_sockets *create(wh_group_address *address, const wh_sockets_options *options) {
    size_t meetings = address->kind == WH_ADDRESS_UNIX ? 1 : address->meeting_count;
    wh_sockets *sockets = wh_alloc_zeroed(1, sizeof(*sockets) + (size_t)address->size * sizeof(*sockets->members));
    if (!sockets) {
        wh_group_address_clear(address);
        return NULL;
    }
    wh_condition_init(&sockets->changed);
    pthread_mutex_init(&sockets->lock, NULL);
    sockets->base = (wh_group){.ops = &sockets_ops, .rank = address->rank, .size = address->size};
    sockets->address = *address;
    sockets->oldest = sockets->newest = -1;
    sockets->incarnation = options->incarnation ? options->incarnation : wh_clock_wall();
    sockets->listener = -1;
    sockets->shortcut = -1;
    sockets->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sockets->pump.nudge = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sockets->base.mailbox = wh_mailbox_create(address->size, options->identity ? WH_READER_SHARE : MAILBOX_SHARE);
    sockets->meetings = wh_alloc_zeroed(meetings, sizeof(*sockets->meetings));
    set_options(sockets, options);
    if (!sockets->base.mailbox || !sockets->meetings || sockets->wake < 0 || sockets->pump.nudge < 0) {
        dispose(sockets);
        return NULL;
    }
    if (options->identity) {
        wh_mailbox_distrust(sockets->base.mailbox, LOOSE_SHARE);
    }
    sockets->pool = READERS_POOL;
    wh_mailbox_set_pump(sockets->base.mailbox, &sockets->base);
    wh_sockets_enlist(sockets);
    for (sockets->meeting_count = 0; sockets->meeting_count < meetings; sockets->meeting_count++) {
        sockets->meetings[sockets->meeting_count] = (wh_meeting){.listener = -1, .lock = -1};
    }
    return sockets;
}

/** Lists the first ranks that have not come, such as "1, 2, 5, ...". Free it with wh_free. */
static char *list_missing(const wh_sockets *sockets) {
    enum { NAMED_MAX = 8 };
    wh_string list = {0};
    int32_t missing = sockets->base.size - sockets->known;
    int32_t named = 0;
    for (int32_t rank = 0; rank < sockets->base.size && named < NAMED_MAX; rank++) {
        if (!sockets->members[rank].incarnation) {
            wh_string_format(&list, "%s%d", named++ ? ", " : "", (int)rank);
        }
    }
    wh_string_format(&list, "%s", missing > named ? ", ..." : "");
    return wh_string_take(&list);
}

/** Releases the lock meanwhile. */
static wherry_status fail_missing(wh_sockets *sockets, wherry_error *error) {
    char place[WH_PLACE_MAX];
    char why[256];
    int32_t missing = sockets->base.size - sockets->known;
    if (sockets->refusal.status != WHERRY_OK) {
        if (error) {
            *error = sockets->refusal;
        }
        return sockets->refusal.status;
    }
    char *list = list_missing(sockets);
    wh_meeting_text(&sockets->address, 0, place);
    wh_meetings_explain(sockets, why, sizeof(why));
    /* This process only dials, so it does not matter which other ranks are missing. */
    if (sockets->options.dial_only && sockets->known == 1) {
        wh_fail(error, WHERRY_TIMED_OUT, "timed out at the meeting point %s: nobody has answered%s", place, why);
    } else {
        wh_fail(error, WHERRY_TIMED_OUT, "timed out at the meeting point %s: %d of %d ranks have not come: %s%s", place,
                (int)missing, (int)sockets->base.size, list ? list : "?", why);
    }
    wh_free(list);
    return WHERRY_TIMED_OUT;
}

/** Logs whom this process waits for. Releases the lock meanwhile. */
static void log_missing(wh_sockets *sockets) {
    char place[WH_PLACE_MAX];
    char why[256];
    if (!wh_log_has_waits()) {
        return;
    }
    char *list = list_missing(sockets);
    wh_meeting_text(&sockets->address, 0, place);
    wh_meetings_explain(sockets, why, sizeof(why));
    if (sockets->options.dial_only && sockets->known == 1) {
        wh_log_wait("", "an answer at %s%s", place, why);
    } else {
        wh_log_wait("", "rank%s %s at %s%s", sockets->base.size - sockets->known == 1 ? "" : "s", list ? list : "?",
                    place, why);
    }
    wh_free(list);
}

bool wh_sockets_interrupted(const wh_sockets *sockets) {
    return sockets->options.interrupt && sockets->options.interrupt(sockets->options.interrupt_context);
}

/** True if too few ranks have joined. */
static bool is_waiting(const wh_sockets *sockets) {
    return sockets->known < (int32_t)sockets->options.wait_for;
}

/**
 * True if a meeting point cannot be joined with this version, this secret or as this user: waiting
 * does not help.
 */
static bool is_turned_away(const wh_sockets *sockets) {
    return sockets->refusal.status == WHERRY_BAD_SECRET || sockets->refusal.status == WHERRY_BAD_VERSION ||
           sockets->other_user;
}

/** Waits for the other ranks. Releases the lock now and then to ask the caller whether to stop. */
static wherry_status wait_for_ranks(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    bool interrupted = false;
    wh_wait_log wait = {0};
    pthread_mutex_lock(&sockets->lock);
    wh_deadline next = wh_deadline_in_ms(WH_STOP_LOOK_MS);
    while (is_waiting(sockets) && !sockets->fenced && in_time && !interrupted && !is_turned_away(sockets)) {
        wh_wait(&sockets->changed, &sockets->lock, wh_deadline_earlier(deadline, next));
        in_time = !wh_deadline_passed(deadline);
        if (wh_wait_is_long(&wait)) {
            log_missing(sockets);
        }
        if (wh_deadline_passed(next)) {
            pthread_mutex_unlock(&sockets->lock);
            interrupted = wh_sockets_interrupted(sockets);
            next = wh_deadline_in_ms(WH_STOP_LOOK_MS);
            pthread_mutex_lock(&sockets->lock);
        }
    }
    if (sockets->fenced) {
        status = wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d is there", (int)sockets->base.rank);
    } else if (interrupted) {
        status = wh_fail(error, WHERRY_CANCELLED, "joining was interrupted while %d of %d ranks had not come",
                         (int)(sockets->base.size - sockets->known), (int)sockets->base.size);
    } else if (is_waiting(sockets)) {
        status = fail_missing(sockets, error);
    }
    sockets->joined = status == WHERRY_OK;
    pthread_mutex_unlock(&sockets->lock);
    return status;
}

/**
 * Returns the first meeting point that the system has a route to; otherwise one whose address is
 * known.
 */
static const wh_socket_address *first_known(const wh_sockets *sockets) {
    const wh_socket_address *known = NULL;
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        const wh_socket_address *at = &sockets->meetings[i].at;
        if (at->size && (sockets->address.kind == WH_ADDRESS_UNIX || wh_has_way(at))) {
            return at;
        }
        known = at->size && !known ? at : known;
    }
    return known;
}

/** Finds the meeting points, listens and starts the thread. Does nothing in a group of one rank. */
static wherry_status begin(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    if (sockets->base.size == 1) {
        wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place, 0);
        return WHERRY_OK;
    }
    wherry_status status = wh_meeting_check(&sockets->address, error);
    if (status == WHERRY_OK) {
        status = wh_meetings_find(sockets, deadline, error);
    }
    if (status == WHERRY_OK) {
        status = check_privacy(sockets, error);
    }
    if (status == WHERRY_OK) {
        status = wh_meetings_choose(sockets, error);
    }
    if (status == WHERRY_OK) {
        status = sockets->address.bind.host
                     ? wh_meetings_announce(sockets, deadline, error)
                     : wh_member_listen(&sockets->address, first_known(sockets), sockets->stays_here,
                                        sockets->incarnation, &sockets->listener, sockets->place, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_shortcut_open(sockets);
    pthread_mutex_lock(&sockets->lock);
    wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place, 0);
    /* This process takes a free meeting point before it waits. */
    wh_meetings_serve(sockets, wh_clock_now());
    pthread_mutex_unlock(&sockets->lock);
    if (sockets->too_few_files) {
        return wh_fail(error, WHERRY_SYSTEM,
                       "this process may open too few files to listen at the meeting point of %d ranks; raise its "
                       "limit (ulimit -n), or start a rank first that has a higher one",
                       (int)sockets->base.size);
    }
    int result = wh_thread_start(&sockets->thread, wh_sockets_progress, sockets);
    sockets->running = result == 0;
    return result ? wh_fail_errno(error, WHERRY_SYSTEM, result, "cannot start a thread") : WHERRY_OK;
}

/** Checks that options and address do not contradict each other. */
static wherry_status check_wishes(const wh_group_address *address, const wh_sockets_options *options,
                                  wherry_error *error) {
    if (options->wait_for > (uint32_t)address->size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "wait_for is %u, and the group has %d ranks",
                       (unsigned)options->wait_for, (int)address->size);
    }
    if ((options->identity || options->token) && address->kind == WH_ADDRESS_UNIX) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a server and its readers meet over TCP, since TLS proves the server; use tcp://HOST:PORT");
    }
    if (options->dial_only && address->kind == WH_ADDRESS_TCP && !address->meeting[0].port) {
        return wh_fail(
            error, WHERRY_INVALID_ARGUMENT,
            "a client cannot join at port 0; use the port that wherry_group_meeting returns at a member that listens");
    }
    return WHERRY_OK;
}

wherry_status wh_sockets_join(const char *address, const wh_sockets_options *options, wh_deadline deadline,
                              wh_group **group_p, wherry_error *error) {
    wh_group_address parsed;
    wherry_status status = wh_group_address_parse(address, NULL, NULL, &parsed, error);
    if (status == WHERRY_OK) {
        status = check_wishes(&parsed, options, error);
        if (status != WHERRY_OK) {
            wh_group_address_clear(&parsed);
        }
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_sockets *sockets = create(&parsed, options);
    if (!sockets) {
        return wh_fail_memory(error, "a group");
    }
    status = wh_security_init(&sockets->security, options, error);
    sockets->base.encrypts_all = status == WHERRY_OK && sockets->security.encrypt_all;
    WH_THEN(status, begin(sockets, deadline, error));
    if (status != WHERRY_OK) {
        dispose(sockets);
        return status;
    }
    status = wait_for_ranks(sockets, deadline, error);
    if (status != WHERRY_OK) {
        sockets_destroy(&sockets->base);
        return status;
    }
    *group_p = &sockets->base;
    return WHERRY_OK;
}

/*
 * A forked child inherits all sockets of the group. If it kept them open, the other ranks would not
 * notice the death of its parent; data loaders fork such children. So the child closes them at
 * once, and its copy of the group is closed.
 */

/**
 * How long a fork waits for threads that use a group. A group that is busy for longer is left as it
 * is.
 */
enum { PATIENCE_S = 1 };

static wh_sockets *all;

static bool lock_for_a_while(pthread_mutex_t *lock) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

static void before_fork(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        one->held = lock_for_a_while(&one->lock);
        if (one->held && !wh_mailbox_hold(one->base.mailbox, PATIENCE_S)) {
            pthread_mutex_unlock(&one->lock);
            one->held = false;
        }
    }
}

static void release_all(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        if (one->held) {
            one->held = false;
            wh_mailbox_release(one->base.mailbox);
            pthread_mutex_unlock(&one->lock);
        }
    }
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/** The files of the sockets and the thread belong to the parent. */
static void abandon(wh_sockets *sockets) {
    for (wh_connection *one = sockets->connections; one; one = one->next) {
        close_fd(&one->socket.fd);
        if (one->socket.tls) {
            wh_tls_abandon(one->socket.tls);
        }
    }
    for (size_t i = 0; i < sockets->meeting_count; i++) {
        close_fd(&sockets->meetings[i].listener);
        close_fd(&sockets->meetings[i].lock);
        sockets->meetings[i].question = NULL;
    }
    close_fd(&sockets->listener);
    close_fd(&sockets->shortcut);
    close_fd(&sockets->wake);
    close_fd(&sockets->pump.nudge);
    sockets->running = false;
    sockets->fenced = true;
    wh_mailbox_close_in_child(sockets->base.mailbox);
}

static void in_child(void) {
    for (wh_sockets *one = all; one; one = one->next) {
        if (one->held) {
            abandon(one);
        }
    }
}

static wh_fork_lock list_lock = WH_FORK_LOCK(.before = before_fork, .in_child = in_child, .after = release_all);

void wh_sockets_enlist(wh_sockets *sockets) {
    wh_fork_lock_take(&list_lock);
    sockets->next = all;
    all = sockets;
    wh_fork_lock_give(&list_lock);
}

void wh_sockets_delist(wh_sockets *sockets) {
    wh_fork_lock_take(&list_lock);
    wh_sockets **at = &all;
    while (*at && *at != sockets) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = sockets->next;
    }
    wh_fork_lock_give(&list_lock);
}
