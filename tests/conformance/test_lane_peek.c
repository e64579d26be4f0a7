/* The example lane of docs/writing-a-lane.md. */
#include "conformance/lane_peek.h"
#include "conformance/lane_suite.h"

int main(void) {
    static const wh_lane_place *const places[] = {&wh_lane_place_local, &wh_lane_place_unix};
    return wh_lane_suite_run(&wh_lane_peek, places, 2);
}
