/**
 * @file connection.h  One connection to another member: the greeting, then frames both ways. Never blocks; used under the group's lock.
 *
 * A frame: the size of its body (uint32, big endian), its type (uint8), the body. A message travels as one or more MESSAGE frames behind each
 * other, each with the tag (uint64) and whether it is the last (uint8), so that none is longer than WH_FRAME_MAX.
 */
#ifndef WH_GROUP_SOCKETS_CONNECTION_H
#define WH_GROUP_SOCKETS_CONNECTION_H

#include <stdbool.h>

#include "group/group.h"
#include "group/hello.h"

enum { WH_FRAME_MESSAGE = 16, WH_FRAME_TABLE = 17, WH_FRAME_PING = 18 };

enum { WH_FRAME_MAX = 256 << 10 };

typedef struct wh_out_frame wh_out_frame;

typedef struct wh_connection {
    struct wh_connection *next;
    int fd;
    bool dialled;
    bool doomed;     /**< To be closed as soon as nobody is at work on it. */
    int32_t meeting; /**< The number of the meeting point that was dialled; -1: none. */
    int32_t wanted;  /**< The rank that was dialled; -1: whoever is there. */
    wh_hello *hello; /**< While the two sides greet each other; then NULL. */
    int32_t rank;    /**< Of the other side, once they have; -1 before. */
    uint64_t incarnation;
    uint64_t born;  /**< When it began, */
    uint64_t heard; /**< when bytes last came, */
    uint64_t said;  /**< and when a frame was last queued: all by wh_clock_now. */
    wh_out_frame *out;
    wh_out_frame **out_last;
    size_t queued; /**< Bytes that wait to be sent. */
    uint8_t *in;   /**< Bytes that came and do not make a frame yet. */
    size_t in_size;
    size_t in_capacity;
    wh_message message; /**< The message that is coming in. */
    size_t message_capacity;
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

/** Closes it. */
void wh_connection_destroy(wh_connection *connection);

/** Whether the two sides have greeted each other. */
static inline bool wh_connection_is_up(const wh_connection *connection) {
    return !connection->hello && connection->rank >= 0;
}

/** Whether it has something to send, or waits to be connected. */
bool wh_connection_wants_to_write(const wh_connection *connection);

/** Reads what has come and tells the owner. @return WHERRY_OK, or why the connection is of no more use. */
wherry_status wh_connection_read(wh_connection *connection, const wh_connection_events *events, wherry_error *error);

/** Sends what can be sent. @return as wh_connection_read. */
wherry_status wh_connection_write(wh_connection *connection, wherry_error *error);

/** Queues a frame. @return false where there is no memory. */
bool wh_connection_queue(wh_connection *connection, uint8_t type, const void *body, size_t size);

/** Queues a message as frames. @return false where there is no memory; then none of it is sent. */
bool wh_connection_queue_message(wh_connection *connection, uint64_t tag, const void *bytes, size_t size);

#endif
