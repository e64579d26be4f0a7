/** @file internal.h  What the files of the sockets group share. Everything in wh_sockets is used under its lock. */
#ifndef WH_GROUP_SOCKETS_INTERNAL_H
#define WH_GROUP_SOCKETS_INTERNAL_H

#include <pthread.h>

#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/endpoint.h"
#include "group/sockets/sockets.h"

/** What is known of a rank. */
typedef struct wh_member {
    uint64_t incarnation; /**< 0: it has not come yet. */
    char place[WH_PLACE_MAX];
    wh_connection *connection; /**< The one that messages go over; NULL: none. */
    bool wanted;               /**< Somebody waits for a connection. */
    uint64_t failures;         /**< How often a connection was lost, or could not be made. */
    char reason[128];          /**< Of the last failure. */
} wh_member;

/** A meeting point. */
typedef struct wh_meeting {
    int listener; /**< Where this process listens there; -1: it does not. */
    int lock;
    bool dialled; /**< There is a connection to whoever listens there, or one that is being made. */
    uint64_t next_try;
} wh_meeting;

typedef struct wh_sockets {
    wh_group base;
    wh_group_address address;
    wh_sockets_options options; /**< The secret is its own copy. */
    uint64_t incarnation;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool joined;
    bool stopping;
    bool fenced; /**< A newer incarnation of this rank has taken its place. */
    int wake;    /**< An eventfd that ends the thread's waiting. */
    int listener;
    char place[WH_PLACE_MAX];
    wh_connection *connections;
    wh_meeting *meetings;
    size_t meeting_count;
    wherry_error refusal; /**< The last that a meeting point answered. */
    wh_member members[];
} wh_sockets;

/** Learns of an incarnation of a rank; what is older is given up, and everybody is told. @return false for a rank that cannot be. */
bool wh_sockets_learn(wh_sockets *sockets, int64_t rank, uint64_t incarnation, const char *place);

/** Takes a TABLE frame. @return false where it is malformed. */
bool wh_sockets_take_table(void *context, const uint8_t *bytes, size_t size);

/** Queues the whole table. @return false where there is no memory. */
bool wh_sockets_send_table(wh_sockets *sockets, wh_connection *connection);

/** Another incarnation has the rank: nothing works here any more. */
void wh_sockets_fence(wh_sockets *sockets);

/** Ends the progress thread's waiting. */
void wh_sockets_wake(wh_sockets *sockets);

/** The progress thread. */
void *wh_sockets_progress(void *sockets);

/** Closes all connections and listeners; the thread has ended. */
void wh_sockets_close_all(wh_sockets *sockets);

#endif
