/**
 * @file nccl_comm.h  Inside the nccl lane: communicators of two ranks, a receiver (0) and a source (1), and which of them this process has.
 *
 * Making one takes NCCL long, so that one is kept when its transfer went well, for the next between the same two processes and devices. What
 * is kept costs some memory of the device, so that it is only a few, the latest. NCCL does its work behind the caller's back and is asked whether it is through; a
 * communicator that is given up is aborted, whatever it was at.
 */
#ifndef WH_LANE_NCCL_NCCL_COMM_H
#define WH_LANE_NCCL_NCCL_COMM_H

#include "lane/lane.h"
#include "lane/nccl/nccl_library.h"
#include "memory/cuda_queue.h"

enum {
    WH_NCCL_PROCESS_BYTES = 16, /**< What tells a process from all others. */
    WH_NCCL_KEPT_MAX = 4,       /**< Communicators that are kept, */
    WH_NCCL_MEETING_MAX = 8,    /**< and those in the making. */
};

typedef enum wh_nccl_state {
    WH_NCCL_ASKED,   /**< RECEIVER: the source has been asked to make it, and nothing of it is made here. */
    WH_NCCL_MEETING, /**< In the making, and nobody's. */
    WH_NCCL_IDLE,    /**< Kept. */
    WH_NCCL_BUSY,    /**< A transfer's. */
    WH_NCCL_FAILED,  /**< RECEIVER: there is none, and this is a note of why: it need not be tried again soon. */
} wh_nccl_state;

/**
 * Whose communicators: those with a process, on a device, as source or as receiver. A process may be several ranks, and what one of them does, which ends what
 * the other side has no more, must not concern another.
 */
typedef struct wh_nccl_pair {
    uint8_t process[WH_NCCL_PROCESS_BYTES]; /**< The other one. */
    int32_t rank;                           /**< Of it, in its group, */
    int32_t own;                            /**< and of this one. */
    int32_t device;                         /**< Here. */
    bool is_source;                         /**< This side is. */
} wh_nccl_pair;

typedef struct wh_nccl_comm {
    wh_nccl_pair pair;
    uint64_t id;  /**< That both sides know it by. */
    uint64_t tag; /**< RECEIVER: of the transfer that asked for it. */
    wh_nccl_state state;
    uint64_t since; /**< By wh_clock_now. */
    wh_nccl_unique unique;
    wh_nccl_handle handle; /**< NULL: not made, or aborted. */
    wh_cuda_queue *queue;  /**< With the handle. */
    wherry_error reason;   /**< Of WH_NCCL_FAILED. */
    struct wh_nccl_comm *next;
} wh_nccl_comm;

/** What tells this process from all others. @return WHERRY_OK; WHERRY_SYSTEM. */
wherry_status wh_nccl_process(uint8_t process[WH_NCCL_PROCESS_BYTES], wherry_error *error);

/** Finds a communicator of a pair by its id, in one of these states (bits), and makes it BUSY; NULL: there is none. */
wh_nccl_comm *wh_nccl_take(const wh_nccl_pair *pair, uint64_t id, unsigned states);

/** RECEIVER. The one that this transfer asked for, which becomes BUSY; NULL: it has asked for none. */
wh_nccl_comm *wh_nccl_take_asked(const wh_nccl_pair *pair, uint64_t tag);

/** RECEIVER. Why a communicator of the pair could not be made a while ago; false: no attempt failed lately. */
bool wh_nccl_was_refused(const wh_nccl_pair *pair, wherry_error *error);

/**
 * RECEIVER. Notes what to ask the source for; there is one question of a pair at a time. `comm_p` is a copy.
 * @param error  not NULL.
 * @return WHERRY_OK; WHERRY_UNSUPPORTED where another transfer asks; WHERRY_NO_MEMORY, WHERRY_SYSTEM.
 */
wherry_status wh_nccl_ask(const wh_nccl_pair *pair, uint64_t tag, wh_nccl_comm *comm_p, wherry_error *error);

/** SOURCE. Begins to make what a receiver asked for. @return WHERRY_OK; WHERRY_LIMIT, WHERRY_MALFORMED, or as wh_nccl_begin. */
wherry_status wh_nccl_meet(const wh_nccl_pair *pair, uint64_t id, const wh_nccl_unique *unique, wherry_error *error);

/** Ids of communicators of a pair that are kept, at most `most`, whatever process the other is. */
size_t wh_nccl_kept(const wh_nccl_pair *pair, uint64_t *ids, size_t most);

/** Ends all that are kept for a pair, but for those of these ids: the other side does not have them. */
void wh_nccl_drop(const wh_nccl_pair *pair, const uint64_t *ids, size_t count);

/** Ends all that are kept, or in the making, with a rank that is lost. As an operation of the lane: what NCCL keeps takes nothing of a peer that is there. */
void wh_nccl_forget(const wh_group *group, int32_t rank, bool lost);

/** Begins to make it; BUSY. NCCL goes on by itself. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_NO_MEMORY, WHERRY_PEER_LOST. */
wherry_status wh_nccl_begin(wh_nccl_comm *comm, wherry_error *error);

/** Waits until NCCL has done what it was told last. @return WHERRY_OK; WHERRY_SYSTEM, WHERRY_PEER_LOST; WHERRY_TIMED_OUT, WHERRY_CANCELLED. */
wherry_status wh_nccl_await(const wh_nccl_comm *comm, const wh_stop *stop, wh_deadline deadline, const char *what,
                            wherry_error *error);

/** Whether NCCL has found a fault meanwhile: WHERRY_SYSTEM, WHERRY_PEER_LOST. Never blocks. */
wherry_status wh_nccl_check(const wh_nccl_comm *comm, wherry_error *error);

/** Ends what is under way, and waits until the device does nothing more for it. The communicator is of no more use. */
void wh_nccl_abort(wh_nccl_comm *comm);

/** Gives a BUSY one back: it is kept where it was not aborted. */
void wh_nccl_give(wh_nccl_comm *comm);

/** RECEIVER. Gives a BUSY one back that could not be made, with the reason. */
void wh_nccl_give_failed(wh_nccl_comm *comm, const wherry_error *reason);

/** How many there are in one of these states (bits); and ends all that are not busy: for tests. */
size_t wh_nccl_count(unsigned states);
void wh_nccl_end_all(void);

#endif
