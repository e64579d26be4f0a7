/* Mailbox, inboxes and services. The invariants are in mailbox.h. */
#include "group/mailbox.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "group/group_timing.h"

typedef struct queued {
    struct queued *next;
    wh_message message;
} queued;

/** Messages in the order of their arrival. */
typedef struct queue {
    queued *first;
    queued **last;
} queue;

enum { REASON_MAX = 128 };

/**
 * A thread that waits for a message from a rank. It reports the first loss of the rank since the
 * wait began. Before the thread runs, the rank may have come back and been lost again for another
 * reason.
 */
typedef struct waiter {
    struct waiter *next;
    bool lost;
    char reason[REASON_MAX]; /**< The reason, if `lost`. */
} waiter;

typedef struct rank_state {
    uint64_t incarnation; /**< The last incarnation that was admitted; 0: none. */
    bool lost;
    size_t bytes;                /**< Total size of its waiting messages. */
    size_t loose;                /**< Size of those messages that are in no inbox. */
    size_t channels;             /**< Channels that the rank has opened and nobody has taken. */
    waiter *waiters;             /**< Threads that wait for a message from the rank. */
    uint64_t losses;             /**< Number of times that an incarnation of this rank was lost. */
    uint64_t last_lost;          /**< The incarnation that was lost last. */
    char reason[REASON_MAX];     /**< The reason of the last loss. */
    char unreported[REASON_MAX]; /**< The first reason that an inbox has not reported yet. */
} rank_state;

/**
 * A thread that waits on several inboxes. Its lock may be taken under the lock of a mailbox. No
 * lock is taken under it.
 */
typedef struct listener {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
} listener;

struct wh_inbox {
    struct wh_inbox *next;
    wh_mailbox *mailbox;
    uint64_t tag;
    queue messages;
    pthread_cond_t changed;
    bool woken;
    listener *listener; /**< This is woken too; NULL if nobody waits on several inboxes. */
    /**
     * Number of losses of all ranks that the inbox need not report any more. They came before it
     * was opened, or it has reported them.
     */
    uint64_t losses_seen;
    uint64_t seen[]; /**< The same for each rank. */
};

typedef struct service {
    struct service *next;
    uint64_t tag;
    wh_service_fn fn;
    void *context;
    bool open;   /**< The messages that arrived before the service was opened were handled. */
    size_t busy; /**< Number of threads inside fn. */
} service;

struct wh_mailbox {
    pthread_mutex_t lock; /**< Guards everything except atomics and members that never change. */
    pthread_cond_t changed;
    queue messages; /**< Messages that are not in an inbox. */
    wh_inbox *inboxes;
    service *services;
    wh_group *pumped; /**< The group that waiting threads must pump; NULL: it needs no pump. */
    bool pumping;
    pthread_t pumper; /**< The thread inside `pump`. */
    bool closed;
    atomic_uint wakes;             /**< Number of times that threads were woken. */
    _Atomic uint64_t awake_before; /**< Waiting threads poll until this time. */
    uint64_t losses;               /**< Number of losses of all ranks. */
    size_t limit;
    size_t loose_limit; /**< wh_mailbox_distrust; 0: none. */
    int32_t size;
    rank_state ranks[];
};

wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes) {
    wh_mailbox *mailbox = wh_alloc_zeroed(1, sizeof(*mailbox) + (size_t)size * sizeof(*mailbox->ranks));
    if (!mailbox) {
        return NULL;
    }
    wh_condition_init(&mailbox->changed);
    pthread_mutex_init(&mailbox->lock, NULL);
    mailbox->messages.last = &mailbox->messages.first;
    mailbox->limit = bytes;
    mailbox->size = size;
    return mailbox;
}

void wh_mailbox_distrust(wh_mailbox *mailbox, size_t bytes) {
    mailbox->loose_limit = bytes;
}

void wh_mailbox_set_pump(wh_mailbox *mailbox, wh_group *group) {
    mailbox->pumped = group;
}

/* ---- queues: the lock is held ---- */

/** The memory that a waiting message takes. An empty message takes some, too. */
static size_t cost_of(const wh_message *message) {
    return message->size + WH_MESSAGE_COST;
}

/** Removes the item *at from its queue and returns it. */
static queued *unlink_item(wh_mailbox *mailbox, queue *from, queued **at) {
    queued *item = *at;
    *at = item->next;
    if (from->last == &item->next) {
        from->last = at;
    }
    if (item->message.kind == WH_MESSAGE_BYTES) {
        mailbox->ranks[item->message.rank].bytes -= cost_of(&item->message);
        mailbox->ranks[item->message.rank].loose -= from == &mailbox->messages ? cost_of(&item->message) : 0;
    } else if (item->message.kind == WH_MESSAGE_CHANNEL) {
        mailbox->ranks[item->message.rank].channels--;
    }
    return item;
}

static void free_item(queued *item) {
    wh_message_clear(&item->message);
    wh_free(item);
}

static void clear_queue(wh_mailbox *mailbox, queue *all) {
    while (all->first) {
        free_item(unlink_item(mailbox, all, &all->first));
    }
}

void wh_mailbox_destroy(wh_mailbox *mailbox) {
    if (!mailbox) {
        return;
    }
    clear_queue(mailbox, &mailbox->messages);
    pthread_cond_destroy(&mailbox->changed);
    pthread_mutex_destroy(&mailbox->lock);
    wh_free(mailbox);
}

/* ---- waking and waiting: the lock is held ---- */

/** Wakes all threads that wait for a condition, also those that poll or are inside `pump`. */
static void wake(wh_mailbox *mailbox, pthread_cond_t *changed) {
    atomic_fetch_add_explicit(&mailbox->wakes, 1, memory_order_relaxed);
    pthread_cond_broadcast(changed);
    if (mailbox->pumping && mailbox->pumped->ops->nudge && !pthread_equal(mailbox->pumper, pthread_self())) {
        mailbox->pumped->ops->nudge(mailbox->pumped);
    }
}

static void wake_listener(const wh_inbox *inbox) {
    if (inbox->listener) {
        pthread_mutex_lock(&inbox->listener->lock);
        inbox->listener->woken = true;
        pthread_cond_signal(&inbox->listener->changed);
        pthread_mutex_unlock(&inbox->listener->lock);
    }
}

/** Wakes the threads that wait on an inbox; on the mailbox itself if `inbox` is NULL. */
static void wake_inbox(wh_mailbox *mailbox, wh_inbox *inbox) {
    wake(mailbox, inbox ? &inbox->changed : &mailbox->changed);
    if (inbox) {
        wake_listener(inbox);
    }
}

static void wake_all(wh_mailbox *mailbox) {
    wake(mailbox, &mailbox->changed);
    for (wh_inbox *inbox = mailbox->inboxes; inbox; inbox = inbox->next) {
        pthread_cond_broadcast(&inbox->changed);
        wake_listener(inbox);
    }
}

void wh_mailbox_stay_awake(wh_mailbox *mailbox) {
    atomic_store_explicit(&mailbox->awake_before, wh_clock_now() + WH_MAILBOX_AWAKE_NS, memory_order_relaxed);
}

static unsigned count_wakes(const wh_mailbox *mailbox) {
    return atomic_load_explicit(&mailbox->wakes, memory_order_relaxed);
}

/**
 * Polls if an answer is expected soon, because sleeping and waking takes longer than the answer.
 * Ends early if other threads need the processor: a thread that yields runs after them, but a
 * thread that sleeps and is woken runs before them. Releases the lock while it polls.
 * @return true if threads were woken.
 */
static bool poll_for_wake(wh_mailbox *mailbox, wh_deadline deadline) {
    uint64_t now = wh_clock_now();
    uint64_t until = wh_min(atomic_load_explicit(&mailbox->awake_before, memory_order_relaxed), deadline.at);
    unsigned before = count_wakes(mailbox);
    if (now >= until) {
        return false;
    }
    uint64_t away = 0;
    pthread_mutex_unlock(&mailbox->lock);
    while (now < until && away < WH_MAILBOX_BUSY_NS && count_wakes(mailbox) == before) {
        uint64_t last = now;
        sched_yield();
        now = wh_clock_now();
        away = now - last;
    }
    pthread_mutex_lock(&mailbox->lock);
    return count_wakes(mailbox) != before;
}

/**
 * Waits for a condition. If the group needs a pump, one waiting thread at a time pumps it. Releases
 * the lock while it waits. @return false if the deadline has passed.
 */
static bool wait_for(wh_mailbox *mailbox, pthread_cond_t *changed, wh_deadline deadline) {
    if (!mailbox->pumped || mailbox->pumping) {
        return poll_for_wake(mailbox, deadline) || wh_wait(changed, &mailbox->lock, deadline);
    }
    wherry_error error;
    mailbox->pumping = true;
    mailbox->pumper = pthread_self();
    pthread_mutex_unlock(&mailbox->lock);
    wh_deadline limit =
        mailbox->pumped->ops->nudge ? deadline : wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_MAILBOX_PUMP_MS));
    wherry_status status = mailbox->pumped->ops->pump(mailbox->pumped, limit, &error);
    pthread_mutex_lock(&mailbox->lock);
    mailbox->pumping = false;
    if (status != WHERRY_OK) {
        wh_log(WHERRY_LOG_ERROR, "rank %d can no longer read from its group: %s", (int)mailbox->pumped->rank,
               error.message);
        mailbox->closed = true;
    }
    wake_all(mailbox);
    return !wh_deadline_passed(deadline);
}

/* ---- ranks ---- */

/** True if an inbox has not reported the last loss of a rank yet. The lock is held. */
static bool is_unreported(const wh_mailbox *mailbox, const rank_state *state) {
    const wh_inbox *inbox = mailbox->inboxes;
    while (inbox && inbox->seen[state - mailbox->ranks] == state->losses) {
        inbox = inbox->next;
    }
    return inbox != NULL;
}

/** Records that a rank was lost, and wakes all threads. The lock is held. */
static void note_loss(wh_mailbox *mailbox, rank_state *state, const char *reason) {
    state->last_lost = state->incarnation;
    if (!is_unreported(mailbox, state)) {
        snprintf(state->unreported, sizeof(state->unreported), "%s", reason);
    }
    snprintf(state->reason, sizeof(state->reason), "%s", reason);
    for (waiter *one = state->waiters; one; one = one->next) {
        if (!one->lost) {
            one->lost = true;
            snprintf(one->reason, sizeof(one->reason), "%s", reason);
        }
    }
    state->losses++;
    mailbox->losses++;
    wake_all(mailbox);
}

/** Frees the messages of an earlier incarnation, except those in inboxes. The lock is held. */
static void drop_messages_of(wh_mailbox *mailbox, int32_t rank) {
    for (queued **at = &mailbox->messages.first; *at;) {
        if ((*at)->message.rank == rank && (*at)->message.kind != WH_MESSAGE_NOTE) {
            free_item(unlink_item(mailbox, &mailbox->messages, at));
        } else {
            at = &(*at)->next;
        }
    }
}

bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation) {
    pthread_mutex_lock(&mailbox->lock);
    rank_state *state = mailbox->ranks + rank;
    bool older = incarnation < state->incarnation;
    if (incarnation > state->incarnation) {
        drop_messages_of(mailbox, rank);
        if (state->incarnation && !state->lost) {
            note_loss(mailbox, state, "it was restarted");
        }
        state->incarnation = incarnation;
        wake_all(mailbox);
    }
    state->lost = state->lost && older;
    pthread_mutex_unlock(&mailbox->lock);
    return !older;
}

void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason) {
    pthread_mutex_lock(&mailbox->lock);
    rank_state *state = mailbox->ranks + rank;
    if (state->incarnation == incarnation && !state->lost) {
        state->lost = true;
        if (mailbox->loose_limit) {
            drop_messages_of(mailbox, rank);
        }
        note_loss(mailbox, state, reason);
    }
    pthread_mutex_unlock(&mailbox->lock);
}

uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank) {
    wh_mailbox *locked = (wh_mailbox *)mailbox;
    pthread_mutex_lock(&locked->lock);
    const rank_state *state = mailbox->ranks + rank;
    uint64_t incarnation = state->lost ? 0 : state->incarnation;
    pthread_mutex_unlock(&locked->lock);
    return incarnation;
}

bool wh_mailbox_is_present(const wh_mailbox *mailbox, int32_t rank, uint64_t incarnation) {
    return wh_mailbox_incarnation(mailbox, rank) == incarnation;
}

bool wh_mailbox_is_lost(const wh_mailbox *mailbox, int32_t rank, char *reason, size_t size) {
    wh_mailbox *locked = (wh_mailbox *)mailbox;
    pthread_mutex_lock(&locked->lock);
    bool lost = mailbox->ranks[rank].lost;
    if (lost) {
        snprintf(reason, size, "%s", mailbox->ranks[rank].reason);
    }
    pthread_mutex_unlock(&locked->lock);
    return lost;
}

bool wh_mailbox_needs(wh_mailbox *mailbox, int32_t rank) {
    pthread_mutex_lock(&mailbox->lock);
    bool needed = mailbox->inboxes || mailbox->ranks[rank].waiters;
    pthread_mutex_unlock(&mailbox->lock);
    return needed;
}

void wh_mailbox_close(wh_mailbox *mailbox) {
    pthread_mutex_lock(&mailbox->lock);
    mailbox->closed = true;
    wake_all(mailbox);
    pthread_mutex_unlock(&mailbox->lock);
}

bool wh_mailbox_hold(wh_mailbox *mailbox, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return pthread_mutex_timedlock(&mailbox->lock, &until) == 0;
}

void wh_mailbox_release(wh_mailbox *mailbox) {
    pthread_mutex_unlock(&mailbox->lock);
}

void wh_mailbox_close_in_child(wh_mailbox *mailbox) {
    mailbox->closed = true;
}

/* ---- services ---- */

/** Finds the service of a tag. The lock is held. @return NULL if there is none. */
static service *find_service(const wh_mailbox *mailbox, uint64_t tag) {
    service *found = mailbox->services;
    while (found && found->tag != tag) {
        found = found->next;
    }
    return found;
}

/** Calls the service. The lock is held before and after the call, but not during it. */
static void serve(wh_mailbox *mailbox, service *by, queued *item) {
    wh_message message = item->message;
    wh_free(item);
    by->busy++;
    pthread_mutex_unlock(&mailbox->lock);
    by->fn(by->context, &message);
    pthread_mutex_lock(&mailbox->lock);
    by->busy--;
    wake(mailbox, &mailbox->changed);
}

/**
 * Passes the messages that have already arrived to a new service. The service is opened only
 * afterwards, so that later messages do not overtake these. The lock is held, except while the
 * service is called.
 */
static void serve_old(wh_mailbox *mailbox, service *by) {
    for (queued **at = &mailbox->messages.first; *at;) {
        if ((*at)->message.tag == by->tag) {
            serve(mailbox, by, unlink_item(mailbox, &mailbox->messages, at));
            at = &mailbox->messages.first; /* The queue may have changed during the call. */
        } else {
            at = &(*at)->next;
        }
    }
}

wherry_status wh_service_open(wh_group *group, uint64_t tag, wh_service_fn fn, void *context, wherry_error *error) {
    wh_mailbox *mailbox = group->mailbox;
    service *added = wh_alloc(sizeof(*added));
    WH_TRY(wh_check_memory(added, error, "a service"));
    *added = (service){.tag = tag, .fn = fn, .context = context};
    pthread_mutex_lock(&mailbox->lock);
    bool taken = find_service(mailbox, tag) != NULL;
    if (!taken) {
        added->next = mailbox->services;
        mailbox->services = added;
        serve_old(mailbox, added);
        added->open = true;
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (taken) {
        wh_free(added);
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "this tag of the group already has a service");
    }
    return WHERRY_OK;
}

void wh_service_close(wh_group *group, uint64_t tag) {
    wh_mailbox *mailbox = group->mailbox;
    pthread_mutex_lock(&mailbox->lock);
    service **at = &mailbox->services;
    while (*at && (*at)->tag != tag) {
        at = &(*at)->next;
    }
    service *closed = *at;
    if (closed) {
        *at = closed->next;
        while (closed->busy) {
            wh_wait(&mailbox->changed, &mailbox->lock, wh_deadline_never());
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    wh_free(closed);
}

/* ---- putting messages in ---- */

/** Finds the inbox of a tag. The lock is held. @return NULL if there is none. */
static wh_inbox *find_inbox(const wh_mailbox *mailbox, uint64_t tag) {
    wh_inbox *inbox = mailbox->inboxes;
    while (inbox && inbox->tag != tag) {
        inbox = inbox->next;
    }
    return inbox;
}

/**
 * Appends a message to the inbox, or to the mailbox if `inbox` is NULL, and wakes the threads that
 * wait there. The lock is held.
 */
static void deliver_to(wh_mailbox *mailbox, wh_inbox *inbox, queued *item) {
    if (item->message.kind == WH_MESSAGE_BYTES) {
        mailbox->ranks[item->message.rank].bytes += cost_of(&item->message);
        mailbox->ranks[item->message.rank].loose += inbox ? 0 : cost_of(&item->message);
    } else if (item->message.kind == WH_MESSAGE_CHANNEL) {
        mailbox->ranks[item->message.rank].channels++;
    }
    queue *to = inbox ? &inbox->messages : &mailbox->messages;
    *to->last = item;
    to->last = &item->next;
    wake_inbox(mailbox, inbox);
}

/**
 * Delivers a message of a current incarnation. The lock is held, except while a service is called.
 */
static void deliver(wh_mailbox *mailbox, queued *item) {
    const wh_message *message = &item->message;
    wh_inbox *inbox = find_inbox(mailbox, message->tag);
    service *served = inbox ? NULL : find_service(mailbox, message->tag);
    if (!inbox && (message->tag & WH_TAG_CONVERSATION)) {
        wh_log(WHERRY_LOG_DEBUG, "dropped a message from rank %d: its conversation has ended", (int)message->rank);
        free_item(item);
    } else if (served && served->open) {
        serve(mailbox, served, item);
    } else {
        deliver_to(mailbox, inbox, item);
    }
}

/** True if the waiting messages of the sender leave no room for this one. The lock is held. */
static bool is_too_much(const wh_mailbox *mailbox, const wh_message *message) {
    const rank_state *from = mailbox->ranks + message->rank;
    size_t cost = cost_of(message);
    bool loose = mailbox->loose_limit && !(message->tag & WH_TAG_CONVERSATION) && !find_service(mailbox, message->tag);
    return from->bytes > mailbox->limit || cost > mailbox->limit - from->bytes ||
           (loose && (from->loose > mailbox->loose_limit || cost > mailbox->loose_limit - from->loose));
}

wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error) {
    queued *item = wh_alloc(sizeof(*item));
    WH_TRY(wh_check_memory(item, error, "a message"));
    *item = (queued){NULL, *message};
    wherry_status status = WHERRY_OK;
    pthread_mutex_lock(&mailbox->lock);
    const rank_state *from = mailbox->ranks + message->rank;
    if (message->incarnation != from->incarnation) {
        free_item(item);
    } else if (is_too_much(mailbox, message)) {
        status = wh_fail(error, WHERRY_LIMIT, "too many bytes of messages from rank %d are waiting to be received: %zu",
                         (int)message->rank, from->bytes);
        wh_free(item);
    } else if (message->kind == WH_MESSAGE_CHANNEL && from->channels >= WH_MAILBOX_CHANNELS) {
        status = wh_fail(error, WHERRY_LIMIT, "%zu channels from rank %d are waiting to be used", from->channels,
                         (int)message->rank);
        wh_free(item);
    } else {
        deliver(mailbox, item);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error) {
    wh_message message = {WH_MESSAGE_BYTES, rank, incarnation, tag, wh_text_copy(bytes, size), size, WH_NO_SOCKET};
    WH_TRY(wh_check_memory(message.bytes, error, "a message"));
    wherry_status status = wh_mailbox_put(mailbox, &message, error);
    if (status != WHERRY_OK) {
        wh_message_clear(&message);
    }
    return status;
}

/* ---- taking messages from the mailbox ---- */

/** Removes the oldest matching message. The lock is held. @return NULL if there is none. */
static queued *find_message(wh_mailbox *mailbox, int32_t rank, uint64_t tag) {
    for (queued **at = &mailbox->messages.first; *at; at = &(*at)->next) {
        if ((*at)->message.tag == tag && (rank == WHERRY_ANY_RANK || (*at)->message.rank == rank)) {
            return unlink_item(mailbox, &mailbox->messages, at);
        }
    }
    return NULL;
}

/**
 * Returns WHERRY_OK if the wait may continue. Otherwise returns why it must end. The lock is held.
 */
static wherry_status check_wait(const wh_mailbox *mailbox, int32_t rank, const waiter *self, bool in_time,
                                wherry_error *error) {
    const rank_state *from = rank == WHERRY_ANY_RANK ? NULL : mailbox->ranks + rank;
    if (mailbox->closed) {
        return wh_fail(error, WHERRY_CLOSED,
                       "the group is closed: this process has left it or cannot read from it any more, or a newer "
                       "incarnation has taken its rank");
    }
    if (from && (from->lost || self->lost)) {
        return wh_fail_rank(
            error, rank,
            wh_fail(error, WHERRY_PEER_LOST, "rank %d: lost: %s", (int)rank, self->lost ? self->reason : from->reason));
    }
    if (in_time) {
        return WHERRY_OK;
    }
    return from ? wh_fail_rank(error, rank,
                               wh_fail(error, WHERRY_TIMED_OUT, "rank %d: timed out waiting for a message", (int)rank))
                : wh_fail(error, WHERRY_TIMED_OUT, "timed out waiting for a message");
}

wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error) {
    pthread_mutex_lock(&mailbox->lock);
    waiter *none = NULL;
    waiter **waiters = rank == WHERRY_ANY_RANK ? &none : &mailbox->ranks[rank].waiters;
    waiter self = {.next = *waiters};
    wherry_status status = WHERRY_OK;
    bool in_time = true;
    queued *found;
    *waiters = &self;
    while (!(found = find_message(mailbox, rank, tag)) &&
           (status = check_wait(mailbox, rank, &self, in_time, error)) == WHERRY_OK) {
        in_time = wait_for(mailbox, &mailbox->changed, deadline);
    }
    while (*waiters != &self) {
        waiters = &(*waiters)->next;
    }
    *waiters = self.next;
    pthread_mutex_unlock(&mailbox->lock);
    if (found) {
        *message_p = found->message;
        wh_free(found);
    }
    return status;
}

/* ---- inboxes ---- */

wherry_status wh_inbox_open(wh_group *group, uint64_t tag, wh_inbox **inbox_p, wherry_error *error) {
    wh_mailbox *mailbox = group->mailbox;
    size_t size = (size_t)mailbox->size;
    tag = tag ? tag : wh_random_tag();
    if (!tag) {
        return wh_fail(error, WHERRY_SYSTEM, "the system has no random numbers");
    }
    wh_inbox *inbox = wh_alloc_zeroed(1, sizeof(*inbox) + size * sizeof(*inbox->seen));
    WH_TRY(wh_check_memory(inbox, error, "a conversation"));
    inbox->mailbox = mailbox;
    inbox->tag = tag;
    inbox->messages.last = &inbox->messages.first;
    wh_condition_init(&inbox->changed);
    pthread_mutex_lock(&mailbox->lock);
    bool usable = (tag & WH_TAG_CONVERSATION) && !find_inbox(mailbox, tag);
    if (usable) {
        inbox->losses_seen = mailbox->losses;
        for (size_t i = 0; i < size; i++) {
            inbox->seen[i] = mailbox->ranks[i].losses;
        }
        inbox->next = mailbox->inboxes;
        mailbox->inboxes = inbox;
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (!usable) {
        pthread_cond_destroy(&inbox->changed);
        wh_free(inbox);
        return wh_fail(error, WHERRY_INVALID_ARGUMENT,
                       "the tag is not a tag of a conversation, or it already has an inbox");
    }
    *inbox_p = inbox;
    return WHERRY_OK;
}

void wh_inbox_close(wh_inbox *inbox) {
    if (!inbox) {
        return;
    }
    wh_mailbox *mailbox = inbox->mailbox;
    pthread_mutex_lock(&mailbox->lock);
    wh_inbox **at = &mailbox->inboxes;
    while (*at != inbox) {
        at = &(*at)->next;
    }
    *at = inbox->next;
    clear_queue(mailbox, &inbox->messages);
    pthread_mutex_unlock(&mailbox->lock);
    pthread_cond_destroy(&inbox->changed);
    wh_free(inbox);
}

uint64_t wh_inbox_tag(const wh_inbox *inbox) {
    return inbox->tag;
}

bool wh_mailbox_has_inbox(wh_mailbox *mailbox, uint64_t tag) {
    pthread_mutex_lock(&mailbox->lock);
    bool found = find_inbox(mailbox, tag) != NULL;
    pthread_mutex_unlock(&mailbox->lock);
    return found;
}

/**
 * Takes a message or a loss, without waiting. Losses come after all messages. If the group is
 * closed, losses are not reported; wh_inbox_take returns WHERRY_CLOSED instead. If out of memory, a
 * loss is reported without its reason. The lock is held.
 */
static bool take_now(wh_inbox *inbox, wh_message *message_p) {
    wh_mailbox *mailbox = inbox->mailbox;
    if (inbox->messages.first) {
        queued *item = unlink_item(mailbox, &inbox->messages, &inbox->messages.first);
        *message_p = item->message;
        wh_free(item);
        return true;
    }
    if (mailbox->closed || inbox->losses_seen == mailbox->losses) {
        return false;
    }
    int32_t rank = 0;
    while (inbox->seen[rank] == mailbox->ranks[rank].losses) {
        rank++;
    }
    const rank_state *state = mailbox->ranks + rank;
    inbox->losses_seen += state->losses - inbox->seen[rank];
    inbox->seen[rank] = state->losses;
    size_t size = strlen(state->unreported);
    char *reason = wh_text_copy(state->unreported, size);
    *message_p =
        (wh_message){WH_MESSAGE_LOST, rank, state->last_lost, inbox->tag, reason, reason ? size : 0, WH_NO_SOCKET};
    return true;
}

/**
 * Tells whether a wait on the inbox must end, and with which result. The lock is held.
 * @param in_time  the deadline of the wait has not passed.
 */
static bool has_result(wh_inbox *inbox, bool in_time, wh_message *message_p, wherry_status *status_p,
                       wherry_error *error) {
    if (take_now(inbox, message_p)) {
        *status_p = WHERRY_OK;
    } else if (inbox->mailbox->closed) {
        *status_p = wh_fail(error, WHERRY_CLOSED,
                            "the group is closed: this process has left it or cannot read from it any more, or a newer "
                            "incarnation has taken its rank");
    } else if (inbox->woken || !in_time) {
        inbox->woken = false;
        *status_p = wh_fail(error, WHERRY_TIMED_OUT, "timed out waiting for a message");
    } else {
        return false;
    }
    return true;
}

wherry_status wh_inbox_take(wh_inbox *inbox, wh_deadline deadline, wh_message *message_p, wherry_error *error) {
    wh_mailbox *mailbox = inbox->mailbox;
    wherry_status status;
    bool in_time = true;
    pthread_mutex_lock(&mailbox->lock);
    while (!has_result(inbox, in_time, message_p, &status, error)) {
        in_time = wait_for(mailbox, &inbox->changed, deadline);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

/** Sets the listener of all inboxes; NULL: none. */
static void set_listener(wh_inbox *const *inboxes, size_t count, listener *waiting) {
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&inboxes[i]->mailbox->lock);
        inboxes[i]->listener = waiting;
        pthread_mutex_unlock(&inboxes[i]->mailbox->lock);
    }
}

/** Pumps the groups that need it, one after the other. @return false if none does. */
static bool pump_all(wh_inbox *const *inboxes, size_t count, wh_deadline deadline) {
    bool pumped = false;
    for (size_t i = 0; i < count; i++) {
        wh_mailbox *mailbox = inboxes[i]->mailbox;
        if (mailbox->pumped) {
            pumped = true;
            pthread_mutex_lock(&mailbox->lock);
            wait_for(mailbox, &inboxes[i]->changed,
                     wh_deadline_earlier(deadline, wh_deadline_in_ms(WH_MAILBOX_PUMP_MS)));
            pthread_mutex_unlock(&mailbox->lock);
        }
    }
    return pumped;
}

/** Waits until one of the inboxes is woken. @return false if the deadline has passed. */
static bool wait_for_any(listener *waiting, wh_inbox *const *inboxes, size_t count, wh_deadline deadline) {
    if (pump_all(inboxes, count, deadline)) {
        return !wh_deadline_passed(deadline);
    }
    bool in_time = true;
    pthread_mutex_lock(&waiting->lock);
    while (!waiting->woken && in_time) {
        in_time = wh_wait(&waiting->changed, &waiting->lock, deadline);
    }
    waiting->woken = false;
    pthread_mutex_unlock(&waiting->lock);
    return in_time;
}

wherry_status wh_inbox_take_any(wh_inbox *const *inboxes, size_t count, wh_deadline deadline, wh_message *message_p,
                                size_t *from_p, wherry_error *error) {
    *from_p = 0;
    if (count == 1) {
        return wh_inbox_take(*inboxes, deadline, message_p, error);
    }
    listener waiting = {.woken = false};
    pthread_mutex_init(&waiting.lock, NULL);
    wh_condition_init(&waiting.changed);
    set_listener(inboxes, count, &waiting);
    wherry_status status;
    bool in_time = true;
    bool ended = false;
    while (!ended) {
        for (size_t i = 0; i < count && !ended; i++) {
            pthread_mutex_lock(&inboxes[i]->mailbox->lock);
            /* Check the deadline only after looking at all inboxes. */
            ended = has_result(inboxes[i], in_time || i + 1 < count, message_p, &status, error);
            pthread_mutex_unlock(&inboxes[i]->mailbox->lock);
            *from_p = i;
        }
        in_time = ended || wait_for_any(&waiting, inboxes, count, deadline);
    }
    set_listener(inboxes, count, NULL);
    pthread_cond_destroy(&waiting.changed);
    pthread_mutex_destroy(&waiting.lock);
    return status;
}

bool wh_inbox_poll(wh_inbox *inbox, wh_message *message_p) {
    pthread_mutex_lock(&inbox->mailbox->lock);
    bool found = take_now(inbox, message_p);
    pthread_mutex_unlock(&inbox->mailbox->lock);
    return found;
}

bool wh_inbox_post(wh_inbox *inbox, wh_message *message) {
    queued *item = wh_alloc(sizeof(*item));
    if (!item) {
        wh_message_clear(message);
        return false;
    }
    *item = (queued){NULL, *message};
    pthread_mutex_lock(&inbox->mailbox->lock);
    deliver_to(inbox->mailbox, inbox, item);
    pthread_mutex_unlock(&inbox->mailbox->lock);
    return true;
}

void wh_inbox_wake(wh_inbox *inbox) {
    pthread_mutex_lock(&inbox->mailbox->lock);
    inbox->woken = true;
    wake_inbox(inbox->mailbox, inbox);
    pthread_mutex_unlock(&inbox->mailbox->lock);
}
