/*
 * Chunks as blocks of the group. Both sides know the chunks of a round, their order and their sizes from the plan, so that the n-th block of a round is its
 * n-th chunk and nothing travels but bytes.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"
#include "lane/blocks/blocks_internal.h"

/** A side's own part of the work; `what` is its feed or its sink. */
typedef struct side {
    const void *what;

    /** Begins the next chunk of the round, if there is one. @param begun_p  whether there was. */
    wherry_status (*begin)(wh_blocks_end *own, const void *what, bool *begun_p, wherry_error *error);

    /** The bytes of a chunk have moved. */
    wherry_status (*end)(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error);
} side;

static wherry_status blame(const wh_blocks_end *own, wherry_status status, wherry_error *error) {
    return status == WHERRY_OK ? status : wh_fail_about(error, own->site->peer, status);
}

static wherry_status cancelled(wherry_error *error) {
    return wh_fail(error, WHERRY_CANCELLED, "the transfer was stopped");
}

static void be_patient(wh_blocks_end *own) {
    own->patience = wh_deadline_earlier(own->site->deadline, wh_deadline_in_ms(own->site->no_progress_ms));
}

static wherry_status timed_out(const wh_blocks_end *own, wherry_error *error) {
    const wh_lane_site *site = own->site;
    wherry_status status =
        wh_deadline_passed(site->deadline)
            ? wh_fail(error, WHERRY_TIMED_OUT, "timed out before all bytes had moved between here and rank %d",
                      (int)site->peer)
            : wh_fail(error, WHERRY_TIMED_OUT,
                      "timed out: rank %d has not moved a byte for %u ms; it is stopped, or the network is",
                      (int)site->peer, (unsigned)site->no_progress_ms);
    return blame(own, status, error);
}

/* ---- what is under way ---- */

/** Where the next chunk will be. There must be room. */
static wh_block *next_block(wh_blocks_end *own) {
    return own->blocks + (own->oldest + own->count) % WH_BLOCKS_UNDER_WAY;
}

static void note_begun(wh_blocks_end *own, const wh_block *block) {
    own->count++;
    own->bytes += block->size;
}

/** The oldest is gone. */
static wh_block *note_gone(wh_blocks_end *own) {
    wh_block *block = own->blocks + own->oldest;
    own->oldest = (own->oldest + 1) % WH_BLOCKS_UNDER_WAY;
    own->count--;
    own->bytes -= block->size;
    return block;
}

void wh_blocks_abandon(wh_blocks_end *own) {
    while (own->count) {
        own->site->group->ops->abandon(own->site->group, note_gone(own)->operation);
    }
}

static bool reserve_scratch(wh_block *block) {
    return WH_RESERVE(block->scratch, block->scratch_bytes, block->size);
}

/* ---- the source ---- */

static void pack(const wh_segments *segments, uint8_t *to) {
    for (size_t i = 0; i < segments->count; i++) {
        memcpy(to, segments->items[i].iov_base, segments->items[i].iov_len);
        to += segments->items[i].iov_len;
    }
}

static wherry_status begin_put(wh_blocks_end *own, const void *what, bool *begun_p, wherry_error *error) {
    const wh_feed *feed = what;
    wh_block *block = next_block(own);
    uint64_t chunk;
    *begun_p = feed->next(feed->context, &chunk);
    wherry_status status = *begun_p ? feed->gather(feed->context, chunk, &own->segments, error) : WHERRY_OK;
    if (!*begun_p || status != WHERRY_OK) {
        return status;
    }
    block->size = own->segments.bytes;
    block->in_place = own->segments.count == 1;
    const void *bytes = own->segments.items[0].iov_base;
    if (!block->in_place) {
        if (!reserve_scratch(block)) {
            return wh_fail_memory(error, "a block");
        }
        pack(&own->segments, block->scratch);
        bytes = block->scratch;
    }
    wh_group *group = own->site->group;
    status = group->ops->put(group, own->site->peer, own->channel, bytes, block->size, &block->operation, error);
    if (status == WHERRY_OK) {
        note_begun(own, block);
    }
    return blame(own, status, error);
}

static wherry_status end_put(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error) {
    const wh_feed *feed = what;
    (void)own, (void)error;
    feed->moved(feed->context, block->size);
    return WHERRY_OK;
}

/* ---- the receiver ---- */

/** Puts bytes to where they belong; those that have no place are dropped. */
static void unpack(const uint8_t *from, const wh_segments *segments) {
    for (size_t i = 0; i < segments->count; i++) {
        if (segments->items[i].iov_base) {
            memcpy(segments->items[i].iov_base, from, segments->items[i].iov_len);
        }
        from += segments->items[i].iov_len;
    }
}

static wherry_status begin_get(wh_blocks_end *own, const void *what, bool *begun_p, wherry_error *error) {
    const wh_sink *sink = what;
    wh_block *block = next_block(own);
    const wh_segments *segments = &block->landing.segments;
    uint64_t chunk;
    *begun_p = sink->next(sink->context, &chunk);
    wherry_status status = *begun_p ? sink->open(sink->context, chunk, &block->landing, error) : WHERRY_OK;
    if (!*begun_p || status != WHERRY_OK) {
        return status;
    }
    block->size = segments->bytes;
    block->in_place = segments->count == 1 && segments->items[0].iov_base;
    if (!block->in_place && !reserve_scratch(block)) {
        return wh_fail_memory(error, "a block");
    }
    wh_group *group = own->site->group;
    status = group->ops->get(group, own->site->peer, own->channel,
                             block->in_place ? segments->items[0].iov_base : block->scratch, block->size,
                             &block->operation, error);
    if (status == WHERRY_OK) {
        note_begun(own, block);
    }
    return blame(own, status, error);
}

static wherry_status end_get(wh_blocks_end *own, const void *what, wh_block *block, wherry_error *error) {
    const wh_sink *sink = what;
    const wh_segments *segments = &block->landing.segments;
    wh_digest digest;
    if (!block->in_place) {
        unpack(block->scratch, segments);
    }
    if (sink->verify) {
        /* What lies in scratch is whole and in the cache. */
        struct iovec packed = {block->scratch, block->size};
        digest = wh_digest_of(own->digester, block->in_place ? segments->items : &packed, 1);
    }
    sink->moved(sink->context, block->size);
    return sink->close(sink->context, &block->landing, sink->verify ? &digest : NULL, NULL, error);
}

/* ---- both ---- */

/** Begins chunks while there is room. */
static wherry_status begin_some(wh_blocks_end *own, const side *s, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    while (status == WHERRY_OK && !own->given && own->count < WH_BLOCKS_UNDER_WAY && own->bytes < WH_BLOCKS_BYTES) {
        bool begun;
        status = s->begin(own, s->what, &begun, error);
        own->given = status == WHERRY_OK && !begun;
    }
    return status;
}

/** Ends those that are done, in their order, so that no more than a few are before the caller looks around again. */
static wherry_status end_some(wh_blocks_end *own, const side *s, uint32_t wait_ms, wherry_error *error) {
    wh_group *group = own->site->group;
    wherry_status status = WHERRY_OK;
    for (int ended = 0; status == WHERRY_OK && own->count && ended < WH_BLOCKS_UNDER_WAY; ended++) {
        status =
            group->ops->finish(group, own->site->peer, own->blocks[own->oldest].operation, ended ? 0 : wait_ms, error);
        if (status == WHERRY_TIMED_OUT) {
            return wh_deadline_passed(own->patience) ? timed_out(own, error) : WHERRY_OK;
        }
        wh_block *block = note_gone(own);
        be_patient(own);
        status = status == WHERRY_OK ? s->end(own, s->what, block, error) : blame(own, status, error);
        if (status == WHERRY_OK) {
            status = begin_some(own, s, error);
        }
    }
    return status;
}

static wherry_status work_some(wh_blocks_end *own, const side *s, uint32_t wait_ms, bool *done_p, wherry_error *error) {
    wherry_status status = WHERRY_OK;
    if (!own->begun) {
        own->begun = true;
        own->given = false;
        be_patient(own);
    }
    if (wh_stop_requested(own->site->stop)) {
        status = cancelled(error);
    } else if (wh_deadline_passed(own->site->deadline)) {
        status = timed_out(own, error);
    }
    if (status == WHERRY_OK) {
        status = begin_some(own, s, error);
    }
    if (status == WHERRY_OK) {
        status = end_some(own, s, wait_ms, error);
    }
    bool over = status == WHERRY_OK && own->given && own->count == 0;
    if (over && wh_stop_requested(own->site->stop)) {
        status = cancelled(error); /* then there were no more chunks for that reason */
    }
    if (status != WHERRY_OK) {
        wh_blocks_abandon(own);
    }
    own->begun = status == WHERRY_OK && !over;
    *done_p = status == WHERRY_OK && over;
    return status;
}

wherry_status wh_blocks_push_some(wh_lane_end *end, const wh_feed *feed, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error) {
    const side source = {feed, begin_put, end_put};
    return work_some((void *)end, &source, wait_ms, done_p, error);
}

wherry_status wh_blocks_pull_some(wh_lane_end *end, const wh_sink *sink, uint32_t wait_ms, bool *done_p,
                                  wherry_error *error) {
    const side receiver = {sink, begin_get, end_get};
    wh_blocks_end *own = (void *)end;
    if (sink->verify && !own->digester) {
        own->digester = wh_digester_create();
        if (!own->digester) {
            return wh_fail_memory(error, "a digest");
        }
    }
    return work_some(own, &receiver, wait_ms, done_p, error);
}
