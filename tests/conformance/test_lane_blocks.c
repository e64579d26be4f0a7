/* The lane of blocks over a table that can do everything, and over one whose calls must not overlap. */
#include "conformance/lane_suite.h"
#include "group/callback/callback.h"
#include "lane/lanes.h"
#include "support/table_hub.h"

static void *open_hub(int32_t size) {
    static const table_hub_options options = {.flags = WHERRY_GROUP_OPS_FLAGS, .blocks = true};
    return table_hub_open(size, &options);
}

static void *open_plain(int32_t size) {
    static const table_hub_options options = {.blocks = true};
    return table_hub_open(size, &options);
}

static wh_group *join_hub(void *hub, int32_t rank) {
    wherry_group_ops ops;
    void *context = table_hub_member(hub, rank, &ops);
    wh_group *group = NULL;
    return wh_callback_create(&ops, context, &group, NULL) == WHERRY_OK ? group : NULL;
}

static void close_hub(void *hub) {
    table_hub_close(hub);
}

int main(void) {
    static const wh_group_kind callback = {"callback", open_hub, join_hub, close_hub};
    static const wh_group_kind plain = {"plain", open_plain, join_hub, close_hub};
    static const wh_lane_place places[] = {{&callback, false}, {&plain, false}};
    static const wh_lane_place *const both[] = {places, places + 1};
    return wh_lane_suite_run(&wh_lane_blocks, both, 2);
}
