/** @file mailbox_internal.h  What mailbox.c and inbox.c share. Everything is used under the mailbox's lock. */
#ifndef WH_GROUP_MAILBOX_INTERNAL_H
#define WH_GROUP_MAILBOX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "group/inbox.h"
#include "group/mailbox.h"

typedef struct wh_letter {
    struct wh_letter *next;
    wh_message message;
} wh_letter;

/** Letters in the order in which they came. */
typedef struct wh_letters {
    wh_letter *first;
    wh_letter **last;
} wh_letters;

/** What is known of a rank. */
typedef struct wh_resident {
    uint64_t incarnation; /**< The last one that was let in; 0: none. */
    bool lost;
    size_t bytes;       /**< Of its messages that lie here. */
    uint64_t losses;    /**< How often an incarnation of it was lost, */
    uint64_t last_lost; /**< which the last time, */
    char reason[128];   /**< and why. */
} wh_resident;

struct wh_inbox {
    struct wh_inbox *next;
    wh_mailbox *mailbox;
    uint64_t tag;
    wh_letters letters;
    pthread_cond_t changed;
    bool woken;
    uint64_t losses_seen; /**< Of all ranks together, */
    uint64_t seen[];      /**< and of each. */
};

typedef struct wh_service {
    struct wh_service *next;
    uint64_t tag;
    wh_service_fn fn;
    void *context;
    bool open;   /**< What had come before is handed over. */
    size_t busy; /**< Threads inside fn. */
} wh_service;

struct wh_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    wh_letters letters; /**< Those that are not in an inbox. */
    wh_inbox *inboxes;
    wh_service *services;
    wh_group *pumped; /**< The group that is read by whoever waits; NULL: it reads by itself. */
    bool pumping;
    pthread_t pumper; /**< Who is inside `pump`. */
    bool closed;
    atomic_uint wakes;              /**< How often somebody was woken. */
    _Atomic uint64_t lively_before; /**< Until then a message is taken to be near. */
    uint64_t losses;                /**< Of all ranks together. */
    size_t share;
    int32_t size;
    wh_resident residents[];
};

void wh_letters_append(wh_letters *letters, wh_letter *letter);

/** Takes a letter out of its list; *at is the pointer to it. */
wh_letter *wh_letters_unlink(wh_mailbox *mailbox, wh_letters *letters, wh_letter **at);

void wh_letter_burn(wh_letter *letter);

/** Burns the letters of a rank, or of a tag where rank is WH_ANY_RANK. */
void wh_letters_burn(wh_mailbox *mailbox, wh_letters *letters, int32_t rank, uint64_t tag);

/** Wakes whoever waits for a condition, who may be inside `pump`, or awake: nobody is woken in another way. The lock is held. */
void wh_mailbox_signal(wh_mailbox *mailbox, pthread_cond_t *changed);

/** Wakes everybody who waits. */
void wh_mailbox_wake_all(wh_mailbox *mailbox);

/** Waits for a condition, reading from the peers meanwhile where that is the waiter's business. @return false where the deadline has come. */
bool wh_mailbox_wait(wh_mailbox *mailbox, pthread_cond_t *changed, wh_deadline deadline);

wh_inbox *wh_mailbox_find_inbox(const wh_mailbox *mailbox, uint64_t tag);

/** Hands a letter to the service of its tag, where there is one; the lock is not held while that is at work. @return false where there is none. */
bool wh_mailbox_hand_over(wh_mailbox *mailbox, wh_letter *letter);

#endif
