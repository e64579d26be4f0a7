/**
 * @file lane_list.h  The lanes that a transfer may use, in the order in which it tries them: what
 * the user allows, and what suits the state.
 */
#ifndef WH_LANE_LANE_LIST_H
#define WH_LANE_LANE_LIST_H

#include <wherry/checkpoint.h>

#include "lane/lane.h"

/** The most lanes that exist. */
enum { WH_OFFERED_LANES_MAX = 8 };

typedef struct wh_lane_list {
    const wh_lane_ops *lanes[WH_OFFERED_LANES_MAX];
    size_t count;
    bool ordered; /**< The user named the lanes, so their order is fixed. */
} wh_lane_list;

/**
 * Reads a list of lanes.
 * @param all    the lanes that exist, the fastest first.
 * @param count  at most WH_OFFERED_LANES_MAX.
 * @param text   "cma,stream": these, in this order; "^cma,^ring": all except these; NULL: the value
 *               of WHERRY_LANES, or all lanes if that is not set.
 * @return WHERRY_OK; WHERRY_INVALID_ARGUMENT for an unknown name; the message lists the known ones.
 */
wherry_status wh_lane_list_parse(const wh_lane_ops *const *all, size_t count, const char *text, wh_lane_list *list_p,
                                 wherry_error *error);

/**
 * Moves lanes that are slow with short runs behind the other lanes of the same host, unless the
 * user has given an order.
 * @param bytes, runs  of the whole transfer; runs may be an estimate.
 */
void wh_lane_list_sort(wh_lane_list *list, uint64_t bytes, uint64_t runs);

/** True if a lane of the list has the trait (WH_LANE_*). */
bool wh_lane_list_has(const wh_lane_list *list, uint32_t trait);

/** @return NULL if the list has no lane with this name. */
const wh_lane_ops *wh_lane_list_find(const wh_lane_list *list, const void *name, size_t size);

/**
 * True if the lane is for devices, was not named by the user, and no tensor is on a device. Such a
 * lane is not reported as skipped.
 */
bool wh_lane_is_skipped(const wh_lane_list *list, const wh_lane_ops *lane, bool devices);

/**
 * Checks whether a lane may be used in a group. @return WHERRY_OK; WHERRY_UNSUPPORTED if everything
 * must be encrypted, and the lane cannot.
 */
wherry_status wh_lane_check_encryption(const wh_lane_ops *lane, const wh_group *group, wherry_error *error);

/* ---- statistics ---- */

/** Appends the name of a lane that moved bytes: "cma+ring". */
void wh_stats_add_lane(wherry_stats *stats, const char *name);

/**
 * Records why a lane was not used. error->reason is a wherry_lane_reason; if it is 0, the status
 * decides.
 */
void wh_stats_skip_lane(wherry_stats *stats, const char *name, const wherry_error *error);

/** Records the lanes that exist and are not in the list, because the user does not allow them. */
void wh_stats_skip_forbidden(wherry_stats *stats, const wh_lane_ops *const *all, size_t count,
                             const wh_lane_list *allowed);

/**
 * Sets stats->detail to the lane's own description of how the bytes travelled, if it has one. No
 * worker may run. lane and end may be NULL.
 */
void wh_stats_describe_lane(wherry_stats *stats, const wh_lane_ops *lane, const wh_lane_end *end);

#endif
