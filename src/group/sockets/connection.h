/**
 * @file connection.h  One connection to another member: the greeting, then frames both ways. Never
 * blocks; used under the group's lock.
 *
 * A frame: the size of its body (uint32, big endian), its type (uint8), the body. A message travels
 * as one or more MESSAGE frames behind each other, each with the tag (uint64) and how many bytes of
 * the message follow in the next ones (uint64), so that none is longer than WH_FRAME_MAX.
 *
 * A connection that greets for data is no part of this traffic: its only frame is ATTACH, with the
 * tag (uint64) of an inbox, from the side that dialled. The answer is one byte, WH_ATTACHED, and
 * the connection is a channel from then on; or WH_NOT_ATTACHED, and its end.
 */
#ifndef WH_GROUP_SOCKETS_CONNECTION_H
#define WH_GROUP_SOCKETS_CONNECTION_H

#include <stdbool.h>

#include "group/group.h"
#include "group/hello.h"
#include "group/sockets/outbox.h"

enum { WH_FRAME_MESSAGE = 16, WH_FRAME_TABLE = 17, WH_FRAME_PING = 18, WH_FRAME_ATTACH = 19 };

enum { WH_NOT_ATTACHED = 0, WH_ATTACHED = 1 };

typedef struct wh_connection {
    struct wh_connection *next;
    int fd;
    size_t slot;       /**< Its place in what the progress thread waits for; 0: none, */
    size_t guest_slot; /**< and in what a waiting thread waits for. */
    bool dialled;
    bool doomed;     /**< To be closed as soon as nobody is at work on it. */
    bool mourned;    /**< The loss of the other side was noted before this one ended. */
    int32_t meeting; /**< The number of the meeting point that was dialled; -1: none. */
    int32_t wanted;  /**< The rank that was dialled; -1: whoever is there. */
    wh_hello *hello; /**< While the two sides greet each other; then NULL. */
    int32_t rank;    /**< Of the other side, once they have; -1 before. */
    uint64_t incarnation;
    /** The other side opens a channel: it is not for messages, and its end is nobody's loss. */
    bool data;
    bool attached; /**< It has said for which inbox: */
    uint64_t tag;
    uint64_t born;  /**< When it began, */
    uint64_t heard; /**< when bytes last came, */
    uint64_t said;  /**< and when a frame was last queued: all by wh_clock_now. */
    wh_outbox out;
    uint8_t *in; /**< Bytes that came and do not make a frame yet. */
    size_t in_size;
    size_t in_capacity;
    wh_message message; /**< The message that is coming in, */
    size_t message_capacity;
    size_t part_left; /**< how much is missing of its present frame, */
    uint64_t to_come; /**< and in the frames behind that. */
    bool in_message;
    bool broken;  /**< Reading has failed, and what stands here of a message is not whole. */
    bool reading; /**< It is being read: what comes of that must not read from it again. */
} wh_connection;

/** What the owner does with what comes in. */
typedef struct wh_connection_events {
    /** The two sides have greeted each other; false closes the connection. */
    bool (*greeted)(void *context, wh_connection *connection, const wh_hello_fields *peer);

    /** A whole message, whose bytes the owner takes over; false closes the connection. */
    bool (*message)(void *context, wh_message *message);

    /** A TABLE frame; false closes the connection. */
    bool (*table)(void *context, const uint8_t *bytes, size_t size);
    void *context;
} wh_connection_events;

/** Takes a socket over, also on failure. @return NULL where there is no memory. */
wh_connection *wh_connection_create(int fd, bool dialled, const wh_hello_config *config, wherry_error *error);

/** Closes it, unless its socket was taken out and replaced by -1. */
void wh_connection_destroy(wh_connection *connection);

/** Whether the two sides have greeted each other and messages can go over it. */
static inline bool wh_connection_is_up(const wh_connection *connection) {
    return !connection->hello && connection->rank >= 0 && !connection->data;
}

/** Whether it has something to send, or waits to be connected. */
bool wh_connection_wants_to_write(const wh_connection *connection);

/**
 * Reads what has come and tells the owner. @return WHERRY_OK, or why the connection is of no more
 * use.
 */
wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error);

/** Sends what can be sent. @return as wh_connection_read. */
wherry_status wh_connection_write(wh_connection *connection, wherry_error *error);

/** Queues a frame. @return false where there is no memory. */
bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size);

/** Queues a message, whose bytes are borrowed: wh_outbox_lend. */
bool wh_connection_lend(wh_connection *connection, uint64_t tag, const void *bytes, size_t size, wh_loan *loan);

#endif
