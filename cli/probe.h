/**
 * @file probe.h  Tries each lane with a small state, between two processes here or two ranks.
 *
 * The results of `wherry doctor` and `wherry bench` come from here.
 */
#ifndef WH_CLI_PROBE_H
#define WH_CLI_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/checkpoint.h>

enum { WH_PROBE_LANES_MAX = 16, WH_PROBE_REPEATS_MAX = 32 };

/** The result of one lane. The receiver sends it to rank 0, so it has no pointers. */
typedef struct wh_probe_lane {
    char name[WHERRY_LANE_NAME_MAX];       /**< The only lane that was allowed; "": all were. */
    char used[WHERRY_LANE_NAME_MAX];       /**< The lane that was used. */
    char reason[WHERRY_ERROR_MESSAGE_MAX]; /**< Why it failed; "" if it worked. */
    int32_t status;                        /**< A wherry_status. */
    uint32_t refused;                      /**< 1: it should have worked, but did not. */
    uint32_t repeats;                      /**< Entries of `seconds`. */
    double seconds[WH_PROBE_REPEATS_MAX];  /**< Of each receive call but the first, a warm-up. */
} wh_probe_lane;

typedef struct wh_probe {
    const char *group;                       /**< Address; NULL: starts two processes here. */
    const char *only;                        /**< The lane to try; NULL: all. */
    bool tcp;                                /**< Without a group: over TCP. */
    uint64_t bytes;                          /**< Of the state. */
    uint32_t repeats;                        /**< Measured receives per lane. */
    int32_t rank;                            /**< Result. Only rank 0 has the others. */
    size_t count;                            /**< Result: entries of `lanes`. */
    wh_probe_lane lanes[WH_PROBE_LANES_MAX]; /**< Results. */
} wh_probe;

/**
 * Tries the lanes. Blocks, at most two minutes per lane; a signal ends it (wh_interrupted).
 * @return WHERRY_OK if all lanes were tried, whether they work or not.
 */
wherry_status wh_probe_run(wh_probe *probe, wherry_error *error);

#endif
