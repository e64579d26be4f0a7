/**
 * @file internal.h  What the files of the sockets group share. Everything in wh_sockets is used
 * under its lock.
 */
#ifndef WH_GROUP_SOCKETS_INTERNAL_H
#define WH_GROUP_SOCKETS_INTERNAL_H

#include <poll.h>
#include <pthread.h>

#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/endpoint.h"
#include "group/sockets/sockets.h"

/** Of each of the two numbers that tell of a shortcut. */
enum { WH_SHORTCUT_DIGITS = 32 };

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
    wh_socket_address at;  /**< Where it is, as far as is known. */
    bool named;            /**< By a host's name, which may lead elsewhere one day: */
    wh_question *question; /**< it is asked for anew, */
    uint64_t asked;        /**< now and then. */
    int listener;          /**< Where this process listens there; -1: it does not. */
    wh_name name;
    bool shared; /**< Somebody else listens there too, who did not answer. */
    /** Whoever listens there does not answer, or nobody does: it is to be taken over. */
    bool silent;
    uint64_t stuck_since;
    uint64_t patience; /**< How long the greeting may take. */
    uint64_t next_try;
} wh_meeting;

/** What poll() waits for. */
typedef struct wh_watch {
    struct pollfd *fds;
    size_t count;
    size_t capacity;
} wh_watch;

/**
 * A thread that waits for a message and reads meanwhile, one at a time; the progress thread leaves
 * the connections to it that it watches.
 */
typedef struct wh_guest {
    wh_watch watch;
    bool inside;
    uint64_t since; /**< When it came, */
    uint64_t until; /**< and how long it may stay away before the progress thread reads again. */
    int nudge;      /**< An eventfd that ends its waiting. */
} wh_guest;

typedef struct wh_sockets {
    wh_group base;
    struct wh_sockets *next; /**< Of all groups of the process. */
    bool held;               /**< By a thread that forks. */
    wh_group_address address;
    wh_sockets_options options; /**< The secret is its own copy. */
    uint64_t incarnation;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool running; /**< The thread is there; a group of one needs none. */
    bool joined;
    bool stopping;
    bool fenced;  /**< A newer incarnation of this rank has taken its place. */
    int wake;     /**< An eventfd that ends the thread's waiting. */
    bool reading; /**< The thread waits for all connections. */
    wh_guest guest;
    uint64_t deaf_until; /**< There were no descriptors to accept with. */
    int listener;
    /** The listener for members on this host, in a TCP group; -1: there is none. */
    int shortcut;
    char host[WH_SHORTCUT_DIGITS + 1]; /**< Which that is; "": it takes no shortcuts. */
    char place[WH_PLACE_MAX];
    wh_connection *connections;
    wh_meeting *meetings;
    size_t meeting_count;
    wherry_error refusal; /**< The last that a meeting point answered, */
    /** and how it was last found where it did not; "": it was not dialled in vain. */
    char seen[128];
    wh_member members[];
} wh_sockets;

/**
 * False for an incarnation more than a day ahead of this host's clock. Nobody could ever take that
 * rank again, because a process that joins must have a higher number.
 */
bool wh_sockets_believes(uint64_t incarnation);

/**
 * Learns of an incarnation of a rank; what is older is given up, and everybody is told. @return
 * false for a rank or an incarnation that cannot be.
 */
bool wh_sockets_learn(wh_sockets *sockets, int64_t rank, uint64_t incarnation, const char *place);

/**
 * Takes what the incarnation of a rank that is known has said over its connections and nobody has
 * read yet.
 */
void wh_sockets_hear_out(wh_sockets *sockets, int64_t rank);

/** Takes a TABLE frame. @return false where it is malformed. */
bool wh_sockets_take_table(void *context, const uint8_t *bytes, size_t size);

/** Queues the whole table. @return false where there is no memory. */
bool wh_sockets_send_table(wh_sockets *sockets, wh_connection *connection);

/** Another incarnation has the rank: nothing works here any more. */
void wh_sockets_fence(wh_sockets *sockets);

/**
 * Another incarnation of this rank is known, with a higher number. Where that lies in the future,
 * and this process is joining, its predecessor had another clock: it takes a number above that one.
 * Otherwise it is the older one, and fenced. newer may be 0: not known.
 */
void wh_sockets_outdo(wh_sockets *sockets, uint64_t newer);

/** How this process greets. */
wh_hello_config wh_sockets_hello(const wh_sockets *sockets, wh_hello_purpose purpose, wh_hello_admit admitted,
                                 void *context);

/**
 * Listens for members on this host, in a TCP group that does not forbid it, and says so in its
 * place. Nothing is lost where that cannot be.
 */
void wh_shortcut_open(wh_sockets *sockets);

/** Whether the member with that place is on this host and listens there. */
bool wh_shortcut_leads_to(const wh_sockets *sockets, const char *place);

/**
 * Begins to connect to a member: by its shortcut where there is one and it can be had, else at its
 * place. @return as wh_dial_place.
 */
int wh_sockets_dial(const wh_sockets *sockets, const char *place);

/** Keeps a new socket. @return NULL where there is no memory; it is closed then. */
wh_connection *wh_sockets_add(wh_sockets *sockets, int fd, bool dialled);

/**
 * Whether the caller of join wants it to end; the lock is not held, since that may take a while.
 */
bool wh_sockets_interrupted(const wh_sockets *sockets);

/**
 * Learns where the meeting points are, before anything else. @return WHERRY_OK where one is known;
 * WHERRY_INVALID_ARGUMENT; WHERRY_CANCELLED.
 */
wherry_status wh_meetings_find(wh_sockets *sockets, wh_deadline deadline, wherry_error *error);

/**
 * Where the address leaves the port to the system: listens there, and keeps the port that it gave.
 */
wherry_status wh_meetings_choose(wh_sockets *sockets, wherry_error *error);

/** The operation `meeting`. */
wherry_status wh_sockets_meeting(wh_group *group, char *text, size_t size, wherry_error *error);

/** Whether none of them can be reached from other hosts. */
bool wh_meetings_are_private(const wh_sockets *sockets);

/** Listens at each meeting point that is free and on this host, and dials the others. */
void wh_meetings_serve(wh_sockets *sockets, uint64_t now);

/** Notes that the greeting of a connection to a meeting point took too long. */
void wh_meeting_note_silence(wh_sockets *sockets, int32_t number);

/** Notes why it could not be reached, for whoever waits in vain. */
void wh_meeting_note_fault(wh_sockets *sockets, const char *fault);

/** Notes that somebody has answered there. */
void wh_meeting_note_answer(wh_sockets *sockets, int32_t number);

/** Listens there no more. */
void wh_meetings_close(wh_sockets *sockets);

/** Adds to what is watched. @return false where there is no memory. */
bool wh_watch_add(wh_watch *watch, int fd, short events);

/** Serves the connection that *at points to, which may be closed by that. */
void wh_sockets_serve(wh_sockets *sockets, wh_connection **at, short events);

/** Whether a waiting thread reads, or will again soon. */
bool wh_sockets_has_guest(const wh_sockets *sockets, uint64_t now);

/** How long the progress thread may wait, so that it takes the reading up again in time. */
int wh_sockets_guest_ms(const wh_sockets *sockets, uint64_t now, int most);

/** The operations `pump` and `nudge`. */
wherry_status wh_sockets_pump(wh_group *group, wh_deadline deadline, wherry_error *error);
void wh_sockets_nudge(wh_group *group);

/** The operation `connect`. */
wherry_status wh_sockets_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                                 int *channel_p, wherry_error *error);

/**
 * Sees to it that a child of this process does not keep the group's sockets open, from now on, and
 * no more.
 */
void wh_sockets_enlist(wh_sockets *sockets);
void wh_sockets_delist(wh_sockets *sockets);

/** Ends the progress thread's waiting. */
void wh_sockets_wake(wh_sockets *sockets);

/** The progress thread. */
void *wh_sockets_progress(void *sockets);

/** Closes all connections and listeners; the thread has ended. */
void wh_sockets_close_all(wh_sockets *sockets);

#endif
