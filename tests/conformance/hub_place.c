#include "conformance/hub_place.h"

#include "group/callback/callback.h"
#include "support/callback_hub.h"
#include "support/local_group.h"

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
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL, .blocks = true};
    return callback_hub_open(size, &options);
}

void *wh_open_parts_place(int32_t size) {
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL, .blocks = true, .part_bytes = 64 << 10};
    return callback_hub_open(size, &options);
}

void *wh_open_plain_place(int32_t size) {
    static const callback_hub_options options = {.flags = WHERRY_GROUP_OPS_FIXED, .blocks = true};
    return callback_hub_open(size, &options);
}

void *wh_open_bare_place(int32_t size) {
    static const callback_hub_options options = {.flags = CALLBACK_HUB_ALL};
    return callback_hub_open(size, &options);
}

void *wh_open_bare_plain_place(int32_t size) {
    static const callback_hub_options options = {.flags = WHERRY_GROUP_OPS_FIXED};
    return callback_hub_open(size, &options);
}

wh_group *wh_join_table_place(void *place, int32_t rank) {
    wherry_group_ops ops;
    void *context = callback_hub_member(place, rank, &ops);
    wh_group *group = NULL;
    return wh_callback_create(&ops, context, &group, NULL) == WHERRY_OK ? group : NULL;
}

void wh_close_table_place(void *place) {
    callback_hub_close(place);
}
