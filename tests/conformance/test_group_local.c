/* The group within one process. */
#include "conformance/group_suite.h"
#include "group/local.h"

static void *open_hub(int32_t size) {
    return wh_local_hub_create(size);
}

static wh_group *join_hub(void *hub, int32_t rank) {
    return wh_local_join(hub, rank);
}

static void close_hub(void *hub) {
    wh_local_hub_release(hub);
}

int main(void) {
    static const wh_group_kind local = {"group_local", open_hub, join_hub, close_hub};
    return wh_group_suite_run(&local);
}
