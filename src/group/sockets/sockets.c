/* Joining, sending, receiving and leaving. */
#include "group/sockets/sockets.h"

#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/text.h"
#include "base/wait.h"
#include "group/sockets/internal.h"

enum { MAILBOX_SHARE = 256 << 20, QUEUE_MAX = 64 << 20, HEARTBEAT_MS = 1000, DEAD_AFTER_MS = 5000 };

void wh_sockets_wake(wh_sockets *sockets) {
    uint64_t one = 1;
    if (write(sockets->wake, &one, sizeof(one)) < 0) {
        wh_log(WHERRY_LOG_DEBUG, "the progress thread is awake already");
    }
}

static wherry_status about(wherry_error *error, int32_t rank, wherry_status status) {
    if (error) {
        error->rank = rank;
    }
    return status;
}

/** Waits until there is a connection to a rank with room in its queue, and queues the message. */
static wherry_status queue_message(wh_sockets *sockets, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                   wh_deadline deadline, wherry_error *error) {
    wh_member *member = sockets->members + rank;
    uint64_t failures = member->failures;
    bool in_time = true;
    for (;;) {
        if (sockets->fenced) {
            return wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d has taken this one's place",
                           (int)sockets->base.rank);
        }
        wh_connection *connection = member->connection;
        if (connection && !connection->doomed && connection->queued < QUEUE_MAX) {
            return wh_connection_queue_message(connection, tag, bytes, size) ? WHERRY_OK
                                                                             : wh_fail_memory(error, "a message");
        }
        if (member->failures != failures) {
            return about(error, rank, wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)rank, member->reason));
        }
        if (!in_time) {
            return about(error, rank,
                         wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out sending a message", (int)rank));
        }
        member->wanted = !connection;
        wh_sockets_wake(sockets);
        in_time = wh_wait(&sockets->changed, &sockets->lock, deadline);
    }
}

static wherry_status sockets_send(wh_group *group, int32_t rank, uint64_t tag, const void *bytes, size_t size,
                                  wh_deadline deadline, wherry_error *error) {
    wh_sockets *sockets = (wh_sockets *)group;
    if (rank == group->rank) {
        return wh_mailbox_put_copy(sockets->base.mailbox, rank, sockets->incarnation, tag, bytes, size, error);
    }
    pthread_mutex_lock(&sockets->lock);
    wherry_status status = queue_message(sockets, rank, tag, bytes, size, deadline, error);
    pthread_mutex_unlock(&sockets->lock);
    if (status == WHERRY_OK) {
        wh_sockets_wake(sockets);
    }
    return status;
}

/** Releases everything; the thread has ended, or never began. */
static void dispose(wh_sockets *sockets) {
    wh_sockets_close_all(sockets);
    if (sockets->wake >= 0) {
        close(sockets->wake);
    }
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
    pthread_join(sockets->thread, NULL);
    dispose(sockets);
}

static const wh_group_ops sockets_ops = {
    .name = "sockets",
    .capabilities = WH_GROUP_BACKGROUND | WH_GROUP_DEATH | WH_GROUP_REJOIN | WH_GROUP_CONCURRENT,
    .send = sockets_send,
    .destroy = sockets_destroy,
};

/** A number that is higher than that of every earlier process of this rank: the time. */
static uint64_t new_incarnation(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/** Without a secret, nobody beyond this host may connect, unless the caller insists. */
static wherry_status check_privacy(const wh_group_address *address, const wh_sockets_options *options,
                                   wherry_error *error) {
    if (options->secret_size || wh_meeting_is_private(address)) {
        return WHERRY_OK;
    }
    if (!options->allow_insecure) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "without a secret the group stays on this host; set WHERRY_SECRET on all ranks, or meet on "
                       "loopback, or allow it explicitly");
    }
    wh_log(WHERRY_LOG_WARN, "the group has no secret: whoever reaches its ports can join it");
    return WHERRY_OK;
}

static bool copy_secret(wh_sockets *sockets, const wh_sockets_options *options) {
    sockets->options = *options;
    sockets->options.secret = options->secret_size ? wh_copy_text(options->secret, options->secret_size) : NULL;
    sockets->options.heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : HEARTBEAT_MS;
    sockets->options.dead_after_ms = options->dead_after_ms ? options->dead_after_ms : DEAD_AFTER_MS;
    return sockets->options.secret || !options->secret_size;
}

/** A group that is not joined yet, or NULL where there is no memory; takes the address over, also then. */
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
    sockets->incarnation = new_incarnation();
    sockets->listener = -1;
    sockets->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    sockets->base.mailbox = wh_mailbox_create(address->size, MAILBOX_SHARE);
    sockets->meetings = wh_alloc_zeroed(meetings, sizeof(*sockets->meetings));
    if (!copy_secret(sockets, options) || !sockets->base.mailbox || !sockets->meetings || sockets->wake < 0) {
        dispose(sockets);
        return NULL;
    }
    for (sockets->meeting_count = 0; sockets->meeting_count < meetings; sockets->meeting_count++) {
        sockets->meetings[sockets->meeting_count] = (wh_meeting){.listener = -1, .lock = -1};
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
    wh_fail(error, WHERRY_TIMED_OUT, "timed out at the meeting point %s: %d of %d ranks have not come: %s%s",
            wh_meeting_text(&sockets->address, 0, place), (int)missing, (int)sockets->base.size,
            list.bytes && !list.failed ? list.bytes : "?", missing > 8 ? ", ..." : "");
    wh_free(list.bytes);
    return WHERRY_TIMED_OUT;
}

/** Starts the thread with all signals blocked: those are for the program's own threads. */
static int start_thread(wh_sockets *sockets) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&sockets->thread, NULL, wh_sockets_progress, sockets);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

static wherry_status wait_for_all(wh_sockets *sockets, wh_deadline deadline, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    pthread_mutex_lock(&sockets->lock);
    while (count_missing(sockets, NULL) && !sockets->fenced && in_time) {
        in_time = wh_wait(&sockets->changed, &sockets->lock, deadline);
    }
    if (sockets->fenced) {
        status = wh_fail(error, WHERRY_CLOSED, "another incarnation of rank %d is there", (int)sockets->base.rank);
    } else if (count_missing(sockets, NULL)) {
        status = fail_missing(sockets, error);
    }
    sockets->joined = status == WHERRY_OK;
    pthread_mutex_unlock(&sockets->lock);
    return status;
}

wherry_status wh_sockets_join(const char *address, const wh_sockets_options *options, wh_deadline deadline,
                              wh_group **group_p, wherry_error *error) {
    wh_group_address parsed;
    wherry_status status = wh_group_address_parse(address, NULL, NULL, &parsed, error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = check_privacy(&parsed, options, error);
    if (status != WHERRY_OK) {
        wh_group_address_clear(&parsed);
        return status;
    }
    wh_sockets *sockets = create(&parsed, options);
    if (!sockets) {
        return wh_fail_memory(error, "a group");
    }
    status = wh_member_listen(&sockets->address, sockets->incarnation, &sockets->listener, sockets->place, error);
    if (status == WHERRY_OK) {
        wh_sockets_learn(sockets, sockets->base.rank, sockets->incarnation, sockets->place);
        int result = start_thread(sockets);
        status = result ? wh_fail_errno(error, WHERRY_SYSTEM, result, "cannot start a thread") : WHERRY_OK;
    }
    if (status != WHERRY_OK) {
        dispose(sockets);
        return status;
    }
    status = wait_for_all(sockets, deadline, error);
    if (status != WHERRY_OK) {
        sockets_destroy(&sockets->base);
        return status;
    }
    *group_p = &sockets->base;
    return WHERRY_OK;
}
