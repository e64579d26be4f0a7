#include "group/mailbox.h"

#include <sched.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "group/mailbox_internal.h"

/** How long a waiter reads from the peers before it looks whether it was woken, where it cannot be nudged. */
enum { PUMP_MS = 5 };

/** For so long after a message another one is near. A turn of others that takes so long means that they want the processor. */
enum { LIVELY_NS = 200000, BUSY_NS = 50000 };

wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes) {
    wh_mailbox *mailbox = wh_alloc_zeroed(1, sizeof(*mailbox) + (size_t)size * sizeof(*mailbox->residents));
    if (!mailbox) {
        return NULL;
    }
    wh_condition_init(&mailbox->changed);
    pthread_mutex_init(&mailbox->lock, NULL);
    mailbox->letters.last = &mailbox->letters.first;
    mailbox->share = bytes;
    mailbox->size = size;
    return mailbox;
}

void wh_mailbox_set_pump(wh_mailbox *mailbox, wh_group *group) {
    mailbox->pumped = group;
}

void wh_letters_append(wh_letters *letters, wh_letter *letter) {
    letter->next = NULL;
    *letters->last = letter;
    letters->last = &letter->next;
}

wh_letter *wh_letters_unlink(wh_mailbox *mailbox, wh_letters *letters, wh_letter **at) {
    wh_letter *taken = *at;
    *at = taken->next;
    if (letters->last == &taken->next) {
        letters->last = at;
    }
    if (taken->message.kind == WH_MESSAGE_BYTES) {
        mailbox->residents[taken->message.rank].bytes -= taken->message.size;
    }
    return taken;
}

void wh_letter_burn(wh_letter *letter) {
    wh_message_clear(&letter->message);
    wh_free(letter);
}

void wh_mailbox_destroy(wh_mailbox *mailbox) {
    if (!mailbox) {
        return;
    }
    while (mailbox->letters.first) {
        wh_letter_burn(wh_letters_unlink(mailbox, &mailbox->letters, &mailbox->letters.first));
    }
    pthread_cond_destroy(&mailbox->changed);
    pthread_mutex_destroy(&mailbox->lock);
    wh_free(mailbox);
}

void wh_letters_burn(wh_mailbox *mailbox, wh_letters *letters, int32_t rank, uint64_t tag) {
    wh_letter **at = &letters->first;
    while (*at) {
        const wh_message *message = &(*at)->message;
        bool of_rank = message->rank == rank && message->kind != WH_MESSAGE_NOTE;
        if (rank == WH_ANY_RANK ? message->tag == tag : of_rank) {
            wh_letter_burn(wh_letters_unlink(mailbox, letters, at));
        } else {
            at = &(*at)->next;
        }
    }
}

void wh_mailbox_expect(wh_mailbox *mailbox) {
    atomic_store_explicit(&mailbox->lively_before, wh_clock_now() + LIVELY_NS, memory_order_relaxed);
}

void wh_mailbox_signal(wh_mailbox *mailbox, pthread_cond_t *changed) {
    atomic_fetch_add_explicit(&mailbox->wakes, 1, memory_order_relaxed);
    pthread_cond_broadcast(changed);
    if (mailbox->pumping && mailbox->pumped->ops->nudge && !pthread_equal(mailbox->pumper, pthread_self())) {
        mailbox->pumped->ops->nudge(mailbox->pumped);
    }
}

void wh_mailbox_wake_all(wh_mailbox *mailbox) {
    wh_mailbox_signal(mailbox, &mailbox->changed);
    for (wh_inbox *inbox = mailbox->inboxes; inbox; inbox = inbox->next) {
        pthread_cond_broadcast(&inbox->changed);
    }
}

/** Notes that an incarnation of a rank is gone. */
static void note_loss(wh_mailbox *mailbox, wh_resident *who, const char *reason) {
    who->last_lost = who->incarnation;
    snprintf(who->reason, sizeof(who->reason), "%s", reason);
    who->losses++;
    mailbox->losses++;
    wh_mailbox_wake_all(mailbox);
}

bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation) {
    pthread_mutex_lock(&mailbox->lock);
    wh_resident *who = mailbox->residents + rank;
    bool older = incarnation < who->incarnation;
    if (incarnation > who->incarnation) {
        wh_letters_burn(mailbox, &mailbox->letters, rank, 0);
        if (who->incarnation && !who->lost) {
            note_loss(mailbox, who, "it has started anew");
        }
        who->incarnation = incarnation;
        wh_mailbox_wake_all(mailbox);
    }
    who->lost = who->lost && older;
    pthread_mutex_unlock(&mailbox->lock);
    return !older;
}

void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason) {
    pthread_mutex_lock(&mailbox->lock);
    wh_resident *who = mailbox->residents + rank;
    if (who->incarnation == incarnation && !who->lost) {
        who->lost = true;
        note_loss(mailbox, who, reason);
    }
    pthread_mutex_unlock(&mailbox->lock);
}

void wh_mailbox_close(wh_mailbox *mailbox) {
    pthread_mutex_lock(&mailbox->lock);
    mailbox->closed = true;
    wh_mailbox_wake_all(mailbox);
    pthread_mutex_unlock(&mailbox->lock);
}

/** Where a letter from an incarnation that is present goes. The lock may be let go on the way. */
static void deliver(wh_mailbox *mailbox, wh_letter *letter) {
    const wh_message *message = &letter->message;
    wh_inbox *inbox = wh_mailbox_find_inbox(mailbox, message->tag);
    if (!inbox && (message->tag & WH_TAG_CONVERSATION)) {
        wh_log(WHERRY_LOG_DEBUG, "a message of rank %d for a conversation that is over is dropped", (int)message->rank);
        wh_letter_burn(letter);
        return;
    }
    if (!inbox && wh_mailbox_hand_over(mailbox, letter)) {
        return;
    }
    if (message->kind == WH_MESSAGE_BYTES) {
        mailbox->residents[message->rank].bytes += message->size;
    }
    wh_letters_append(inbox ? &inbox->letters : &mailbox->letters, letter);
    wh_mailbox_signal(mailbox, inbox ? &inbox->changed : &mailbox->changed);
}

wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error) {
    wh_letter *added = wh_alloc(sizeof(*added));
    if (!added) {
        return wh_fail_memory(error, "a message");
    }
    *added = (wh_letter){NULL, *message};
    wherry_status status = WHERRY_OK;
    pthread_mutex_lock(&mailbox->lock);
    const wh_resident *from = mailbox->residents + message->rank;
    if (message->incarnation != from->incarnation) {
        wh_letter_burn(added);
    } else if (from->bytes > mailbox->share || message->size > mailbox->share - from->bytes) {
        status = wh_fail(error, WHERRY_LIMIT, "rank %d has sent over %zu bytes of messages that nobody took",
                         (int)message->rank, mailbox->share);
        wh_free(added);
    } else {
        deliver(mailbox, added);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error) {
    wh_message message = {WH_MESSAGE_BYTES, rank, incarnation, tag, wh_copy_text(bytes, size), size, -1};
    if (!message.bytes) {
        return wh_fail_memory(error, "a message");
    }
    wherry_status status = wh_mailbox_put(mailbox, &message, error);
    if (status != WHERRY_OK) {
        wh_message_clear(&message);
    }
    return status;
}

static unsigned wakes_of(const wh_mailbox *mailbox) {
    return atomic_load_explicit(&mailbox->wakes, memory_order_relaxed);
}

/**
 * Waits awake in a lively conversation: to sleep and to be woken takes longer than an answer. Where others want the processor it ends: who
 * yields has its turn behind them, and who is woken before them. The lock is held, but not meanwhile. @return whether somebody was woken.
 */
static bool wait_awake(wh_mailbox *mailbox, wh_deadline deadline) {
    uint64_t now = wh_clock_now();
    uint64_t until = wh_min(atomic_load_explicit(&mailbox->lively_before, memory_order_relaxed), deadline.at);
    unsigned before = wakes_of(mailbox);
    if (now >= until) {
        return false;
    }
    uint64_t turn = 0;
    pthread_mutex_unlock(&mailbox->lock);
    while (now < until && turn < BUSY_NS && wakes_of(mailbox) == before) {
        uint64_t last = now;
        sched_yield();
        now = wh_clock_now();
        turn = now - last;
    }
    pthread_mutex_lock(&mailbox->lock);
    return wakes_of(mailbox) != before;
}

bool wh_mailbox_wait(wh_mailbox *mailbox, pthread_cond_t *changed, wh_deadline deadline) {
    if (!mailbox->pumped || mailbox->pumping) {
        return wait_awake(mailbox, deadline) || wh_wait(changed, &mailbox->lock, deadline);
    }
    wherry_error error;
    mailbox->pumping = true;
    mailbox->pumper = pthread_self();
    pthread_mutex_unlock(&mailbox->lock);
    wh_deadline slice =
        mailbox->pumped->ops->nudge ? deadline : wh_deadline_earlier(deadline, wh_deadline_in_ms(PUMP_MS));
    wherry_status status = mailbox->pumped->ops->pump(mailbox->pumped, slice, &error);
    pthread_mutex_lock(&mailbox->lock);
    mailbox->pumping = false;
    if (status != WHERRY_OK) {
        wh_log(WHERRY_LOG_ERROR, "rank %d: the group cannot be read any more: %s", (int)mailbox->pumped->rank,
               error.message);
        mailbox->closed = true;
    }
    wh_mailbox_wake_all(mailbox);
    return !wh_deadline_passed(deadline);
}

static wh_letter *find_letter(wh_mailbox *mailbox, int32_t rank, uint64_t tag) {
    for (wh_letter **at = &mailbox->letters.first; *at; at = &(*at)->next) {
        if ((*at)->message.tag == tag && (rank == WH_ANY_RANK || (*at)->message.rank == rank)) {
            return wh_letters_unlink(mailbox, &mailbox->letters, at);
        }
    }
    return NULL;
}

static wherry_status fail_about(wherry_error *error, wherry_status status, int32_t rank, const char *what,
                                const char *reason) {
    if (rank == WH_ANY_RANK) {
        return wh_fail(error, status, "%s%s", what, reason);
    }
    return wh_fail_rank(error, rank, wh_fail(error, status, "rank %d: %s%s", (int)rank, what, reason));
}

/** Why there is no more use in waiting; WHERRY_OK where there is. `losses` is how often the rank had been lost when the waiting began. */
static wherry_status why_stop(const wh_mailbox *mailbox, int32_t rank, uint64_t losses, wherry_error *error) {
    if (mailbox->closed) {
        return wh_fail(error, WHERRY_CLOSED, "the group was left while a message was awaited");
    }
    const wh_resident *from = rank == WH_ANY_RANK ? NULL : mailbox->residents + rank;
    if (from && (from->lost || from->losses != losses)) {
        return fail_about(error, WHERRY_PEER_LOST, rank, "lost: ", from->reason);
    }
    return WHERRY_OK;
}

wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error) {
    pthread_mutex_lock(&mailbox->lock);
    uint64_t losses = rank == WH_ANY_RANK ? 0 : mailbox->residents[rank].losses;
    wherry_status status = WHERRY_OK;
    wh_letter *found = NULL;
    bool in_time = true;
    while (!found && status == WHERRY_OK) {
        found = find_letter(mailbox, rank, tag);
        if (!found) {
            status = why_stop(mailbox, rank, losses, error);
        }
        if (!found && status == WHERRY_OK && !in_time) {
            status = fail_about(error, WHERRY_TIMED_OUT, rank, "timed out waiting for a message", "");
        }
        if (!found && status == WHERRY_OK) {
            in_time = wh_mailbox_wait(mailbox, &mailbox->changed, deadline);
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (found) {
        *message_p = found->message;
        wh_free(found);
    }
    return status;
}

bool wh_mailbox_expects(wh_mailbox *mailbox, uint64_t tag) {
    pthread_mutex_lock(&mailbox->lock);
    bool expected = wh_mailbox_find_inbox(mailbox, tag) != NULL;
    pthread_mutex_unlock(&mailbox->lock);
    return expected;
}

uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank) {
    wh_mailbox *unlocked = (wh_mailbox *)mailbox;
    pthread_mutex_lock(&unlocked->lock);
    const wh_resident *who = mailbox->residents + rank;
    uint64_t incarnation = who->lost ? 0 : who->incarnation;
    pthread_mutex_unlock(&unlocked->lock);
    return incarnation;
}

bool wh_mailbox_is_present(const wh_mailbox *mailbox, int32_t rank, uint64_t incarnation) {
    return wh_mailbox_incarnation(mailbox, rank) == incarnation;
}

bool wh_mailbox_is_lost(const wh_mailbox *mailbox, int32_t rank, char *reason, size_t size) {
    wh_mailbox *unlocked = (wh_mailbox *)mailbox;
    pthread_mutex_lock(&unlocked->lock);
    bool lost = mailbox->residents[rank].lost;
    if (lost) {
        snprintf(reason, size, "%s", mailbox->residents[rank].reason);
    }
    pthread_mutex_unlock(&unlocked->lock);
    return lost;
}
