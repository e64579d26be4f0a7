/* The group that meets over TCP and then uses Unix sockets, since its members share a host. */
#include "conformance/group_suite.h"
#include "conformance/sockets_place.h"

int main(void) {
    static const wh_group_kind kind = {"group_near", wh_open_near_place, wh_join_place, wh_close_place};
    return wh_group_suite_run(&kind);
}
