/* The stream lane over channels: Unix sockets, and TCP. */
#include "conformance/lane_suite.h"
#include "conformance/sockets_place.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_group_kind tcp_kind = {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place};
    static const wh_lane_place tcp = {&tcp_kind, true};
    static const wh_lane_place *const places[] = {&wh_lane_place_unix, &tcp};
    return wh_lane_suite_run(&wh_lane_stream, places, 2);
}
