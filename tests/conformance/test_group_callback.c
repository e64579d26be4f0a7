/* The group over a table of one's own that can do everything. */
#include "conformance/group_suite.h"
#include "conformance/hub_place.h"
#include "support/table_hub.h"

static void *open_hub(int32_t size) {
    static const table_hub_options options = {.flags = TABLE_HUB_ALL};
    return table_hub_open(size, &options);
}

int main(void) {
    static const wh_group_kind kind = {"group_callback", open_hub, wh_join_table_place, wh_close_table_place};
    return wh_group_suite_run(&kind);
}
