/**
 * @file lane_suite.h  What every lane must do. A lane gets the whole suite by naming itself and the
 * groups that it runs over.
 */
#ifndef WH_TESTS_LANE_SUITE_H
#define WH_TESTS_LANE_SUITE_H

#include "conformance/group_suite.h"
#include "lane/lane.h"

/** A kind of group to test the lane over. */
typedef struct wh_lane_place {
    const wh_group_kind *kind;
    bool processes; /**< Its members can be processes: also run the cases with two processes. */
} wh_lane_place;

/**
 * The group in one process, and the one over Unix sockets. A lane that needs channels uses only the
 * second.
 */
extern const wh_lane_place wh_lane_place_local;
extern const wh_lane_place wh_lane_place_unix;

/**
 * Runs every case over every group, as one cmocka group. @return the number of tests that failed.
 *
 * The suite requires more than lane.h: An end has at most site.threads workers. If both ends need
 * the same number, the offer says how many the source may have. If accept fails or is not ready,
 * the caller keeps the channels.
 */
int wh_lane_suite_run(const wh_lane_ops *ops, const wh_lane_place *const *places, size_t count);

#endif
