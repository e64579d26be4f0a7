/* The stream lane over the messages of a group that has no channels. */
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_lane_place *const places[] = {&wh_lane_place_local};
    return wh_lane_suite_run(&wh_lane_stream, places, 1);
}
