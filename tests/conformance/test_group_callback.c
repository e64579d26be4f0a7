/* The group over a table of one's own that can do everything. */
#include "conformance/group_suite.h"
#include "group/callback/callback.h"
#include "support/table_hub.h"

static void *open_hub(int32_t size) {
    static const table_hub_options options = {.flags = WHERRY_GROUP_OPS_FLAGS};
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
    static const wh_group_kind kind = {"group_callback", open_hub, join_hub, close_hub};
    return wh_group_suite_run(&kind);
}
