/**
 * @file internal.h  What the files of the sockets group share.
 *
 * Invariants:
 * 1. Everything in wh_sockets is used under its lock, except what never changes after it was
 *    created, and wh_group.mailbox, which has its own lock.
 * 2. The progress thread dials, accepts, and tells news. A thread that waits for a message reads
 *    and writes, too (wh_sockets_pump); only one at a time does.
 * 3. Nothing waits under the lock, except for wh_sockets.changed.
 * 4. A rank's highest known incarnation is the member. Only connections to it are used.
 * 5. Messages to a rank go over one connection at a time. If it ends otherwise than by IDLE, the
 *    rank counts as lost, and all other connections to it are read to their ends and closed.
 * 6. A connection is told each change of the table at most once, except after a loss (hash in
 *    PING).
 * 7. A meeting point belongs to the process that listens there until that process ends.
 *
 * The states of a connection:
 *
 *     greeting -> up        greeted: a control connection; tables and messages
 *     greeting -> attached  take_attach: a data connection; hand_channel takes its socket out
 *     up       -> parting   watch_silence, take_idle: no message for long, and nobody needs it
 *     parting  -> up        take_hash: the other side needs it
 *     any      -> doomed    closed by the progress thread, after it has read what had arrived
 *
 * The states of a rank:
 *
 *     unknown -> known      wh_sockets_learn: from a HELLO or a TABLE
 *     known   -> connected  greeted; its member has a connection for messages
 *     connected -> known    by IDLE, without a loss
 *     connected -> gone note_failure: all threads that wait for it are told
 *     gone    -> connected  greeted, with the same incarnation or a newer one
 *
 * Lock order: the list of all groups (wh_sockets_enlist), wh_sockets.lock, the mailbox, an inbox's
 * listener. The lock of a wh_question is taken under wh_sockets.lock and holds nothing. Services of
 * the mailbox are called under wh_sockets.lock, so they must not call the group.
 */
#ifndef WH_GROUP_SOCKETS_INTERNAL_H
#define WH_GROUP_SOCKETS_INTERNAL_H

#include <poll.h>
#include <pthread.h>

#include "base/bytes.h"
#include "base/text.h"
#include "group/mailbox.h"
#include "group/sockets/connection.h"
#include "group/sockets/endpoint.h"
#include "group/sockets/security.h"
#include "group/sockets/sockets.h"

/** The largest message of a reader, and how much of one may wait at its server. */
enum { WH_READER_SHARE = 16 << 20 };

/** Digits of each of the two numbers that describe a shortcut. */
enum { WH_SHORTCUT_DIGITS = 32 };

/** Maximum size of a packed place. A place in an unusual form is not packed. */
enum { WH_PACKED_MAX = 64 };

/** What this process knows about a rank. */
typedef struct wh_member {
    uint64_t incarnation; /**< 0: the rank has not joined yet. */
    uint64_t source;      /**< Number of the connection that reported the incarnation; 0: none. */
    uint64_t news;        /**< Number of the rank's last change in the table. */
    uint64_t changed_at;  /**< Time of the rank's last change in the table. */
    int32_t before;       /**< The rank that changed before it; -1: none. */
    int32_t after;
    char place[WH_PLACE_MAX];
    uint8_t packed[WH_PACKED_MAX]; /**< The place, in the form that a TABLE has. */
    uint8_t packed_size;           /**< 0: not packed yet, or too long. */
    wh_connection *connection;     /**< The connection that carries messages; NULL: none. */
    bool wanted;                   /**< A thread waits for a connection. */
    uint64_t failures;             /**< How often a connection was lost or could not be made. */
    char reason[128];              /**< Reason of the last failure. */
    bool gone;                     /**< True if the rank was lost and has not been reached since. */
    bool arrived;                  /**< True if the rank has arrived at a barrier. */
    /** The highest number of a barrier at which the rank has arrived. */
    uint64_t reached;
    /** Number of the change of the barrier's table that recorded this arrival (wh_barrier). */
    uint64_t reached_news;
    /** A key from the rank, whose tickets open data connections to it. */
    uint8_t ticket_key[WH_KEY_BYTES];
    uint64_t ticket_key_of; /**< The incarnation that gave the key; 0: none. */
    uint64_t tickets;       /**< Number of the last ticket that this process has used there. */
    wh_tickets used;        /**< The tickets that the rank has used here. */
} wh_member;

/** A rank sends news of the barrier to the ranks at the distances 1, 2, 4 and so on. */
enum { WH_EDGES_MAX = 31 };

/** What this process has sent to a rank about the barrier. */
typedef struct wh_edge {
    uint64_t incarnation; /**< The rank's incarnation when news was last sent. */
    uint64_t failures;    /**< The rank's number of failures when news was last sent. */
    uint64_t told;        /**< Number of the last change that was sent. */
    /** The rank knows that all ranks up to this one have arrived at barrier `number`. */
    bool turn;
    uint64_t number;   /**< See `turn`. */
    bool settled;      /**< All ranks have arrived there, so the rank needs nothing more. */
    uint64_t retry_at; /**< When to dial it again if it is lost. */
} wh_edge;

/** The barrier; see arrival.c. */
typedef struct wh_barrier {
    uint64_t news; /**< Number of the last change. */
    uint64_t changed_at;
    bool waiting;    /**< A thread is inside wh_sockets_barrier. */
    uint64_t number; /**< The barrier that this thread waits for. */
    /** A rank that another rank reported as lost; -1: none. */
    int32_t missing;
    wh_edge edges[WH_EDGES_MAX]; /**< The ranks at the distances 1, 2, 4 and so on. */
} wh_barrier;

/** A meeting point. */
typedef struct wh_meeting {
    wh_socket_address at; /**< Its address, as far as known. */
    /** The address has a host name, whose meaning may change. It is resolved again now and then. */
    bool named;
    wh_question *question; /**< The query for that name, while it runs. */
    uint64_t asked;        /**< When the name was last resolved. */
    /** The last address of the name was not used, because the group stays on this host. */
    bool strayed;
    int listener; /**< The socket on which this process listens there; -1: none. */
    int lock;     /**< Held while this process listens at a Unix socket; -1: none. */
    uint64_t next_try;
    uint64_t pause; /**< Length of the pause after the next try. */
    bool silent;    /**< When it was last dialled, nothing answered. */
    bool reached;   /**< If `silent`: true if the connection itself was made. */
    int32_t pid;    /**< Pid of the process that listens there; 0: unknown. */
} wh_meeting;

/** The descriptors that poll() waits for. */
typedef struct wh_watch {
    struct pollfd *fds;
    size_t count;
    size_t capacity;
} wh_watch;

/**
 * A thread that waits for a message and reads connections meanwhile; only one at a time. The
 * progress thread does not read the connections that this thread watches.
 */
typedef struct wh_pump {
    wh_watch watch;
    bool inside;
    uint64_t since; /**< When the thread came. */
    /** If the thread is away for longer than this, the progress thread reads again. */
    uint64_t until;
    int nudge; /**< An eventfd that ends the waiting of the thread. */
} wh_pump;

typedef struct wh_sockets {
    wh_group base;
    struct wh_sockets *next; /**< The list of all groups of the process. */
    bool held;               /**< Locked by a thread that forks. */
    wh_group_address address;
    wh_sockets_options options; /**< The options of joining, without those that `security` has. */
    wh_security security;
    uint64_t incarnation;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool running; /**< True if the thread exists. A group of one rank needs none. */
    bool joined;
    bool stopping;
    bool fenced;  /**< True if a newer incarnation of this rank has joined. */
    int wake;     /**< An eventfd that ends the thread's waiting. */
    bool reading; /**< True if the thread reads all connections. */
    wh_pump pump;
    /**
     * Accepts no connection until then: there were no descriptors left, or too many connections had
     * not greeted.
     */
    uint64_t deaf_until;
    int listener;
    /** The listener for members on this host, in a TCP group; -1: none. */
    int shortcut;
    /** Describes this host; "": this process uses no shortcuts. */
    char host[WH_SHORTCUT_DIGITS + 1];
    char place[WH_PLACE_MAX];
    int32_t known;  /**< Number of ranks that have joined. */
    uint64_t news;  /**< Number of the last change of the table. */
    int32_t oldest; /**< The rank whose last change is the oldest; -1: none has joined. */
    int32_t newest; /**< The rank with the latest change. */
    /** Hash of the table; 0 in a star, because nobody gets the table there. */
    uint64_t hash;
    uint64_t changed_at; /**< When the table changed. */
    uint64_t numbers;    /**< Number of the newest connection. */
    wh_barrier barrier;
    wh_connection *connections;
    size_t pool; /**< At a server: the memory that incomplete messages of readers may still take. */
    wh_meeting *meetings;
    size_t meeting_count;
    bool stays_here; /**< True if other hosts must not reach any port of this process. */
    /** True if this process may not open as many descriptors as a listener needs. */
    bool too_few_files;
    wherry_error refusal; /**< The last refusal from a meeting point. */
    /** Why the last dial of a meeting point failed; "": none failed. */
    char seen[128];
    /** True if that refusal was because of another user, so that waiting does not help. */
    bool other_user;
    wh_member members[];
} wh_sockets;

/**
 * False for an incarnation more than a day ahead of this host's clock. Nobody could ever take that
 * rank again, because a process that joins must have a higher number.
 */
bool wh_sockets_believes(uint64_t incarnation);

/**
 * Records an incarnation of a rank. Gives up connections to an older one.
 * @param source  number of the connection that reported it.
 * @return false if the rank or the incarnation is invalid.
 */
bool wh_sockets_learn(wh_sockets *sockets, int64_t rank, uint64_t incarnation, const char *place, uint64_t source);

/** Reads the bytes that the known incarnation of a rank has sent and nobody has read yet. */
void wh_sockets_hear_out(wh_sockets *sockets, int64_t rank);

/** Handles a TABLE frame. @return false if it is malformed. */
bool wh_sockets_take_table(wh_sockets *sockets, wh_connection *connection, const uint8_t *bytes, size_t size);

/** Queues news for all connections that have none queued. @return when to call it again. */
uint64_t wh_members_tell(wh_sockets *sockets, uint64_t now);

/**
 * Decides what to send over a new connection. Nothing if the other side's table had this hash when
 * it dialled. Otherwise the whole table at a meeting point, and elsewhere what is new.
 */
void wh_members_begin(const wh_sockets *sockets, wh_connection *connection, uint64_t hash);

/**
 * Compares the hash of the other side's table. Sends the whole table if the hashes differ for a
 * long time.
 */
void wh_members_compare(wh_sockets *sockets, wh_connection *connection, uint64_t hash);

/** Writes and reads a place in the form that a TABLE has. @return false if it is malformed. */
void wh_place_encode(wh_string *to, const char *place);
bool wh_place_decode(wh_cursor *from, char place[WH_PLACE_MAX]);

/** Another incarnation has taken the rank. All operations of this group fail from now on. */
void wh_sockets_fence(wh_sockets *sockets);

/**
 * Another incarnation of this rank has a higher number. If that number is in the future and this
 * process is joining, the clock of its predecessor was ahead: this process takes a still higher
 * number. Otherwise this process is the older one, and is fenced.
 * @param newer  the number; 0: unknown.
 */
void wh_sockets_outdo(wh_sockets *sockets, uint64_t newer);

/**
 * Reads the file of the secret again if it has changed. Call it before a connection is made,
 * without the lock. Logs a failure. Cheap if nothing has changed.
 */
void wh_sockets_look(wh_sockets *sockets);

/**
 * True if an old connection was silent for so long before a fresh one to the same rank began, that
 * the rank may have lost the old one.
 */
bool wh_sockets_is_suspect(const wh_sockets *sockets, const wh_connection *old, const wh_connection *fresh);

/**
 * True if a server refuses a reader: one that claims the server's own rank or that of another
 * reader that is there, or one that has a control connection over such a socket already.
 */
bool wh_sockets_is_intruder(const wh_sockets *sockets, const wh_connection *fresh, const wh_hello_fields *peer);

/** Begins TLS, or looks for it first, or greets. @param host  as for wh_tls_create. */
wherry_status wh_sockets_secure(wh_sockets *sockets, wh_connection *connection, const char *host, wherry_error *error);

/**
 * For wh_connection_events: a connection that this process has accepted has shown whether it speaks
 * TLS, or TLS is open.
 */
wherry_status wh_sockets_begin(void *context, wh_connection *connection, uint8_t first, wherry_error *error);

/** Returns how this process identifies itself in a greeting. */
wh_hello_config wh_sockets_hello(const wh_sockets *sockets, wh_hello_purpose purpose, wh_hello_admit admitted,
                                 void *context);

/**
 * Lets members on this host connect to a Unix socket instead, if the group uses TCP and does not
 * forbid it. Adds the socket to this process's place. If this fails, these members use TCP.
 */
void wh_shortcut_open(wh_sockets *sockets);

/** True if the member with that place is on this host and listens there. */
bool wh_shortcut_leads_to(const wh_sockets *sockets, const char *place);

/**
 * Begins to connect to a member: over its shortcut if there is one that works, otherwise at its
 * place. @return as wh_dial_place.
 */
int wh_sockets_dial(const wh_sockets *sockets, const char *place);

/**
 * Creates the connection for a new socket, and begins TLS or the greeting.
 * @param host    the host that was dialled; NULL if this side has accepted the connection.
 * @param wanted  the rank that was dialled; -1: any.
 * @return NULL if that failed; the socket is closed then.
 */
wh_connection *wh_sockets_add(wh_sockets *sockets, int fd, const char *host, int32_t wanted);

/**
 * Decides whom the greeting is for: the rank that was dialled, or any rank if it is -1. There is no
 * TLS on Unix sockets, so another user who listens at one could relay the proofs. Therefore only
 * the incarnation whose socket was dialled gets a proof. At a path, anyone can take the name, so
 * only a process of this user gets one. Nobody can take the name of a shortcut before its process
 * has ended.
 */
void wh_sockets_choose_peer(const wh_sockets *sockets, const wh_socket *socket, wh_hello_config *config, int32_t rank,
                            uint64_t incarnation);

/**
 * Returns the host that a certificate must be for, if the certificate proves the member at a place.
 * A reader knows its server by the name in its address. A certificate has this name rather than a
 * number.
 */
static inline const char *wh_sockets_host(const wh_sockets *sockets, const char *place, char host[WH_PLACE_MAX]) {
    return sockets->security.reads && sockets->address.kind == WH_ADDRESS_TCP ? sockets->address.meeting[0].host
                                                                              : wh_place_host(place, host);
}

/** True in a group of a server and its readers. There, nobody learns of other members. */
static inline bool wh_sockets_is_star(const wh_sockets *sockets) {
    return sockets->security.serves || sockets->security.reads;
}

/**
 * Asks the caller of join whether to stop. Call it without the lock, because the answer may take a
 * while.
 */
bool wh_sockets_interrupted(const wh_sockets *sockets);

/**
 * Resolves the meeting points. Call it first. @return WHERRY_OK if at least one is known;
 * WHERRY_INVALID_ARGUMENT; WHERRY_CANCELLED.
 */
wherry_status wh_meetings_find(wh_sockets *sockets, wh_deadline deadline, wherry_error *error);

/**
 * Listens at the meeting point at once if the address has `bind`, or leaves the port to the system.
 * Keeps the port that the system chose.
 */
wherry_status wh_meetings_choose(wh_sockets *sockets, wherry_error *error);

/**
 * With `bind`, others reach this process only at the meeting point. Writes the meeting point as
 * this process's place.
 */
wherry_status wh_meetings_announce(wh_sockets *sockets, wh_deadline deadline, wherry_error *error);

/** The operation `meeting`. */
wherry_status wh_sockets_meeting(wh_group *group, char *text, size_t size, wherry_error *error);

/** True if no meeting point can be reached from other hosts. */
bool wh_meetings_are_private(const wh_sockets *sockets);

/** Listens at each meeting point that is free and on this host, and dials the others. */
void wh_meetings_serve(wh_sockets *sockets, uint64_t now);

/** Records why a meeting point could not be reached, for the error of a joiner that times out. */
void wh_meeting_note_fault(wh_sockets *sockets, const char *fault);

/** Records that the process that listens at a meeting point did not answer over this connection. */
void wh_meeting_note_silence(wh_sockets *sockets, const wh_connection *connection);

/**
 * Writes why no process has answered at the meeting points, for an error. The text is empty if one
 * has answered. Releases the lock meanwhile.
 */
void wh_meetings_explain(wh_sockets *sockets, char *text, size_t size);

/** Records that a meeting point answered. */
void wh_meeting_note_answer(wh_sockets *sockets, int32_t number);

/** When to call wh_meetings_serve again. */
uint64_t wh_meetings_next(const wh_sockets *sockets);

/** Stops listening at the meeting points. */
void wh_meetings_close(wh_sockets *sockets);

/** Adds a descriptor. @return false if out of memory. */
bool wh_watch_add(wh_watch *watch, int fd, short events);

/** Serves the connection that *at points to. This may close it. */
void wh_sockets_serve(wh_sockets *sockets, wh_connection **at, short events);

/** True if a waiting thread reads the connections, or will do so again soon. */
bool wh_sockets_is_pumped(const wh_sockets *sockets, uint64_t now);

/** How long the progress thread may wait before it must check whether to read again itself. */
int wh_sockets_wait_ms(const wh_sockets *sockets, uint64_t now, int most);

/** The operations `pump` and `nudge`. */
wherry_status wh_sockets_pump(wh_group *group, wh_deadline deadline, wherry_error *error);
void wh_sockets_nudge(wh_group *group);

/** The operation `barrier`. */
wherry_status wh_sockets_barrier(wh_group *group, uint64_t number, wh_deadline deadline, wherry_error *error);

/** Handle the frames ARRIVED and MISSING. @return false if they are malformed. */
bool wh_barrier_take_arrived(wh_sockets *sockets, wh_connection *connection, const uint8_t *bytes, size_t size);
bool wh_barrier_take_missing(wh_sockets *sockets, const uint8_t *bytes, size_t size);

/** Sends news of the barrier to the ranks that need it. @return when to call it again. */
uint64_t wh_barrier_tell(wh_sockets *sockets, uint64_t now);

/**
 * True if a rank that can be reached still needs news of the barrier. A process that leaves sends
 * it first.
 */
bool wh_barrier_owes(const wh_sockets *sockets);

/** True if a thread waits for the arrival of a rank. */
bool wh_barrier_needs(const wh_sockets *sockets, int32_t rank);

/** The operation `connect`. */
wherry_status wh_sockets_connect(wh_group *group, int32_t rank, uint64_t tag, wh_deadline deadline, const wh_stop *stop,
                                 wh_socket *channel_p, wherry_error *error);

/** Adds the group to the list of groups whose sockets a forked child closes, and removes it. */
void wh_sockets_enlist(wh_sockets *sockets);
void wh_sockets_delist(wh_sockets *sockets);

/** Wakes the progress thread. */
void wh_sockets_wake(wh_sockets *sockets);

/** The progress thread. */
void *wh_sockets_progress(void *sockets);

/** Closes all connections and listeners, after the thread has ended. */
void wh_sockets_close_all(wh_sockets *sockets);

#endif
