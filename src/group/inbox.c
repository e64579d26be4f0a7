#include "group/inbox.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "group/mailbox_internal.h"

wh_inbox *wh_mailbox_find_inbox(const wh_mailbox *mailbox, uint64_t tag) {
    wh_inbox *inbox = mailbox->inboxes;
    while (inbox && inbox->tag != tag) {
        inbox = inbox->next;
    }
    return inbox;
}

wherry_status wh_inbox_open(wh_group *group, uint64_t tag, wh_inbox **inbox_p, wherry_error *error) {
    wh_mailbox *mailbox = group->mailbox;
    size_t size = (size_t)mailbox->size;
    wh_inbox *inbox = wh_alloc_zeroed(1, sizeof(*inbox) + size * sizeof(*inbox->seen));
    if (!inbox) {
        return wh_fail_memory(error, "a conversation");
    }
    inbox->mailbox = mailbox;
    inbox->tag = tag;
    inbox->letters.last = &inbox->letters.first;
    wh_condition_init(&inbox->changed);
    pthread_mutex_lock(&mailbox->lock);
    bool taken = wh_mailbox_find_inbox(mailbox, tag) != NULL;
    if (!taken) {
        inbox->losses_seen = mailbox->losses;
        for (size_t i = 0; i < size; i++) {
            inbox->seen[i] = mailbox->residents[i].losses;
        }
        inbox->next = mailbox->inboxes;
        mailbox->inboxes = inbox;
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (taken || !(tag & WH_TAG_CONVERSATION)) {
        if (!taken) {
            wh_inbox_close(inbox);
        } else {
            pthread_cond_destroy(&inbox->changed);
            wh_free(inbox);
        }
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "the tag is not one of a conversation, or is in use");
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
    while (inbox->letters.first) {
        wh_letter_burn(wh_letters_unlink(mailbox, &inbox->letters, &inbox->letters.first));
    }
    pthread_mutex_unlock(&mailbox->lock);
    pthread_cond_destroy(&inbox->changed);
    wh_free(inbox);
}

uint64_t wh_inbox_tag(const wh_inbox *inbox) {
    return inbox->tag;
}

/** Makes a message of a loss that the inbox has not seen. */
static void take_loss(wh_inbox *inbox, wh_message *message_p) {
    const wh_mailbox *mailbox = inbox->mailbox;
    int32_t rank = 0;
    while (inbox->seen[rank] == mailbox->residents[rank].losses) {
        rank++;
    }
    const wh_resident *who = mailbox->residents + rank;
    inbox->losses_seen += who->losses - inbox->seen[rank];
    inbox->seen[rank] = who->losses;
    size_t size = strlen(who->reason);
    char *reason = wh_copy_text(who->reason, size);
    *message_p = (wh_message){WH_MESSAGE_LOST, rank, who->last_lost, inbox->tag, reason, reason ? size : 0, -1};
}

/**
 * Whether there was a message; the lock is held. Losses come behind what the ranks had sent before. Where the group is closed they say nothing: it was
 * this process that went, and whoever waits is to hear that.
 */
static bool take_now(wh_inbox *inbox, wh_message *message_p) {
    if (inbox->letters.first) {
        wh_letter *taken = wh_letters_unlink(inbox->mailbox, &inbox->letters, &inbox->letters.first);
        *message_p = taken->message;
        wh_free(taken);
        return true;
    }
    if (!inbox->mailbox->closed && inbox->losses_seen != inbox->mailbox->losses) {
        take_loss(inbox, message_p);
        return true;
    }
    return false;
}

wherry_status wh_inbox_take(wh_inbox *inbox, wh_deadline deadline, wh_message *message_p, wherry_error *error) {
    wh_mailbox *mailbox = inbox->mailbox;
    wherry_status status = WHERRY_OK;
    bool found = false;
    bool in_time = true;
    pthread_mutex_lock(&mailbox->lock);
    while (status == WHERRY_OK && !(found = take_now(inbox, message_p))) {
        if (mailbox->closed) {
            status =
                wh_fail(error, WHERRY_CLOSED, "the group was left, or another incarnation has taken this rank's place");
        } else if (inbox->woken || !in_time) {
            inbox->woken = false;
            status = wh_fail(error, WHERRY_TIMED_OUT, "timed out waiting for a message");
        } else {
            in_time = wh_mailbox_wait(mailbox, &inbox->changed, deadline);
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    return found ? WHERRY_OK : status;
}

bool wh_inbox_poll(wh_inbox *inbox, wh_message *message_p) {
    pthread_mutex_lock(&inbox->mailbox->lock);
    bool found = take_now(inbox, message_p);
    pthread_mutex_unlock(&inbox->mailbox->lock);
    return found;
}

bool wh_inbox_post(wh_inbox *inbox, wh_message *message) {
    wh_letter *added = wh_alloc(sizeof(*added));
    if (!added) {
        wh_message_clear(message);
        return false;
    }
    *added = (wh_letter){NULL, *message};
    wh_mailbox *mailbox = inbox->mailbox;
    pthread_mutex_lock(&mailbox->lock);
    if (message->kind == WH_MESSAGE_BYTES) {
        mailbox->residents[message->rank].bytes += message->size;
    }
    wh_letters_append(&inbox->letters, added);
    wh_mailbox_signal(mailbox, &inbox->changed);
    pthread_mutex_unlock(&mailbox->lock);
    return true;
}

void wh_inbox_wake(wh_inbox *inbox) {
    pthread_mutex_lock(&inbox->mailbox->lock);
    inbox->woken = true;
    wh_mailbox_signal(inbox->mailbox, &inbox->changed);
    pthread_mutex_unlock(&inbox->mailbox->lock);
}

static wh_service *find_service(const wh_mailbox *mailbox, uint64_t tag) {
    wh_service *service = mailbox->services;
    while (service && service->tag != tag) {
        service = service->next;
    }
    return service;
}

/** The lock is not held while the service is at work. */
static void hand_over(wh_mailbox *mailbox, wh_service *service, wh_letter *letter) {
    wh_message message = letter->message;
    wh_free(letter);
    service->busy++;
    pthread_mutex_unlock(&mailbox->lock);
    service->fn(service->context, &message);
    pthread_mutex_lock(&mailbox->lock);
    service->busy--;
    wh_mailbox_signal(mailbox, &mailbox->changed);
}

bool wh_mailbox_hand_over(wh_mailbox *mailbox, wh_letter *letter) {
    wh_service *service = find_service(mailbox, letter->message.tag);
    bool open = service && service->open;
    if (open) {
        hand_over(mailbox, service, letter);
    }
    return open;
}

/** Hands over what lies there before the service is open, so that nothing that comes meanwhile overtakes it. */
static void hand_over_old(wh_mailbox *mailbox, wh_service *service) {
    wh_letter **at = &mailbox->letters.first;
    while (*at) {
        if ((*at)->message.tag != service->tag) {
            at = &(*at)->next;
            continue;
        }
        hand_over(mailbox, service, wh_letters_unlink(mailbox, &mailbox->letters, at));
        at = &mailbox->letters.first;
    }
}

wherry_status wh_service_open(wh_group *group, uint64_t tag, wh_service_fn fn, void *context, wherry_error *error) {
    wh_mailbox *mailbox = group->mailbox;
    wh_service *service = wh_alloc(sizeof(*service));
    if (!service) {
        return wh_fail_memory(error, "a service");
    }
    *service = (wh_service){NULL, tag, fn, context, false, 0};
    pthread_mutex_lock(&mailbox->lock);
    bool taken = find_service(mailbox, tag) != NULL;
    if (!taken) {
        service->next = mailbox->services;
        mailbox->services = service;
        hand_over_old(mailbox, service);
        service->open = true;
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (taken) {
        wh_free(service);
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "something else serves that tag of the group");
    }
    return WHERRY_OK;
}

void wh_service_close(wh_group *group, uint64_t tag) {
    wh_mailbox *mailbox = group->mailbox;
    pthread_mutex_lock(&mailbox->lock);
    wh_service **at = &mailbox->services;
    while (*at && (*at)->tag != tag) {
        at = &(*at)->next;
    }
    wh_service *service = *at;
    if (service) {
        *at = service->next;
        while (service->busy) {
            wh_wait(&mailbox->changed, &mailbox->lock, wh_deadline_never());
        }
    }
    pthread_mutex_unlock(&mailbox->lock);
    wh_free(service);
}
