/*
 * The callback group over a table with a fixed set of ranks (none can rejoin), which the library
 * reads in the background.
 */
#include "conformance/group_suite.h"
#include "conformance/hub_place.h"
#include "support/callback_hub.h"

static void *open_hub(int32_t size) {
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL | WHERRY_GROUP_OPS_FIXED |
                                                          WHERRY_GROUP_OPS_BACKGROUND};
    return callback_hub_open(size, &options);
}

int main(void) {
    static const wh_group_kind kind = {"group_callback_fixed", open_hub, wh_join_table_place, wh_close_table_place};
    return wh_group_suite_run(&kind);
}
