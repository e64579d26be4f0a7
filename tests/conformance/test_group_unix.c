/* The group over Unix sockets. */
#include "conformance/group_suite.h"
#include "conformance/sockets_place.h"

int main(void) {
    static const wh_group_kind kind = {"group_unix", wh_open_unix_place, wh_join_place, wh_close_place};
    return wh_group_suite_run(&kind);
}
