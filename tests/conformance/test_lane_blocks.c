/* The lane of blocks over a table that can do everything, and over one whose calls must not overlap. */
#include "conformance/hub_place.h"
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_group_kind callback = {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind plain = {"plain", wh_open_plain_place, wh_join_table_place, wh_close_table_place};
    static const wh_lane_place places[] = {{&callback, false}, {&plain, false}};
    static const wh_lane_place *const both[] = {places, places + 1};
    return wh_lane_suite_run(&wh_lane_blocks, both, 2);
}
