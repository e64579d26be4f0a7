/**
 * @file nccl_comm.h  The NCCL library, and the communicators of this process. A communicator
 * connects two processes. In it, the receiver is NCCL's rank 0 and the source is NCCL's rank 1.
 *
 * 1. NCCL is loaded at run time. Wherry builds and runs without it. The declarations are Wherry's
 *    own and follow NCCL's binary interface, which has been the same since 2.18.
 * 2. Creating a communicator takes a long time. If its transfer succeeds, the communicator is
 *    cached for the next transfer between the same two processes and devices. Each communicator
 *    needs some device memory, so only the latest few are cached.
 * 3. Wherry uses NCCL without blocking calls: NCCL works in the background, and its state is
 *    polled. If a transfer fails, its communicator is aborted, even if NCCL is still busy with it.
 *    Only the abort blocks, and it does not wait for the peer.
 *
 *     receiver  (none) -> ASKED: wh_nccl_ask             ASKED -> BUSY: wh_nccl_take_asked
 *               BUSY -> FAILED: wh_nccl_give_failed      FAILED -> (none): after WH_NCCL_FAILED_S
 *     source    (none) -> MEETING: wh_nccl_meet          MEETING -> BUSY: wh_nccl_take
 *               MEETING -> (none): wh_nccl_forget, after WH_NCCL_MEETING_S, or an error
 *     both      BUSY -> IDLE: wh_nccl_give               IDLE -> BUSY: wh_nccl_take
 *               BUSY -> (none): wh_nccl_give, if it was aborted
 *               IDLE -> (none): wh_nccl_drop, wh_nccl_forget, too many are cached, or an error
 */
#ifndef WH_LANE_NCCL_NCCL_COMM_H
#define WH_LANE_NCCL_NCCL_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>

#include "lane/lane_common.h"
#include "memory/cuda_queue.h"

/* ---- the library ---- */

typedef struct wh_nccl_handle_tag *wh_nccl_handle;

/** Results of NCCL that Wherry distinguishes. All others become WHERRY_SYSTEM. */
enum {
    WH_NCCL_OK = 0,
    WH_NCCL_REMOTE_ERROR = 6,
    WH_NCCL_IN_PROGRESS = 7,
};

enum {
    WH_NCCL_MAGIC = (int)0xcafebeef,
    /** The version of wh_nccl_config, which is that of the oldest supported library. */
    WH_NCCL_CONFIG_VERSION = 21800,
    WH_NCCL_OLDEST = 21800, /**< The oldest supported version of NCCL. */
    WH_NCCL_INT8 = 0,       /**< NCCL's data type of one byte. */
    WH_NCCL_ID_BYTES = 128,
};

/** NCCL's unique id, with which the two sides of a communicator find each other. */
typedef struct wh_nccl_unique {
    char bytes[WH_NCCL_ID_BYTES];
} wh_nccl_unique;

/** NCCL's configuration. Later versions have more members; `size` tells NCCL which exist. */
typedef struct wh_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cluster_size;
    int min_blocks; /**< Minimum number of thread blocks on the device. */
    int max_blocks; /**< Maximum number of thread blocks on the device. */
    const char *network;
    int split_share;
    int traffic_class; /**< Padding in NCCL 2.18. */
} wh_nccl_config;

/** All functions of NCCL that Wherry uses, as X(MEMBER, SYMBOL, RESULT, ARGUMENTS). */
#define WH_NCCL_CALLS(X)                                                                                               \
    X(get_version, ncclGetVersion, int, (int *version))                                                                \
    X(get_unique, ncclGetUniqueId, int, (wh_nccl_unique * unique))                                                     \
    X(init, ncclCommInitRankConfig, int,                                                                               \
      (wh_nccl_handle * handle, int count, wh_nccl_unique unique, int rank, wh_nccl_config *config))                   \
    X(async_error, ncclCommGetAsyncError, int, (wh_nccl_handle handle, int *result))                                   \
    X(abort, ncclCommAbort, int, (wh_nccl_handle handle))                                                              \
    X(send, ncclSend, int, (const void *from, size_t count, int type, int peer, wh_nccl_handle handle, void *stream))  \
    X(receive, ncclRecv, int, (void *to, size_t count, int type, int peer, wh_nccl_handle handle, void *stream))       \
    X(error_text, ncclGetErrorString, const char *, (int result))                                                      \
    X(last_error, ncclGetLastError, const char *, (wh_nccl_handle handle))

typedef struct wh_nccl_library {
#define WH_X(member, symbol, result, arguments) result(*member) arguments;
    WH_NCCL_CALLS(WH_X)
#undef WH_X
    int version; /**< For example, 22707 is 2.27.7. */
} wh_nccl_library;

/**
 * Returns the library. The first call loads libnccl.so.2, or the file that WHERRY_NCCL_LIBRARY
 * names. Any thread may call this.
 * @return NULL, with the reason in `error`, if there is no library.
 */
const wh_nccl_library *wh_nccl_find(wherry_error *error);

/**
 * Fills an error for a result of NCCL.
 * @param handle  may be NULL.
 * @param doing   what failed, such as "cannot send".
 * @return WHERRY_PEER_LOST if the other side caused it, else WHERRY_SYSTEM.
 */
wherry_status wh_nccl_fail(wherry_error *error, int result, wh_nccl_handle handle, const char *doing);

/* ---- communicators ---- */

enum {
    WH_NCCL_PROCESS_BYTES = 16, /**< Size of the random number that identifies a process. */
    WH_NCCL_KEPT_MAX = 4,       /**< Maximum number of cached communicators. */
    WH_NCCL_MEETING_MAX = 8,    /**< Maximum number of communicators in the state MEETING. */
};

typedef enum wh_nccl_state {
    /**
     * Receiver: the source was asked to create its half. This side has not begun to create its own
     * half.
     */
    WH_NCCL_ASKED,
    WH_NCCL_MEETING, /**< Source: it is being created; no transfer uses it yet. */
    WH_NCCL_IDLE,    /**< Cached for the next transfer. */
    WH_NCCL_BUSY,    /**< In use by a transfer. */
    /**
     * Receiver: creating it failed. The entry only stores the reason, so that the lane does not try
     * again soon.
     */
    WH_NCCL_FAILED,
} wh_nccl_state;

/**
 * Identifies the communicators between this side and one other process, on one local device and in
 * one direction. A process may have several ranks. So both ranks are part of the key: one rank must
 * not destroy the communicators of another rank.
 */
typedef struct wh_nccl_pair {
    uint8_t process[WH_NCCL_PROCESS_BYTES]; /**< The other process. */
    int32_t rank;                           /**< The other rank. */
    int32_t own;                            /**< The rank of this side. */
    int32_t device;                         /**< The local device. */
    bool is_source;                         /**< This side is the source. */
} wh_nccl_pair;

typedef struct wh_nccl_comm {
    wh_nccl_pair pair;
    uint64_t id;  /**< The same on both sides. */
    uint64_t tag; /**< Receiver: identifies the transfer that asked for it. */
    wh_nccl_state state;
    uint64_t since; /**< The time of wh_clock_now when it was added to the list. */
    wh_nccl_unique unique;
    wh_nccl_handle handle; /**< NULL: not created, or aborted. */
    wh_cuda_queue *queue;  /**< NULL if `handle` is NULL. */
    wherry_error reason;   /**< In the state FAILED: why it failed. */
    struct wh_nccl_comm *next;
} wh_nccl_comm;

/**
 * Returns the random number that identifies this process: the beginning of its nonce.
 * @return WHERRY_OK; WHERRY_SYSTEM.
 */
wherry_status wh_nccl_process(uint8_t process[WH_NCCL_PROCESS_BYTES], wherry_error *error);

/**
 * Finds a communicator by pair, id and states (a bit mask), and makes it BUSY.
 * @return NULL if there is none.
 */
wh_nccl_comm *wh_nccl_take(const wh_nccl_pair *pair, uint64_t id, unsigned states);

/**
 * Receiver. Finds the communicator that this transfer asked for, and makes it BUSY.
 * @return NULL if this transfer has not asked for one.
 */
wh_nccl_comm *wh_nccl_take_asked(const wh_nccl_pair *pair, uint64_t tag);

/**
 * Receiver. True if an attempt failed in the last WH_NCCL_FAILED_S seconds. `error` then says why.
 */
bool wh_nccl_failed_recently(const wh_nccl_pair *pair, wherry_error *error);

/**
 * Receiver. Adds a communicator in the state ASKED. A pair can have only one in this state.
 * @param comm_p  receives a copy of it.
 * @param error   must not be NULL.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if another transfer has just asked for one;
 * WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_nccl_ask(const wh_nccl_pair *pair, uint64_t tag, wh_nccl_comm *comm_p, wherry_error *error);

/**
 * Source. Begins to create the communicator that a receiver asked for.
 * @return WHERRY_OK; WHERRY_LIMIT; WHERRY_MALFORMED; or as wh_nccl_begin.
 */
wherry_status wh_nccl_meet(const wh_nccl_pair *pair, uint64_t id, const wh_nccl_unique *unique, wherry_error *error);

/**
 * Gets the ids of the cached communicators of a pair, but not more than `most`. Ignores
 * pair->process.
 * @return the number of ids.
 */
size_t wh_nccl_kept(const wh_nccl_pair *pair, uint64_t *ids, size_t most);

/**
 * Destroys all cached communicators of a pair except those with the given ids, because the other
 * side has only those. Also destroys the cached communicators of the same two ranks that connect to
 * an earlier process of the other rank.
 */
void wh_nccl_drop(const wh_nccl_pair *pair, const uint64_t *ids, size_t count);

/**
 * Implements wh_lane_ops.forget. If the rank is lost, destroys its communicators that no transfer
 * uses. Otherwise does nothing. `group` is not used.
 */
void wh_nccl_forget(const wh_group *group, int32_t rank, bool lost);

/**
 * Begins to create a communicator, which must be BUSY. NCCL continues in the background.
 * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY, WHERRY_PEER_LOST.
 */
wherry_status wh_nccl_begin(wh_nccl_comm *comm, wherry_error *error);

/**
 * Waits until NCCL has processed the last call for the communicator.
 * @param what  what the caller is doing, for error texts such as "timed out while ...".
 * @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_PEER_LOST; WHERRY_TIMED_OUT, WHERRY_CANCELLED.
 */
wherry_status wh_nccl_await(const wh_nccl_comm *comm, const wh_stop *stop, wh_deadline deadline, const char *what,
                            wherry_error *error);

/**
 * Checks if NCCL reports an error. Never blocks. @return WHERRY_OK, WHERRY_SYSTEM,
 * WHERRY_PEER_LOST.
 */
wherry_status wh_nccl_check(const wh_nccl_comm *comm, wherry_error *error);

/**
 * Aborts a communicator, which cannot be used afterwards. Waits until the device no longer uses it.
 */
void wh_nccl_abort(wh_nccl_comm *comm);

/** Gives back a BUSY communicator. It is cached, or freed if it was aborted. */
void wh_nccl_give(wh_nccl_comm *comm);

/** Receiver. Gives back a BUSY communicator that could not be created. Stores the reason. */
void wh_nccl_give_failed(wh_nccl_comm *comm, const wherry_error *reason);

/** For tests: returns the number of communicators in these states (a bit mask). */
size_t wh_nccl_count(unsigned states);

/** For tests: destroys all communicators that are not BUSY. */
void wh_nccl_end_all(void);

#endif
