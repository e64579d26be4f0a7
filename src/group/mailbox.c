#include "group/mailbox.h"

#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "base/wait.h"

typedef struct letter {
    struct letter *next;
    wh_message message;
} letter;

/** What is known of a rank. */
typedef struct resident {
    uint64_t incarnation; /**< The last one that was let in; 0: none. */
    bool lost;
    size_t bytes; /**< Of its messages that lie here. */
    char reason[128];
} resident;

struct wh_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    letter *first;
    letter **last;
    bool closed;
    size_t share;
    int32_t size;
    resident residents[];
};

wh_mailbox *wh_mailbox_create(int32_t size, size_t bytes) {
    wh_mailbox *mailbox = wh_alloc_zeroed(1, sizeof(*mailbox) + (size_t)size * sizeof(*mailbox->residents));
    if (!mailbox) {
        return NULL;
    }
    wh_condition_init(&mailbox->changed);
    pthread_mutex_init(&mailbox->lock, NULL);
    mailbox->last = &mailbox->first;
    mailbox->share = bytes;
    mailbox->size = size;
    return mailbox;
}

/** Takes a letter out of the list; *at is the pointer to it. */
static letter *unlink_letter(wh_mailbox *mailbox, letter **at) {
    letter *taken = *at;
    *at = taken->next;
    if (mailbox->last == &taken->next) {
        mailbox->last = at;
    }
    mailbox->residents[taken->message.rank].bytes -= taken->message.size;
    return taken;
}

static void burn(letter *unwanted) {
    wh_message_clear(&unwanted->message);
    wh_free(unwanted);
}

void wh_mailbox_destroy(wh_mailbox *mailbox) {
    if (!mailbox) {
        return;
    }
    while (mailbox->first) {
        burn(unlink_letter(mailbox, &mailbox->first));
    }
    pthread_cond_destroy(&mailbox->changed);
    pthread_mutex_destroy(&mailbox->lock);
    wh_free(mailbox);
}

/** Burns the letters of a rank, or of a tag where rank is WH_ANY_RANK. */
static void burn_matching(wh_mailbox *mailbox, int32_t rank, uint64_t tag) {
    letter **at = &mailbox->first;
    while (*at) {
        bool matches = rank == WH_ANY_RANK ? (*at)->message.tag == tag : (*at)->message.rank == rank;
        if (matches) {
            burn(unlink_letter(mailbox, at));
        } else {
            at = &(*at)->next;
        }
    }
}

bool wh_mailbox_admit(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation) {
    pthread_mutex_lock(&mailbox->lock);
    resident *who = mailbox->residents + rank;
    bool older = incarnation < who->incarnation;
    if (incarnation > who->incarnation) {
        burn_matching(mailbox, rank, 0);
        who->incarnation = incarnation;
        pthread_cond_broadcast(&mailbox->changed);
    }
    who->lost = who->lost && older;
    pthread_mutex_unlock(&mailbox->lock);
    return !older;
}

void wh_mailbox_lose(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, const char *reason) {
    pthread_mutex_lock(&mailbox->lock);
    resident *who = mailbox->residents + rank;
    if (who->incarnation == incarnation && !who->lost) {
        who->lost = true;
        snprintf(who->reason, sizeof(who->reason), "%s", reason);
        pthread_cond_broadcast(&mailbox->changed);
    }
    pthread_mutex_unlock(&mailbox->lock);
}

void wh_mailbox_close(wh_mailbox *mailbox) {
    pthread_mutex_lock(&mailbox->lock);
    mailbox->closed = true;
    pthread_cond_broadcast(&mailbox->changed);
    pthread_mutex_unlock(&mailbox->lock);
}

wherry_status wh_mailbox_put(wh_mailbox *mailbox, const wh_message *message, wherry_error *error) {
    letter *added = wh_alloc(sizeof(*added));
    if (!added) {
        return wh_fail_memory(error, "a message");
    }
    *added = (letter){NULL, *message};
    wherry_status status = WHERRY_OK;
    pthread_mutex_lock(&mailbox->lock);
    resident *from = mailbox->residents + message->rank;
    if (message->incarnation != from->incarnation) {
        burn(added);
    } else if (message->size > mailbox->share - from->bytes) {
        status = wh_fail(error, WHERRY_LIMIT, "rank %d has sent over %zu bytes of messages that nobody took",
                         (int)message->rank, mailbox->share);
        wh_free(added);
    } else {
        *mailbox->last = added;
        mailbox->last = &added->next;
        from->bytes += message->size;
        pthread_cond_broadcast(&mailbox->changed);
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

wherry_status wh_mailbox_put_copy(wh_mailbox *mailbox, int32_t rank, uint64_t incarnation, uint64_t tag,
                                  const void *bytes, size_t size, wherry_error *error) {
    wh_message message = {rank, incarnation, tag, wh_copy_text(bytes, size), size};
    if (!message.bytes) {
        return wh_fail_memory(error, "a message");
    }
    wherry_status status = wh_mailbox_put(mailbox, &message, error);
    if (status != WHERRY_OK) {
        wh_message_clear(&message);
    }
    return status;
}

static letter *find_letter(wh_mailbox *mailbox, int32_t rank, uint64_t tag) {
    for (letter **at = &mailbox->first; *at; at = &(*at)->next) {
        if ((*at)->message.tag == tag && (rank == WH_ANY_RANK || (*at)->message.rank == rank)) {
            return unlink_letter(mailbox, at);
        }
    }
    return NULL;
}

static wherry_status fail_about(wherry_error *error, wherry_status status, int32_t rank, const char *what,
                                const char *reason) {
    if (rank == WH_ANY_RANK) {
        return wh_fail(error, status, "%s%s", what, reason);
    }
    wh_fail(error, status, "rank %d: %s%s", (int)rank, what, reason);
    if (error) {
        error->rank = rank;
    }
    return status;
}

/** Why there is no more use in waiting; WHERRY_OK where there is. `awaited` is the incarnation that was there when the waiting began. */
static wherry_status why_stop(const wh_mailbox *mailbox, int32_t rank, uint64_t awaited, wherry_error *error) {
    if (mailbox->closed) {
        return wh_fail(error, WHERRY_CLOSED, "the group was left while a message was awaited");
    }
    const resident *from = rank == WH_ANY_RANK ? NULL : mailbox->residents + rank;
    if (from && from->lost) {
        return fail_about(error, WHERRY_PEER_LOST, rank, "lost: ", from->reason);
    }
    if (from && awaited && from->incarnation != awaited) {
        return fail_about(error, WHERRY_PEER_LOST, rank, "lost: ", "it has started anew");
    }
    return WHERRY_OK;
}

wherry_status wh_mailbox_take(wh_mailbox *mailbox, int32_t rank, uint64_t tag, wh_deadline deadline,
                              wh_message *message_p, wherry_error *error) {
    pthread_mutex_lock(&mailbox->lock);
    uint64_t awaited = rank == WH_ANY_RANK ? 0 : mailbox->residents[rank].incarnation;
    wherry_status status = WHERRY_OK;
    letter *found = NULL;
    bool in_time = true;
    while (!found && status == WHERRY_OK) {
        found = find_letter(mailbox, rank, tag);
        if (!found) {
            status = why_stop(mailbox, rank, awaited, error);
        }
        if (!found && status == WHERRY_OK && !in_time) {
            status = fail_about(error, WHERRY_TIMED_OUT, rank, "timed out waiting for a message", "");
        }
        if (!found && status == WHERRY_OK) {
            in_time = wh_wait(&mailbox->changed, &mailbox->lock, deadline);
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (found) {
        *message_p = found->message;
        wh_free(found);
    }
    return status;
}

void wh_mailbox_discard(wh_mailbox *mailbox, uint64_t tag) {
    pthread_mutex_lock(&mailbox->lock);
    burn_matching(mailbox, WH_ANY_RANK, tag);
    pthread_mutex_unlock(&mailbox->lock);
}

uint64_t wh_mailbox_incarnation(const wh_mailbox *mailbox, int32_t rank) {
    wh_mailbox *unlocked = (wh_mailbox *)mailbox;
    pthread_mutex_lock(&unlocked->lock);
    const resident *who = mailbox->residents + rank;
    uint64_t incarnation = who->lost ? 0 : who->incarnation;
    pthread_mutex_unlock(&unlocked->lock);
    return incarnation;
}
