/** @file lane_suite.h  What every lane must do. A lane earns the whole suite by naming itself and the groups that it runs over. */
#ifndef WH_TESTS_LANE_SUITE_H
#define WH_TESTS_LANE_SUITE_H

#include "conformance/group_suite.h"
#include "lane/lane.h"

/** A kind of group that the lane is tried over. */
typedef struct wh_lane_place {
    const wh_group_kind *kind;
    bool processes; /**< Its members may be processes of their own: the cases with two processes run too. */
} wh_lane_place;

/** The group within one process, and the one over Unix sockets. A lane that needs channels takes the second alone. */
extern const wh_lane_place wh_lane_place_local;
extern const wh_lane_place wh_lane_place_unix;

/**
 * Runs every case over every place, as one cmocka group. @return the number of tests that failed.
 *
 * What is taken for granted beyond lane.h: an end has at most site.threads workers, so a lane whose ends must have equally many says in its offer how
 * many the source may have; where accept fails, or is not ready, the channels stay the caller's.
 */
int wh_lane_suite_run(const wh_lane_ops *ops, const wh_lane_place *const *places, size_t count);

#endif
