/*
 * The blocks lane over tables with all features, with calls that must not overlap, with blocks in
 * parts, and without put and get.
 */
#include "conformance/hub_place.h"
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_group_kind callback = {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind plain = {"plain", wh_open_plain_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind parts = {"parts", wh_open_parts_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind bare = {"bare", wh_open_bare_place, wh_join_table_place, wh_close_table_place};
    static const wh_group_kind bare_plain = {"bare_plain", wh_open_bare_plain_place, wh_join_table_place,
                                             wh_close_table_place};
    static const wh_lane_place places[] = {
        {&callback, false}, {&plain, false}, {&parts, false}, {&bare, false}, {&bare_plain, false}};
    static const wh_lane_place *const all[] = {places, places + 1, places + 2, places + 3, places + 4};
    return wh_lane_suite_run(&wh_lane_blocks, all, 5);
}
