/**
 * @file connection.h  One connection to another member: the greeting, then frames in both
 * directions. Never blocks. Used under the group's lock.
 *
 *     new      -> securing   the owner begins TLS (socket.tls)
 *     new      -> peeking    the owner awaits the first byte, which tells TLS from clear text
 *     peeking  -> securing, greeting
 *     new, securing -> greeting   wh_connection_greet; TLS must be open
 *     greeting -> up         both sides have accepted each other
 *
 * A frame is the size of its body (uint32, big endian), its type (uint8), and the body. A message
 * is one or more consecutive MESSAGE frames, so that no frame is longer than WH_FRAME_MAX. Each has
 * the tag (uint64), and the number of bytes of the message in the frames after it (uint64).
 *
 * A connection that greets as a data connection carries no such frames. Its only frame is ATTACH,
 * from the side that dialled, with the tag (uint64) of an inbox. The answer is one byte. After
 * WH_ATTACHED, the connection is a channel. After WH_NOT_ATTACHED, it ends.
 */
#ifndef WH_GROUP_SOCKETS_CONNECTION_H
#define WH_GROUP_SOCKETS_CONNECTION_H

#include <stdbool.h>

#include "group/group.h"
#include "group/hello.h"
#include "group/socket.h"

/*
 * ---- frames that wait to be sent ----
 *
 * The sender keeps the bytes of a message while they wait. It either waits until they are sent, or
 * has the rest copied (wh_outbox_keep).
 */

enum {
    WH_FRAME_MAX = 256 << 10, /**< Maximum size of a body. */
    WH_FRAME_HEAD = 5,
    WH_MESSAGE_HEAD = 16, /**< Size of the head in the body of a MESSAGE frame. */
};

/** An incomplete message of up to this size takes nothing from the pool of the connection. */
enum { WH_MESSAGE_FREE = 64 << 10 };

typedef struct wh_out_frame wh_out_frame;

typedef struct wh_outbox {
    wh_out_frame *first;
    wh_out_frame **last;
    size_t queued; /**< Number of bytes in the queue. */
} wh_outbox;

/**
 * A message whose bytes are borrowed. The struct must stay at its address until no frame is left,
 * or the loan is broken or kept.
 */
typedef struct wh_loan {
    size_t frames; /**< Number of frames that are not sent yet. */
    bool broken;   /**< The connection has ended before all frames were sent. */
} wh_loan;

void wh_outbox_init(wh_outbox *outbox);

/** Drops all frames and breaks their loans. */
void wh_outbox_clear(wh_outbox *outbox);

/** Writes the head of a frame with a body of `size` bytes. */
void wh_frame_head(uint8_t head[WH_FRAME_HEAD], uint8_t type, size_t size);

/** Adds a frame with a copy of its body. @return false if out of memory. */
bool wh_outbox_add(wh_outbox *outbox, uint8_t type, const void *body, size_t size);

/**
 * Adds a message, whose bytes are borrowed, as frames of one type.
 * @param loan  owned by the caller; set here.
 * @return false if out of memory. Then nothing of the message is sent.
 */
bool wh_outbox_lend(wh_outbox *outbox, uint8_t type, uint64_t tag, const void *bytes, size_t size, wh_loan *loan);

/**
 * Copies the rest of a loan, so that its bytes belong to the caller again. @return false if out of
 * memory: then the connection must be closed.
 */
bool wh_outbox_keep(wh_outbox *outbox, wh_loan *loan);

/** Sends as much as possible without blocking. @return WHERRY_OK; WHERRY_PEER_LOST. */
wherry_status wh_outbox_send(wh_outbox *outbox, const wh_socket *socket, wherry_error *error);

/* ---- the connection ---- */

/** The types of frames. docs/group-protocol.md describes the bodies. */
enum {
    WH_FRAME_MESSAGE = 16,
    WH_FRAME_TABLE = 17,
    WH_FRAME_PING = 18,
    WH_FRAME_ATTACH = 19,
    WH_FRAME_PONG = 20,
    WH_FRAME_IDLE = 21,
    WH_FRAME_ARRIVED = 22,
    WH_FRAME_MISSING = 23,
};

enum { WH_NOT_ATTACHED = 0, WH_ATTACHED = 1 };

typedef struct wh_connection {
    struct wh_connection *next;
    void *owner; /**< For the functions of a greeting. */
    wh_socket socket;
    bool peeking;     /**< The other side's first byte tells whether it speaks TLS. */
    size_t slot;      /**< Its index in the list that the progress thread polls; 0: none. */
    size_t pump_slot; /**< Its index in the list that a waiting thread polls. */
    bool dialled;
    bool doomed;     /**< Close it as soon as no thread uses it. */
    bool mourned;    /**< The loss of the other side was recorded before this connection ended. */
    int32_t meeting; /**< Number of the meeting point that was dialled; -1: none. */
    int32_t wanted;  /**< The rank that was dialled; -1: any. */
    bool met;        /**< True if it leads to a meeting point, or was accepted there. */
    /** This side sends nothing more over it, because it will be closed as idle. */
    bool parting;
    bool declines;   /**< Decline an IDLE as soon as nothing else waits to be sent. */
    uint64_t number; /**< Number of this connection among the connections of this process. */
    uint64_t told;   /**< Number of the last change that was sent to the other side. */
    /** The other side gets the whole table, including the entries that it has sent itself. */
    bool whole;
    uint64_t next_news; /**< When the next news may be sent. */
    uint64_t told_at;   /**< When news was last sent. */
    uint64_t hash;      /**< Hash of the other side's table, as last reported. */
    uint64_t pinged;    /**< Time when this side last sent a PING. */
    uint64_t used;      /**< When a message was last sent or received. */
    wh_hello *hello;    /**< The greeting; NULL before it begins and when it is over. */
    int32_t rank;       /**< Rank of the other side; -1 during the greeting. */
    uint64_t incarnation;
    /**
     * The other side opens a channel. The connection carries no messages, and its end is not the
     * loss of a rank.
     */
    bool data;
    bool attached; /**< An ATTACH frame has come, with `tag`. */
    uint64_t tag;
    uint64_t born;  /**< When the connection began (wh_clock_now). */
    uint64_t heard; /**< When bytes last came. */
    uint64_t said;  /**< When a frame was last queued. */
    wh_outbox out;
    uint8_t *in; /**< Received bytes that are not a complete frame yet. */
    size_t in_size;
    size_t in_capacity;
    wh_message message; /**< The message that is being received. */
    size_t message_capacity;
    size_t message_max; /**< Largest message; WH_MESSAGE_MAX, or less at a server. */
    /** The pool from which `message` takes memory, apart from WH_MESSAGE_FREE; NULL: no limit. */
    size_t *pool;
    size_t pooled;    /**< The memory that the message has taken from the pool. */
    uint64_t began;   /**< When the message began, if it is not complete. */
    size_t part_left; /**< Missing bytes of the current frame. */
    uint64_t to_come; /**< Missing bytes of the message after the current frame. */
    bool in_message;
    wherry_status broken; /**< Reading has failed, and `message` is incomplete. */
    char why[128];        /**< The reason, if reading has failed. */
    bool reading;         /**< A thread is reading it. Callbacks must not read from it again. */
} wh_connection;

/** Functions of the owner that handle received data. */
typedef struct wh_connection_events {
    /**
     * TLS is open, or the first byte of a connection that peeks has come. Call wh_connection_greet,
     * or set socket.tls. @return the status of that, which closes the connection unless it is OK.
     */
    wherry_status (*begin)(void *context, wh_connection *connection, uint8_t first, wherry_error *error);

    /** Both sides have greeted. Return false to close the connection. */
    bool (*greeted)(void *context, wh_connection *connection, const wh_hello_fields *peer);

    /** A complete message. The owner takes its bytes. Return false to close the connection. */
    bool (*message)(void *context, wh_message *message);

    /** A frame of another type. Return false to close the connection. */
    bool (*frame)(void *context, wh_connection *connection, uint8_t type, const uint8_t *bytes, size_t size);

    /**
     * Gives up a message that fills the pool (wh_connection_give_up). Return false if none may be.
     */
    bool (*make_room)(void *context);
    void *context;
} wh_connection_events;

/** Creates a connection. Takes over the socket, also on failure. @return NULL if out of memory. */
wh_connection *wh_connection_create(int fd, bool dialled);

/** Begins the greeting. @return as wh_hello_create. */
wherry_status wh_connection_greet(wh_connection *connection, const wh_hello_config *config, wherry_error *error);

/**
 * True if bytes have arrived that nobody has read yet. This happens if this process was stopped, or
 * had no processor.
 */
bool wh_connection_has_unread(const wh_connection *connection);

/** True if the other side has closed the connection, even if there is still something to read. */
bool wh_connection_has_gone(const wh_connection *connection);

/**
 * Drops its incomplete message. Reading from the connection fails from now on, with this reason.
 */
void wh_connection_give_up(wh_connection *connection, const char *why);

/** Frees it, and closes its socket unless the owner has replaced it by WH_NO_SOCKET. */
void wh_connection_destroy(wh_connection *connection);

/** True if both sides have greeted and the connection can carry messages. */
static inline bool wh_connection_is_up(const wh_connection *connection) {
    return !connection->hello && connection->rank >= 0 && !connection->data;
}

/** True if it has something to send that the socket may take now. */
bool wh_connection_wants_to_write(const wh_connection *connection);

/**
 * Reads what has come and calls the owner. @return WHERRY_OK, or why the connection cannot be used
 * any more. Every call after that says the same.
 */
wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error);

/** Sends as much as possible. @return as wh_connection_read. */
wherry_status wh_connection_write(wh_connection *connection, wherry_error *error);

/** Queues a frame. @return false if out of memory. */
bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size);

/** Queues a message whose bytes are borrowed, as wh_outbox_lend does. */
bool wh_connection_lend(wh_connection *connection, uint64_t tag, const void *bytes, size_t size, wh_loan *loan);

#endif
