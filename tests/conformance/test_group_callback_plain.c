/* The group over a table of one's own that can do as little as may be: calls do not overlap, blocks are short, deaths go unnoticed. */
#include "conformance/group_suite.h"
#include "group/callback/callback.h"
#include "support/table_hub.h"

static void *open_hub(int32_t size) {
    static const table_hub_options options = {.max_block = 1024};
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
    static const wh_group_kind kind = {"group_callback_plain", open_hub, join_hub, close_hub};
    return wh_group_suite_run(&kind);
}
