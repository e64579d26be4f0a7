/**
 * @file probe.h  Sends a state over each lane, between two processes on this machine or between two
 * ranks of a group. For `wherry doctor` and `wherry bench`.
 */
#ifndef WH_CLI_PROBE_H
#define WH_CLI_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/checkpoint.h>

enum { WH_PROBE_LANES_MAX = 16, WH_PROBE_REPEATS_MAX = 32 };

/** The result for one lane. It contains no pointers, because the receiver sends it to rank 0. */
typedef struct wh_probe_lane {
    /** The only lane that was allowed; "" if all lanes were allowed. */
    char name[WHERRY_LANE_NAME_MAX];
    char used[WHERRY_LANE_NAME_MAX];       /**< The lane that was used. */
    char reason[WHERRY_ERROR_MESSAGE_MAX]; /**< Why the lane failed; "" if it worked. */
    int32_t status;                        /**< A wherry_status. */
    uint32_t refused;                      /**< 1 if the lane should have worked but failed. */
    uint32_t repeats;                      /**< Number of entries of `seconds`. */
    /** Duration of each receive. The first receive, a warm-up, is not included. */
    double seconds[WH_PROBE_REPEATS_MAX];
} wh_probe_lane;

typedef struct wh_probe {
    /** The address of a group; NULL to start two processes here. */
    const char *group;
    /**
     * The only lane to try. If NULL, `lanes` has first an entry for a transfer with all lanes
     * allowed, then an entry per lane.
     */
    const char *only;
    /** If `group` is NULL: connect the two processes over TCP. */
    bool tcp;
    uint64_t bytes;   /**< Size of the state in bytes. */
    uint32_t repeats; /**< How many receives to measure per lane. */
    /** Result: the rank of this process. Only rank 0 gets the other results. */
    int32_t rank;
    size_t count;                            /**< Result: number of entries of `lanes`. */
    wh_probe_lane lanes[WH_PROBE_LANES_MAX]; /**< Result: see `only`. */
} wh_probe;

/**
 * Tries the lanes. Each transfer may take up to two minutes, and joining the group up to one. The
 * call ends early if wh_interrupted returns true.
 * @return WHERRY_OK if all lanes were tried, even if some do not work.
 */
wherry_status wh_probe_run(wh_probe *probe, wherry_error *error);

#endif
