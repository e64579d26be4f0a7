/**
 * @file transfer_suite.h  What sending and receiving must do over every group and lane. Ranks are
 * threads here.
 */
#ifndef WH_TESTS_TRANSFER_SUITE_H
#define WH_TESTS_TRANSFER_SUITE_H

#include "conformance/group_suite.h"

/** Runs the suite as a cmocka group over one lane. @return the number of tests that failed. */
int wh_transfer_suite_run(const wh_group_kind *kind, const char *lane);

/**
 * Runs only a few cases: for a group and a lane that the full suite covers in other combinations.
 */
int wh_transfer_smoke_run(const wh_group_kind *kind, const char *lane);

#endif
