#include "conformance/hub_place.h"

#include "group/callback/callback.h"
#include "support/local_group.h"
#include "support/table_hub.h"

void *wh_open_local_place(int32_t size) {
    return wh_local_hub_create(size);
}

wh_group *wh_join_local_place(void *place, int32_t rank) {
    return wh_local_join(place, rank);
}

void wh_close_local_place(void *place) {
    wh_local_hub_release(place);
}

void *wh_open_table_place(int32_t size) {
    static const table_hub_options options = {.flags = TABLE_HUB_ALL, .blocks = true};
    return table_hub_open(size, &options);
}

void *wh_open_parts_place(int32_t size) {
    static const table_hub_options options = {.flags = TABLE_HUB_ALL, .blocks = true, .part_bytes = 64 << 10};
    return table_hub_open(size, &options);
}

void *wh_open_plain_place(int32_t size) {
    static const table_hub_options options = {.flags = WHERRY_GROUP_OPS_FIXED, .blocks = true};
    return table_hub_open(size, &options);
}

void *wh_open_bare_place(int32_t size) {
    static const table_hub_options options = {.flags = TABLE_HUB_ALL};
    return table_hub_open(size, &options);
}

void *wh_open_bare_plain_place(int32_t size) {
    static const table_hub_options options = {.flags = WHERRY_GROUP_OPS_FIXED};
    return table_hub_open(size, &options);
}

wh_group *wh_join_table_place(void *place, int32_t rank) {
    wherry_group_ops ops;
    void *context = table_hub_member(place, rank, &ops);
    wh_group *group = NULL;
    return wh_callback_create(&ops, context, &group, NULL) == WHERRY_OK ? group : NULL;
}

void wh_close_table_place(void *place) {
    table_hub_close(place);
}
