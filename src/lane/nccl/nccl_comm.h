/**
 * @file nccl_comm.h  NCCL's library, and the communicators of this process. A communicator joins
 * two ranks: a receiver (0) and a source (1).
 *
 * 1. NCCL is found at run time; neither building nor running needs it. The declarations are
 *    Wherry's own, of the binary interface that NCCL has kept since 2.18.
 * 2. Making a communicator takes long. It is kept if its transfer succeeded, for the next one
 *    between the same two processes and devices. Each costs some device memory, so only the latest
 *    few are kept.
 * 3. NCCL never blocks a call: it works in the background and is polled. A communicator that is
 *    given up is aborted, whatever it was doing.
 *
 *     RECEIVER  (none) -> ASKED: wh_nccl_ask             ASKED -> BUSY: wh_nccl_take_asked
 *               BUSY -> FAILED: wh_nccl_give_failed      FAILED -> (none): after WH_NCCL_FAILED_S
 *     SOURCE    (none) -> MEETING: wh_nccl_meet          MEETING -> BUSY: wh_nccl_take
 *     both      BUSY -> IDLE: wh_nccl_give               IDLE -> BUSY: wh_nccl_take
 *               IDLE -> (none): wh_nccl_drop, wh_nccl_forget, or too many are kept
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

/** Results that are treated specially; others are errors. */
enum {
    WH_NCCL_OK = 0,
    WH_NCCL_REMOTE_ERROR = 6,
    WH_NCCL_IN_PROGRESS = 7,
};

enum {
    WH_NCCL_MAGIC = (int)0xcafebeef,
    /** Of wh_nccl_config, as the oldest supported library has it. */
    WH_NCCL_CONFIG_VERSION = 21800,
    WH_NCCL_OLDEST = 21800,
    WH_NCCL_INT8 = 0, /**< A type of one byte. */
    WH_NCCL_ID_BYTES = 128,
};

/** NCCL's unique id: how the two sides of a communicator find each other. */
typedef struct wh_nccl_unique {
    char bytes[WH_NCCL_ID_BYTES];
} wh_nccl_unique;

/** Later versions have more members; `size` tells them which exist. */
typedef struct wh_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cluster_size;
    int min_blocks; /**< Thread blocks on the device. */
    int max_blocks;
    const char *network;
    int split_share;
    int traffic_class; /**< Padding in 2.18. */
} wh_nccl_config;

/** X(MEMBER, SYMBOL, RESULT, ARGUMENTS): every function that is used. */
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
    int version; /**< 22707 is 2.27.7. */
} wh_nccl_library;

/**
 * The library: libnccl.so.2, or the file that WHERRY_NCCL_LIBRARY names. Loaded once per process.
 * Any thread.
 * @return NULL if there is none, with the reason in error.
 */
const wh_nccl_library *wh_nccl_find(wherry_error *error);

/**
 * Fills an error from a result of NCCL.
 * @param handle  may be NULL.
 * @param doing   as in "cannot send: ".
 * @return WHERRY_PEER_LOST if the other side caused it, else WHERRY_SYSTEM.
 */
wherry_status wh_nccl_fail(wherry_error *error, int result, wh_nccl_handle handle, const char *doing);

/* ---- communicators ---- */

enum {
    WH_NCCL_PROCESS_BYTES = 16, /**< A random number that identifies a process. */
    WH_NCCL_KEPT_MAX = 4,       /**< Communicators that are kept. */
    WH_NCCL_MEETING_MAX = 8,    /**< Communicators being made. */
};

typedef enum wh_nccl_state {
    WH_NCCL_ASKED,   /**< RECEIVER: the source was asked to make it; nothing is made here yet. */
    WH_NCCL_MEETING, /**< SOURCE: being made; no transfer uses it yet. */
    WH_NCCL_IDLE,    /**< Kept. */
    WH_NCCL_BUSY,    /**< In use by a transfer. */
    /**
     * RECEIVER: could not be made. Only a note of the reason, so that it is not tried again soon.
     */
    WH_NCCL_FAILED,
} wh_nccl_state;

/**
 * Which communicators: those with one process, on one device, as source or as receiver. A process
 * may be several ranks; the ranks are part of this, so that one rank does not end the communicators
 * of another.
 */
typedef struct wh_nccl_pair {
    uint8_t process[WH_NCCL_PROCESS_BYTES]; /**< The other process. */
    int32_t rank;                           /**< The other rank. */
    int32_t own;                            /**< The own rank. */
    int32_t device;                         /**< The local device. */
    bool is_source;                         /**< This side is the source. */
} wh_nccl_pair;

typedef struct wh_nccl_comm {
    wh_nccl_pair pair;
    uint64_t id;  /**< Known to both sides. */
    uint64_t tag; /**< RECEIVER: identifies the transfer that asked for it. */
    wh_nccl_state state;
    uint64_t since; /**< When the state was entered, by wh_clock_now. */
    wh_nccl_unique unique;
    wh_nccl_handle handle; /**< NULL: not made, or aborted. */
    wh_cuda_queue *queue;  /**< Exists with the handle. */
    wherry_error reason;   /**< Of WH_NCCL_FAILED. */
    struct wh_nccl_comm *next;
} wh_nccl_comm;

/** The random number of this process. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_nccl_process(uint8_t process[WH_NCCL_PROCESS_BYTES], wherry_error *error);

/**
 * Finds a communicator by pair, id and states (bits), and makes it BUSY. @return NULL if there is
 * none.
 */
wh_nccl_comm *wh_nccl_take(const wh_nccl_pair *pair, uint64_t id, unsigned states);

/**
 * RECEIVER. The communicator that this transfer asked for, which becomes BUSY. @return NULL if it
 * asked for none.
 */
wh_nccl_comm *wh_nccl_take_asked(const wh_nccl_pair *pair, uint64_t tag);

/** RECEIVER. True if an attempt failed lately; error says why. */
bool wh_nccl_was_refused(const wh_nccl_pair *pair, wherry_error *error);

/**
 * RECEIVER. Adds a communicator to ask the source for; one per pair at a time. `comm_p` is a copy.
 * @param error  not NULL.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED if another transfer asks; WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_nccl_ask(const wh_nccl_pair *pair, uint64_t tag, wh_nccl_comm *comm_p, wherry_error *error);

/**
 * SOURCE. Begins to make what a receiver asked for. @return WHERRY_OK; WHERRY_LIMIT;
 * WHERRY_MALFORMED; as wh_nccl_begin.
 */
wherry_status wh_nccl_meet(const wh_nccl_pair *pair, uint64_t id, const wh_nccl_unique *unique, wherry_error *error);

/**
 * Ids of the kept communicators of a pair, at most `most`. Ignores which process the other side is.
 */
size_t wh_nccl_kept(const wh_nccl_pair *pair, uint64_t *ids, size_t most);

/**
 * Ends all kept communicators of a pair except those with these ids, which are all that the other
 * side has.
 */
void wh_nccl_drop(const wh_nccl_pair *pair, const uint64_t *ids, size_t count);

/** wh_lane_ops.forget. Ends what is kept or being made with a rank that is lost. */
void wh_nccl_forget(const wh_group *group, int32_t rank, bool lost);

/**
 * Begins to make a BUSY communicator; NCCL continues in the background. @return WHERRY_OK;
 * WHERRY_SYSTEM, WHERRY_NO_MEMORY, WHERRY_PEER_LOST.
 */
wherry_status wh_nccl_begin(wh_nccl_comm *comm, wherry_error *error);

/**
 * Waits until NCCL has processed the last call. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_PEER_LOST;
 * WHERRY_TIMED_OUT, WHERRY_CANCELLED.
 */
wherry_status wh_nccl_await(const wh_nccl_comm *comm, const wh_stop *stop, wh_deadline deadline, const char *what,
                            wherry_error *error);

/** Asks NCCL for errors. Never blocks. @return WHERRY_OK; WHERRY_SYSTEM; WHERRY_PEER_LOST. */
wherry_status wh_nccl_check(const wh_nccl_comm *comm, wherry_error *error);

/**
 * Aborts a communicator, and waits until the device is done with it. It cannot be used afterwards.
 */
void wh_nccl_abort(wh_nccl_comm *comm);

/** Gives back a BUSY communicator. It is kept unless it was aborted. */
void wh_nccl_give(wh_nccl_comm *comm);

/** RECEIVER. Gives back a BUSY communicator that could not be made, with the reason. */
void wh_nccl_give_failed(wh_nccl_comm *comm, const wherry_error *reason);

/** For tests: how many are in these states (bits); ends all that are not BUSY. */
size_t wh_nccl_count(unsigned states);
void wh_nccl_end_all(void);

#endif
