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
#include <wherry/group.h>

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
    /** Of a group: how long rank 1 takes to connect to the meeting point; 0 if unknown. */
    double connect_seconds;
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
    uint64_t bytes;         /**< Size of the state in bytes. */
    uint32_t repeats;       /**< How many receives to measure per lane. */
    bool linked;            /**< Result: `link` describes the connection between ranks 0 and 1. */
    wherry_group_link link; /**< Result. */
    /** Result: how long joining took, including the wait for the others. */
    double join_seconds;
    /** Result: the rank of this process. Only rank 0 gets the other results. */
    int32_t rank;
    size_t count;                            /**< Result: number of entries of `lanes`. */
    wh_probe_lane lanes[WH_PROBE_LANES_MAX]; /**< Result: see `only`. */
} wh_probe;

/**
 * True if this lane could move the state of a probe: host memory, between ranks that have sockets.
 */
bool wh_probe_suits(const char *lane);

/**
 * Connects to tcp://HOST:PORT, whatever follows, or unix://PATH, and closes the connection.
 * @return false, with errno, if that fails; ECONNREFUSED only if all addresses of HOST refuse.
 */
bool wh_connect(const char *address, double *seconds_p);

/**
 * Tries the lanes. Each transfer may take up to two minutes, and joining the group up to one. The
 * call ends early if wh_interrupted returns true.
 * @return WHERRY_OK if all lanes were tried, even if some do not work.
 */
wherry_status wh_probe_run(wh_probe *probe, wherry_error *error);

#endif
