/** @file lane_peek.h  The example of docs/writing-a-lane.md. */
#ifndef WH_TESTS_LANE_PEEK_H
#define WH_TESTS_LANE_PEEK_H

#include "lane/lane.h"

extern const wh_lane_ops wh_lane_peek;

#endif
