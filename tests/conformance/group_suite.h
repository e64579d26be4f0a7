/**
 * @file group_suite.h  What every kind of group must do. A new kind gets the whole suite by filling
 * in a wh_group_kind.
 */
#ifndef WH_TESTS_GROUP_SUITE_H
#define WH_TESTS_GROUP_SUITE_H

#include "group/group.h"

typedef struct wh_group_kind {
    const char *name;

    /** Creates a meeting place for the `size` ranks of one group. */
    void *(*open)(int32_t size);

    /** Joins as a rank. A present member with that rank is replaced. Must succeed. */
    wh_group *(*join)(void *world, int32_t rank);

    /** Frees the meeting place, after all members have left. */
    void (*close)(void *world);
} wh_group_kind;

/** Runs the suite as a cmocka group. @return the number of tests that failed. */
int wh_group_suite_run(const wh_group_kind *kind);

#endif
