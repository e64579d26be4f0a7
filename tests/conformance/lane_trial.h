/**
 * @file lane_trial.h  One transfer over a lane, from the offer to the close: both sides as the transfer runs them, in threads or in two processes.
 *
 * Source and receiver tell each other what they must by messages of the group. Where something goes wrong at one side, its workers are stopped, and
 * the other side has to find out by the lane.
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

/** Two members of a group. In a world of two processes only the receiver is here. */
typedef struct lane_world {
    const wh_group_kind *kind;
    void *place;
    wh_group *source;
    wh_group *receiver;
} lane_world;

lane_world lane_world_open(const wh_group_kind *kind);
void lane_world_close(lane_world *world);

/** One side's course: what it worked with, and how it ended. */
typedef struct lane_side {
    wherry_status status;
    wherry_error error;
    uint64_t ended; /**< When its workers did. */
    wh_stop stop;
    wh_lane_site site;
    wh_lane_end *end;
    wh_inbox *inbox; /**< SOURCE */
    int channels[TRIAL_CHANNELS];
} lane_side;

typedef struct lane_trial {
    const wh_lane_ops *ops;
    lane_data *data;
    uint32_t source_threads;
    uint32_t receiver_threads;
    uint32_t no_progress_ms;
    lane_round rounds[TRIAL_ROUNDS];
    size_t round_count;
    bool idle_source;   /**< Accepts, and never pushes. */
    bool idle_receiver; /**< Probes, and never pulls. */
    pthread_t *stopper; /**< A thread that stops the sides, joined before they are gone; NULL: none. */
    atomic_bool begun;  /**< Both sides are ready, and may be stopped. */
    lane_side source;
    lane_side receiver;
} lane_trial;

/** A trial of all chunks in one round with two threads each, to be changed. */
lane_trial lane_trial_of(const wh_lane_ops *ops, lane_data *data);

/** Makes a side ready; must succeed. And releases all that it has: its end, its channels. */
void lane_side_begin(lane_side *side, const lane_trial *trial, wh_group *group, bool is_source);
void lane_side_finish(lane_side *side, const wh_lane_ops *ops);

/** Takes the channels that have come for the source, and calls accept until it is ready. Fills side->status. */
void lane_side_accept(lane_side *side, const wh_lane_ops *ops, const void *request, size_t size);

/** Runs both sides as threads of this process; how they ended is in trial->source and trial->receiver. */
void lane_trial_run(lane_trial *trial, const lane_world *world);

/**
 * Runs the source as a process of its own, whose memory holds other bytes than the receiver's, at the same addresses.
 * @param source_rank  0 or 1.
 * @param source_p     set to the process before the receiver begins.
 * @return the process's exit status as waitpid gives it: 0 where its side went well.
 */
int lane_trial_run_processes(lane_trial *trial, const wh_group_kind *kind, int32_t source_rank, pid_t *source_p);

#endif
