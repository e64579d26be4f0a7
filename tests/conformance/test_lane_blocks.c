/* The lane of blocks over a table that can do everything, over one whose calls must not overlap, and over one that takes them in parts. */
#include "conformance/hub_place.h"
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_group_kind callback = {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind plain = {"plain", wh_open_plain_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind parts = {"parts", wh_open_parts_place, wh_join_table_place, wh_close_table_place};
    static const wh_lane_place places[] = {{&callback, false}, {&plain, false}, {&parts, false}};
    static const wh_lane_place *const all[] = {places, places + 1, places + 2};
    return wh_lane_suite_run(&wh_lane_blocks, all, 3);
}
