/**
 * @file trial.h  Trying the lanes for real: a source and a receiver, two processes here or two ranks of a group, and a small state
 * that goes from one to the other over each lane in turn. What `wherry doctor` and `wherry bench` tell comes from it.
 */
#ifndef WH_CLI_TRIAL_H
#define WH_CLI_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/base.h>
#include <wherry/checkpoint.h>

enum { WH_TRIAL_LANES_MAX = 16, WH_TRIAL_REPEATS_MAX = 32 };

/** How one lane did. Travels between the two, so that it holds no pointers. */
typedef struct wh_trial_lane {
    char name[WHERRY_LANE_NAME_MAX];       /**< Which was allowed; "": all of them. */
    char taken[WHERRY_LANE_NAME_MAX];      /**< Which was taken. */
    char reason[WHERRY_ERROR_MESSAGE_MAX]; /**< Where it failed, why; else why others were not taken. */
    int32_t status;                        /**< A wherry_status. */
    uint32_t workers;                      /**< Threads of the receiver. */
    uint32_t repeats;                      /**< Seconds that there are. */
    uint32_t refused;                      /**< 1: it should have worked, and did not. */
    double
        seconds[WH_TRIAL_REPEATS_MAX]; /**< Of each receive, the whole call; the first, which warms up, is left out. */
} wh_trial_lane;

/** A trial: the wishes, and what came of them. */
typedef struct wh_trial {
    const char *group; /**< Where the ranks meet; NULL: two processes are started here. */
    const char *only;  /**< The one lane to try; NULL: each in turn, and before them whichever is taken by itself. */
    bool tcp;          /**< Two processes here: over TCP, although a Unix socket would do. */
    uint64_t bytes;    /**< Of the state. */
    uint32_t repeats;  /**< Measured ones, up to WH_TRIAL_REPEATS_MAX; 0: one that is not measured. */
    int32_t rank;      /**< Filled: of this process. Only 0 has the results. */
    size_t count;      /**< Filled: lanes. */
    wh_trial_lane lanes[WH_TRIAL_LANES_MAX]; /**< Filled. */
} wh_trial;

/**
 * Runs it; blocks until all is tried, two minutes a lane at most. A signal ends it: see wh_interrupted.
 * @return WHERRY_OK where the trial took place, however the lanes did.
 */
wherry_status wh_trial_run(wh_trial *trial, wherry_error *error);

/** The median of a lane's seconds; 0 where there are none. */
double wh_trial_median(const wh_trial_lane *lane);

#endif
