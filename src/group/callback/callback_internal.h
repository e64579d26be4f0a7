/**
 * @file callback_internal.h  Declarations for the files of the callback group.
 *
 * 1. Calls into the table never overlap, unless the table has WHERRY_GROUP_OPS_CONCURRENT
 *    (wh_callback_enter). No lock is held during a call. These rules do not apply to wake and
 *    permit.
 * 2. At most one thread is the reader. Only the reader assembles messages and writes to the memory
 *    of emulated gets.
 * 3. The frames of one message are sent one after the other. Only frames of other kinds may come in
 *    between.
 * 4. A frame is used only if its sender is the latest known incarnation of its rank, and if its
 *    `to` is the incarnation of this process or 0.
 *
 * Each block that the table's send gets is a frame. It begins with a header:
 *
 *     0  magic (uint32)    "WHCB"
 *     4  version (uint8)   1
 *     5  kind (uint8)      a wh_callback_kind
 *     6  zero (uint16)
 *     8  from (uint64)     the sender's incarnation, greater than 0
 *    16  to (uint64)       the receiver's incarnation, as far as the sender knows; 0: unknown
 *    24  tag (uint64)
 *    32  total (uint64)    size of the message
 *    40  offset (uint64)   offset of this frame's bytes in the message
 *    48  bytes, to the end of the block
 *
 * Numbers are big-endian. HELLO and BYE have no bytes, and zeros from offset 24 on. The frames of a
 * message are in order. Each has at least one byte, except the frame of an empty message. When a
 * new message begins, an incomplete one is discarded.
 *
 * PIECE and CREDIT are for tables without put and get (callback_blocks.c). Their tag is the
 * channel. A PIECE has bytes of a block: `total` is the size of the block and `offset` the position
 * of the bytes in it. A CREDIT has no bytes. It allows the source to send `total` more bytes. A
 * total of 0 withdraws all credit that is not used yet.
 */
#ifndef WH_GROUP_CALLBACK_INTERNAL_H
#define WH_GROUP_CALLBACK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "group/callback/callback.h"
#include "group/group_timing.h"
#include "group/mailbox.h"

/**
 * Maximum size in bytes of all messages from one rank in the mailbox. If the messages that are not
 * in the mailbox yet have more bytes than this, a thread that sends does not read more.
 */
#define WH_CALLBACK_SHARE ((size_t)256 << 20)

enum { WH_CALLBACK_HEADER_BYTES = 48 };

/** The kind of a frame. The values are on the wire. */
typedef enum wh_callback_kind {
    WH_CALLBACK_DATA = 0,
    WH_CALLBACK_HELLO = 1,  /**< Announces the incarnation of the sender. */
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
    /** Points into the block that was read. wh_callback_frame_write does not use it. */
    const uint8_t *bytes;
    size_t size;
} wh_callback_frame;

void wh_callback_frame_write(const wh_callback_frame *frame, uint8_t header[WH_CALLBACK_HEADER_BYTES]);

/** Reads an untrusted block. @return false if it is not a frame. */
bool wh_callback_frame_read(const void *block, size_t size, wh_callback_frame *frame_p);

/** A message of which not all frames have arrived yet. Initialize with {0}. */
typedef struct wh_assembly {
    bool open;
    uint64_t tag;
    uint64_t total;
    uint8_t *bytes;
    size_t capacity;
    uint64_t got;
} wh_assembly;

typedef enum wh_assembly_result {
    WH_ASSEMBLY_MORE,  /**< The message needs more frames. */
    WH_ASSEMBLY_WHOLE, /**< The message is complete. */
    /** The frame does not continue the message. The frame and the message were dropped. */
    WH_ASSEMBLY_STRAY,
    WH_ASSEMBLY_NO_MEMORY, /**< There is no memory. The frame and the message were dropped. */
} wh_assembly_result;

/** Adds a DATA frame. Allocates memory only in proportion to the bytes that have arrived. */
wh_assembly_result wh_assembly_add(wh_assembly *assembly, const wh_callback_frame *frame);

/** Discards the incomplete message. */
void wh_assembly_clear(wh_assembly *assembly);

/** These types are used for a table without put and get. See callback_blocks.c. */
typedef struct wh_emulated_block wh_emulated_block;
typedef struct wh_flow wh_flow;

/**
 * The state of another rank. The lock guards it, except members marked "Reader": only the reader
 * uses those.
 */
typedef struct wh_callback_peer {
    uint64_t incarnation; /**< The latest known incarnation; 0: none. */
    /** The incarnation that got a HELLO because it did not know the incarnation of this process. */
    uint64_t greeted;
    uint64_t fenced;           /**< The old incarnation that was told about a newer one. */
    bool greet;                /**< A HELLO must be sent. */
    bool left;                 /**< The rank has sent BYE. */
    bool sending;              /**< A message to the rank is being sent. */
    wh_assembly assembly;      /**< Reader: the message that is arriving. */
    wh_emulated_block *blocks; /**< Without put and get: blocks in flight, oldest first. */
    wh_flow *flows;            /**< Without put and get: the credit of each channel. */
    size_t flow_count;
    size_t flow_capacity;
    /**
     * Reader: why waits for the rank must fail; "": there is nothing to report. The reason is
     * reported after the earlier messages of the rank are delivered.
     */
    char fault[96];
    bool gone; /**< Reader: the table reported the rank as lost. */
} wh_callback_peer;

typedef struct wh_callback {
    wh_group base;
    wh_group_backend table; /**< The operations of `base`. */
    wherry_group_ops ops;
    void *context;
    char name[32];
    uint64_t incarnation;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t tickets; /**< How many calls of the table were requested. They run in this order. */
    uint64_t served;  /**< How many of these calls have ended. */
    /** With WHERRY_GROUP_OPS_BACKGROUND: the thread that reads. Valid if has_reader is set. */
    pthread_t reader;
    bool has_reader;
    atomic_bool ending;
    bool fenced;     /**< Other ranks know a newer incarnation of this rank. */
    bool reading;    /**< A thread reads from the table. */
    bool complained; /**< A block that is not a frame was logged as a warning. */
    bool greetings;  /**< At least one rank needs a HELLO. */
    bool faults;     /**< Reader: at least one rank has a fault. */
    /**
     * Reader: complete messages that are not in the mailbox yet. Has a LOST message for each rank
     * that has sent BYE.
     */
    wh_message *arrived;
    size_t arrived_count;
    size_t arrived_bytes;
    size_t arrived_capacity;
    wh_callback_peer peers[];
} wh_callback;

/**
 * Waits until this thread may call the table's functions. Call wh_callback_leave afterwards, so
 * that the next thread may call them. Both do nothing with WHERRY_GROUP_OPS_CONCURRENT.
 */
void wh_callback_enter(wh_callback *callback);
void wh_callback_leave(wh_callback *callback);

/**
 * Completes the error of a table function that has failed. The function may have left the error
 * empty or filled it wrongly.
 * @param rank  the rank that the error is about, or WHERRY_ANY_RANK.
 * @return the status; WHERRY_INTERNAL if the function returned a value that is not a status.
 */
wherry_status wh_callback_settle(const wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                                 wherry_error *error);

/** Calls the table's send once. */
wherry_status wh_callback_send_block(wh_callback *callback, int32_t rank, const void *block, size_t size,
                                     uint32_t timeout_ms, wherry_error *error);

/** Sends a frame without bytes, such as HELLO, with one call of the table's send. */
wherry_status wh_callback_signal(wh_callback *callback, int32_t rank, wh_callback_kind kind, uint32_t timeout_ms,
                                 wherry_error *error);

/**
 * Returns WHERRY_OK if this process can send to a rank. Otherwise returns why it cannot.
 * @param to  the incarnation of the rank; 0: any.
 */
wherry_status wh_callback_check_peer(wh_callback *callback, int32_t rank, uint64_t to, wherry_error *error);

/** These functions implement the block operations of wh_group_backend with those of the table. */
wherry_status wh_callback_put_runs(wh_group *group, int32_t rank, uint32_t channel, const struct iovec *runs,
                                   size_t count, void **operation_p, wherry_error *error);
wherry_status wh_callback_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_callback_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_callback_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error);
bool wh_callback_abandon_block(wh_group *group, void *operation);

/**
 * These functions implement the block operations for a table that has none. They copy the bytes and
 * send them in frames.
 */
wherry_status wh_emulated_put(wh_group *group, int32_t rank, uint32_t channel, const void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_emulated_get(wh_group *group, int32_t rank, uint32_t channel, void *bytes, size_t size,
                              void **operation_p, wherry_error *error);
wherry_status wh_emulated_finish(wh_group *group, int32_t rank, void *operation, uint32_t timeout_ms,
                                 wherry_error *error);
bool wh_emulated_abandon(wh_group *group, void *operation);

/** Handles a PIECE or a CREDIT. The lock is held. @return false if out of memory. */
bool wh_emulated_take(wh_callback *callback, int32_t rank, const wh_callback_frame *frame);

/**
 * Drops the credit of all channels of a rank. The lock is held, unless the group is being
 * destroyed.
 */
void wh_emulated_forget(wh_callback_peer *peer);

/** Starts the background reader. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_callback_start_reader(wh_callback *callback, wherry_error *error);

/** Stops the background reader, if there is one. */
void wh_callback_stop_reader(wh_callback *callback);

/** Sends a HELLO to each rank that needs one, without waiting. */
void wh_callback_greet(wh_callback *callback);

/**
 * Reads for up to WH_CALLBACK_STEP_MS. If another thread is the reader, waits for it instead.
 * @param hand_over  true: put messages that have arrived into the mailbox, which calls services. A
 *                   sender passes false, because it may hold a lock that a service takes. The
 *                   messages then stay stored until a call with true.
 * @return WHERRY_OK, also after a timeout or if a rank is lost; otherwise the error of the table's
 * receive.
 */
wherry_status wh_callback_read(wh_callback *callback, wh_deadline deadline, bool hand_over, wherry_error *error);

#endif
