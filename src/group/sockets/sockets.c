/* Joining, sending, receiving and leaving. */
#include "group/sockets/sockets.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "group/sockets/internal.h"
#include "group/sockets/secret.h"

enum { MAILBOX_SHARE = 256 << 20, QUEUE_MAX = 64 << 20, HEARTBEAT_MS = 1000, DEAD_AFTER_MS = 5000 };

/**
 * A message up to this size is copied rather than waited for; one that does not move is waited for
 * this long.
 */
enum { SMALL = 64 << 10, STUCK_MS = 10 };

/** A message that is to be sent; the bytes are the caller's. */
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

/** Whether a stop was requested; the lock is released meanwhile. */
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
 * Whether a message belongs to a conversation that ended with the loss of the rank. Where that is
 * what its sender has not heard yet, the rank must not be dialled: over a link that swallows
 * everything, that lasts as long as the loss took to notice.
 */
static bool is_over(const wh_sockets *sockets, int32_t rank, uint64_t tag) {
    return (tag & WH_TAG_CONVERSATION) && wh_mailbox_is_lost(sockets->base.mailbox, rank, NULL, 0);
}

/** Waits until there is a connection to a rank with room in its queue. */
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
        if (connection && !connection->doomed && connection->out.queued < QUEUE_MAX) {
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
 * Waits for a loan to go out, as long as it moves. @return whether the stop was requested; the
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
            continue; /* the lock was let go */
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
 * Sends from the calling thread what goes out at once, which is all of a small message, and leaves
 * the rest to the progress thread. A large one is waited for as long as it moves, so that it need
 * not be copied; one that does not move, or not before the deadline, must not hold the caller up.
 * What has begun goes out whole, also where the caller was stopped.
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
        /* where it is broken the progress thread finds that too */
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
        return WHERRY_OK; /* and the connection may be gone as well */
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
 * The kernel's word for a Unix socket: the process that called connect() or listen(), which is the
 * one that joined in both directions, since a child of it cannot use the group. A process that this
 * one cannot see, being in another pid namespace, has the number 0.
 */
static int32_t sockets_process(wh_group *group, int32_t rank) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return getpid();
    }
    int family = 0;
    struct ucred peer = {0};
    socklen_t family_size = sizeof(family);
    socklen_t peer_size = sizeof(peer);
    pthread_mutex_lock(&sockets->lock);
    const wh_member *member = sockets->members + rank;
    const wh_connection *connection = member->connection;
    bool present = connection && !connection->doomed && connection->incarnation == member->incarnation;
    bool known = present && getsockopt(connection->fd, SOL_SOCKET, SO_DOMAIN, &family, &family_size) == 0 &&
                 family == AF_UNIX && getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0;
    pthread_mutex_unlock(&sockets->lock);
    return known ? peer.pid : 0;
}

/** Releases everything; the thread has ended, or never began. */
static void dispose(wh_sockets *sockets) {
    wh_sockets_delist(sockets);
    wh_sockets_close_all(sockets);
    if (sockets->wake >= 0) {
        close(sockets->wake);
    }
    if (sockets->guest.nudge >= 0) {
        close(sockets->guest.nudge);
    }
    wh_free(sockets->guest.watch.fds);
    if (sockets->options.secret) {
        OPENSSL_cleanse((void *)sockets->options.secret, sockets->options.secret_size);
        wh_free((void *)sockets->options.secret);
    }
    wh_mailbox_destroy(sockets->base.mailbox);
    wh_group_address_clear(&sockets->address);
    wh_free(sockets->meetings);
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

static const wh_group_ops sockets_ops = {
    .name = "sockets",
    .capabilities = WH_GROUP_BACKGROUND | WH_GROUP_DEATH | WH_GROUP_REJOIN | WH_GROUP_CONCURRENT,
    .send = sockets_send,
    .pump = wh_sockets_pump,
    .nudge = wh_sockets_nudge,
    .watch = sockets_watch,
    .connect = wh_sockets_connect,
    .process = sockets_process,
    .meeting = wh_sockets_meeting,
    .destroy = sockets_destroy,
};

/** Without a secret, nobody beyond this host may connect, unless the caller insists. */
static wherry_status check_privacy(const wh_sockets *sockets, wherry_error *error) {
    if (sockets->options.secret_size || wh_meetings_are_private(sockets)) {
        return WHERRY_OK;
    }
    if (!sockets->options.allow_insecure) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "without a secret the group stays on this host; set WHERRY_SECRET or WHERRY_SECRET_FILE on all "
                       "ranks, or meet on loopback, or allow it explicitly");
    }
    wh_log(WHERRY_LOG_WARN, "the group has no secret: whoever reaches its ports can join it; set WHERRY_SECRET or "
                            "WHERRY_SECRET_FILE on all ranks");
    return WHERRY_OK;
}

static void set_options(wh_sockets *sockets, const wh_sockets_options *options) {
    sockets->options = *options;
    sockets->options.secret = NULL;
    sockets->options.secret_size = 0;
    sockets->options.wait_for = options->wait_for ? options->wait_for : (uint32_t)sockets->base.size;
    sockets->options.heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : HEARTBEAT_MS;
    sockets->options.dead_after_ms = options->dead_after_ms ? options->dead_after_ms : DEAD_AFTER_MS;
}

/**
 * A group that is not joined yet, or NULL where there is no memory; takes the address over, also
 * then.
 */
static wh_sockets *create(wh_group_address *address, const wh_sockets_options *options) {
    size_t meetings = address->kind == WH_ADDRESS_UNIX ? 1 : address->meeting_count;
    wh_sockets *sockets = wh_alloc_zeroed(1, sizeof(*sockets) + (size_t)address->size * sizeof(*sockets->members));
    if (!sockets) {
        wh_group_address_clear(address);
        return NULL;
    }
    wh_condition_init(&sockets->changed);
    pthread_mutex_init(&sockets->lock, NULL);
    sockets->base = (wh_group){&sockets_ops, address->rank, address->size, NULL};
    sockets->address = *address;
    sockets->incarnation = options->incarnation ? options->incarnation : wh_clock_wall();
    sockets->listener = -1;
    sockets->shortcut = -1;
    sockets->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sockets->guest.nudge = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sockets->base.mailbox = wh_mailbox_create(address->size, MAILBOX_SHARE);
    sockets->meetings = wh_alloc_zeroed(meetings, sizeof(*sockets->meetings));
    set_options(sockets, options);
    if (!sockets->base.mailbox || !sockets->meetings || sockets->wake < 0 || sockets->guest.nudge < 0) {
        dispose(sockets);
        return NULL;
    }
    wh_mailbox_set_pump(sockets->base.mailbox, &sockets->base);
    wh_sockets_enlist(sockets);
    for (sockets->meeting_count = 0; sockets->meeting_count < meetings; sockets->meeting_count++) {
        sockets->meetings[sockets->meeting_count] = (wh_meeting){.listener = -1};
    }
    return sockets;
}

static int32_t count_missing(const wh_sockets *sockets, wh_string *list) {
    int32_t missing = 0;
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        if (!sockets->members[rank].incarnation) {
            missing++;
            if (list && missing <= 8) {
                wh_string_format(list, "%s%d", missing > 1 ? ", " : "", (int)rank);
            }
        }
    }
    return missing;
}

static wherry_status fail_missing(const wh_sockets *sockets, wherry_error *error) {
    char place[WH_PLACE_MAX];
    wh_string list = {0};
    int32_t missing = count_missing(sockets, &list);
    if (sockets->refusal.status != WHERRY_OK) {
        if (error) {
            *error = sockets->refusal;
        }
        wh_free(list.bytes);
        return sockets->refusal.status;
    }
    wh_meeting_text(&sockets->address, 0, place);
    const char *last = *sockets->seen ? "; the last call there failed: " : "";
    /* whom else it waits for does not matter */
    if (sockets->options.dial_only && missing == sockets->base.size - 1) {
        wh_fail(error, WHERRY_TIMED_OUT, "timed out at the meeting point %s: nobody has answered%s%s", place, last,
                sockets->seen);
    } else {
        wh_fail(error, WHERRY_TIMED_OUT, "timed out at the meeting point %s: %d of %d ranks have not come: %s%s%s%s",
                place, (int)missing, (int)sockets->base.size, list.bytes && !list.failed ? list.bytes : "?",
                missing > 8 ? ", ..." : "", last, sockets->seen);
    }
    wh_free(list.bytes);
    return WHERRY_TIMED_OUT;
}

bool wh_sockets_interrupted(const wh_sockets *sockets) {
    return sockets->options.interrupt && sockets->options.interrupt(sockets->options.interrupt_context);
}

/** Whether too few ranks have come. */
static bool is_waiting(const wh_sockets *sockets) {
    return sockets->base.size - count_missing(sockets, NULL) < (int32_t)sockets->options.wait_for;
}

/**
 * Whether a guest's only host has another secret: no other can come there, so that there is nothing
 * to wait for.
 */
static bool is_turned_away(const wh_sockets *sockets) {
    return sockets->options.dial_only && sockets->meeting_count == 1 && sockets->refusal.status == WHERRY_BAD_SECRET;
}

/** Waits for the others, and lets the lock go now and then to ask whether it shall. */
static wherry_status wait_for_ranks(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    bool interrupted = false;
    pthread_mutex_lock(&sockets->lock);
    wh_deadline next = wh_deadline_in_ms(WH_STOP_LOOK_MS);
    while (is_waiting(sockets) && !sockets->fenced && in_time && !interrupted && !is_turned_away(sockets)) {
        wh_wait(&sockets->changed, &sockets->lock, wh_deadline_earlier(deadline, next));
        in_time = !wh_deadline_passed(deadline);
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
                         (int)count_missing(sockets, NULL), (int)sockets->base.size);
    } else if (is_waiting(sockets)) {
        status = fail_missing(sockets, error);
    }
    sockets->joined = status == WHERRY_OK;
    pthread_mutex_unlock(&sockets->lock);
    return status;
}

/**
 * The first meeting point that there is a way to; where there is none, one whose place is known.
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

/** Finds the meeting points, listens and starts the thread: nothing of that for who is alone. */
static wherry_status begin(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    if (sockets->base.size == 1) {
        wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place);
        return WHERRY_OK;
    }
    wherry_status status = wh_meetings_find(sockets, deadline, error);
    if (status == WHERRY_OK) {
        status = check_privacy(sockets, error);
    }
    if (status == WHERRY_OK) {
        status = wh_meetings_choose(sockets, error);
    }
    if (status == WHERRY_OK) {
        status = wh_member_listen(&sockets->address, first_known(sockets), sockets->incarnation, &sockets->listener,
                                  sockets->place, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_shortcut_open(sockets);
    pthread_mutex_lock(&sockets->lock);
    wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place);
    /* a meeting point that is free is this process's before it waits */
    wh_meetings_serve(sockets, wh_clock_now());
    pthread_mutex_unlock(&sockets->lock);
    int result = wh_thread_start(&sockets->thread, wh_sockets_progress, sockets);
    sockets->running = result == 0;
    return result ? wh_fail_errno(error, WHERRY_SYSTEM, result, "cannot start a thread") : WHERRY_OK;
}

/** What the options and the address must not ask for together. */
static wherry_status check_wishes(const wh_group_address *address, const wh_sockets_options *options,
                                  wherry_error *error) {
    if (options->wait_for > (uint32_t)address->size) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "wait_for is %u, and the group has %d ranks",
                       (unsigned)options->wait_for, (int)address->size);
    }
    if (options->dial_only && address->kind == WH_ADDRESS_TCP && !address->meeting[0].port) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "a guest cannot dial port 0; give it the port that wherry_group_meeting tells whoever listens");
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
    void *secret = NULL;
    status = wh_secret_find(options->secret, options->secret_size, &secret, &sockets->options.secret_size, error);
    sockets->options.secret = secret;
    if (status == WHERRY_OK) {
        status = begin(sockets, deadline, error);
    }
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
