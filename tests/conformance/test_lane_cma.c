/* The lane that reads the source's memory: between threads, and between processes. */
#include "conformance/lane_suite.h"
#include "lane/lanes.h"

int main(void) {
    static const wh_lane_place *const places[] = {&wh_lane_place_local, &wh_lane_place_unix};
    return wh_lane_suite_run(&wh_lane_cma, places, 2);
}
