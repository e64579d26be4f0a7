/* The ucx lane, over the transports in UCX_TLS. */
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    /* Cases that fork come first. */
    const wh_lane_place *places[] = {&wh_lane_place_unix, &wh_lane_place_local};
    return wh_lane_suite_run(&wh_lane_ucx, places, sizeof(places) / sizeof(places[0]));
}
