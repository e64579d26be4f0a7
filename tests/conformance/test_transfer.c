/* Sending and receiving over each kind of group and each lane: test_transfer GROUP LANE. */
#include <stdio.h>

#include "conformance/sockets_place.h"
#include "conformance/transfer_suite.h"
#include "group/callback/callback.h"
#include "group/local.h"
#include "support/build.h"
#include "support/table_hub.h"

static void *open_local(int32_t size) {
    return wh_local_hub_create(size);
}

static wh_group *join_local(void *hub, int32_t rank) {
    return wh_local_join(hub, rank);
}

static void close_local(void *hub) {
    wh_local_hub_release(hub);
}

static void *open_table(int32_t size) {
    static const table_hub_options options = {.flags = WHERRY_GROUP_OPS_FLAGS, .blocks = true};
    return table_hub_open(size, &options);
}

/** As little as may be: calls do not overlap, and only threads that are inside a call of the library make them. */
static void *open_plain(int32_t size) {
    static const table_hub_options options = {.blocks = true};
    return table_hub_open(size, &options);
}

static wh_group *join_table(void *hub, int32_t rank) {
    wherry_group_ops ops;
    void *context = table_hub_member(hub, rank, &ops);
    wh_group *group = NULL;
    return wh_callback_create(&ops, context, &group, NULL) == WHERRY_OK ? group : NULL;
}

static void close_table(void *hub) {
    table_hub_close(hub);
}

int main(int count, char **arguments) {
    static const wh_group_kind kinds[] = {
        {"local", open_local, join_local, close_local},
        {"unix", wh_open_unix_place, wh_join_place, wh_close_place},
        {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place},
        {"near", wh_open_near_place, wh_join_place, wh_close_place},
        {"callback", open_table, join_table, close_table},
        {"plain", open_plain, join_table, close_table},
    };
    for (size_t i = 0; count == 3 && i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strcmp(kinds[i].name, arguments[1]) == 0) {
            return wh_transfer_suite_run(kinds + i, arguments[2]);
        }
    }
    fprintf(stderr, "usage: test_transfer local|unix|tcp|near|callback|plain LANE\n");
    return 2;
}
