/**
 * @file lane_trial.h  One transfer over a lane, from the offer to the close. Both sides run as in a
 * real transfer, in threads or in two processes.
 *
 * Source and receiver exchange messages of the group. If one side fails, its workers stop, and the
 * other side must notice it through the lane.
 */
#ifndef WH_TESTS_LANE_TRIAL_H
#define WH_TESTS_LANE_TRIAL_H

#include <pthread.h>
#include <sys/types.h>

#include <stdatomic.h>

#include "conformance/group_suite.h"
#include "conformance/lane_data.h"
#include "group/mailbox.h"
#include "lane/lane.h"

enum { TRIAL_ROUNDS = 3, TRIAL_CHANNELS = 64, TRIAL_DEADLINE_MS = 30000 };

/** Two members of a group. If there are two processes, only the receiver is in this one. */
typedef struct lane_world {
    const wh_group_kind *kind;
    void *place;
    wh_group *source;
    wh_group *receiver;
} lane_world;

lane_world lane_world_open(const wh_group_kind *kind);
void lane_world_close(lane_world *world);

/** One side of the transfer and its result. */
typedef struct lane_side {
    wherry_status status;
    wherry_error error;
    uint64_t ended; /**< Time when its workers ended. */
    wh_stop stop;
    wh_lane_site site;
    wh_lane_end *end;
    wh_inbox *inbox; /**< Used only at the source. */
    wh_socket channels[TRIAL_CHANNELS];
} lane_side;

typedef struct lane_trial {
    const wh_lane_ops *ops;
    lane_data *data;
    uint32_t source_threads;
    uint32_t receiver_threads;
    uint32_t no_progress_ms;
    lane_round rounds[TRIAL_ROUNDS];
    size_t round_count;
    bool idle_source;   /**< Accepts but never pushes. */
    bool idle_receiver; /**< Probes but never pulls. */
    /** A thread that stops the sides, joined before they are freed; NULL: none. */
    pthread_t *stopper;
    atomic_bool begun; /**< Both sides are ready and may be stopped. */
    lane_side source;
    lane_side receiver;
} lane_trial;

/** The default: all chunks in one round, two threads per side. */
lane_trial lane_trial_of(const wh_lane_ops *ops, lane_data *data);

/** Prepares a side (must succeed); frees a side with its end and its channels. */
void lane_side_begin(lane_side *side, const lane_trial *trial, wh_group *group, bool is_source);
void lane_side_finish(lane_side *side, const wh_lane_ops *ops);

/**
 * Takes the channels that arrived for the source, and calls accept until it is ready. Sets
 * side->status.
 */
void lane_side_accept(lane_side *side, const wh_lane_ops *ops, const void *request, size_t size);

/**
 * Runs both sides as threads of this process. The results are in trial->source and trial->receiver.
 */
void lane_trial_run(lane_trial *trial, const lane_world *world);

/**
 * Runs the source in a child process. Its memory has other bytes than the receiver's at the same
 * addresses. @param source_rank  0 or 1. @param source_p  set to the child before the receiver
 * starts. @return the child's status from waitpid: 0 if its side succeeded.
 */
int lane_trial_run_processes(lane_trial *trial, const wh_group_kind *kind, int32_t source_rank, pid_t *source_p);

#endif
