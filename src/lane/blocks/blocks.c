/* The lane `blocks`: over a group that moves blocks of bytes from memory to memory by itself (wherry/group_ops.h). What both sides agree on. */
#include <stdatomic.h>
#include <sys/random.h>

#include <wherry/group_ops.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "lane/blocks/blocks_internal.h"
#include "lane/lanes.h"

/*
 * An offer is the version, the longest block of several chunks that the source makes (u8, MiB), and the bytes of its parts (u8, WH_BLOCKS_PART_UNIT). A request is
 * the version, the longest block that it shall make, which is no longer, the parts, which are not longer either (where one of the sides has none, there are none),
 * and the channel (u16). Numbers are big endian.
 */
enum { VERSION = 4, OFFER_BYTES = 3, CHANNELS = WHERRY_GROUP_CHANNEL_MAX + 1 };

/** What both sides agree on. */
typedef struct terms {
    uint8_t longest_mib;
    uint8_t part; /**< In WH_BLOCKS_PART_UNIT. */
    uint32_t channel;
} terms;

wh_blocks_limits wh_blocks_limit = {.longest_mib = WH_BLOCKS_LONG_MIB, .patience_ms = WH_BLOCKS_PATIENCE_MS};

/** The longest block of several chunks that this side agrees to, in MiB. */
static uint8_t longest_here(const wh_lane_site *site) {
    return site->no_progress_ms >= wh_blocks_limit.patience_ms ? wh_blocks_limit.longest_mib : 0;
}

/** The parts of a chunk that this side agrees to, in WH_BLOCKS_PART_UNIT. */
static uint8_t part_here(const wh_lane_site *site) {
    return (uint8_t)(site->group->ops->part_bytes / WH_BLOCKS_PART_UNIT);
}

/**
 * The next channel, for a receiver: no two of its transfers have the same until all were used. The first is random, since another incarnation of this rank
 * may have left something behind.
 */
static wherry_status next_channel(uint32_t *channel_p, wherry_error *error) {
    static atomic_uint next; /* 0: not begun */
    unsigned none = 0;
    uint16_t random;
    if (atomic_load(&next) == 0) {
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
            return wh_fail(error, WHERRY_SYSTEM, "the system gives no random numbers");
        }
        atomic_compare_exchange_strong(&next, &none, CHANNELS + random % CHANNELS);
    }
    *channel_p = atomic_fetch_add(&next, 1) % CHANNELS;
    return WHERRY_OK;
}

static wherry_status new_end(const wh_lane_site *site, const terms *agreed, wh_lane_end **end_p, wherry_error *error) {
    wh_blocks_end *own = wh_alloc_zeroed(1, sizeof(*own));
    if (!own) {
        return wh_fail_memory(error, "a lane");
    }
    own->base.workers = 1;
    own->site = site;
    own->channel = agreed->channel;
    own->longest = (uint64_t)agreed->longest_mib << 20;
    own->part = (uint64_t)agreed->part * WH_BLOCKS_PART_UNIT;
    *end_p = &own->base;
    return WHERRY_OK;
}

static wherry_status blocks_offer(const wh_lane_site *site, wh_string *offer, wherry_error *error) {
    char bytes[OFFER_BYTES] = {VERSION, (char)longest_here(site), (char)part_here(site)};
    wherry_status status = wh_group_check_blocks(site->group, site->peer, error);
    if (status == WHERRY_OK) {
        wh_string_append(offer, bytes, sizeof(bytes));
    }
    return offer->failed ? wh_fail_memory(error, "the offer of a lane") : status;
}

/** There is nothing to try: a block moves only when both sides are at it. */
static wherry_status blocks_probe(const wh_lane_site *site, const void *offer, size_t size, wh_string *request,
                                  bool *assist_p, wh_lane_end **end_p, wherry_error *error) {
    const uint8_t *offered = offer;
    *assist_p = false;
    if (size != OFFER_BYTES || offered[0] != VERSION || offered[1] > WH_BLOCKS_LONG_MIB) {
        return wh_fail(error, WHERRY_MALFORMED, "the offer of rank %d for the lane blocks cannot be read",
                       (int)site->peer);
    }
    terms agreed = {.longest_mib = (uint8_t)wh_min(offered[1], longest_here(site)),
                    .part = (uint8_t)wh_min(offered[2], part_here(site))};
    wherry_status status = wh_group_check_blocks(site->group, site->peer, error);
    if (status == WHERRY_OK) {
        status = next_channel(&agreed.channel, error);
    }
    if (status != WHERRY_OK) {
        return status;
    }
    wh_append_number(request, VERSION, 1);
    wh_append_number(request, agreed.longest_mib, 1);
    wh_append_number(request, agreed.part, 1);
    wh_append_number(request, agreed.channel, 2);
    return request->failed ? wh_fail_memory(error, "the request of a lane") : new_end(site, &agreed, end_p, error);
}

static wherry_status blocks_accept(const wh_lane_site *site, const void *request, size_t size, bool *ready_p,
                                   wh_lane_end **end_p, wherry_error *error) {
    wh_cursor at = wh_cursor_over(request, size);
    uint64_t version = wh_cursor_number(&at, 1);
    terms wanted = {.longest_mib = (uint8_t)wh_cursor_number(&at, 1),
                    .part = (uint8_t)wh_cursor_number(&at, 1),
                    .channel = (uint32_t)wh_cursor_number(&at, 2)};
    wherry_status status = wh_group_check_blocks(site->group, site->peer, error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (!wh_cursor_ended(&at) || version != VERSION || wanted.channel >= CHANNELS ||
        wanted.longest_mib > longest_here(site) || wanted.part > part_here(site)) {
        return wh_fail(error, WHERRY_MALFORMED, "the request of rank %d for the lane blocks cannot be read",
                       (int)site->peer);
    }
    *ready_p = true;
    return new_end(site, &wanted, end_p, error);
}

static wherry_status blocks_pull(wh_lane_end *end, uint32_t worker, const wh_sink *sink, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool done = false;
    (void)worker;
    while (status == WHERRY_OK && !done) {
        status = wh_blocks_pull_some(end, sink, WH_BLOCKS_WAIT_MS, &done, error);
    }
    return status;
}

static wherry_status blocks_push(wh_lane_end *end, uint32_t worker, const wh_feed *feed, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    bool done = false;
    (void)worker;
    while (status == WHERRY_OK && !done) {
        status = wh_blocks_push_some(end, feed, WH_BLOCKS_WAIT_MS, &done, error);
    }
    return status;
}

static void blocks_close(wh_lane_end *end) {
    wh_blocks_end *own = (void *)end;
    if (!own) {
        return;
    }
    wh_blocks_abandon(own);
    if (own->stuck) {
        if (own->site->held_p) {
            *own->site->held_p = true;
        }
        wh_leak(own);
        return;
    }
    for (size_t i = 0; i < WH_BLOCKS_AHEAD && own->order[i]; i++) {
        wh_free(own->order[i]->scratch);
        wh_free(own->order[i]->runs);
        for (size_t k = 0; k < WH_BLOCKS_CHUNKS; k++) {
            wh_landing_destroy(own->order[i]->landings + k);
        }
        wh_free(own->order[i]);
    }
    for (size_t i = 0; i < WH_BLOCKS_PARTS; i++) {
        wh_landing_destroy(own->landings + i);
    }
    wh_segments_destroy(&own->segments);
    wh_digester_destroy(own->digester);
    wh_free(own);
}

const wh_lane_ops wh_lane_blocks = {
    .name = "blocks",
    .traits = WH_LANE_NETWORK | WH_LANE_MESSAGES | WH_LANE_STAGES,
    .finish_ms = WH_BLOCKS_FINISH_MS,
    .offer = blocks_offer,
    .probe = blocks_probe,
    .accept = blocks_accept,
    .pull = blocks_pull,
    .push = blocks_push,
    .pull_some = wh_blocks_pull_some,
    .push_some = wh_blocks_push_some,
    .close = blocks_close,
};
