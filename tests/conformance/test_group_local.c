/* The group within one process. */
#include "conformance/group_suite.h"
#include "conformance/hub_place.h"

int main(void) {
    static const wh_group_kind local = {"group_local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    return wh_group_suite_run(&local);
}
