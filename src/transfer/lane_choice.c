#include "transfer/lane_choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { ORDER_FROM = 4 << 20 };

const wh_lane_ops *wh_lane_choice_find(const wh_lane_choice *choice, const void *name, size_t size) {
    for (size_t i = 0; i < choice->count; i++) {
        if (strlen(choice->lanes[i]->name) == size && memcmp(choice->lanes[i]->name, name, size) == 0) {
            return choice->lanes[i];
        }
    }
    return NULL;
}

bool wh_lane_choice_has(const wh_lane_choice *choice, uint32_t trait) {
    bool has = false;
    for (size_t i = 0; i < choice->count; i++) {
        has = has || choice->lanes[i]->traits & trait;
    }
    return has;
}

bool wh_lane_choice_passes(const wh_lane_choice *choice, const wh_lane_ops *lane, bool devices) {
    return !devices && lane->traits & WH_LANE_DEVICE && !choice->ordered;
}

static wherry_status fail_unknown(const wh_lane_choice *all, const char *text, wherry_error *error) {
    wh_string names = {0};
    for (size_t i = 0; i < all->count; i++) {
        wh_string_format(&names, "%s%s", i ? ", " : "", all->lanes[i]->name);
    }
    wh_fail(error, WHERRY_INVALID_ARGUMENT,
            "\"%s\" is not a choice of lanes; write names with commas between them, or each with ^ in front to forbid "
            "them; there are: %s",
            text, names.failed ? "" : names.bytes);
    wh_free(names.bytes);
    return WHERRY_INVALID_ARGUMENT;
}

static void leave_out(wh_lane_choice *choice, const wh_lane_ops *lane) {
    size_t kept = 0;
    for (size_t i = 0; i < choice->count; i++) {
        if (choice->lanes[i] != lane) {
            choice->lanes[kept++] = choice->lanes[i];
        }
    }
    choice->count = kept;
}

wherry_status wh_lane_choice_make(const wherry_transport *transport, const char *text, wh_lane_choice *choice,
                                  wherry_error *error) {
    wh_lane_choice all = {.count = transport->lane_count};
    memcpy(all.lanes, transport->lanes, all.count * sizeof(*all.lanes));
    text = text ? text : getenv("WHERRY_LANES");
    if (!text || !*text) {
        *choice = all;
        return WHERRY_OK;
    }
    bool forbids = *text == '^';
    wh_lane_choice chosen = forbids ? all : (wh_lane_choice){.count = 0};
    const char *at = text;
    for (;;) {
        size_t size = strcspn(at, ",");
        bool marked = size && *at == '^';
        const wh_lane_ops *lane = wh_lane_choice_find(&all, at + marked, size - marked);
        if (!lane || marked != forbids) {
            return fail_unknown(&all, text, error);
        }
        leave_out(&chosen, lane);
        if (!forbids) {
            chosen.lanes[chosen.count++] = lane;
        }
        if (!at[size]) {
            break;
        }
        at += size + 1;
    }
    if (!chosen.count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "\"%s\" forbids all lanes", text);
    }
    *choice = chosen;
    choice->ordered = !forbids;
    return WHERRY_OK;
}

void wh_lane_choice_order(wh_lane_choice *choice, uint64_t bytes, uint64_t runs) {
    if (choice->ordered || bytes < ORDER_FROM) {
        return; /* with so few bytes, the time to set a lane up counts */
    }
    wh_lane_choice ordered = {.count = 0};
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < choice->count; i++) {
            const wh_lane_ops *lane = choice->lanes[i];
            bool network = lane->traits & WH_LANE_NETWORK;
            bool slow = !network && runs && bytes / runs < lane->run_bytes;
            if (pass == (network ? 2 : slow)) {
                ordered.lanes[ordered.count++] = lane;
            }
        }
    }
    *choice = ordered;
}
