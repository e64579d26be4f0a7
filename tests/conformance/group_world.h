/**
 * @file group_world.h  Three ranks in one process, and messages between them. Shared by the cases
 * of the group suite.
 */
#ifndef WH_TESTS_GROUP_WORLD_H
#define WH_TESTS_GROUP_WORLD_H

#include "conformance/group_suite.h"
#include "support/build.h"

enum { RANKS = 3, SOON_MS = 10000, DEATH_MS = 4000 };

/** All ranks of a group. */
typedef struct world {
    void *place;
    wh_group *groups[RANKS];
} world;

/** The kind of group under test. */
extern const wh_group_kind *wh_kind;

world wh_world_open(void);
void wh_world_close(world *w);
wh_deadline wh_soon(void);
void wh_send_text(wh_group *from, int32_t to, uint64_t tag, const char *text);
void wh_expect_text(wh_group *at, int32_t from, uint64_t tag, const char *text, int32_t sender);

/** The cases about inboxes, services and channels: group_suite_inbox.c. */
extern const struct CMUnitTest wh_inbox_cases[];
extern const size_t wh_inbox_case_count;

#endif
