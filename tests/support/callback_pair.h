/** @file callback_pair.h  Two ranks of a callback group, over a hub. Include build.h first. */
#ifndef WH_TEST_CALLBACK_PAIR_H
#define WH_TEST_CALLBACK_PAIR_H

#include "group/callback/callback.h"
#include "support/callback_hub.h"

enum { RANKS = 2 };

typedef struct callback_pair {
    callback_hub *hub;
    wh_group *groups[RANKS];
} callback_pair;

/** Joins the hub as a rank. An earlier member with that rank is cut off. Must succeed. */
static inline wh_group *callback_pair_join(callback_hub *hub, int32_t rank) {
    wherry_group_ops ops;
    wherry_error error;
    void *context = callback_hub_member(hub, rank, &ops);
    wh_group *group;
    must(wh_callback_create(&ops, context, &group, &error));
    return group;
}

static inline callback_pair callback_pair_open(const callback_hub_options *options) {
    callback_pair pair = {.hub = callback_hub_open(RANKS, options)};
    for (int32_t rank = 0; rank < RANKS; rank++) {
        pair.groups[rank] = callback_pair_join(pair.hub, rank);
    }
    return pair;
}

/** Both ranks leave the group. */
static inline void callback_pair_close(callback_pair *pair) {
    for (int32_t rank = 0; rank < RANKS; rank++) {
        wh_group_destroy(pair->groups[rank]);
    }
    callback_hub_close(pair->hub);
}

#endif
