/**
 * @file callback_internal.h  What the files of the callback group share.
 *
 * 1. Calls into the table never overlap unless it is WHERRY_GROUP_OPS_CONCURRENT
 *    (wh_callback_enter), and no lock is held during one.
 * 2. At most one thread is the reader. Only the reader assembles messages and writes to the memory
 *    of emulated gets.
 * 3. The frames of one message go out together; frames of other kinds may come in between.
 * 4. A frame counts only if it comes from the latest known incarnation of its rank and is meant for
 *    this one.
 *
 * Before each block that the table carries there is a header:
 *
 *     0  magic (uint32)    "WHCB"
 *     4  version (uint8)   1
 *     5  kind (uint8)      a wh_callback_kind
 *     6  zero (uint16)
 *     8  from (uint64)     the sender's incarnation, over 0
 *    16  to (uint64)       the incarnation of the receiver that the sender knows; 0: none
 *    24  tag (uint64)
 *    32  total (uint64)    bytes of the message
 *    40  offset (uint64)   of this frame's bytes in the message
 *    48  bytes, to the end of the block
 *
 * Numbers are big endian. HELLO and BYE have no bytes, and zeros from 24 on. The frames of a
 * message come in order. Each has at least one byte, except that of an empty message. A frame that
 * begins a message discards an incomplete one.
 *
 * PIECE and CREDIT are for tables without put and get, see callback_blocks.c. Their tag is the
 * channel. A PIECE has bytes of a block: `total` is the size of the block and `offset` the position
 * of the bytes in it. A CREDIT has no bytes: it allows `total` more bytes; a total of 0 takes back
 * what was allowed and not used.
 */
#ifndef WH_GROUP_CALLBACK_INTERNAL_H
#define WH_GROUP_CALLBACK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "group/callback/callback.h"
#include "group/mailbox.h"

enum {
    /**
     * How long one call into the table may wait. Without WHERRY_GROUP_OPS_CONCURRENT all other
     * threads wait for it, and two ranks that send to each other make progress only when one stops
     * sending and reads.
     */
    WH_CALLBACK_STEP_MS = 2,

    /**
     * How long a rank that leaves tries to tell the others. They also notice by other means, so
     * leaving should be quick.
     */
    WH_CALLBACK_LEAVE_MS = 100,
};

/** Unread bytes of one rank's messages, at most. */
#define WH_CALLBACK_SHARE ((size_t)256 << 20)

enum { WH_CALLBACK_HEADER_BYTES = 48 };

/** The values are on the wire. */
typedef enum wh_callback_kind {
    WH_CALLBACK_DATA = 0,
    WH_CALLBACK_HELLO = 1,  /**< Tells the incarnation of the sender. */
    WH_CALLBACK_BYE = 2,    /**< The sender has left the group. */
    WH_CALLBACK_PIECE = 3,  /**< Bytes of a block. */
    WH_CALLBACK_CREDIT = 4, /**< The receiver of blocks allows more bytes. */
} wh_callback_kind;

typedef struct wh_callback_frame {
    wh_callback_kind kind;
    uint64_t from;
    uint64_t to;
    uint64_t tag;
    uint64_t total;
    uint64_t offset;
    /** Point into the block that was read; unused by wh_callback_frame_write. */
    const uint8_t *bytes;
    size_t size;
} wh_callback_frame;

void wh_callback_frame_write(const wh_callback_frame *frame, uint8_t header[WH_CALLBACK_HEADER_BYTES]);

/** Reads an untrusted block. @return false if it is not a frame. */
bool wh_callback_frame_read(const void *block, size_t size, wh_callback_frame *frame_p);

/** A message that is arriving. Starts as {0}. */
typedef struct wh_assembly {
    bool open;
    uint64_t tag;
    uint64_t total;
    uint8_t *bytes;
    size_t capacity;
    uint64_t got;
} wh_assembly;

typedef enum wh_assembly_result {
    WH_ASSEMBLY_MORE,  /**< More frames must come. */
    WH_ASSEMBLY_WHOLE, /**< The message is complete. */
    /** The frame continues nothing: it is dropped, with the incomplete message. */
    WH_ASSEMBLY_STRAY,
    WH_ASSEMBLY_NO_MEMORY, /**< The same, because there is no memory. */
} wh_assembly_result;

/** Adds a DATA frame. Takes memory only in proportion to what has arrived. */
wh_assembly_result wh_assembly_add(wh_assembly *assembly, const wh_callback_frame *frame);

/** Discards the message. */
void wh_assembly_clear(wh_assembly *assembly);

/** For a table without put and get: callback_blocks.c. */
typedef struct wh_emulated_block wh_emulated_block;
typedef struct wh_flow wh_flow;

/** What is known about a rank. Under the lock, except for what belongs to the reader. */
typedef struct wh_callback_peer {
    uint64_t incarnation; /**< The latest that is known; 0: none. */
    /** The incarnation that was sent a HELLO because it did not know this one. */
    uint64_t greeted;
    uint64_t fenced;           /**< The earlier incarnation that was told about its successor. */
    bool greet;                /**< A HELLO is to be sent. */
    bool left;                 /**< It said BYE. */
    bool sending;              /**< A message to it is being sent. */
    wh_assembly assembly;      /**< The reader's: the message that is arriving. */
    wh_emulated_block *blocks; /**< Without put and get: blocks under way, oldest first, */
    wh_flow *flows;            /**< and what may be sent or may come, per channel. */
    size_t flow_count;
    size_t flow_capacity;
    /** The reader's: why to give it up, after delivering what it sent before; "": do not. */
    char fault[96];
    bool gone; /**< The reader's: the table has lost it. */
} wh_callback_peer;

typedef struct wh_callback {
    wh_group base;
    wh_group_ops table; /**< The operations of `base`. */
    wherry_group_ops ops;
    void *context;
    char name[32];
    uint64_t incarnation;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t tickets; /**< Calls into the table are served in order: how many have come, */
    uint64_t served;  /**< and how many have ended. */
    /** With WHERRY_GROUP_OPS_BACKGROUND, once has_reader is set: reads until `ending`. */
    pthread_t reader;
    bool has_reader;
    atomic_bool ending;
    bool fenced;     /**< Other ranks know a newer incarnation of this rank. */
    bool reading;    /**< A thread is the reader. */
    bool complained; /**< A block that is not a frame was logged as a warning. */
    bool greetings;  /**< Some rank needs a HELLO. */
    bool faults;     /**< The reader's: some rank has a fault. */
    /**
     * The reader's: complete messages, and LOST for ranks that said BYE, until they go to the
     * mailbox.
     */
    wh_message *arrived;
    size_t arrived_count;
    size_t arrived_bytes;
    size_t arrived_capacity;
    wh_callback_peer peers[];
} wh_callback;

/** Waits for the right to call the table. */
void wh_callback_enter(wh_callback *callback);
void wh_callback_leave(wh_callback *callback);

/**
 * Turns the result of a table function into an error. The function may have filled the record
 * wrongly or not.
 * @param rank  whom it concerns, or WH_ANY_RANK.
 * @return the status; WHERRY_INTERNAL if it is not a status.
 */
wherry_status wh_callback_settle(const wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                                 wherry_error *error);

/** Calls the table's send once. */
wherry_status wh_callback_send_block(wh_callback *callback, int32_t rank, const void *block, size_t size,
                                     uint32_t timeout_ms, wherry_error *error);

/** The same, with a frame that has no bytes. */
wherry_status wh_callback_signal(wh_callback *callback, int32_t rank, wh_callback_kind kind, uint32_t timeout_ms,
                                 wherry_error *error);

/**
 * Why nothing can be sent to a rank; WHERRY_OK: it can.
 * @param to  the incarnation; 0: any.
 */
wherry_status wh_callback_check_peer(wh_callback *callback, int32_t rank, uint64_t to, wherry_error *error);

/** The blocks of the table, as in wh_group_ops. */
wherry_status wh_callback_put_runs(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs,
                                   size_t count, void **operation_p, wherry_error *error);
wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_callback_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error);
bool wh_callback_abandon_block(wh_group *group, void *operation);

/** The same for a table without them: over frames, with copies. */
wherry_status wh_emulated_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_emulated_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_emulated_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error);
bool wh_emulated_abandon(wh_group *group, void *operation);

/** Takes a PIECE or a CREDIT. The lock is held. @return false if there is no memory. */
bool wh_emulated_take(wh_callback *callback, int32_t rank, const wh_callback_frame *frame);

/** Drops the credit of a rank that has ended. The lock is held. */
void wh_emulated_forget(wh_callback_peer *peer);

/** Starts the background reader. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_callback_start_reader(wh_callback *callback, wherry_error *error);

/** Stops it, if there is one. */
void wh_callback_stop_reader(wh_callback *callback);

/** Sends the HELLOs that are due, without waiting. */
void wh_callback_greet(wh_callback *callback);

/**
 * Reads for up to WH_CALLBACK_STEP_MS, unless another thread is the reader: then waits for that
 * one.
 * @param hand_over  put what has arrived into the mailbox, which calls services. A sender passes
 *                   false, because it may hold a lock that a service takes; the next thread that
 *                   waits hands it over.
 * @return WHERRY_OK, also for timeouts and lost ranks; else the failure of the table's receive.
 */
wherry_status wh_callback_read(wh_callback *callback, wh_deadline deadline, bool hand_over, wherry_error *error);

#endif
