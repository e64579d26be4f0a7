/* Sending and receiving over one kind of group and one lane: test_transfer GROUP LANE [smoke]. */
#include <stdio.h>

#include "conformance/hub_place.h"
#include "conformance/sockets_place.h"
#include "conformance/transfer_suite.h"
#include "support/build.h"

int main(int count, char **arguments) {
    static const wh_group_kind kinds[] = {
        {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place},
        {"unix", wh_open_unix_place, wh_join_place, wh_close_place},
        {"tcp", wh_open_tcp_place, wh_join_place, wh_close_place},
        {"sealed", wh_open_sealed_place, wh_join_place, wh_close_place},
        {"near", wh_open_near_place, wh_join_place, wh_close_place},
        {"callback", wh_open_table_place, wh_join_table_place, wh_close_table_place},
        {"plain", wh_open_plain_place, wh_join_table_place, wh_close_table_place},
        {"bare", wh_open_bare_place, wh_join_table_place, wh_close_table_place},
        {"bare_plain", wh_open_bare_plain_place, wh_join_table_place, wh_close_table_place},
    };
    bool smoke = count == 4 && strcmp(arguments[3], "smoke") == 0;
    for (size_t i = 0; (count == 3 || smoke) && i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strcmp(kinds[i].name, arguments[1]) == 0) {
            return (smoke ? wh_transfer_smoke_run : wh_transfer_suite_run)(kinds + i, arguments[2]);
        }
    }
    fprintf(stderr, "usage: test_transfer local|unix|tcp|sealed|near|callback|plain|bare|bare_plain LANE [smoke]\n");
    return 2;
}
