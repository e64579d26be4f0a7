/** @file callback_internal.h  What the files of the callback group share. */
#ifndef WH_GROUP_CALLBACK_INTERNAL_H
#define WH_GROUP_CALLBACK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "group/callback/callback.h"
#include "group/callback/callback_frame.h"
#include "group/mailbox.h"

/**
 * How long one call into the table may take. Short, since without WHERRY_GROUP_OPS_CONCURRENT everybody else waits for it;
 * and two ranks that send to each other get on only when one stops sending and reads.
 */
enum { WH_CALLBACK_STEP_MS = 2 };

/** How many bytes of one rank's messages may lie unread. */
#define WH_CALLBACK_SHARE ((size_t)256 << 20)

/** For a table without put and get: callback_blocks.c. */
typedef struct wh_emulated_block wh_emulated_block;
typedef struct wh_flow wh_flow;

/** What is known of a rank. Under the lock, but for what is the reader's. */
typedef struct wh_callback_peer {
    uint64_t incarnation;      /**< The highest that was heard of; 0: none. */
    uint64_t greeted;          /**< The incarnation that was told of this one because it did not know, */
    uint64_t fenced;           /**< and the former one that was told that it is that. */
    bool greet;                /**< A HELLO is to be sent. */
    bool left;                 /**< It said BYE. */
    bool sending;              /**< A message to it is on its way: its frames go out end to end. */
    wh_assembly assembly;      /**< The reader's. */
    wh_emulated_block *blocks; /**< Of a table without put and get: those under way, the oldest first; */
    wh_flow *flows;            /**< what may be sent, or may come, per channel. */
    size_t flow_count;
    size_t flow_capacity;
    char fault[96]; /**< The reader's: why it is to be given up, behind what it sent before; "": it is not. */
    bool gone;      /**< The reader's: the fault is that the table has lost it. */
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
    uint64_t tickets; /**< Calls into the table take turns in the order of their coming: how many came, */
    uint64_t served;  /**< and how many are over. */
    pthread_t reader; /**< With WHERRY_GROUP_OPS_BACKGROUND, once has_reader is set: reads until `ending`. */
    bool has_reader;
    atomic_bool ending;
    bool fenced;     /**< A newer incarnation of this rank is known to others. */
    bool reading;    /**< A thread is the reader. */
    bool complained; /**< Of a block that is no frame: said aloud once. */
    bool greetings;  /**< Some peer is to be greeted. */
    bool faults;     /**< The reader's: some peer is at fault. */
    /** The reader's: messages that are whole, and LOST where a rank said BYE, until they go to the mailbox. */
    wh_message *arrived;
    size_t arrived_count;
    size_t arrived_bytes;
    size_t arrived_capacity;
    wh_callback_peer peers[];
} wh_callback;

/** Waits for the turn to call the table. */
void wh_callback_enter(wh_callback *callback);
void wh_callback_leave(wh_callback *callback);

/**
 * Makes an error of what a function of the table answered, which may have filled the record badly or not at all.
 * @param rank  that it is about, or WH_ANY_RANK.
 * @return the status; WHERRY_INTERNAL for one that is not in the list.
 */
wherry_status wh_callback_settle(const wh_callback *callback, wherry_status status, const char *function, int32_t rank,
                                 wherry_error *error);

/** Calls the table's send once. */
wherry_status wh_callback_send_block(wh_callback *callback, int32_t rank, const void *block, size_t size,
                                     uint32_t timeout_ms, wherry_error *error);

/** Calls the table's send once, with a frame that has no bytes. */
wherry_status wh_callback_signal(wh_callback *callback, int32_t rank, wh_frame_kind kind, uint32_t timeout_ms,
                                 wherry_error *error);

/**
 * Why a message or a block cannot go to a rank; WHERRY_OK where it can.
 * @param to  the incarnation that it is for; 0: whichever is there.
 */
wherry_status wh_callback_check_peer(wh_callback *callback, int32_t rank, uint64_t to, wherry_error *error);

/** The table's blocks: operations of wh_group_ops. */
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
bool wh_emulated_take(wh_callback *callback, int32_t rank, const wh_frame *frame);

/** Forgets the credit of a rank that is gone. The lock is held. */
void wh_emulated_forget(wh_callback_peer *peer);

/** Starts the thread that reads in the background. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_callback_start_reader(wh_callback *callback, wherry_error *error);

/** Ends it, where there is one. */
void wh_callback_stop_reader(wh_callback *callback);

/** Sends the HELLOs that are due, where that can be done at once. */
void wh_callback_greet(wh_callback *callback);

/**
 * Reads for a step, where no other thread does.
 * @param deadline   how long to wait, a step at most.
 * @param hand_over  puts what has come into the mailbox, and so calls services. Who sends does not: it may hold a lock that a
 *                   service takes. What it reads is kept for the next who waits.
 * @return WHERRY_OK; what the table's receive failed with, but for timeouts and lost ranks.
 */
wherry_status wh_callback_read(wh_callback *callback, wh_deadline deadline, bool hand_over, wherry_error *error);

#endif
