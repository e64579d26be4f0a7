#include "lane/lane_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/** With fewer bytes, the time to set up a lane matters more than its speed. */
enum { SORT_FROM_BYTES = 4 << 20 };

const wh_lane_ops *wh_lane_list_find(const wh_lane_list *list, const void *name, size_t size) {
    for (size_t i = 0; i < list->count; i++) {
        if (strlen(list->lanes[i]->name) == size && memcmp(list->lanes[i]->name, name, size) == 0) {
            return list->lanes[i];
        }
    }
    return NULL;
}

bool wh_lane_list_has(const wh_lane_list *list, uint32_t trait) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->lanes[i]->traits & trait) {
            return true;
        }
    }
    return false;
}

bool wh_lane_is_skipped(const wh_lane_list *list, const wh_lane_ops *lane, bool devices) {
    return !devices && lane->traits & WH_LANE_DEVICE && !list->ordered;
}

wherry_status wh_lane_check_encryption(const wh_lane_ops *lane, const wh_group *group, wherry_error *error) {
    bool may_leak = group->encrypts_all && !(lane->traits & WH_LANE_PRIVATE);
    return may_leak ? wh_fail(error, WHERRY_UNSUPPORTED,
                              "it cannot encrypt, and this group encrypts everything (encrypt=all)")
                    : WHERRY_OK;
}

static wherry_status fail_unknown(const wh_lane_list *all, const char *where, const char *text, wherry_error *error) {
    wh_string names = {0};
    for (size_t i = 0; i < all->count; i++) {
        wh_string_format(&names, "%s%s", i ? ", " : "", all->lanes[i]->name);
    }
    wh_fail(
        error, WHERRY_INVALID_ARGUMENT,
        "%s\"%s\" is not a list of lanes; write names separated by commas, or put ^ in front of each name to exclude "
        "these lanes; the lanes are: %s",
        where, text, names.failed ? "" : names.bytes);
    wh_free(names.bytes);
    return WHERRY_INVALID_ARGUMENT;
}

static void remove_lane(wh_lane_list *list, const wh_lane_ops *lane) {
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (list->lanes[i] != lane) {
            list->lanes[kept++] = list->lanes[i];
        }
    }
    list->count = kept;
}

wherry_status wh_lane_list_parse(const wh_lane_ops *const *lanes, size_t count, const char *text, wh_lane_list *list_p,
                                 wherry_error *error) {
    wh_lane_list all = {.count = count};
    memcpy(all.lanes, lanes, count * sizeof(*lanes));
    const char *where = text ? "" : "WHERRY_LANES: ";
    text = text ? text : getenv("WHERRY_LANES");
    if (!text || !*text) {
        *list_p = all;
        return WHERRY_OK;
    }
    bool excludes = *text == '^';
    wh_lane_list list = excludes ? all : (wh_lane_list){.count = 0};
    const char *at = text;
    for (;;) {
        size_t size = strcspn(at, ",");
        bool marked = size && *at == '^';
        const wh_lane_ops *lane = wh_lane_list_find(&all, at + marked, size - marked);
        if (!lane || marked != excludes) {
            return fail_unknown(&all, where, text, error);
        }
        remove_lane(&list, lane);
        if (!excludes) {
            list.lanes[list.count++] = lane;
        }
        if (!at[size]) {
            break;
        }
        at += size + 1;
    }
    if (!list.count) {
        return wh_fail(error, WHERRY_INVALID_ARGUMENT, "%s\"%s\" excludes all lanes", where, text);
    }
    list.ordered = !excludes;
    *list_p = list;
    return WHERRY_OK;
}

void wh_lane_list_sort(wh_lane_list *list, uint64_t bytes, uint64_t runs) {
    if (list->ordered || bytes < SORT_FROM_BYTES) {
        return;
    }
    wh_lane_list sorted = {.count = 0};
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < list->count; i++) {
            const wh_lane_ops *lane = list->lanes[i];
            bool network = lane->traits & WH_LANE_NETWORK;
            bool slow = !network && runs && bytes / runs < lane->run_bytes;
            if (pass == (network ? 2 : slow)) {
                sorted.lanes[sorted.count++] = lane;
            }
        }
    }
    *list = sorted;
}

/* ---- statistics ---- */

void wh_stats_add_lane(wherry_stats *stats, const char *name) {
    size_t used = strlen(stats->lane);
    size_t length = strlen(name);
    bool last = used >= length && strcmp(stats->lane + used - length, name) == 0;
    if (!last) {
        snprintf(stats->lane + used, sizeof(stats->lane) - used, "%s%s", used ? "+" : "", name);
    }
}

void wh_stats_skip_lane(wherry_stats *stats, const char *name, const wherry_error *error) {
    size_t used = strlen(stats->reasons);
    snprintf(stats->reasons + used, sizeof(stats->reasons) - used, "%s%s: %s", used ? "; " : "", name, error->message);
    if (stats->skipped_count == WHERRY_SKIPPED_LANES_MAX) {
        return;
    }
    wherry_skipped_lane *skipped = stats->skipped + stats->skipped_count++;
    bool failed = error->status != WHERRY_UNSUPPORTED;
    skipped->reason = error->reason ? (wherry_lane_reason)error->reason
                      : failed      ? WHERRY_LANE_FAILED
                                    : WHERRY_LANE_UNSUPPORTED;
    stats->lanes_failed += skipped->reason == WHERRY_LANE_FAILED;
    snprintf(skipped->lane, sizeof(skipped->lane), "%s", name);
    snprintf(skipped->text, sizeof(skipped->text), "%.*s", WHERRY_LANE_TEXT_MAX - 1, error->message);
}

void wh_stats_skip_forbidden(wherry_stats *stats, const wh_lane_ops *const *all, size_t count,
                             const wh_lane_list *allowed) {
    for (size_t i = 0; i < count; i++) {
        if (!wh_lane_list_find(allowed, all[i]->name, strlen(all[i]->name))) {
            wherry_error reason;
            wh_fail(&reason, WHERRY_UNSUPPORTED, "not allowed here");
            reason.reason = WHERRY_LANE_NOT_ALLOWED;
            wh_stats_skip_lane(stats, all[i]->name, &reason);
        }
    }
}

void wh_stats_describe_lane(wherry_stats *stats, const wh_lane_ops *lane, const wh_lane_end *end) {
    if (!lane || !lane->describe || !end) {
        return;
    }
    wh_string text = {0};
    lane->describe(end, &text);
    snprintf(stats->detail, sizeof(stats->detail), "%s", text.bytes && !text.failed ? text.bytes : "");
    wh_free(text.bytes);
}
