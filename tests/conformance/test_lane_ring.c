/* The ring lane. */
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    const wh_lane_place *places[] = {&wh_lane_place_local, &wh_lane_place_unix};
    return wh_lane_suite_run(&wh_lane_ring, places, sizeof(places) / sizeof(places[0]));
}
