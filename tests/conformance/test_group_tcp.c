/* The group over TCP on loopback, with a secret. */
#include "conformance/group_suite.h"
#include "conformance/sockets_place.h"

int main(void) {
    static const wh_group_kind kind = {"group_tcp", wh_open_tcp_place, wh_join_place, wh_close_place};
    return wh_group_suite_run(&kind);
}
